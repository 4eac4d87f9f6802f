//! What operators and the gateway are told: pure functions of the core's state.

use std::path::PathBuf;

use paceline_proto::internal::v1::{Heartbeat, LinkPhase, ServiceState, SpeculationBucket};
use paceline_proto::v1::{
    KvStatus, Lane, LinkStatus, MemoryStatus, ModelStatus, PolicyResponse, PolicySetting,
    ProcessState, ProcessStatus, RequestsStatus, RouteCount, RouteReason, RoutingBucket,
    RoutingStatus, Speculation, StatusResponse,
};
use paceline_vocabulary::Millis;

use crate::core::worker::Worker;
use crate::core::{Notice, Supervisor};

/// What the core does not know of its own process.
#[derive(Clone, Debug)]
pub struct Me {
    /// Process id.
    pub pid: u32,
    /// Number of our life.
    pub term: u64,
    /// Restarts nobody asked for, as counted by whoever starts us.
    pub restarts: u32,
    /// Directory of the served model.
    pub model_dir: PathBuf,
}

/// The gateway's view. `drafter_serves` is [`crate::core::drafter::Drafters::serves`].
pub fn service_state(notice: &Notice, drafter_serves: bool) -> ServiceState {
    let (reason, message) = match &notice.outage {
        None => (String::new(), String::new()),
        Some(outage) => (outage.reason.word().to_owned(), outage.why.clone()),
    };
    let model = notice.described.as_ref().and_then(|described| described.model().cloned());
    ServiceState { can_serve: notice.outage.is_none(), reason, message, model, drafter_serves }
}

/// The operators' view at `now`, which counts from our start.
pub fn snapshot(core: &Supervisor, me: &Me, now: Millis) -> StatusResponse {
    let seconds_since = |since: Millis| now.since(since) as f64 / 1e3;
    let gateway = core.gateway();
    let attached = gateway.attached();
    let report = gateway.report();
    let target = core.target();
    let life = target.life();
    let beat = life.and_then(|life| life.beat.as_ref());
    let kv = beat.and_then(|beat| beat.kv).unwrap_or_default();
    let admission = core.admission();
    StatusResponse {
        gateway: Some(ProcessStatus {
            state: gateway.state().into(),
            pid: attached.map_or(0, |_| report.pid),
            epoch: report.epoch,
            restarts: report.restarts,
            uptime_s: attached.map_or(0.0, seconds_since),
            reason: if attached.is_some() { String::new() } else { "not attached".into() },
            ..Default::default()
        }),
        supervisor: Some(ProcessStatus {
            state: if core.is_stopping() { ProcessState::Draining } else { ProcessState::Ready }
                .into(),
            pid: me.pid,
            epoch: me.term,
            restarts: me.restarts,
            uptime_s: now.0 as f64 / 1e3,
            reason: core
                .notice()
                .outage
                .filter(|_| core.is_stopping())
                .map(|outage| outage.why)
                .unwrap_or_default(),
            ..Default::default()
        }),
        target: Some(worker(target, me.model_dir.display().to_string(), now)),
        drafter: Some(drafter(core, now)),
        kv: Some(KvStatus {
            budget_bytes: kv.budget_bytes,
            held_bytes: kv.held_bytes,
            prefix_bytes: kv.prefix_bytes,
            pressure: core.kv_pressure(),
        }),
        requests: Some(RequestsStatus {
            active: admission.active() as u32,
            queued: admission.queued() as u32,
        }),
        link: Some(link(beat, core.drafters().is_wanted())),
        term: me.term,
        routing: Some(routing(core)),
        memory: Some(memory(core)),
        model: model(core),
    }
}

fn model(core: &Supervisor) -> Option<ModelStatus> {
    let described = core.target().described()?;
    let (model, capacity) = (described.model()?, described.capacity()?);
    let (positions, bytes) = capacity.classes.last().copied()?;
    Some(ModelStatus {
        name: model.name.clone(),
        context_length: model.context_length.min(positions),
        vocab_size: model.vocab_size,
        position_bytes: bytes / u64::from(positions.max(1)),
    })
}

