//! The service's figures, as the supervisor reports them to operators.

use std::time::Duration;

use paceline_proto::v1;
use paceline_vocabulary::state::{LinkPhase, ProcessState};

use super::Upstream;
use crate::metrics::service::{ProcessFigures, ServiceFigures};

/// Longest wait for the figures: a supervisor that is busy for longer counts as one that does not
/// answer.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Upstream {
    /// The service's figures now; `None` if no supervisor answers in time.
    pub async fn figures(&self) -> Option<ServiceFigures> {
        self.status().await.as_ref().map(figures)
    }

    /// The supervisor's own snapshot; `None` if no supervisor answers in time.
    pub(super) async fn status(&self) -> Option<v1::StatusResponse> {
        let mut operations = self.operations.clone();
        let asked = operations.status(v1::StatusRequest {});
        let answered = tokio::time::timeout(TIMEOUT, asked).await.ok()?;
        match answered {
            Ok(status) => Some(status.into_inner()),
            Err(status) => {
                tracing::debug!(code = ?status.code(), message = status.message(), "no figures");
                None
            }
        }
    }
}

fn figures(status: &v1::StatusResponse) -> ServiceFigures {
    let kv = status.kv.unwrap_or_default();
    let requests = status.requests.unwrap_or_default();
    let memory = status.memory.unwrap_or_default();
    let link = status.link.clone().unwrap_or_default();
    let process = |name, process: &Option<v1::ProcessStatus>| {
        let process = process.as_ref()?;
        let state = ProcessState::try_from(process.state()).ok();
        let (restarts, uptime_s) = (process.restarts, process.uptime_s);
        Some(ProcessFigures { name, state, restarts, uptime_s })
    };
    let processes = [
        process("gateway", &status.gateway),
        process("supervisor", &status.supervisor),
        process("target", &status.target),
        process("drafter", &status.drafter),
    ];
    ServiceFigures {
        processes: processes.into_iter().flatten().collect(),
        kv_budget_bytes: kv.budget_bytes,
        kv_held_bytes: kv.held_bytes,
        kv_prefix_bytes: kv.prefix_bytes,
        kv_pressure: kv.pressure,
        position_bytes: status.model.as_ref().map_or(0, |model| model.position_bytes),
        active: requests.active,
        queued: requests.queued,
        unstarted: requests.unstarted,
        most_active: requests.most_active,
        queued_tokens: requests.queued_tokens,
        unstarted_tokens: requests.unstarted_tokens,
        link_up: link.state == LinkPhase::Up.word(),
        link_bytes: link.bytes,
        late_drafts: link.late,
        memory_budget_bytes: memory.budget_bytes,
        target_bytes: memory.target_bytes,
        drafter_bytes: memory.drafter_bytes,
        cache_bytes: memory.cache_bytes,
        available_bytes: memory.available_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_are_not_reported_have_no_figures() {
        let target = v1::ProcessStatus {
            state: v1::ProcessState::BackingOff.into(),
            restarts: 3,
            uptime_s: 1.5,
            ..Default::default()
        };
        let status = v1::StatusResponse { target: Some(target), ..Default::default() };
        let state = Some(ProcessState::BackingOff);
        let expected = ProcessFigures { name: "target", state, restarts: 3, uptime_s: 1.5 };
        assert_eq!(figures(&status).processes, [expected]);
        assert!(!figures(&status).link_up);
    }

    #[test]
    fn the_link_is_up_by_its_word() {
        let link = |state: &str| {
            let link = v1::LinkStatus { state: state.to_owned(), late: 2, ..Default::default() };
            figures(&v1::StatusResponse { link: Some(link), ..Default::default() })
        };
        assert!(link("up").link_up && !link("suspect").link_up);
        assert_eq!(link("up").late_drafts, 2);
    }
}
