//! What operators and the gateway are told: pure functions of the core's state.

use std::path::PathBuf;

use paceline_process::Millis;
use paceline_proto::internal::v1::ServiceState;
use paceline_proto::v1::{KvStatus, LinkStatus, ProcessState, ProcessStatus, RequestsStatus, StatusResponse};

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

/// The gateway's view.
pub fn service_state(notice: &Notice) -> ServiceState {
    let (reason, message) = match &notice.outage {
        None => (String::new(), String::new()),
        Some(outage) => (outage.reason.word().to_owned(), outage.why.clone()),
    };
    let model = notice.described.as_ref().map(|described| described.model.clone());
    ServiceState { can_serve: notice.outage.is_none(), reason, message, model }
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
    let described = life.and_then(|life| life.described.as_ref());
    let weight_bytes = described.map(|described| described.model.weight_bytes);
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
            state: if core.is_stopping() { ProcessState::Draining } else { ProcessState::Ready }.into(),
            pid: me.pid,
            epoch: me.term,
            restarts: me.restarts,
            uptime_s: now.0 as f64 / 1e3,
            ..Default::default()
        }),
        target: Some(ProcessStatus {
            state: target.state().into(),
            pid: life.map_or(0, |life| life.pid),
            epoch: target.last_epoch().0,
            restarts: target.restarts(),
            uptime_s: life.map_or(0.0, |life| seconds_since(life.since)),
            model: me.model_dir.display().to_string(),
            weights_loaded_at: beat.map(|beat| rfc3339(beat.weights_loaded_unix_s)).unwrap_or_default(),
            weight_bytes: weight_bytes.or(beat.map(|beat| beat.total_bytes)).unwrap_or_default(),
            loaded_bytes: beat.map_or(0, |beat| beat.loaded_bytes),
            reason: target.reason(now),
        }),
        drafter: Some(ProcessStatus {
            state: ProcessState::Absent.into(),
            reason: "this version has no drafter".into(),
            ..Default::default()
        }),
        kv: Some(KvStatus {
            budget_bytes: kv.budget_bytes,
            held_bytes: kv.held_bytes,
            prefix_bytes: kv.prefix_bytes,
            pressure: if kv.budget_bytes == 0 { 0.0 } else { kv.held_bytes as f64 / kv.budget_bytes as f64 },
        }),
        requests: Some(RequestsStatus { active: admission.active() as u32, queued: admission.queued() as u32 }),
        link: Some(LinkStatus { state: "absent".into() }),
        term: me.term,
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

    #[test]
    fn times_are_utc() {
        assert_eq!(rfc3339(0), "");
        assert_eq!(rfc3339(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(rfc3339(i64::MAX), "");
    }

    #[test]
    fn before_anything_runs_everything_is_named_all_the_same() {
        let core = Supervisor::new(crate::config::settings(&paceline_process::Config::default()));
        let me = Me { pid: 7, term: 3, restarts: 1, model_dir: "/models/x".into() };
        let status = snapshot(&core, &me, Millis(1_500));
        let state = |process: &Option<ProcessStatus>| process.as_ref().map(ProcessStatus::state);
        assert_eq!(state(&status.gateway), Some(ProcessState::Stopped));
        assert_eq!(state(&status.supervisor), Some(ProcessState::Ready));
        assert_eq!(state(&status.target), Some(ProcessState::Stopped));
        assert_eq!(state(&status.drafter), Some(ProcessState::Absent));
        assert_eq!(status.supervisor.map(|process| (process.restarts, process.uptime_s)), Some((1, 1.5)));
        assert_eq!(status.link.map(|link| link.state), Some("absent".into()));
    }
}