fn routing(core: &Supervisor) -> RoutingStatus {
    let PolicyResponse { epoch, policy } = policy(core);
    let count = |(lane, reason, requests): (Lane, RouteReason, u64)| RouteCount {
        lane: lane.into(),
        reason: reason.into(),
        requests,
    };
    let figures = core.figures();
    let buckets = |buckets: Option<&Vec<SpeculationBucket>>| {
        let bucket = |bucket: &SpeculationBucket| RoutingBucket {
            up_to: bucket.up_to,
            steps: bucket.steps,
            gain: bucket.gain,
        };
        buckets.into_iter().flatten().map(bucket).collect()
    };
    RoutingStatus {
        policy_epoch: epoch,
        policy,
        routes: core.routing().counts().map(count).collect(),
        by_sequences: buckets(figures.map(|figures| &figures.by_sequences)),
        by_context: buckets(figures.map(|figures| &figures.by_context)),
    }
}

/// The routing policy in force.
pub fn policy(core: &Supervisor) -> PolicyResponse {
    let routing = core.routing();
    let setting = |(key, value): (&'static str, String)| {
        let source = if routing.is_set(key) { "operator" } else { "configuration" };
        PolicySetting { key: key.to_owned(), value, source: source.to_owned() }
    };
    let policy = routing.policy().settings().into_iter().map(setting).collect();
    PolicyResponse { epoch: routing.policy().epoch, policy }
}

fn memory(core: &Supervisor) -> MemoryStatus {
    let machine = core.machine();
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
    let beat = life.and_then(|life| life.beat.as_ref());
    let weight_bytes =
        life.and_then(|life| life.described.as_ref()).map(|described| described.weight_bytes());
    ProcessStatus {
        state: worker.state().into(),
        pid: life.map_or(0, |life| life.pid),
        epoch: worker.last_epoch().0,
        restarts: worker.restarts(),
        uptime_s: life.map_or(0.0, |life| now.since(life.since) as f64 / 1e3),
        model,
        weights_loaded_at: beat.map(|beat| rfc3339(beat.weights_loaded_unix_s)).unwrap_or_default(),
        weight_bytes: weight_bytes.or(beat.map(|beat| beat.total_bytes)).unwrap_or_default(),
        loaded_bytes: beat.map_or(0, |beat| beat.loaded_bytes),
        reason: worker.reason(now),
    }
}

/// The drafter at `now`: the one that serves, or would.
pub fn drafter(core: &Supervisor, now: Millis) -> ProcessStatus {
    let drafters = core.drafters();
    ProcessStatus {
        state: drafters.process_state().into(),
        restarts: drafters.restarts(),
        reason: drafters.reason(now),
        ..worker(drafters.current(), drafters.model().to_owned(), now)
    }
}

/// The link as the target sees it. Where no drafter is wanted the end of its link is no loss.
fn link(beat: Option<&Heartbeat>, wanted: bool) -> LinkStatus {
    let mut report = beat.and_then(|beat| beat.link.clone()).unwrap_or_default();
    if !wanted && report.phase() == LinkPhase::Lost {
        report.set_phase(LinkPhase::Absent);
        report.reason.clear();
    }
    let totals = beat.and_then(|beat| beat.speculation).unwrap_or_default();
    let state = match report.phase() {
        LinkPhase::Unspecified | LinkPhase::Absent => "absent",
        LinkPhase::Greeting => "greeting",
        LinkPhase::Up => "up",
        LinkPhase::Refused => "refused",
        LinkPhase::Ejected => "ejected",
        LinkPhase::Lost => "lost",
        LinkPhase::Suspect => "suspect",
    };
    LinkStatus {
        state: state.to_owned(),
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
    use crate::core::drafter::Plan;
    use paceline_proto::internal::v1::LinkReport;
    use paceline_vocabulary::Term;

    #[test]
    fn times_are_utc() {
        assert_eq!(rfc3339(0), "");
        assert_eq!(rfc3339(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(rfc3339(i64::MAX), "");
    }

    #[test]
    fn the_links_end_is_a_loss_only_where_a_drafter_is_wanted() {
        let report = LinkReport {
            generation: 3,
            phase: LinkPhase::Lost.into(),
            reason: "gone".into(),
            serving: 0,
        };
        let beat = Heartbeat { link: Some(report), ..Default::default() };
        let shown = |wanted| {
            let link = link(Some(&beat), wanted);
            (link.state, link.reason, link.generation)
        };
        assert_eq!(shown(true), ("lost".into(), "gone".into(), 3));
        assert_eq!(shown(false), ("absent".into(), String::new(), 3));
    }

    #[test]
    fn before_anything_runs_everything_is_named_all_the_same() {
        let core = Supervisor::new(
            crate::config::settings(&paceline_process::Config::default()),
            Plan::default(),
            Term(3),
        );
        let me = Me { pid: 7, term: 3, restarts: 1, model_dir: "/models/x".into() };
        let status = snapshot(&core, &me, Millis(1_500));
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
    }
}
