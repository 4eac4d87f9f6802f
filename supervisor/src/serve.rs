//! The services on the supervisor's socket: `Supervisor` for the gateway, `Operations` for
//! operators.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use paceline_checkpoint::{ModelPlaces, ModelRef};
use paceline_process::config::WITHOUT_DIRECTORY;
use paceline_process::task;
use paceline_process::telemetry::trace::{self, Kind, Span};
use paceline_proto::internal::v1 as internal;
use paceline_proto::internal::v1::supervisor_notice::Notice;
use paceline_proto::internal::v1::supervisor_server::Supervisor;
use paceline_proto::internal::v1::{GatewayReport, SubmitRequest, SupervisorNotice};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::operations_server::Operations;
use paceline_proto::v1::{
    ChangeSettingsRequest, ChangeSettingsResponse, DrafterResponse, DrainRequest, DrainResponse,
    EventsRequest, PolicyResponse, Process, ProcessStatus, RestartRequest, RestartResponse,
    SetPolicyRequest, ShowPolicyRequest, ShowSettingsRequest, ShowSettingsResponse,
    StartDrafterRequest, StatusRequest, StatusResponse, StopDrafterRequest, SwapDrafterRequest,
    SwapTargetRequest, SwapTargetResponse,
};
use paceline_supervisor_core::RequestSummary;
use paceline_supervisor_core::drafter::DrafterOrder;
use paceline_supervisor_core::operations::{OperatorOrder, ServiceProcess};
use paceline_supervisor_core::request::Fingerprint;
use paceline_vocabulary::generation::Generation;
use paceline_vocabulary::{KeyId, ModelMark, RequestId, chain};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::config;
use crate::events::Events;
use crate::handle::ActorHandle;
use crate::mailbox::{GatewayRestart, Mail};
use crate::preparation;
use crate::relay::{self, Batches};
use crate::settings::SettingsDesk;
use crate::spans::{fail, set_grant};
use crate::target_swap::TargetPlanner;
use crate::wire;

/// Hash of what a client can change to get around a fault of the target: the prompt, the images
/// with their places, and the grammar with its schemas. Continuation, seed and limits are not in it.
fn fingerprint(generation: &Generation) -> Fingerprint {
    let mut hasher = DefaultHasher::new();
    generation.prompt_ids.hash(&mut hasher);
    let images = generation.images.iter();
    images.for_each(|image| (image.start, &image.digest).hash(&mut hasher));
    generation.grammar.hash(&mut hasher);
    Fingerprint(hasher.finish())
}

/// Interval between two signs of life to the gateway, which counts a supervisor as hung after six
/// of them.
const BEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait of an operator's order that names none.
const ORDER_TIMEOUT: Duration = Duration::from_secs(120);

/// A request that passed every check that needs no target.
struct PrecheckedRequest {
    id: RequestId,
    generation: Generation,
    summary: RequestSummary,
}

/// Both services, in front of the actor.
#[derive(Clone, Debug)]
pub struct Services {
    handle: ActorHandle,
    planner: Option<TargetPlanner>,
    desk: Option<SettingsDesk>,
}

impl Services {
    /// Services that send everything to this actor. Without a planner the target cannot be swapped,
    /// without a [`SettingsDesk`] settings are neither shown nor changed.
    pub fn new(
        handle: ActorHandle,
        planner: Option<TargetPlanner>,
        desk: Option<SettingsDesk>,
    ) -> Self {
        Self { handle, planner, desk }
    }

    fn desk(&self) -> Result<SettingsDesk, Status> {
        let none = || Reason::ProcessState.status("the settings of this service cannot be changed");
        self.desk.clone().ok_or_else(none)
    }

