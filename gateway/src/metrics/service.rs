//! Figures of the service behind the gateway: the supervisor's, and those that the workers report
//! to it. They are set at each scrape. Without a supervisor they are left out, because old figures
//! would pass for new ones.

use std::sync::atomic::Ordering;

use paceline_proto::convert::service::{ProcessReport, ServiceStatus};
use paceline_vocabulary::state::{LinkPhase, ProcessState};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Labels;

/// Seconds with their fraction.
type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

/// The service's figures as they are written. All are families, which can be empty.
#[derive(Debug, Default)]
pub(super) struct ServiceMetrics {
    up: Gauge,
    states: Family<Labels<2>, Gauge>,
    restarts: Family<Labels<1>, Counter>,
    uptime: Family<Labels<1>, Seconds>,
    kv: Family<Labels<1>, Gauge>,
    memory: Family<Labels<1>, Gauge>,
    requests: Family<Labels<1>, Gauge>,
    waiting_tokens: Family<Labels<1>, Gauge>,
    idle: Family<Labels<0>, Seconds>,
    link_up: Family<Labels<0>, Gauge>,
    link_bytes: Family<Labels<0>, Counter>,
    late_drafts: Family<Labels<0>, Counter>,
}

impl ServiceMetrics {
    pub(super) fn register(to: &mut Registry) -> Self {
        let own = Self::default();
        to.register("supervisor_up", "1 if the supervisor answered", own.up.clone());
        to.register("process_state", "1 for the state a process is in", own.states.clone());
        let help = "Restarts since the supervisor's start that nobody ordered";
        to.register("process_restarts", help, own.restarts.clone());
        let help = "Time since a process's start";
        to.register_with_unit("process_uptime", help, Unit::Seconds, own.uptime.clone());
        let help = "The target's KV memory";
        to.register_with_unit("kv", help, Unit::Bytes, own.kv.clone());
        let help = "The machine's memory as admission counts it";
        to.register_with_unit("memory", help, Unit::Bytes, own.memory.clone());
        let help = "Requests inside the supervisor";
        to.register("supervisor_requests", help, own.requests.clone());
        let help = "Tokens of requests whose prompts are not begun";
        to.register("waiting_tokens", help, own.waiting_tokens.clone());
        let help = "Time since the last request ended; 0 while one is inside";
        to.register_with_unit("idle", help, Unit::Seconds, own.idle.clone());
        to.register("link_up", "1 if drafts can come", own.link_up.clone());
        let help = "Both directions of the link, since the target's start";
        to.register_with_unit("link", help, Unit::Bytes, own.link_bytes.clone());
        let help = "Drafts that came too late, since the target's start";
        to.register("late_drafts", help, own.late_drafts.clone());
        own
    }

    pub(super) fn set(&self, status: Option<&ServiceStatus>) {
        self.up.set(status.is_some().into());
        self.clear();
        let Some(status) = status else { return };
        for (name, process) in status.processes() {
            self.set_process(name, process);
        }
        let gauge = |family: &Family<Labels<1>, Gauge>, label, value, number: u64| {
            family.get_or_create(&[(label, value)]).set(i64::try_from(number).unwrap_or(i64::MAX));
        };
        let ServiceStatus { kv, memory, requests, link, .. } = status;
        gauge(&self.kv, "kind", "budget", kv.budget_bytes);
        gauge(&self.kv, "kind", "held", kv.held_bytes);
        gauge(&self.kv, "kind", "prefix", kv.prefix_bytes);
        gauge(&self.memory, "kind", "budget", memory.budget_bytes);
        gauge(&self.memory, "kind", "target", memory.target_bytes);
        gauge(&self.memory, "kind", "drafter", memory.drafter_bytes);
        gauge(&self.memory, "kind", "cache", memory.cache_bytes);
        gauge(&self.memory, "kind", "available", memory.available_bytes);
        gauge(&self.requests, "state", "active", requests.active.into());
        gauge(&self.requests, "state", "queued", requests.queued.into());
        gauge(&self.requests, "state", "unstarted", requests.unstarted.into());
        gauge(&self.waiting_tokens, "state", "queued", requests.queued_tokens);
        gauge(&self.waiting_tokens, "state", "unstarted", requests.unstarted_tokens);
        self.idle.get_or_create(&[]).set(requests.idle_s);
        let is_up = link.state == LinkPhase::Up.word();
        self.link_up.get_or_create(&[]).set(is_up.into());
        set_counter(&self.link_bytes.get_or_create(&[]), link.bytes.unwrap_or_default());
        set_counter(&self.late_drafts.get_or_create(&[]), link.late);
    }

    /// A process that the supervisor does not report has no state, and no figures.
    fn set_process(&self, name: &'static str, process: &ProcessReport) {
        let Ok(present) = ProcessState::try_from(process.state) else { return };
        let name = ("process", name);
        for state in ProcessState::ALL {
            let is_in = present == *state;
            self.states.get_or_create(&[name, ("state", state.word())]).set(is_in.into());
        }
        set_counter(&self.restarts.get_or_create(&[name]), process.restarts.into());
        self.uptime.get_or_create(&[name]).set(process.uptime_s);
    }

    fn clear(&self) {
        self.states.clear();
        self.restarts.clear();
        self.uptime.clear();
        self.kv.clear();
        self.memory.clear();
        self.requests.clear();
        self.waiting_tokens.clear();
        self.idle.clear();
        self.link_up.clear();
        self.link_bytes.clear();
        self.late_drafts.clear();
    }
}

/// Sets a counter to a total that another process counts. It begins again with that process.
fn set_counter(counter: &Counter, total: u64) {
    counter.inner().store(total, Ordering::Relaxed);
}
