//! The service as the page gives it: a part of what `paceline status --json` gives to
//! operators, under the same names.

use paceline_proto::convert::service::{
    KvReport, LinkReport, MemoryReport, ProcessReport, RefusedDrafter, RequestsStatus, ServedRoute,
    ServiceStatus,
};
use paceline_protocols::shorten::shorten;
use serde::Serialize;
use utoipa::ToSchema;

/// Routes of a report. There are as many as pairs of a lane and a reason of it, 28.
const MAX_ROUTES: usize = 64;
/// Refused drafters of a report: as many as a list of `drafter.model` usually has, and more.
const MAX_REFUSED: usize = 16;
/// Characters of a reason. After a crash it has the last lines of a log.
const MAX_REASON_CHARS: usize = 1_000;

/// A snapshot of the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ServiceReport {
    /// The gateway, which answers.
    pub gateway: ProcessReport,
    /// The process that starts and stops the workers.
    pub supervisor: ProcessReport,
    /// The worker with the model.
    pub target: ProcessReport,
    /// The worker that drafts.
    pub drafter: ProcessReport,
    /// The served model; null until it has loaded.
    pub model: Option<ModelReport>,
    /// Requests inside the supervisor.
    pub requests: RequestsStatus,
    /// Finished requests since the supervisor's start, by lane and reason.
    pub routes: Vec<ServedRoute>,
    /// The link between target and drafter, and what came of drafts.
    pub link: LinkReport,
    /// The target's KV memory.
    pub kv: KvReport,
    /// The machine's memory.
    pub memory: MemoryReport,
    /// Drafters that were refused.
    pub refused_drafters: Vec<RefusedDrafter>,
    /// Number of the supervisor's life.
    pub term: u64,
}

/// The served model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelReport {
    /// Name by which clients ask for it.
    pub name: String,
    /// Most tokens of prompt and answer together.
    pub context_length: u32,
}

impl From<ServiceStatus> for ServiceReport {
    /// The rule of the page. Any client with a key reads it, and without keys any client that
    /// reaches the port. So it leaves out what only an operator can use: the policy, measured costs
    /// and gains, and details of model, link and memory. Lists and texts are bounded, because each
    /// open page gets them every two seconds.
    fn from(status: ServiceStatus) -> Self {
        let ServiceStatus { gateway, supervisor, target, drafter, kv, requests, link, .. } = status;
        let tokens_per_cycle = Some(link.speculation().tokens_per_cycle());
        let reason = link.reason.map(bounded);
        let refused = status.refused_drafters.into_iter().take(MAX_REFUSED);
        Self {
            gateway: process(gateway),
            supervisor: process(supervisor),
            target: process(target),
            drafter: process(drafter),
            model: status.model.map(|model| ModelReport {
                name: model.name,
                context_length: model.context_length,
            }),
            requests,
            routes: status.routing.routes.into_iter().take(MAX_ROUTES).collect(),
            link: LinkReport { generation: None, bytes: None, tokens_per_cycle, reason, ..link },
            kv,
            memory: MemoryReport { recommended_bytes: None, ..status.memory },
            refused_drafters: refused
                .map(|RefusedDrafter { model, reason }| RefusedDrafter {
                    model,
                    reason: bounded(reason),
                })
                .collect(),
            term: status.term,
        }
    }
}

fn process(process: ProcessReport) -> ProcessReport {
    let reason = process.reason.map(bounded);
    ProcessReport { weights_loaded_at: None, reason, ..process }
}

fn bounded(mut text: String) -> String {
    shorten(&mut text, MAX_REASON_CHARS);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_a_place_and_texts_are_bounded() {
        let pairs =
            paceline_vocabulary::Lane::ALL.len() * paceline_vocabulary::RouteReason::ALL.len();
        assert!(pairs <= MAX_ROUTES, "{pairs} routes");
        let long = "x".repeat(5_000);
        let refused = RefusedDrafter { model: "/d".into(), reason: long.clone() };
        let status = ServiceStatus {
            target: ProcessReport { reason: Some(long.clone()), ..Default::default() },
            link: LinkReport { reason: Some(long), ..Default::default() },
            refused_drafters: vec![refused; MAX_REFUSED + 9],
            ..Default::default()
        };
        let report = ServiceReport::from(status);
        assert_eq!(report.refused_drafters.len(), MAX_REFUSED);
        let refused = report.refused_drafters.into_iter().map(|refused| refused.reason);
        let mut reasons = refused.chain(report.target.reason).chain(report.link.reason);
        assert!(reasons.all(|text| text.chars().count() == MAX_REASON_CHARS + 3));
    }
}
