//! Source of the status page: the service as the supervisor reports it to operators, and changes
//! of state as they come.

use std::sync::Arc;
use std::time::Duration;

use paceline_process::task;
use paceline_proto::v1;
use paceline_proto::v1::operations_client::OperationsClient;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::Channel;

use super::Upstream;
use crate::inference::standing::Standing;
use crate::service_report::events::{EventLog, SHOWN, ServiceEvent};
use crate::service_report::service::{
    KvReport, LinkReport, MemoryReport, ModelReport, ProcessReport, RefusedDrafterReport,
    RequestsReport, ServedRoute, ServiceReport,
};
use crate::shorten::shorten;

/// Pause after a stream of events that ended: the next supervisor has time to start, and one that
/// serves no events is not asked without end.
const PAUSE: Duration = Duration::from_secs(1);
/// Routes of a report. There are as many as pairs of a lane and a reason of it, 28.
const MAX_ROUTES: usize = 64;
/// Refused drafters of a report: as many as a list of `drafter.model` usually has, and more.
const MAX_REFUSED: usize = 16;
/// Characters of a reason. After a crash it has the last lines of a log.
const MAX_REASON_CHARS: usize = 1_000;

impl Upstream {
    /// The service now; `None` if no supervisor answers in time.
    pub async fn service(&self) -> Option<ServiceReport> {
        self.status().await.map(report)
    }

    /// Adds changes of state to `log` as they come, those of the last supervisors first, until the
    /// task is aborted. A stream that ends is opened again when a supervisor is attached.
    pub fn follow_events(
        &self,
        mut standing: watch::Receiver<Standing>,
        log: Arc<EventLog>,
    ) -> JoinHandle<()> {
        let operations = self.operations.clone();
        task::spawn("events", async move {
            // An error: the gateway is gone.
            while standing.wait_for(|standing| standing.supervisor.is_some()).await.is_ok() {
                if let Err(status) = follow(operations.clone(), &log).await {
                    tracing::debug!(code = ?status.code(), message = status.message(), "no events");
                }
                tokio::time::sleep(PAUSE).await;
            }
        })
    }
}

/// One stream of events, from its opening to its end.
async fn follow(mut operations: OperationsClient<Channel>, log: &EventLog) -> Result<(), Status> {
    let last = u32::try_from(SHOWN).ok();
    let request = v1::EventsRequest { follow: true, last };
    let mut events = operations.events(request).await?.into_inner();
    while let Some(next) = events.message().await? {
        log.add(event(next));
    }
    Ok(())
}

fn event(event: v1::Event) -> ServiceEvent {
    let v1::Event { time, term, number, kind, subject, epoch: _, from, to, cause } = event;
    ServiceEvent { time, term, number, kind, subject, from, to, cause }
}

fn report(status: v1::StatusResponse) -> ServiceReport {
    let routing = status.routing.unwrap_or_default();
    let refused = status.refused_drafters.into_iter().take(MAX_REFUSED);
    ServiceReport {
        gateway: process(status.gateway),
        supervisor: process(status.supervisor),
        target: process(status.target),
        drafter: process(status.drafter),
        model: status
            .model
            .map(|model| ModelReport { name: model.name, context_length: model.context_length }),
        requests: requests(status.requests.unwrap_or_default()),
        routes: routing.routes.iter().take(MAX_ROUTES).map(route).collect(),
        link: link(status.link.unwrap_or_default()),
        kv: kv(status.kv.unwrap_or_default()),
        memory: memory(status.memory.unwrap_or_default()),
        refused_drafters: refused
            .map(|one| RefusedDrafterReport { model: one.model, reason: bounded(one.reason) })
            .collect(),
        term: status.term,
    }
}

fn process(process: Option<v1::ProcessStatus>) -> ProcessReport {
    let process = process.unwrap_or_default();
    ProcessReport {
        state: process.state().word(),
        pid: (process.pid != 0).then_some(process.pid),
        epoch: process.epoch,
        restarts: process.restarts,
        uptime_s: process.uptime_s,
        model: some(process.model),
        weight_bytes: process.weight_bytes,
        loaded_bytes: process.loaded_bytes,
        reason: some(bounded(process.reason)),
    }
}

