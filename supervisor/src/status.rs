//! Answers to operators and the gateway: pure functions of the core's state.

use std::path::Path;

use paceline_proto::internal::v1::ServiceState;
use paceline_proto::v1::{
    self, ImageLimits, KvReduction, KvStatus, LinkStatus, MemoryStatus, ModelStatus,
    PolicyResponse, PolicySetting, ProcessStatus, RefusedDrafter, RequestsStatus, RouteCount,
    RoutingStatus, Speculation, StatusResponse,
};
use paceline_supervisor_core::drafter::RefusedDrafter as Refused;
use paceline_supervisor_core::routing::PolicyChange;
use paceline_supervisor_core::worker::Worker;
use paceline_supervisor_core::{Notice, Supervisor};
use paceline_system::platform;
use paceline_vocabulary::report::{Heartbeat, LinkReport, SpeculationBucket};
use paceline_vocabulary::state::{LinkPhase, ProcessState};
use paceline_vocabulary::{Lane, Millis, RouteReason};

/// Facts about the supervisor's own process that the core does not have.
#[derive(Clone, Debug)]
pub struct OwnProcess {
    /// Process id.
    pub pid: u32,
    /// Number of our life.
    pub term: u64,
    /// Restarts without an order, as counted by the process that starts this one.
    pub restarts: u32,
    /// The KV budget is reduced, because the machine went down at work.
    pub kv_reduced: bool,
}

/// The gateway's view at `now`.
pub fn service_state(core: &Supervisor, notice: &Notice, now: Millis) -> ServiceState {
    let (reason, message) = match &notice.outage {
        None => (String::new(), String::new()),
        Some(outage) => (outage.reason.word().to_owned(), outage.why.clone()),
    };
    let model = notice.described.as_ref().and_then(|described| described.model());
    let model = model.cloned().map(Into::into);
    ServiceState {
        can_serve: notice.outage.is_none(),
        reason,
        message,
        model,
        drafter_serves: core.drafters().serves(),
        leaving: notice.leaving,
        held: notice.held,
        held_reason: notice
            .resumed_outage
            .as_ref()
            .map_or_else(String::new, |outage| outage.reason.word().to_owned()),
        retry_ms: u32::try_from(core.retry_ms(now)).unwrap_or(u32::MAX),
    }
}

/// With the age of its process: one of an earlier supervisor's time is older than this supervisor
/// knows.
fn aged(process: ProcessStatus) -> Option<ProcessStatus> {
    let age = platform::process_age(process.pid).filter(|_| process.pid != 0);
    let uptime_s = age.map_or(0.0, |age| age.as_secs_f64()).max(process.uptime_s);
    Some(ProcessStatus { uptime_s, ..process })
}

/// The operators' view at `now`, which counts from our start. The model in `model_dir` is served.
pub fn snapshot(
    core: &Supervisor,
    own: &OwnProcess,
    model_dir: &Path,
    now: Millis,
) -> StatusResponse {
    let seconds_since = |since: Millis| now.since(since) as f64 / 1e3;
    let gateway = core.gateway();
    let attached = gateway.attached();
    let report = gateway.report();
    let target = core.target();
    let life = target.life();
    let heartbeat = life.and_then(|life| life.heartbeat.as_ref());
    StatusResponse {
        gateway: aged(ProcessStatus {
            state: state_message(gateway.state()),
            pid: attached.and(report).map_or(0, |report| report.pid),
            epoch: gateway.epoch().0,
            restarts: report.map_or(0, |report| report.restarts),
            uptime_s: attached.map_or(0.0, seconds_since),
            reason: if attached.is_some() { String::new() } else { "not attached".into() },
            ..Default::default()
        }),
        supervisor: Some(ProcessStatus {
            state: state_message(match core.is_stopping() {
                true => ProcessState::Draining,
                false => ProcessState::Ready,
            }),
            pid: own.pid,
            epoch: own.term,
            restarts: own.restarts,
            uptime_s: now.0 as f64 / 1e3,
            reason: core
                .notice()
                .outage
                .filter(|_| core.is_stopping())
                .map(|outage| outage.why)
                .unwrap_or_default(),
            ..Default::default()
        }),
        target: aged(worker(target, model_dir.display().to_string(), now)),
        drafter: aged(drafter(core, now)),
        kv: Some(kv_status(core, own)),
        requests: Some(requests(core, now)),
        link: Some(link(heartbeat, core.drafters().is_wanted())),
        term: own.term,
        routing: Some(routing(core)),
        memory: Some(memory(core)),
        model: model(core),
        refused_drafters: core.drafters().refused().into_iter().map(refused_message).collect(),
    }
}

