//! Lines of `serve` about the drafter once the service is ready: the drafter that is used, and each
//! one of `drafter.model` that was refused. Given snapshots, returns lines.

use paceline_proto::convert::service::{ProcessReport, ServiceStatus};
use paceline_proto::v1::ProcessState;

use super::progress;
use paceline_client::print::{process_model, refusal};

/// The drafter is shown once: a later swap or stop is an operator's own order.
#[derive(Debug, Default)]
pub struct DrafterLines {
    shown: bool,
}

impl DrafterLines {
    /// The lines, from the first snapshot on in which the service is ready and the choice of the
    /// drafter has ended.
    pub fn update(&mut self, status: &ServiceStatus) -> Vec<String> {
        if self.shown || !progress::ready(status) {
            return vec![];
        }
        let Some(used) = used(&status.drafter, &status.link.state) else { return vec![] };
        self.shown = true;
        let refused = status.refused_drafters.iter().map(refusal);
        std::iter::once(format!("drafter: {used}")).chain(refused).collect()
    }
}

/// The drafter that is used, or why none is; `None` while that is open.
fn used(drafter: &ProcessReport, link: &str) -> Option<String> {
    let linked = matches!(link, "up" | "suspect");
    match drafter.state {
        ProcessState::Ready | ProcessState::Suspect if linked => Some(process_model(drafter)),
        ProcessState::Absent => Some("none".to_owned()),
        ProcessState::Stopped | ProcessState::Failed => {
            let reason = drafter.reason.as_deref().unwrap_or_default();
            let why = reason.lines().next().unwrap_or_default();
            Some(if why.is_empty() { "none".to_owned() } else { format!("none: {why}") })
        }
        ProcessState::Unspecified
        | ProcessState::Starting
        | ProcessState::Loading
        | ProcessState::Ready
        | ProcessState::Suspect
        | ProcessState::Draining
        | ProcessState::BackingOff => None,
    }
}

#[cfg(test)]
mod tests {
    use paceline_proto::v1::{LinkStatus, ProcessStatus, RefusedDrafter, StatusResponse};

    use super::*;

    fn snapshot(state: ProcessState, model: &str, link: &str, reason: &str) -> ServiceStatus {
        let ready =
            || Some(ProcessStatus { state: ProcessState::Ready.into(), ..Default::default() });
        let drafter = ProcessStatus {
            state: state.into(),
            model: model.into(),
            reason: reason.into(),
            ..Default::default()
        };
        let status = StatusResponse {
            gateway: ready(),
            target: ready(),
            drafter: Some(drafter),
            link: Some(LinkStatus { state: link.into(), ..Default::default() }),
            ..Default::default()
        };
        status.into()
    }

    fn refused(model: &str, reason: &str) -> RefusedDrafter {
        RefusedDrafter { model: model.into(), reason: reason.into() }
    }

    #[test]
    fn the_drafter_is_shown_once_when_its_link_is_up_and_the_service_is_ready() {
        use ProcessState::{BackingOff, Draining, Loading, Ready, Starting};
        let mut lines = DrafterLines::default();
        for state in [Starting, Loading, Ready, Draining, BackingOff] {
            let coming = snapshot(state, "/d", "greeting", "the link is being made");
            assert!(lines.update(&coming).is_empty(), "{state:?}");
        }
        let mut up = snapshot(Ready, "lookup", "up", "");
        up.refused_drafters = vec![refused("/a", "other sizes"), refused("/b", "no files")];
        up.gateway = ProcessReport::default();
        assert!(lines.update(&up).is_empty(), "the service is not ready");
        up.gateway = up.target.clone();
        let expected = [
            "drafter: lookup",
            "drafter /a was refused: other sizes",
            "drafter /b was refused: no files",
        ];
        assert_eq!(lines.update(&up), expected);
        assert!(lines.update(&snapshot(Ready, "/swapped", "up", "")).is_empty());
    }

    #[test]
    fn no_drafter_is_shown_as_none_with_the_reason() {
        use ProcessState::{Absent, Failed, Stopped};
        let first = |status: &ServiceStatus| DrafterLines::default().update(status);
        assert_eq!(first(&snapshot(Absent, "", "absent", "")), ["drafter: none"]);
        let manual = snapshot(Stopped, "/d", "absent", "an operator starts it (drafter.start)");
        assert_eq!(first(&manual), ["drafter: none: an operator starts it (drafter.start)"]);
        let failed = ServiceStatus {
            refused_drafters: vec![refused("/d", "no files")],
            ..snapshot(Failed, "/d", "absent", "no files; next try in 60 s\nlast words")
        };
        let expected =
            ["drafter: none: no files; next try in 60 s", "drafter /d was refused: no files"];
        assert_eq!(first(&failed), expected);
    }
}
