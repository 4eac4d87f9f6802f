//! Figures of the service behind the gateway: the supervisor's, and those that the workers report
//! to it. They are set at each scrape. Without a supervisor they are left out, because old figures
//! would pass for new ones.

use std::sync::atomic::Ordering;

use paceline_vocabulary::state::ProcessState;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Labels;

/// Figures of the service at one instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceFigures {
    /// Each process under its name.
    pub processes: Vec<ProcessFigures>,
    /// Most bytes that sequences may hold together.
    pub kv_budget_bytes: u64,
    /// Bytes that running sequences hold.
    pub kv_held_bytes: u64,
    /// Bytes that the prefix cache holds.
    pub kv_prefix_bytes: u64,
    /// Bytes that running sequences hold, divided by the most that they may hold.
    pub kv_pressure: f64,
    /// Bytes of one position of a long sequence; 0 until the target has loaded.
    pub position_bytes: u64,
    /// Requests that run.
    pub active: u32,
    /// Requests that wait.
    pub queued: u32,
    /// Those of `active` of which the target has computed no row.
    pub unstarted: u32,
    /// Most of `active` at once; 0 until the target has loaded.
    pub most_active: u32,
    /// Tokens that the queued requests begin with.
    pub queued_tokens: u64,
    /// Tokens of the unstarted requests.
    pub unstarted_tokens: u64,
    /// Whether the target has accepted the drafter's link.
    pub link_up: bool,
    /// Bytes over the link since the target's start.
    pub link_bytes: u64,
    /// Drafts that came too late since the target's start.
    pub late_drafts: u64,
    /// Most bytes that all of ours may hold.
    pub memory_budget_bytes: u64,
    /// Bytes of the target's arrays.
    pub target_bytes: u64,
    /// Bytes of the drafter's arrays.
    pub drafter_bytes: u64,
    /// Bytes of MLX's caches.
    pub cache_bytes: u64,
    /// Bytes that are free in the machine.
    pub available_bytes: u64,
}

/// One process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessFigures {
    /// gateway, supervisor, target or drafter.
    pub name: &'static str,
    /// State of the process, if it is a known one.
    pub state: Option<ProcessState>,
    /// Restarts that were not ordered.
    pub restarts: u32,
    /// Seconds since the start of the process.
    pub uptime_s: f64,
}

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
        to.register("link_up", "1 if drafts can come", own.link_up.clone());
        let help = "Both directions of the link, since the target's start";
        to.register_with_unit("link", help, Unit::Bytes, own.link_bytes.clone());
        let help = "Drafts that came too late, since the target's start";
        to.register("late_drafts", help, own.late_drafts.clone());
        own
    }

    pub(super) fn set(&self, figures: Option<&ServiceFigures>) {
        self.up.set(figures.is_some().into());
        self.clear();
        let Some(figures) = figures else { return };
        for process in &figures.processes {
            self.set_process(process);
        }
        let gauge = |family: &Family<Labels<1>, Gauge>, label, value, number: u64| {
            family.get_or_create(&[(label, value)]).set(i64::try_from(number).unwrap_or(i64::MAX));
        };
        gauge(&self.kv, "kind", "budget", figures.kv_budget_bytes);
        gauge(&self.kv, "kind", "held", figures.kv_held_bytes);
        gauge(&self.kv, "kind", "prefix", figures.kv_prefix_bytes);
        gauge(&self.memory, "kind", "budget", figures.memory_budget_bytes);
        gauge(&self.memory, "kind", "target", figures.target_bytes);
        gauge(&self.memory, "kind", "drafter", figures.drafter_bytes);
        gauge(&self.memory, "kind", "cache", figures.cache_bytes);
        gauge(&self.memory, "kind", "available", figures.available_bytes);
        gauge(&self.requests, "state", "active", figures.active.into());
        gauge(&self.requests, "state", "queued", figures.queued.into());
        gauge(&self.requests, "state", "unstarted", figures.unstarted.into());
        gauge(&self.waiting_tokens, "state", "queued", figures.queued_tokens);
        gauge(&self.waiting_tokens, "state", "unstarted", figures.unstarted_tokens);
        self.link_up.get_or_create(&[]).set(figures.link_up.into());
        set_counter(&self.link_bytes.get_or_create(&[]), figures.link_bytes);
        set_counter(&self.late_drafts.get_or_create(&[]), figures.late_drafts);
    }

    fn set_process(&self, process: &ProcessFigures) {
        let name = ("process", process.name);
        for state in ProcessState::ALL {
            let is_in = process.state == Some(*state);
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
        self.link_up.clear();
        self.link_bytes.clear();
        self.late_drafts.clear();
    }
}

/// Sets a counter to a total that another process counts. It begins again with that process.
fn set_counter(counter: &Counter, total: u64) {
    counter.inner().store(total, Ordering::Relaxed);
}