fn requests(core: &Supervisor, now: Millis) -> RequestsStatus {
    let (admission, target) = (core.admission(), core.target());
    let active = admission.active() as u32;
    let heartbeat = target.life().and_then(|life| life.heartbeat.as_ref());
    let unstarted = heartbeat.filter(|_| active > 0);
    let capacity = target.described().and_then(|described| described.capacity());
    RequestsStatus {
        active,
        queued: admission.queued() as u32,
        speculative: admission.drafting() as u32,
        // The heartbeat may be older than the end of some of them.
        unstarted: unstarted.map_or(0, |heartbeat| heartbeat.unstarted.min(active)),
        most_active: capacity.map_or(0, |capacity| capacity.max_sequences as u32),
        queued_tokens: admission.queued_tokens(),
        unstarted_tokens: unstarted.map_or(0, |heartbeat| heartbeat.unstarted_tokens),
        idle_s: core.idle_ms(now) as f64 / 1e3,
    }
}

fn kv_status(core: &Supervisor, own: &OwnProcess) -> KvStatus {
    let heartbeat = core.target().life().and_then(|life| life.heartbeat.as_ref());
    let kv = heartbeat.and_then(|heartbeat| heartbeat.kv).unwrap_or_default();
    let reduction = match own.kv_reduced {
        true => KvReduction::RebootWhileBusy,
        false => KvReduction::Unspecified,
    };
    KvStatus {
        budget_bytes: kv.budget_bytes,
        held_bytes: kv.held_bytes,
        prefix_bytes: kv.prefix_bytes,
        pressure: core.kv_pressure(),
        reduction: reduction.into(),
    }
}

fn model(core: &Supervisor) -> Option<ModelStatus> {
    let described = core.target().described()?;
    let (model, capacity) = (described.model()?, described.capacity()?);
    let longest = capacity.classes.last()?;
    Some(ModelStatus {
        name: model.name.clone(),
        context_length: model.context_length.min(longest.positions),
        vocab_size: model.vocab_size,
        position_bytes: longest.bytes / u64::from(longest.positions.max(1)),
        exact_lanes: model.exact_lanes,
        logit_unit: model.logit_unit,
        products: v1::Products::from(model.products).into(),
        instructions: model.instructions.clone(),
        vision: model.vision,
        image_limits: image_limits(core).filter(|_| model.vision),
        unread_tool_calls: core.gateway().report().is_some_and(|report| report.unread_tool_calls),
    })
}

/// The limits of images that the gateway reported last.
fn image_limits(core: &Supervisor) -> Option<ImageLimits> {
    core.gateway().report()?.images.map(Into::into)
}

fn routing(core: &Supervisor) -> RoutingStatus {
    let PolicyResponse { epoch, policy } = policy(core);
    let count = |(lane, reason, requests): (Lane, RouteReason, u64)| RouteCount {
        lane: v1::Lane::from(lane).into(),
        reason: v1::RouteReason::from(reason).into(),
        requests,
    };
    let figures = core.figures().cloned().unwrap_or_default();
    let buckets = |buckets: Vec<SpeculationBucket>| buckets.into_iter().map(Into::into).collect();
    RoutingStatus {
        policy_epoch: epoch,
        policy,
        routes: core.routing().counts().map(count).collect(),
        by_sequences: buckets(figures.by_sequences),
        by_context: buckets(figures.by_context),
        step_costs: figures.step_costs.into_iter().map(Into::into).collect(),
    }
}

/// The routing policy in force.
pub fn policy(core: &Supervisor) -> PolicyResponse {
    let routing = core.routing();
    let setting = |change: PolicyChange| {
        let source = if routing.is_set(change.key()) { "operator" } else { "configuration" };
        let key = change.key().to_owned();
        PolicySetting { key, value: change.value(), source: source.to_owned() }
    };
    let policy = routing.policy().settings().into_iter().map(setting).collect();
    PolicyResponse { epoch: routing.policy().epoch, policy }
}

fn memory(core: &Supervisor) -> MemoryStatus {
    let machine = core.machine_memory();
    MemoryStatus {
        budget_bytes: machine.budget_bytes,
        target_bytes: machine.target.active,
        drafter_bytes: machine.drafter.active,
        cache_bytes: machine.target.plus(machine.drafter).cache,
        available_bytes: machine.available_bytes.unwrap_or(0),
        recommended_bytes: machine.recommended_bytes.unwrap_or(0),
    }
}

