//! ① A request comes in: checked, made token ids, submitted to the supervisor. The handler returns
//! with the first tokens, so that an error before them comes without headers and clients may retry
//! it by policy.

pub mod backlog;
pub mod connection;
pub mod connections;
pub mod decoding;
pub mod gate;
pub mod message;
pub mod opening;
mod question;
pub mod track;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, Stream};
use paceline_process::clock::monotonic_ns;
use paceline_process::config::LimitsConfig;
use paceline_proto::internal::v1::supervisor_client::SupervisorClient;
use paceline_proto::internal::v1::{Generation, Stamp};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::strict::Deferred;
use paceline_proto::v1;
use paceline_proto::v1::inference_server::Inference;
use paceline_vocabulary::{KeyId, RequestId};
use prost::{Message, Name};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use crate::deadline::Deadline;
use crate::error;
use crate::guard::keys::Principal;
use crate::images::{
    ExpandedPrompt, ImagePipeline, ImageProcessor, InspectedImage, ReservedTokens,
    expand_placeholders,
};
use crate::prompt::{PromptError, Prompter};
use crate::record::Record;
use crate::request::{
    Asked, Identity, Setting, Wishes, check_model, check_pictures, fit, most_prompt_tokens,
    reserved, too_long,
};
use crate::standing::{Serving, Standing};
use crate::stream::{Answer, Below, Bounds, Unread};
use crate::wire;

use backlog::Backlog;
use decoding::Decoding;
use gate::Arrival;

/// The target ends a request at its deadline, at a step's border. This much later the gateway does,
/// whatever is below.
pub const BACKSTOP: Duration = Duration::from_millis(20);

/// What clients read.
pub type AnswerStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

/// `paceline.v1.Inference`.
#[derive(Debug)]
pub struct InferenceService {
    /// Number of this gateway's life.
    pub epoch: u64,
    /// Decodes and checks messages, large ones on threads of their own.
    pub decoding: Decoding,
    /// Makes prompts.
    pub prompter: Prompter,
    /// Works on images.
    pub images: ImagePipeline,
    /// The operator's limits.
    pub limits: LimitsConfig,
    /// Whether requests can be served now.
    pub standing: watch::Receiver<Standing>,
    /// Whether there is room for more of them.
    pub backlog: Arc<Backlog>,
    /// Where requests go.
    pub supervisor: SupervisorClient<Channel>,
    /// Ends every running request.
    pub cancel: CancellationToken,
}

#[tonic::async_trait]
impl Inference for InferenceService {
    type GenerateStream = AnswerStream;
    type ChatStream = AnswerStream;

    async fn generate(
        &self,
        request: Request<Deferred<v1::GenerateRequest>>,
    ) -> Result<Response<AnswerStream>, Status> {
        self.answer("Generate", request, generate_asked).await
    }

    async fn chat(
        &self,
        request: Request<Deferred<v1::ChatRequest>>,
    ) -> Result<Response<AnswerStream>, Status> {
        self.answer("Chat", request, chat_asked).await
    }

    async fn count_tokens(
        &self,
        request: Request<Deferred<v1::CountTokensRequest>>,
    ) -> Result<Response<v1::CountTokensResponse>, Status> {
        self.count(request).await
    }

    async fn get_model(
        &self,
        request: Request<v1::GetModelRequest>,
    ) -> Result<Response<v1::GetModelResponse>, Status> {
        self.describe(&request.into_inner().model).map(Response::new)
    }
}

fn generate_asked(
    message: v1::GenerateRequest,
    reserved: ReservedTokens<'_>,
) -> Result<Asked, Status> {
    reserved::check_generate(&message, reserved)?;
    Asked::generate(message)
}

fn chat_asked(message: v1::ChatRequest, reserved: ReservedTokens<'_>) -> Result<Asked, Status> {
    reserved::check_chat(&message, reserved)?;
    Asked::chat(message)
}