    /// Checks what can be checked without the target.
    fn check(&self, request: SubmitRequest) -> Result<PrecheckedRequest, Status> {
        let found = request.stamp.as_ref().map(|stamp| stamp.term);
        let expected = self.handle.term().0;
        if found != Some(expected) {
            let found = found.map_or_else(|| "none".to_owned(), |term| term.to_string());
            let message = format!("expected term {expected}, found {found}; attach again");
            return Err(Reason::StaleTerm.field("stamp.term", message));
        }
        let key = KeyId(request.key_id);
        let missing =
            || Reason::InvalidArgument.field("generation", "expected a generation, found none");
        let message = request.generation.ok_or_else(missing)?;
        let id = RequestId::parse(&message.request_id).ok_or_else(|| {
            Reason::InvalidArgument
                .field("request_id", "expected 1 to 64 letters, digits, '-' or '_'")
        })?;
        let prompt_tokens = u32::try_from(message.prompt_ids.len()).unwrap_or(u32::MAX);
        if prompt_tokens == 0 {
            return Err(
                Reason::InvalidArgument.field("prompt", "expected at least one token, found none")
            );
        }
        if message.max_tokens == 0 {
            return Err(
                Reason::InvalidArgument.field("limits.max_tokens", "expected at least 1, found 0")
            );
        }
        let wish = wire::route_wish(message.route)?;
        let generation = Generation::try_from(message)
            .map_err(|cause| Reason::InvalidArgument.field(cause.field, cause.to_string()))?;
        let deadline =
            (generation.deadline_ns != 0).then(|| self.handle.clock().at(generation.deadline_ns));
        let continuation = u32::try_from(generation.continuation_ids.len()).unwrap_or(u32::MAX);
        let context_tokens = prompt_tokens.saturating_add(continuation);
        let patches = generation
            .images
            .iter()
            .map(|image| u64::from(image.grid.rows) * u64::from(image.grid.columns));
        let patches = patches.fold(0, u64::saturating_add);
        let summary = RequestSummary {
            key,
            prompt_tokens,
            max_tokens: generation.max_tokens,
            context_tokens,
            deadline,
            wish,
            patches,
            resumed: request.resumed > 0,
            fingerprint: fingerprint(&generation),
            model: (!request.model_path.is_empty()).then(|| ModelMark::of(&request.model_path)),
        };
        Ok(PrecheckedRequest { id, generation, summary })
    }
}

#[tonic::async_trait]
impl Supervisor for Services {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<SupervisorNotice, Status>> + Send>>;
    type SubmitStream = Batches;

    async fn attach(
        &self,
        request: Request<Streaming<GatewayReport>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let term = self.handle.term().0;
        let attachment = self.handle.number();
        task::spawn("attach", follow(self.handle.clone(), attachment, request.into_inner()));
        let mut states = self.handle.notices();
        let state = states.borrow_and_update().clone();
        let changes = WatchStream::from_changes(states).map(Notice::Service);
        let restarts =
            WatchStream::new(self.handle.gateway_restarts()).filter_map(move |restart| {
                let order = |GatewayRestart { grace_ms, .. }| {
                    Notice::Restart(internal::Order {
                        cause: "an operator restarts it".to_owned(),
                        grace_ms,
                    })
                };
                std::future::ready(
                    restart.filter(|restart| restart.attachment >= attachment).map(order),
                )
            });
        let notices = futures::stream::select(changes, restarts);
        let notices = futures::stream::select(notices, beats(self.handle.clone()));
        let notices = futures::stream::iter([Notice::Service(state)]).chain(notices);
        Ok(Response::new(Box::pin(
            notices.map(move |notice| Ok(SupervisorNotice { term, notice: Some(notice) })),
        )))
    }

