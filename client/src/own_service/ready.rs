//! Whether the service is ready, read from snapshots of its status. Pure.

use paceline_proto::v1::{ProcessState, ProcessStatus, StatusResponse};

use crate::print::share;

/// State of the service on its way to ready.
#[derive(Clone, Debug, PartialEq)]
pub enum Readiness {
    /// Not ready yet, and what it does now.
    Coming(String),
    /// It serves. If a drafter is configured, it can draft.
    Ready {
        /// Whether a drafter is linked.
        drafter: bool,
    },
    /// It will not become ready, and the reason.
    Failed(String),
}

/// Reads a snapshot for requests in any lane. A worker that was restarted meanwhile counts as
/// failed.
pub fn serving(status: &StatusResponse) -> Readiness {
    let none = ProcessStatus::default();
    let [gateway, target] =
        [&status.gateway, &status.target].map(|part| part.as_ref().unwrap_or(&none));
    if failed(target) {
        return Readiness::Failed(format!(
            "the target cannot be served{}",
            because(&target.reason)
        ));
    }
    if target.state() != ProcessState::Ready || gateway.state() != ProcessState::Ready {
        return Readiness::Coming(coming("target", target));
    }
    Readiness::Ready { drafter: false }
}

/// Reads a snapshot for requests in both lanes. A worker that was restarted meanwhile counts as
/// failed. A user's service would try again and again, and this test exists to find such faults.
pub fn readiness(status: &StatusResponse) -> Readiness {
    match serving(status) {
        Readiness::Ready { .. } => {}
        other => return other,
    }
    let none = ProcessStatus::default();
    let drafter = status.drafter.as_ref().unwrap_or(&none);
    if drafter.state() == ProcessState::Absent {
        return Readiness::Ready { drafter: false };
    }
    let link = status.link.clone().unwrap_or_default();
    // The link may still be that of a drafter whose place the next one of the list takes.
    let next_is_tried =
        status.refused_drafters.last().is_some_and(|refused| refused.model != drafter.model);
    if matches!(link.state.as_str(), "refused" | "ejected") && !next_is_tried {
        return Readiness::Failed(format!(
            "the drafter was {} by the target{}",
            link.state,
            because(&link.reason)
        ));
    }
    if failed(drafter) || drafter.state() == ProcessState::Stopped {
        return Readiness::Failed(format!("the drafter does not run{}", because(&drafter.reason)));
    }
    match (drafter.state(), link.state.as_str()) {
        (ProcessState::Ready, "up") => Readiness::Ready { drafter: true },
        (ProcessState::Ready, _) => Readiness::Coming("linking target and drafter".into()),
        _ => Readiness::Coming(coming("drafter", drafter)),
    }
}

fn failed(process: &ProcessStatus) -> bool {
    process.restarts > 0
        || matches!(process.state(), ProcessState::BackingOff | ProcessState::Failed)
}

fn because(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(": {}", reason.trim_end().replace('\n', "\n    "))
    }
}

fn coming(name: &str, process: &ProcessStatus) -> String {
    match process.state() {
        ProcessState::Loading => {
            format!("loading {name}: {}", share(process.loaded_bytes, process.weight_bytes))
        }
        _ => format!("starting {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::{LinkStatus, RefusedDrafter};

    fn process(state: ProcessState, restarts: u32, reason: &str) -> Option<ProcessStatus> {
        let (loaded_bytes, weight_bytes) = (512, 1024);
        Some(ProcessStatus {
            state: state.into(),
            restarts,
            reason: reason.into(),
            loaded_bytes,
            weight_bytes,
            ..ProcessStatus::default()
        })
    }

    fn check(
        target: (ProcessState, u32),
        drafter: (ProcessState, u32),
        link: &str,
        expected: &str,
    ) {
        let snapshot = StatusResponse {
            gateway: process(ProcessState::Ready, 0, ""),
            target: process(target.0, target.1, "no config.json"),
            drafter: process(drafter.0, drafter.1, "no weights\nlast line"),
            link: Some(LinkStatus {
                state: link.into(),
                reason: "mask id".into(),
                ..LinkStatus::default()
            }),
            ..StatusResponse::default()
        };
        let found = match readiness(&snapshot) {
            Readiness::Coming(what) => what,
            Readiness::Ready { drafter } => format!("ready {drafter}"),
            Readiness::Failed(why) => format!("failed: {why}"),
        };
        assert_eq!(found, expected, "{target:?} {drafter:?} {link}");
    }

    #[test]
    fn readiness_is_target_then_drafter_then_link() {
        use ProcessState::{
            Absent, BackingOff, Failed, Loading, Ready, Starting, Stopped, Unspecified,
        };
        check((Unspecified, 0), (Unspecified, 0), "", "starting target");
        check((Loading, 0), (Loading, 0), "", "loading target: 512 B of 1.0 KiB (50 %)");
        check((Ready, 0), (Absent, 0), "absent", "ready false");
        check((Ready, 0), (Starting, 0), "absent", "starting drafter");
        check((Ready, 0), (Loading, 0), "absent", "loading drafter: 512 B of 1.0 KiB (50 %)");
        check((Ready, 0), (Ready, 0), "greeting", "linking target and drafter");
        check((Ready, 0), (Ready, 0), "up", "ready true");
        check(
            (BackingOff, 0),
            (Absent, 0),
            "absent",
            "failed: the target cannot be served: no config.json",
        );
        check(
            (Starting, 1),
            (Absent, 0),
            "absent",
            "failed: the target cannot be served: no config.json",
        );
        check(
            (Ready, 0),
            (Failed, 5),
            "lost",
            "failed: the drafter does not run: no weights\n    last line",
        );
        check(
            (Ready, 0),
            (Loading, 1),
            "lost",
            "failed: the drafter does not run: no weights\n    last line",
        );
        check(
            (Ready, 0),
            (Stopped, 0),
            "lost",
            "failed: the drafter does not run: no weights\n    last line",
        );
        check(
            (Ready, 0),
            (Ready, 0),
            "refused",
            "failed: the drafter was refused by the target: mask id",
        );
        check(
            (Ready, 0),
            (Stopped, 0),
            "refused",
            "failed: the drafter was refused by the target: mask id",
        );
    }

    #[test]
    fn the_next_drafter_of_a_list_is_awaited_after_a_refusal() {
        let refused = |model: &str| {
            let reason = "mask id".to_owned();
            vec![RefusedDrafter { model: model.into(), reason }]
        };
        let mut snapshot = StatusResponse {
            gateway: process(ProcessState::Ready, 0, ""),
            target: process(ProcessState::Ready, 0, ""),
            drafter: process(ProcessState::Starting, 0, ""),
            link: Some(LinkStatus { state: "refused".into(), ..LinkStatus::default() }),
            refused_drafters: refused("/a"),
            ..StatusResponse::default()
        };
        assert_eq!(readiness(&snapshot), Readiness::Coming("starting drafter".into()));
        snapshot.drafter =
            snapshot.drafter.map(|drafter| ProcessStatus { model: "/a".into(), ..drafter });
        assert!(matches!(readiness(&snapshot), Readiness::Failed(_)));
    }
}
