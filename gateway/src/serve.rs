//! ① A request comes in: checked, made token ids, submitted to the supervisor. The handler returns with the first tokens,
//! so that an error before them comes without headers and clients may retry it by policy.

pub mod connection;
pub mod gate;
pub mod opening;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, Stream};
use paceline_process::clock::monotonic_ns;
use paceline_process::config::LimitsConfig;
use paceline_proto::ids::RequestId;
use paceline_proto::internal::v1::supervisor_client::SupervisorClient;
use paceline_proto::internal::v1::{Stamp, SubmitRequest};
use paceline_proto::status::Reason;
use paceline_proto::v1;
use paceline_proto::v1::inference_server::Inference;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use crate::deadline::Deadline;
use crate::error;
use crate::guard::keys::{DEFAULT_CLASS, Principal};
use crate::prompt::Prompter;
use crate::record::Record;
use crate::request::{Asked, Identity, Setting, fit};
use crate::standing::Standing;
use crate::stream::{Answer, Bounds, Unread};

use gate::Arrival;

/// The target ends a request at its deadline, at a step's border. This much later the gateway does, whatever is below.
pub const BACKSTOP: Duration = Duration::from_millis(20);

/// What clients read.
pub type AnswerStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

/// `paceline.v1.Inference`.
#[derive(Debug)]
pub struct InferenceService {
    /// Number of this gateway's life.
    pub epoch: u64,
    /// Makes prompts.
    pub prompter: Prompter,
    /// The operator's limits.
    pub limits: LimitsConfig,
    /// Whether requests can be served now.
    pub standing: watch::Receiver<Standing>,
    /// Where requests go.
    pub supervisor: SupervisorClient<Channel>,
    /// Ends every running request.
    pub cancel: CancellationToken,
}

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = AnswerStream;
    type ChatStream = AnswerStream;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<AnswerStream>, Status> {
        self.answer("Generate", request, Asked::generate).await
    }

    async fn chat(&self, request: Request<v1::ChatRequest>) -> Result<Response<AnswerStream>, Status> {
        self.answer("Chat", request, Asked::chat).await
    }

    async fn count_tokens(&self, _: Request<v1::CountTokensRequest>) -> Result<Response<v1::CountTokensResponse>, Status> {
        Err(Status::unimplemented("CountTokens"))
    }

    async fn get_model(&self, _: Request<v1::GetModelRequest>) -> Result<Response<v1::GetModelResponse>, Status> {
        Err(Status::unimplemented("GetModel"))
    }
}

impl InferenceService {
    /// One call: bounds around [`InferenceService::begin`], one terminal status (I4), one log line.
    async fn answer<M>(
        &self,
        method: &'static str,
        request: Request<M>,
        look: impl FnOnce(M) -> Result<Asked, Status>,
    ) -> Result<Response<AnswerStream>, Status> {
        let (metadata, mut extensions, message) = request.into_parts();
        // Without the gate before us (tests) the call counts for nobody.
        let arrival: Option<Arrival> = extensions.remove();
        let arrived_ns = arrival.as_ref().map_or_else(monotonic_ns, |arrival| arrival.at_ns);
        let principal: Option<Principal> = extensions.remove();
        let request_id = RequestId::draw();
        let mut record = Record::new(method, request_id.as_str(), arrived_ns);

        let begun = async {
            let asked = look(message)?;
            let deadline = self.deadline(&metadata, arrived_ns)?;
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => Err(error::cancelled_by_draining()),
                begun = self.begin(asked, deadline, request_id.as_str(), principal, &mut record) => begun,
                () = tokio::time::sleep(deadline.until(BACKSTOP)) => Err(error::deadline_passed()),
            }
        };
        let guarded = async {
            let begun = AssertUnwindSafe(begun).catch_unwind().await;
            begun.unwrap_or_else(|_| Err(error::bug("a panic while beginning a request")))
        };
        // Errors are logged with the id whatever level the operator chose.
        let span = tracing::error_span!("request", request_id = request_id.as_str());
        let mut answer = match guarded.instrument(span).await {
            Ok(answer) => answer,
            Err(status) => {
                record.ended(status.code(), Reason::of(&status));
                return Err(error::with_request_id(status, request_id.as_str()));
            }
        };
        answer.keep(record, arrival.map(|arrival| arrival.slot));
        let stream = Unread::watch(answer, Duration::from_secs(self.limits.unread_s));
        let mut response: Response<AnswerStream> = Response::new(Box::pin(stream));
        if let Ok(value) = request_id.as_str().parse() {
            response.metadata_mut().insert(error::REQUEST_ID, value);
        }
        Ok(response)
    }

    fn deadline(&self, metadata: &MetadataMap, arrived_ns: i64) -> Result<Deadline, Status> {
        Deadline::of(metadata, arrived_ns, Duration::from_secs(self.limits.deadline_s))
    }

    /// From a well-formed request to its first tokens. Dropped at any await, it leaves nothing behind: the call below is
    /// dropped with it.
    async fn begin(
        &self,
        asked: Asked,
        deadline: Deadline,
        request_id: &str,
        principal: Option<Principal>,
        record: &mut Record,
    ) -> Result<Answer, Status> {
        let serving = self.standing.borrow().serving()?;
        let field = asked.prompt_field();
        let Asked { source, wishes } = asked;
        wishes.check_model(&serving.model)?;
        let prompt_ids = self.prompter.ids(source).await.map_err(error::prompt)?;
        record.prompt_tokens = prompt_ids.len();

        let who = Identity {
            request_id: request_id.to_owned(),
            deadline_ns: deadline.at_ns,
            traffic_class: principal.as_ref().map_or(DEFAULT_CLASS, |principal| &*principal.class).to_owned(),
            cache_scope: principal.as_ref().map_or("", |principal| &*principal.scope).to_owned(),
        };
        let to = Setting { model: &serving.model, language: self.prompter.language(), limits: &self.limits };
        let generation = fit(&wishes, field, prompt_ids, to, who)?;
        if deadline.passed() {
            return Err(error::deadline_passed());
        }
        let bounds = Bounds { deadline, cancel: self.cancel.clone() };
        let mut answer = Answer::new(&generation, Arc::clone(self.prompter.language()), bounds);
        let stamp = Stamp { term: serving.term, epoch: self.epoch };
        let submitted = SubmitRequest { stamp: Some(stamp), generation: Some(generation) };
        // A clone shares the connection.
        let stream = self.supervisor.clone().submit(submitted).await.map_err(error::from_below)?;
        answer.open(stream.into_inner()).await?;
        Ok(answer)
    }
}