    async fn submit(
        &self,
        request: Request<SubmitRequest>,
    ) -> Result<Response<Self::SubmitStream>, Status> {
        let parent = trace::of_metadata(request.metadata());
        let PrecheckedRequest { id, generation, summary } = self.check(request.into_inner())?;
        let mut route = Span::below(parent, Kind::Server, "route");
        route.set("paceline.request_id", id.as_str());
        let span = tracing::info_span!("request", request_id = %id);
        let served = async {
            let admission = async {
                let _waiting = route.child("admission");
                let class = generation.traffic_class.clone();
                let prepared = match generation.grammar.clone() {
                    Some(grammar) => {
                        Some(preparation::prepare(&self.handle, grammar, &summary).await?)
                    }
                    None => None,
                };
                let admitted = self.handle.submit(id.clone(), class, summary)?.decided().await?;
                Ok((prepared, admitted))
            };
            let decided = admission.await;
            let (prepared, mut admitted) =
                decided.inspect_err(|status| fail(&mut route, status))?;
            let grant = &mut admitted.grant;
            grant.queued_ms += prepared.as_ref().map_or(0, |prepared| prepared.waited_ms);
            tracing::debug!(epoch = grant.epoch.0, queued_ms = grant.queued_ms, permit = ?grant.permit, "forwarded");
            set_grant(&mut route, grant);
            let ticket = admitted.guard.ticket();
            let batches = relay::forward(&self.handle, generation, admitted, route).await;
            if batches.is_ok() {
                self.handle.send(Mail::Progressed { ticket }).await;
            }
            // The target has the request: it needs no prepared grammar any more.
            drop(prepared);
            batches
        };
        served.instrument(span).await.map(Response::new)
    }
}

impl Services {
    /// Has an order carried out. The timeout ends the wait, not the order.
    async fn order(
        &self,
        order: DrafterOrder,
        timeout_ms: u32,
    ) -> Result<Response<DrafterResponse>, Status> {
        let ordered = self.handle.order_drafter(order);
        let answered = self.within(timeout_ms, ServiceProcess::Drafter, ordered).await?;
        Ok(Response::new(DrafterResponse { drafter: answered.drafter }))
    }

    /// Waits for an order's end. If that does not come in time, the error names the state of the
    /// process.
    async fn within(
        &self,
        timeout_ms: u32,
        concerned: ServiceProcess,
        order: impl Future<Output = Result<StatusResponse, Status>>,
    ) -> Result<StatusResponse, Status> {
        let limit =
            if timeout_ms == 0 { ORDER_TIMEOUT } else { Duration::from_millis(timeout_ms.into()) };
        if let Ok(answer) = tokio::time::timeout(limit, order).await {
            return answer;
        }
        let process = process(self.handle.status().await?, concerned);
        let state = process.state().word();
        let why = if process.reason.is_empty() {
            String::new()
        } else {
            format!(" ({})", process.reason)
        };
        let (limit, name) = (limit.as_secs_f64(), concerned.name());
        let message =
            format!("not done within {limit} s, the order stands; the {name} is {state}{why}");
        Err(Reason::DeadlinePassed.status(message))
    }
}

fn process(status: StatusResponse, concerned: ServiceProcess) -> ProcessStatus {
    let process = match concerned {
        ServiceProcess::Gateway => status.gateway,
        ServiceProcess::Target => status.target,
        ServiceProcess::Drafter => status.drafter,
        ServiceProcess::Supervisor => status.supervisor,
    };
    process.unwrap_or_default()
}

/// A drafter as an operator names it: a directory, or one without a directory of its own. Empty is
/// the one that is known.
fn check_model(model: &str) -> Result<(), Status> {
    let path = Path::new(model);
    let refuse = |message| Err(Reason::InvalidArgument.field("model", message));
    match model {
        "" => Ok(()),
        name if WITHOUT_DIRECTORY.contains(&name) => Ok(()),
        _ if !path.is_absolute() => refuse(format!("expected an absolute path, found {model}")),
        _ => match ModelPlaces::of_user().locate(&ModelRef::Directory(path.to_path_buf())) {
            Ok(_) => Ok(()),
            Err(error) => refuse(chain(&error)),
        },
    }
}

/// Signs of life for a gateway, the first at once: each one means that the actor has just answered.
/// They end with the actor.
fn beats(handle: ActorHandle) -> impl Stream<Item = Notice> + Send + 'static {
    futures::stream::unfold((handle, Duration::ZERO), |(handle, pause)| async move {
        tokio::time::sleep(pause).await;
        handle.answers().await.ok()?;
        Some((Notice::Beat(internal::Beat {}), (handle, BEAT_INTERVAL)))
    })
}