fn requests(requests: v1::RequestsStatus) -> RequestsReport {
    RequestsReport {
        active: requests.active,
        queued: requests.queued,
        speculative: requests.speculative,
        unstarted: requests.unstarted,
        most_active: requests.most_active,
        queued_tokens: requests.queued_tokens,
        unstarted_tokens: requests.unstarted_tokens,
    }
}

fn route(count: &v1::RouteCount) -> ServedRoute {
    let (lane, reason) = (count.lane().word(), count.reason().word());
    ServedRoute { lane, reason, requests: count.requests }
}

fn link(link: v1::LinkStatus) -> LinkReport {
    let v1::Speculation { cycles, drafted, accepted } = link.speculation.unwrap_or_default();
    let tokens_per_cycle = (cycles > 0).then(|| accepted as f64 / cycles as f64 + 1.0);
    let state = if link.state.is_empty() { "absent".to_owned() } else { link.state };
    let reason = some(bounded(link.reason));
    LinkReport { state, reason, cycles, drafted, accepted, tokens_per_cycle, late: link.late }
}

fn kv(kv: v1::KvStatus) -> KvReport {
    let v1::KvStatus { budget_bytes, held_bytes, prefix_bytes, pressure, .. } = kv;
    let reduction = Some(kv.reduction()).filter(|found| *found != v1::KvReduction::Unspecified);
    let reduced_reason = reduction.map(|reduction| reduction.word());
    KvReport { budget_bytes, held_bytes, prefix_bytes, pressure, reduced_reason }
}

fn memory(memory: v1::MemoryStatus) -> MemoryReport {
    MemoryReport {
        budget_bytes: memory.budget_bytes,
        target_bytes: memory.target_bytes,
        drafter_bytes: memory.drafter_bytes,
        cache_bytes: memory.cache_bytes,
        available_bytes: memory.available_bytes,
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn bounded(mut text: String) -> String {
    shorten(&mut text, MAX_REASON_CHARS);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_reported_is_null() {
        let report = report(v1::StatusResponse::default());
        assert_eq!(
            (report.target.pid, report.target.model, report.target.reason),
            (None, None, None)
        );
        assert_eq!((report.model, report.link.tokens_per_cycle), (None, None));
        assert_eq!(report.link.state, "absent");
    }

    #[test]
    fn a_reduced_budget_has_its_reason() {
        let reason = |reduction: v1::KvReduction| {
            kv(v1::KvStatus { reduction: reduction.into(), ..Default::default() }).reduced_reason
        };
        assert_eq!(reason(v1::KvReduction::Unspecified), None);
        let found = reason(v1::KvReduction::RebootWhileBusy);
        assert_eq!(found.as_deref(), Some("reboot_while_busy"));
    }

    #[test]
    fn a_cycle_has_its_accepted_tokens_and_one_of_the_target() {
        let speculation = Some(v1::Speculation { cycles: 10, drafted: 150, accepted: 42 });
        let status = v1::LinkStatus { state: "up".into(), speculation, ..Default::default() };
        let link = link(status);
        assert_eq!((link.state.as_str(), link.tokens_per_cycle), ("up", Some(5.2)));
        assert_eq!((link.drafted, link.accepted), (150, 42));
    }

    #[test]
    fn every_route_has_a_place_and_texts_are_bounded() {
        let pairs =
            paceline_vocabulary::Lane::ALL.len() * paceline_vocabulary::RouteReason::ALL.len();
        assert!(pairs <= MAX_ROUTES, "{pairs} routes");
        let refused = v1::RefusedDrafter { model: "/d".into(), reason: "x".repeat(5_000) };
        let status = v1::StatusResponse {
            refused_drafters: vec![refused; MAX_REFUSED + 9],
            ..Default::default()
        };
        let refused = report(status).refused_drafters;
        let chars = refused.iter().map(|one| one.reason.chars().count()).max();
        assert_eq!((refused.len(), chars), (MAX_REFUSED, Some(MAX_REASON_CHARS + 3)));
    }
}
