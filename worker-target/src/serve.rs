//! The worker's gRPC service: checks term and epoch, turns calls into commands, and streams into
//! responses.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use paceline_models::vision::VisionInfo;
use paceline_models::{TargetInfo, device};
use paceline_process::Clock;
use paceline_process::worker::{Gate, Mail, Progress, Refused};
use paceline_proto::internal::v1::target_server::Target;
use paceline_proto::internal::v1::{
    CancelRequest, CancelResponse, DescribeRequest, DescribeResponse, KvClass, ModelInfo,
    RepermitRequest, RepermitResponse, SetPolicyRequest, SetPolicyResponse, StatsRequest,
    StatsResponse, TargetGenerateRequest, TokenBatch,
};
use paceline_proto::status::{Reason, ReasonStatus as _};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::emit::{Outlet, STREAM_BACKLOG};
use crate::engine::{Command, Running, Stages};
use crate::pixels::{Gallery, Shown};
use crate::request::{self, Announced};

/// What is known once the weights are there.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) info: TargetInfo,
    /// Its vision tower.
    pub(crate) vision: Option<VisionInfo>,
    /// Bytes a sequence holds for each patch of its pictures.
    pub(crate) patch_bytes: u64,
    pub(crate) name: String,
    pub(crate) kv_classes: Vec<KvClass>,
    pub(crate) max_sequences: usize,
}

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct TargetService {
    pub(crate) gate: Gate,
    pub(crate) config_digest: String,
    pub(crate) loaded: Arc<OnceLock<Loaded>>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) commands: Mail<Command>,
    pub(crate) clock: Clock,
    pub(crate) gallery: Gallery,
}

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl TargetService {
    /// The pixels of pictures, read where nobody else waits.
    async fn look_at(&self, announced: Vec<Announced>) -> Result<Vec<Shown>, Status> {
        if announced.is_empty() {
            return Ok(vec![]);
        }
        let gallery = self.gallery.clone();
        let read = tokio::task::spawn_blocking(move || gallery.read(&announced)).await;
        read.unwrap_or_else(|error| {
            tracing::error!(%error, "reading pictures ended before its end");
            Err(Reason::Bug
                .status("the request's pictures could not be read; the log has the reason"))
        })
    }

    fn loaded(&self) -> Result<&Loaded, Status> {
        self.loaded
            .get()
            .ok_or_else(|| Reason::TargetLoading.status("the target is loading its weights"))
    }

    fn send(&self, command: Command) -> Result<(), Status> {
        self.commands.try_send(command).map_err(|error| match error {
            Refused::Full => {
                Reason::QueueFull.status("the engine has more commands waiting than it takes")
            }
            Refused::Ended => Reason::Draining.status("the target is stopping"),
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
        let message = request.into_inner();
        let stamp = self.gate.admit(message.stamp)?;
        let loaded = self.loaded()?;
        let model = (&loaded.info, loaded.vision.as_ref());
        let (mut checked, announced) =
            request::check(message.generation, message.permit, model, &self.clock)?;
        checked.pictures = self.look_at(announced).await?;
        let (tx, mut rx) = mpsc::channel(STREAM_BACKLOG);
        self.send(Command::Run(Box::new(Running {
            checked,
            outlet: Outlet::new(tx, stamp),
            stages: Stages::default(),
        })))?;
        // Headers with the first tokens: until then an error loses nothing.
        let first = rx.recv().await.unwrap_or_else(|| {
            Err(Reason::TargetGone.status("the engine ended before the first token"))
        })?;
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(ReceiverStream::new(rx)))))
    }

    async fn cancel(
        &self,
        request: Request<CancelRequest>,
    ) -> Result<Response<CancelResponse>, Status> {
        let message = request.into_inner();
        self.gate.admit(message.stamp)?;
        let (answer, answered) = oneshot::channel();
        self.send(Command::Cancel(message.request_id, answer))?;
        Ok(Response::new(CancelResponse { found: answered.await.unwrap_or(false) }))
    }

    async fn stats(
        &self,
        request: Request<StatsRequest>,
    ) -> Result<Response<StatsResponse>, Status> {
        self.gate.admit(request.into_inner().stamp)?;
        let ((prefill_tokens, decode_tokens), (step_p50_us, step_p99_us)) =
            (self.progress.tokens(), self.progress.step_us());
        let (mlx_active_bytes, mlx_cache_bytes) = device::memory();
        let now = Some(self.progress.heartbeat(self.gate.epoch()));
        let stats = StatsResponse {
            now,
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
        self.gate.admit(request.into_inner().stamp)?;
        let loaded = self.loaded()?;
        let model = ModelInfo {
            name: loaded.name.clone(),
            path: loaded.info.path.display().to_string(),
            architecture: loaded.info.architecture.clone(),
            context_length: loaded.info.context as u32,
            vocab_size: loaded.info.vocab as u32,
            weight_bytes: loaded.info.weight_bytes,
            vision: loaded.vision.is_some(),
        };
        Ok(Response::new(DescribeResponse {
            epoch: self.gate.epoch(),
            pid: std::process::id(),
            build: paceline_proto::BUILD.to_owned(),
            config_digest: self.config_digest.clone(),
            model: Some(model),
            kv_classes: loaded.kv_classes.clone(),
            max_sequences: loaded.max_sequences as u32,
            picture_patch_bytes: loaded.patch_bytes,
        }))
    }

    async fn repermit(
        &self,
        request: Request<RepermitRequest>,
    ) -> Result<Response<RepermitResponse>, Status> {
        let message = request.into_inner();
        self.gate.admit(message.stamp)?;
        let changes = message.changes.into_iter().map(|change| {
            let permit = request::permit(change.permit)?;
            Ok((change.request_id, permit))
        });
        let changes = changes.collect::<Result<Vec<_>, Status>>()?;
        let (answer, answered) = oneshot::channel();
        self.send(Command::Repermit(changes, answer))?;
        // An engine that ends before it answers takes its requests with it.
        Ok(Response::new(RepermitResponse { unknown: answered.await.unwrap_or_default() }))
    }

    async fn set_policy(
        &self,
        request: Request<SetPolicyRequest>,
    ) -> Result<Response<SetPolicyResponse>, Status> {
        let message = request.into_inner();
        let stamp = self.gate.admit(message.stamp)?;
        self.send(Command::Policy(request::policy(message.policy, stamp.term)?))?;
        Ok(Response::new(SetPolicyResponse {}))
    }
}