/// Takes in a gateway's reports until its stream ends.
async fn follow(
    handle: ActorHandle,
    attachment: u64,
    mut reports: Streaming<internal::GatewayReport>,
) {
    loop {
        let message = tokio::select! {
            message = reports.message() => message,
            // The actor has ended. A stream that is dropped does not keep the connection open, and
            // an open connection would delay this process's end.
            () = handle.closed() => return,
        };
        match message {
            Ok(Some(report)) => {
                handle
                    .send(Mail::Reported { attachment, report: wire::gateway_report(report) })
                    .await
            }
            // However it ended, the gateway is not attached any more.
            Ok(None) | Err(_) => return handle.send(Mail::Detached { attachment }).await,
        }
    }
}

#[tonic::async_trait]
impl Operations for Services {
    type EventsStream = Events;

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Events>, Status> {
        self.handle.events().read(request.into_inner()).map(Response::new)
    }

    async fn restart(
        &self,
        request: Request<RestartRequest>,
    ) -> Result<Response<RestartResponse>, Status> {
        let request = request.into_inner();
        let target = match request.process() {
            Process::Gateway => ServiceProcess::Gateway,
            Process::Target => ServiceProcess::Target,
            Process::Drafter => ServiceProcess::Drafter,
            Process::Supervisor => ServiceProcess::Supervisor,
            Process::Unspecified => {
                let message =
                    format!("expected a process known to this version, found {}", request.process);
                return Err(Reason::InvalidArgument.field("process", message));
            }
        };
        let at_once = match target {
            // The gateway submits interrupted requests again.
            ServiceProcess::Target | ServiceProcess::Supervisor => request.now || !request.drain,
            ServiceProcess::Gateway | ServiceProcess::Drafter => request.now,
        };
        let order = OperatorOrder::Restart { process: target, at_once };
        let ordered = self.handle.order(order);
        let status = self.within(request.timeout_ms, target, ordered).await?;
        let term = status.term;
        Ok(Response::new(RestartResponse { process: Some(process(status, target)), term }))
    }

    async fn swap_target(
        &self,
        request: Request<SwapTargetRequest>,
    ) -> Result<Response<SwapTargetResponse>, Status> {
        let SwapTargetRequest { model, drain_ms, timeout_ms } = request.into_inner();
        let Some(planner) = &self.planner else {
            return Err(Reason::ProcessState.status("the target of this service cannot be swapped"));
        };
        let planner = match &self.desk {
            Some(desk) => planner.with_settings(&desk.loaded().await?),
            None => planner.clone(),
        };
        let memory = self.handle.status().await?.memory.unwrap_or_default();
        let setup = planner.plan(&model, memory.target_bytes).await?;
        let order = self.handle.swap_target(setup, drain_ms.map(u64::from));
        let target = ServiceProcess::Target;
        let status = self.within(timeout_ms, target, order).await?;
        Ok(Response::new(SwapTargetResponse { target: Some(process(status, target)) }))
    }