fn worker(worker: &Worker, model: String, now: Millis) -> ProcessStatus {
    let life = worker.life();
    let heartbeat = life.and_then(|life| life.heartbeat.as_ref());
    let weight_bytes =
        life.and_then(|life| life.described.as_ref()).map(|described| described.weight_bytes());
    ProcessStatus {
        state: state_message(worker.state()),
        pid: life.map_or(0, |life| life.pid),
        epoch: worker.last_epoch().0,
        restarts: worker.restarts(),
        uptime_s: life.map_or(0.0, |life| now.since(life.since) as f64 / 1e3),
        model,
        weights_loaded_at: heartbeat
            .map(|heartbeat| rfc3339(heartbeat.weights_loaded_unix_s))
            .unwrap_or_default(),
        weight_bytes: weight_bytes
            .or(heartbeat.map(|heartbeat| heartbeat.total_bytes))
            .unwrap_or_default(),
        loaded_bytes: heartbeat.map_or(0, |heartbeat| heartbeat.loaded_bytes),
        reason: worker.reason(now),
    }
}

/// The drafter at `now`: the one that serves, or would.
pub fn drafter(core: &Supervisor, now: Millis) -> ProcessStatus {
    let drafters = core.drafters();
    ProcessStatus {
        state: state_message(drafters.process_state()),
        restarts: drafters.restarts(),
        reason: drafters.reason(now),
        ..worker(drafters.current(), drafters.model().to_owned(), now)
    }
}

fn refused_message(Refused { model, reason }: Refused) -> RefusedDrafter {
    RefusedDrafter { model, reason }
}

/// The link as the target reports it. If no drafter is wanted, the end of its link is no loss.
fn link(heartbeat: Option<&Heartbeat>, wanted: bool) -> LinkStatus {
    let report = heartbeat.and_then(|heartbeat| heartbeat.link.clone());
    let mut report = report.unwrap_or(LinkReport::ABSENT);
    if !wanted && report.phase == LinkPhase::Lost {
        report.phase = LinkPhase::Absent;
        report.reason.clear();
    }
    let totals = heartbeat.and_then(|heartbeat| heartbeat.speculation).unwrap_or_default();
    LinkStatus {
        state: report.phase.word().to_owned(),
        reason: report.reason,
        generation: report.generation,
        speculation: Some(Speculation {
            cycles: totals.cycles,
            drafted: totals.drafted,
            accepted: totals.accepted,
        }),
        late: totals.late,
        bytes: totals.link_bytes,
    }
}

fn state_message(state: ProcessState) -> i32 {
    v1::ProcessState::from(state).into()
}

/// Seconds since 1970 as RFC 3339 in UTC; empty for 0, which means "not yet".
fn rfc3339(unix_s: i64) -> String {
    match jiff::Timestamp::from_second(unix_s) {
        Ok(when) if unix_s != 0 => when.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::ProcessState;
    use paceline_supervisor_core::drafter::DrafterPlan;
    use paceline_vocabulary::state::WorkerPhase;
    use paceline_vocabulary::{Epoch, Term};

    #[test]
    fn times_are_utc() {
        assert_eq!(rfc3339(0), "");
        assert_eq!(rfc3339(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(rfc3339(i64::MAX), "");
    }

    #[test]
    fn a_lost_link_is_shown_as_lost_only_if_a_drafter_is_wanted() {
        let report =
            LinkReport { generation: 3, phase: LinkPhase::Lost, reason: "gone".into(), serving: 0 };
        let heartbeat =
            Heartbeat { link: Some(report), ..Heartbeat::new(Epoch(1), WorkerPhase::Idle) };
        let shown = |wanted| {
            let link = link(Some(&heartbeat), wanted);
            (link.state, link.reason, link.generation)
        };
        assert_eq!(shown(true), ("lost".into(), "gone".into(), 3));
        assert_eq!(shown(false), ("absent".into(), String::new(), 3));
    }

    #[test]
    fn before_the_first_start_every_process_has_a_state() {
        let core = Supervisor::new(
            crate::config::settings(&paceline_process::Config::default()),
            DrafterPlan::default(),
            Term(3),
        );
        let own = OwnProcess { pid: 7, term: 3, restarts: 1, kv_reduced: true };
        let status = snapshot(&core, &own, Path::new("/models/x"), Millis(1_500));
        let state = |process: &Option<ProcessStatus>| process.as_ref().map(ProcessStatus::state);
        assert_eq!(state(&status.gateway), Some(ProcessState::Stopped));
        assert_eq!(state(&status.supervisor), Some(ProcessState::Ready));
        assert_eq!(state(&status.target), Some(ProcessState::Stopped));
        assert_eq!(state(&status.drafter), Some(ProcessState::Absent));
        assert_eq!(
            status.supervisor.map(|process| (process.restarts, process.uptime_s)),
            Some((1, 1.5))
        );
        assert_eq!(status.link.map(|link| link.state), Some("absent".into()));
        let reduction = status.kv.map(|kv| kv.reduction());
        assert_eq!(reduction, Some(KvReduction::RebootWhileBusy));
    }
}