impl InferenceService {
    /// One call: bounds around [`InferenceService::begin`], one terminal status (I4), one log line.
    async fn answer<M: Message + Name + Default + 'static>(
        &self,
        method: &'static str,
        request: Request<Deferred<M>>,
        check: fn(M, ReservedTokens<'_>) -> Result<Asked, Status>,
    ) -> Result<Response<AnswerStream>, Status> {
        let (metadata, mut extensions, message) = request.into_parts();
        // Without the gate before us (tests) the call counts for nobody.
        let arrival: Option<Arrival> = extensions.remove();
        let arrived_ns = arrival.as_ref().map_or_else(monotonic_ns, |arrival| arrival.at_ns);
        let principal: Option<Principal> = extensions.remove();
        let request_id = paceline_proto::ids::draw_request_id();
        let mut record = Record::new(method, request_id.as_str(), arrived_ns);

        let begun = async {
            let deadline = self.deadline(&metadata, arrived_ns)?;
            let beginning = async {
                let asked = self.decoding.read(message, check).await?;
                self.begin(asked, deadline, request_id.as_str(), principal, &mut record).await
            };
            self.within(deadline, beginning).await
        };
        let mut answer = match guarded(begun, &request_id).await {
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

    /// Work of a request, until it must be over.
    async fn within<T>(
        &self,
        deadline: Deadline,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(error::cancelled_by_draining()),
            done = work => done,
            () = tokio::time::sleep(deadline.until(BACKSTOP)) => Err(error::deadline_passed()),
        }
    }

    /// How the model's images are prepared, if it reads images.
    fn processor(&self) -> Option<&Arc<ImageProcessor>> {
        self.prompter.language().images.as_ref()
    }

    /// From a well-formed request to what would be submitted, its images inspected and not yet
    /// worked on: that is done for what fits.
    async fn prepare(
        &self,
        asked: Asked,
        who: Identity,
        record: &mut Record,
    ) -> Result<Prepared, Status> {
        let serving = self.standing.borrow().serving()?;
        let field = asked.prompt_field();
        let Asked { mut source, wishes } = asked;
        check_model(&wishes.model, &serving.model)?;
        let to = Setting {
            model: &serving.model,
            language: self.prompter.language(),
            limits: &self.limits,
        };
        let processor = self.processor().filter(|_| serving.model.vision);
        let inspected = self.images.inspect(source.take_images(), processor).await?;
        let who = if inspected.is_empty() { who } else { who.with_pictures() };
        record.pictures = inspected.len();
        let counts: Vec<u64> = inspected.iter().map(|image| image.tokens).collect();
        check_pictures(counts.iter().fold(0, |sum, count| sum.saturating_add(*count)), to)?;
        let made = self.prompter.ids(source, most_prompt_tokens(to)).await;
        let prompt_ids = made.map_err(|problem| match problem {
            PromptError::TooLong { at_least } => too_long(field, at_least, to),
            other => other.into(),
        })?;
        let ExpandedPrompt { ids: prompt_ids, image_starts } = expand_placeholders(
            prompt_ids,
            field,
            self.processor().map(|processor| &**processor),
            &counts,
        )?;
        record.prompt_tokens = prompt_ids.len();
        let generation = fit(&wishes, field, prompt_ids, to, who)?;
        Ok(Prepared { serving, wishes, generation, inspected, image_starts })
    }

    /// From a well-formed request to its first tokens. Dropped at any await, it leaves nothing
    /// behind: the calls below are dropped with it.
    async fn begin(
        &self,
        asked: Asked,
        deadline: Deadline,
        request_id: &str,
        principal: Option<Principal>,
        record: &mut Record,
    ) -> Result<Answer, Status> {
        let key = principal.as_ref().map_or(KeyId::NONE, |principal| principal.id);
        self.backlog.look(key, self.standing.borrow().serving()?.term)?;
        let who = Identity::new(request_id, deadline.at_ns, principal.as_ref());
        let Prepared { serving, wishes, mut generation, inspected, image_starts } =
            self.prepare(asked, who, record).await?;
        let mut stored = match self.processor().filter(|_| !inspected.is_empty()) {
            None => None,
            Some(processor) => Some(self.images.store(inspected, processor).await?),
        };
        if let Some(stored) = &mut stored {
            stored.place(&image_starts);
            generation.pictures = wire::pictures(stored.images());
            record.picture_times = Some(stored.times);
        }
        if deadline.passed() {
            return Err(error::deadline_passed());
        }
        let (place, term) = (self.backlog.enter(key), serving.term);
        let stamp = Stamp { term: serving.term, epoch: self.epoch };
        let below = Below { supervisor: self.supervisor.clone(), stamp, key };
        let bounds = Bounds { deadline, cancel: self.cancel.clone() };
        let mut answer = Answer::new(generation, &wishes, self.prompter.language(), below, bounds)
            .showing(stored);
        if let Err(status) = answer.open().await {
            place.refused(term, &status);
            return Err(status);
        }
        place.begun();
        answer.hold(place);
        Ok(answer)
    }
}

/// What would be submitted.
struct Prepared {
    serving: Serving,
    wishes: Wishes,
    generation: Generation,
    inspected: Vec<InspectedImage>,
    /// Where each image starts in the prompt.
    image_starts: Vec<u32>,
}

/// Runs work of a request in its span; a panic in it is an error of this request alone.
async fn guarded<T>(
    work: impl Future<Output = Result<T, Status>>,
    request_id: &RequestId,
) -> Result<T, Status> {
    let guarded = async {
        let done = AssertUnwindSafe(work).catch_unwind().await;
        done.unwrap_or_else(|_| Err(error::bug("a panic while beginning a request")))
    };
    // Errors are logged with the id whatever level the operator chose.
    guarded.instrument(tracing::error_span!("request", request_id = request_id.as_str())).await
}