    async fn drain(
        &self,
        request: Request<DrainRequest>,
    ) -> Result<Response<DrainResponse>, Status> {
        let DrainRequest { undo, timeout_ms } = request.into_inner();
        let order = if undo { OperatorOrder::Resume } else { OperatorOrder::Drain };
        let ordered = self.handle.order(order);
        let status = self.within(timeout_ms, ServiceProcess::Supervisor, ordered).await?;
        Ok(Response::new(DrainResponse { requests: status.requests }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.handle.status().await.map(Response::new)
    }

    async fn start_drafter(
        &self,
        request: Request<StartDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        let StartDrafterRequest { model, timeout_ms } = request.into_inner();
        check_model(&model)?;
        self.order(DrafterOrder::Start { model }, timeout_ms).await
    }

    async fn stop_drafter(
        &self,
        request: Request<StopDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        self.order(DrafterOrder::Stop, request.into_inner().timeout_ms).await
    }

    async fn swap_drafter(
        &self,
        request: Request<SwapDrafterRequest>,
    ) -> Result<Response<DrafterResponse>, Status> {
        let SwapDrafterRequest { model, timeout_ms } = request.into_inner();
        check_model(&model)?;
        self.order(DrafterOrder::Swap { model }, timeout_ms).await
    }

    async fn show_policy(
        &self,
        _: Request<ShowPolicyRequest>,
    ) -> Result<Response<PolicyResponse>, Status> {
        let routing = self.handle.status().await?.routing.unwrap_or_default();
        Ok(Response::new(PolicyResponse { epoch: routing.policy_epoch, policy: routing.policy }))
    }

    async fn set_policy(
        &self,
        request: Request<SetPolicyRequest>,
    ) -> Result<Response<PolicyResponse>, Status> {
        let SetPolicyRequest { key, value } = request.into_inner();
        let change = config::policy_change(&key, &value)
            .map_err(|error| Reason::InvalidArgument.status(chain(&error)))?;
        self.handle.set_policy(change).await.map(Response::new)
    }

    async fn show_settings(
        &self,
        _: Request<ShowSettingsRequest>,
    ) -> Result<Response<ShowSettingsResponse>, Status> {
        self.desk()?.show(&self.handle).await.map(Response::new)
    }

    async fn change_settings(
        &self,
        request: Request<ChangeSettingsRequest>,
    ) -> Result<Response<ChangeSettingsResponse>, Status> {
        let changed = self.desk()?.change(request.into_inner(), self.handle.clone());
        // An operator who goes away takes nothing back, and leaves nothing half done.
        let changed = task::spawn("settings", changed).await;
        let changed = changed.map_err(|_| Status::internal("the change failed"))?;
        changed.map(Response::new)
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::generation::{Grammar, GrammarPart, PromptImage, TextForm};

    use super::*;

    #[test]
    fn requests_that_differ_in_prompt_image_or_schema_have_different_fingerprints() {
        let schema = |text: &str| GrammarPart {
            field: "response_format".to_owned(),
            lenient: false,
            content: TextForm::JsonSchema(text.to_owned()),
        };
        let grammar =
            |part| Grammar { frame: "start: @0".to_owned(), parts: vec![part], end_ids: vec![2] };
        let image = |digest, start| PromptImage {
            digest: vec![digest; 32],
            start,
            ..PromptImage::default()
        };
        let one = Generation {
            prompt_ids: vec![1, 2, 3],
            images: vec![image(1, 0), image(2, 1)],
            grammar: Some(grammar(schema("{}"))),
            ..Generation::default()
        };
        let others = [
            Generation { prompt_ids: vec![1, 2, 4], ..one.clone() },
            Generation { images: vec![image(3, 0), image(2, 1)], ..one.clone() },
            Generation { images: vec![image(1, 0), image(2, 2)], ..one.clone() },
            Generation { images: Vec::new(), ..one.clone() },
            Generation { grammar: Some(grammar(schema("{ }"))), ..one.clone() },
            Generation { grammar: None, ..one.clone() },
        ];
        for other in &others {
            assert_ne!(fingerprint(other), fingerprint(&one), "{other:?}");
        }
        let resumed =
            Generation { continuation_ids: vec![9], seed: 7, max_tokens: 9, ..one.clone() };
        assert_eq!(fingerprint(&resumed), fingerprint(&one));
    }

    #[test]
    fn a_drafter_that_is_no_model_directory_is_refused_by_its_kind() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("q4.gguf"), "x").expect("written");
        std::fs::create_dir(path("adapter")).expect("made");
        std::fs::create_dir(path("model")).expect("made");
        std::fs::write(path("adapter/adapter_config.json"), "{}").expect("written");
        for (model, says) in [
            (path("q4.gguf"), "GGUF"),
            (path("adapter"), "an adapter"),
            (path("nothing"), "found nothing at"),
            ("relative".to_owned(), "expected an absolute path"),
        ] {
            let error = check_model(&model).expect_err(says);
            assert!(error.message().contains(says), "{error:?}");
        }
        for model in ["", "lookup", &path("model")] {
            assert!(check_model(model).is_ok(), "{model}");
        }
    }
}
