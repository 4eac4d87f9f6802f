//! The service as the supervisor reports it to operators, and changes of state as they come.

use std::sync::Arc;
use std::time::Duration;

use paceline_process::task;
use paceline_proto::convert::service::ServiceStatus;
use paceline_proto::v1;
use paceline_proto::v1::operations_client::OperationsClient;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::Channel;

use super::Upstream;
use crate::inference::standing::Standing;
use crate::service_report::events::{EventLog, SHOWN, ServiceEvent};

/// Longest wait for the figures: a supervisor that is busy for longer counts as one that does not
/// answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a stream of events that ended: the next supervisor has time to start, and one that
/// serves no events is not asked without end.
const PAUSE: Duration = Duration::from_secs(1);

impl Upstream {
    /// The service now; `None` if no supervisor answers in time.
    pub async fn service(&self) -> Option<ServiceStatus> {
        let mut operations = self.operations.clone();
        let asked = operations.status(v1::StatusRequest {});
        let answered = tokio::time::timeout(TIMEOUT, asked).await.ok()?;
        match answered {
            Ok(status) => Some(status.into_inner().into()),
            Err(status) => {
                tracing::debug!(code = ?status.code(), message = status.message(), "no figures");
                None
            }
        }
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::service_report::service::ServiceReport;

    fn process(number: u32) -> Option<v1::ProcessStatus> {
        Some(v1::ProcessStatus {
            state: v1::ProcessState::Ready.into(),
            pid: number,
            epoch: 2,
            restarts: 3,
            uptime_s: 4.5,
            model: format!("/models/{number}"),
            weights_loaded_at: "2026-01-02T03:04:05Z".into(),
            weight_bytes: 6,
            loaded_bytes: 7,
            reason: format!("reason {number}"),
        })
    }

    fn routing() -> v1::RoutingStatus {
        let (lane, reason) = (v1::Lane::Speculative.into(), v1::RouteReason::Benefit.into());
        v1::RoutingStatus {
            policy_epoch: 1,
            policy: vec![v1::PolicySetting::default()],
            routes: vec![v1::RouteCount { lane, reason, requests: 2 }],
            by_sequences: vec![v1::RoutingBucket::default()],
            by_context: vec![v1::RoutingBucket::default()],
            step_costs: vec![v1::StepCost::default()],
        }
    }

    fn model() -> v1::ModelStatus {
        v1::ModelStatus {
            name: "m".into(),
            context_length: 1,
            vocab_size: 2,
            position_bytes: 3,
            exact_lanes: true,
            logit_unit: 0.125,
            vision: true,
            image_limits: Some(v1::ImageLimits::default()),
            unread_tool_calls: true,
            products: v1::Products::Integer.into(),
            instructions: "AVX2".into(),
        }
    }

    /// A snapshot with a value in each field.
    fn whole() -> v1::StatusResponse {
        v1::StatusResponse {
            gateway: process(11),
            supervisor: process(12),
            target: process(13),
            drafter: process(14),
            kv: Some(v1::KvStatus {
                budget_bytes: 8,
                held_bytes: 2,
                prefix_bytes: 1,
                pressure: 0.25,
                reduction: v1::KvReduction::RebootWhileBusy.into(),
            }),
            requests: Some(v1::RequestsStatus {
                active: 1,
                queued: 2,
                speculative: 3,
                unstarted: 4,
                most_active: 5,
                queued_tokens: 6,
                unstarted_tokens: 7,
                idle_s: 0.0,
            }),
            link: Some(v1::LinkStatus {
                state: "lost".into(),
                reason: "gone".into(),
                generation: 1,
                speculation: Some(v1::Speculation { cycles: 10, drafted: 150, accepted: 42 }),
                late: 2,
                bytes: 3,
            }),
            term: 4,
            routing: Some(routing()),
            memory: Some(v1::MemoryStatus {
                budget_bytes: 1,
                target_bytes: 2,
                drafter_bytes: 3,
                cache_bytes: 4,
                available_bytes: 5,
                recommended_bytes: 6,
            }),
            model: Some(model()),
            refused_drafters: vec![v1::RefusedDrafter { model: "/d".into(), reason: "no".into() }],
        }
    }

    /// Paths and values of all members of an object, those of its objects included.
    fn members(object: &Value, path: &str, found: &mut Vec<(String, Value)>) {
        for (name, value) in object.as_object().expect("an object") {
            let path = format!("{path}/{name}");
            match value {
                Value::Object(_) => members(value, &path, found),
                _ => found.push((path, value.clone())),
            }
        }
    }

    #[test]
    fn the_page_and_the_command_give_the_same_value_under_the_same_name() {
        let status = ServiceStatus::from(whole());
        let command = json!(status);
        let page = json!(ServiceReport::from(status));
        let (mut shown, mut own) = (Vec::new(), Vec::new());
        members(&page, "", &mut shown);
        for (path, value) in &shown {
            match command.pointer(path) {
                Some(same) => assert_eq!(same, value, "{path}"),
                None => own.push(path.as_str()),
            }
        }
        assert_eq!(own, ["/routes", "/link/tokens_per_cycle"]);
        assert_eq!(page["routes"], command["routing"]["routes"]);
        assert_eq!(page["link"]["tokens_per_cycle"], 5.2);
        let mut all = Vec::new();
        members(&command, "", &mut all);
        let left_out = all.iter().map(|(path, _)| path).filter(|path| page.pointer(path).is_none());
        let left_out: Vec<_> = left_out.filter(|path| !path.starts_with("/routing/")).collect();
        let expected = [
            "/gateway/weights_loaded_at",
            "/supervisor/weights_loaded_at",
            "/target/weights_loaded_at",
            "/drafter/weights_loaded_at",
            "/link/generation",
            "/link/bytes",
            "/memory/recommended_bytes",
            "/model/vocab_size",
            "/model/position_bytes",
            "/model/exact_lanes",
            "/model/logit_unit",
            "/model/products",
            "/model/instructions",
            "/model/vision",
            "/model/image_limits/max_images",
            "/model/image_limits/max_pixels",
            "/model/image_limits/read_pixels",
            "/model/image_limits/max_tokens",
            "/model/unread_tool_calls",
        ];
        assert_eq!(left_out, expected);
    }

    #[test]
    fn a_page_before_the_first_cycle_has_null_and_the_command_nothing() {
        let status = ServiceStatus::from(v1::StatusResponse::default());
        assert_eq!(json!(status)["link"].get("tokens_per_cycle"), None);
        let page = json!(ServiceReport::from(status));
        assert_eq!(page["link"].get("tokens_per_cycle"), Some(&Value::Null));
        assert_eq!((&page["model"], &page["target"]["pid"]), (&Value::Null, &Value::Null));
    }
}
