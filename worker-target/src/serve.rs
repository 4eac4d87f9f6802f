//! The worker's gRPC service: checks term and epoch, turns requests into commands, and streams of
//! tokens into responses.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use paceline_models::device;
use paceline_process::telemetry::trace;
use paceline_process::worker::{Gate, Mail, Progress, SendRefused};
use paceline_proto::internal::v1::target_server::Target;
use paceline_proto::internal::v1::{
    CancelRequest, CancelResponse, DescribeRequest, DescribeResponse, PrepareRequest,
    PrepareResponse, RepermitRequest, RepermitResponse, SetPolicyRequest, SetPolicyResponse,
    StatsRequest, StatsResponse, TargetGenerateRequest, TokenBatch,
};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_system::Clock;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::engine::{EngineCommand, PermitChange};
use crate::grammar::GrammarSource;
use crate::image_files::{AnnouncedImage, ImageFiles, LoadedImage};
use crate::loaded_model::LoadedModel;
use crate::outlet::{STREAM_BACKLOG, TokenOutlet};
use crate::running::RunningRequest;
use crate::wire::{self, CheckedRequest, RequestContext};

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct TargetService {
    pub(crate) gate: Gate,
    pub(crate) config_digest: String,
    pub(crate) loaded: Arc<OnceLock<LoadedModel>>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) commands: Mail<EngineCommand>,
    pub(crate) clock: Clock,
    pub(crate) image_files: ImageFiles,
}

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl TargetService {
    /// Reads the pixels of images, on a thread that may block.
    async fn load_images(
        &self,
        announced: Vec<AnnouncedImage>,
    ) -> Result<Vec<LoadedImage>, Status> {
        if announced.is_empty() {
            return Ok(vec![]);
        }
        let files = self.image_files.clone();
        let read = tokio::task::spawn_blocking(move || files.read(&announced)).await;
        read.unwrap_or_else(|error| {
            tracing::error!(%error, "the task that reads images failed");
            Err(Reason::Bug
                .status("the request's images could not be read; the log has the reason"))
        })
    }

    fn loaded(&self) -> Result<&LoadedModel, Status> {
        self.loaded
            .get()
            .ok_or_else(|| Reason::TargetLoading.status("the target is loading its weights"))
    }

    fn send(&self, command: EngineCommand) -> Result<(), Status> {
        self.commands.try_send(command).map_err(|error| match error {
            SendRefused::Full => {
                Reason::QueueFull.status("the engine has more commands waiting than it takes")
            }
            SendRefused::Ended => Reason::Draining.status("the target is stopping"),
        })
    }
}

#[tonic::async_trait]
impl Target for TargetService {
    type GenerateStream = Outgoing<TokenBatch>;

    async fn generate(
        &self,
        request: Request<TargetGenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let trace = trace::of_metadata(request.metadata());
        let message = request.into_inner();
        let stamp = self.gate.check_stamp(message.stamp)?;
        let loaded = self.loaded()?;
        let context = RequestContext {
            model: &loaded.info,
            vision: loaded.vision.as_ref(),
            clock: &self.clock,
        };
        let CheckedRequest { mut request, announced, grammar } =
            wire::request(message.generation, message.permit, context)?;
        let grammar = match grammar {
            Some(source) => Some(loaded.grammars.state(source).await?),
            None => None,
        };
        request.trace = trace;
        request.images = self.load_images(announced).await?;
        let (tx, mut rx) = mpsc::channel(STREAM_BACKLOG);
        let running = RunningRequest::new(request, TokenOutlet::new(tx, stamp));
        self.send(EngineCommand::Run(Box::new(running.with_grammar(grammar))))?;
        // Headers are sent with the first tokens: an error before them costs the client nothing.
        let first = rx.recv().await.unwrap_or_else(|| {
            Err(Reason::TargetGone.status("the engine ended before the first token"))
        })?;
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(ReceiverStream::new(rx)))))
    }

    type PrepareStream = Outgoing<PrepareResponse>;

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<Self::PrepareStream>, Status> {
        let PrepareRequest { stamp, grammar, key_id } = request.into_inner();
        self.gate.check_stamp(stamp)?;
        let loaded = self.loaded()?;
        let missing = || Reason::InvalidArgument.field("grammar", "expected one, found none");
        let vocab = loaded.info.vocab as usize;
        let source = GrammarSource::of_message(grammar.ok_or_else(missing)?, vocab)?;
        let prepared = loaded.grammars.prepare(source, key_id).await?;
        // The stream has no message; the grammar is kept until the caller drops it.
        let open = tokio_stream::pending::<Result<PrepareResponse, Status>>().map(move |never| {
            let _held = &prepared;
            never
        });
        Ok(Response::new(Box::pin(open)))
    }

    async fn cancel(
        &self,
        request: Request<CancelRequest>,
    ) -> Result<Response<CancelResponse>, Status> {
        let message = request.into_inner();
        self.gate.check_stamp(message.stamp)?;
        let (found, answered) = oneshot::channel();
        self.send(EngineCommand::Cancel { request_id: message.request_id, found })?;
        Ok(Response::new(CancelResponse { found: answered.await.unwrap_or(false) }))
    }

    async fn stats(
        &self,
        request: Request<StatsRequest>,
    ) -> Result<Response<StatsResponse>, Status> {
        self.gate.check_stamp(request.into_inner().stamp)?;
        let (prefill_tokens, decode_tokens) = self.progress.tokens();
        let (step_p50_us, step_p99_us) = self.progress.step_us();
        let (mlx_active_bytes, mlx_cache_bytes) = device::memory();
        let stats = StatsResponse {
            now: Some(self.progress.heartbeat(self.gate.epoch())),
            prefill_tokens,
            decode_tokens,
            step_p50_us,
            step_p99_us,
            mlx_active_bytes,
            mlx_cache_bytes,
        };
        Ok(Response::new(stats))
    }

    async fn describe(
        &self,
        request: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        self.gate.check_stamp(request.into_inner().stamp)?;
        let loaded = self.loaded()?;
        Ok(Response::new(DescribeResponse {
            epoch: self.gate.epoch(),
            pid: std::process::id(),
            build: paceline_proto::BUILD.to_owned(),
            config_digest: self.config_digest.clone(),
            model: Some(wire::model_info(loaded)),
            kv_classes: loaded.kv_classes.iter().copied().map(Into::into).collect(),
            max_sequences: loaded.max_sequences as u32,
            image_patch_bytes: loaded.patch_bytes,
        }))
    }

    async fn repermit(
        &self,
        request: Request<RepermitRequest>,
    ) -> Result<Response<RepermitResponse>, Status> {
        let message = request.into_inner();
        self.gate.check_stamp(message.stamp)?;
        let changes = message.changes.into_iter().map(|change| {
            let permit = wire::permit(change.permit)?;
            Ok(PermitChange { request_id: change.request_id, permit })
        });
        let changes = changes.collect::<Result<Vec<_>, Status>>()?;
        let (unknown, answered) = oneshot::channel();
        self.send(EngineCommand::Repermit { changes, unknown })?;
        // An engine that ends before it answers takes its requests with it.
        Ok(Response::new(RepermitResponse { unknown: answered.await.unwrap_or_default() }))
    }

    async fn set_policy(
        &self,
        request: Request<SetPolicyRequest>,
    ) -> Result<Response<SetPolicyResponse>, Status> {
        let message = request.into_inner();
        let stamp = self.gate.check_stamp(message.stamp)?;
        self.send(EngineCommand::SetPolicy(wire::policy(message.policy, stamp.term)?))?;
        Ok(Response::new(SetPolicyResponse {}))
    }
}
