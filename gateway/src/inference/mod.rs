//! ① A request is checked, made token ids, and submitted to the supervisor; its answer comes back
//! as a stream of events. The middle of the gateway: no protocol of clients is known here.
//!
//! A front makes a [`RequestContext`] of the client's request and opens it with
//! [`Inference::open`]. It decodes the message to an [`input::RequestInput`] within the time of
//! that [`open::OpenRequest`], which answers the request or counts its tokens. The front encodes
//! the [`paceline_text::stream::AnswerEvent`]s and [`InferenceError`]s that come back.
//!
//! - [`input`], [`params`]: what clients ask for.
//! - [`bounds`]: bounds of numbers and lists.
//! - [`request`]: checks of the fields alone.
//! - [`fit`]: checks against the served model.
//! - [`truncation`]: conversations whose oldest messages are left out.
//! - [`admission`]: how many requests may be inside, and how large they may be.
//! - [`open`]: a request from its arrival to its first token.
//! - [`answer`]: the stream of events.
//! - [`languages`]: the text side of the served model.
//! - [`loads`]: the load of the service, for routers.
//! - [`journal`]: what is kept of a request, so that it goes on after a process has ended.
//! - [`unread`]: the end of answers that are not read.
//! - [`upstream`]: the supervisor. No other module knows the messages between our processes.

pub mod admission;
pub mod answer;
pub mod deadline;
pub mod fit;
pub mod journal;
pub mod labels;
pub mod languages;
pub mod loads;
pub mod model;
pub mod open;
pub mod record;
mod sample;
pub mod standing;
mod text_log;
mod truncation;
pub mod unread;
pub mod upstream;

use std::sync::Arc;
use std::time::Duration;

use paceline_process::config::LimitsConfig;
use paceline_process::telemetry::trace::Span;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::input::RequestInput;
use paceline_protocols::inference::params::GenerationParams;
use paceline_protocols::inference::request::{Request, check};
use paceline_system::clock::monotonic_ns;
use paceline_text::images::{ExpandedPrompt, ReservedTokens, expand_placeholders};
use paceline_text::prompt::conversation::Conversation;
use paceline_text::prompt::{PromptError, PromptIds, Source};
use paceline_text::shape::ShapedAnswer;
use paceline_text::stream::ConversationReading;
use paceline_vocabulary::generation::Generation;
use paceline_vocabulary::trace::TraceId;
use paceline_vocabulary::{KeyId, Reason, RequestId, TraceContext};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::guard::keys::Principal;
use crate::images::{ImagePipeline, InspectedImage};
use crate::metrics::{GatewayFigures, Metrics};
use crate::prompter::Prompter;
use crate::turns::Party;

use admission::{Backlog, ByteBudget, ByteHold, RequestSlot};
use answer::{Answer, AnswerBounds, Destination};
use deadline::Deadline;
use fit::{ModelContext, check_model};
use journal::JournalSpace;
use labels::RequestLabels;
use languages::{Languages, ServedLanguage};
use loads::LoadQuestion;
use open::OpenRequest;
use record::{Method, Record};
use standing::{Refused, Serving, Standing};
use text_log::TextLog;
use truncation::Bisection;
use upstream::Upstream;

/// Everything that requests are served with.
#[derive(Debug)]
pub struct Inference {
    /// Makes prompts.
    pub prompter: Prompter,
    /// The text side of the served model.
    pub languages: Languages,
    /// Works on images.
    pub images: ImagePipeline,
    /// The operator's limits.
    pub limits: LimitsConfig,
    /// Most tokens of a thought if the client sets no bound; 0: any number
    /// (`gateway.thinking_budget`).
    pub thinking_budget: u32,
    /// Whether prompts and answers are logged (`log.prompts`).
    pub logs_texts: bool,
    /// Whether requests can be served now.
    pub standing: watch::Receiver<Standing>,
    /// Whether the supervisor's queue has room.
    pub backlog: Arc<Backlog>,
    /// Where requests go.
    pub upstream: Upstream,
    /// The bytes of bodies and whole answers.
    pub budget: ByteBudget,
    /// The bytes of all journals.
    pub journals: Arc<JournalSpace>,
    /// Cancelled to end every running request.
    pub cancel: CancellationToken,
    /// Where requests are recorded.
    pub metrics: Arc<Metrics>,
    /// The question for the figures of [`Inference::loads`].
    pub load_question: LoadQuestion,
}

/// The sender of a message, for the work on it.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    /// Whose turns it has.
    pub party: Party,
    /// The message's bytes in the budget, given back when the last copy is dropped.
    pub body: Option<Arc<ByteHold>>,
}

/// What a request would be served with now.
#[derive(Clone, Debug)]
pub struct Served {
    /// The supervisor and the model.
    pub serving: Serving,
    /// The text side of the model.
    pub language: ServedLanguage,
}

/// One request of a client, as its front knows it.
#[derive(Debug)]
pub struct RequestContext {
    request_id: RequestId,
    arrived_ns: i64,
    record: Record,
    /// The client's own limit on the time of the request.
    pub timeout: Option<Duration>,
    /// The owner of the request's key.
    pub principal: Option<Principal>,
    /// The request's place among those inside the gateway; `None` takes no place.
    pub slot: Option<Arc<RequestSlot>>,
    /// Whose turns and bytes it counts as.
    pub party: Party,
    /// The bytes of its message in the budget; `None` counts for none.
    pub body: Option<Arc<ByteHold>>,
    /// Parent of further requests of the same message.
    trace: Option<TraceContext>,
}

/// A request that would be submitted. Its images are inspected and not yet decoded: that is done
/// only for a request that fits.
struct Prepared {
    served: Served,
    params: GenerationParams,
    generation: Generation,
    /// How the answer is read, if it answers a conversation.
    reading: Option<ConversationReading>,
    images: Vec<InspectedImage>,
    /// Where each image starts in the prompt.
    image_starts: Vec<u32>,
}

/// A prompt of a request.
struct Prompt {
    /// Ids of the prompt, with one placeholder for each image.
    made: PromptIds,
    images: Vec<InspectedImage>,
    /// Tokens of each image.
    image_tokens: Vec<u64>,
}

impl Prompt {
    /// Number of tokens. Each image has one placeholder among the ids.
    fn tokens(&self) -> u64 {
        let images = self.image_tokens.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        (self.made.ids.len().saturating_sub(self.images.len()) as u64).saturating_add(images)
    }
}

impl RequestContext {
    /// A request of this method that arrived at `arrived_ns` of the monotonic clock. `client` is the
    /// span in which its client made it, if the client traces.
    pub fn new(method: Method, arrived_ns: i64, client: Option<TraceContext>) -> Self {
        let request_id = paceline_proto::ids::draw_request_id();
        let span = Span::of_request(client, TraceId::of_request(&request_id), "request");
        let trace = span.context().or(client);
        let record = Record::new(method, request_id.as_str(), arrived_ns).traced(span);
        Self {
            request_id,
            arrived_ns,
            record,
            timeout: None,
            principal: None,
            slot: None,
            party: Party::default(),
            body: None,
            trace,
        }
    }

    /// Parent of the spans of further requests of the same message.
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// The id that was drawn for its request.
    pub fn request_id(&self) -> &RequestId {
        &self.request_id
    }
}

impl Inference {
    /// Checks a request's fields. Takes tens of milliseconds for the largest requests.
    ///
    /// # Errors
    /// The first field that cannot be served.
    pub fn check(&self, input: RequestInput) -> Result<Request> {
        let ServedLanguage { language, version, .. } = self.languages.now();
        let reserved = ReservedTokens::new(language.images.as_deref());
        let request = check(input, reserved)?;
        Ok(Request { language: version, ..request })
    }

    /// The model and its text side, by which a request would be served now.
    ///
    /// # Errors
    /// Why it would not be.
    pub fn served(&self) -> Result<Served> {
        self.with_language(self.standing.borrow().serving()?)
    }

    /// The context is the operator's, if that is shorter than the model's.
    fn with_language(&self, mut serving: Serving) -> Result<Served> {
        let context = serving.model.context_length;
        serving.model.context_length = self.limits.context_tokens.or(context).min(context);
        match self.languages.of(&serving.model) {
            Some(language) => Ok(Served { serving, language }),
            None => Err(InferenceError::reading_model()),
        }
    }

    /// Begins to serve a request: its time runs, and its end is recorded.
    pub fn open(self: &Arc<Self>, context: RequestContext) -> OpenRequest {
        OpenRequest::new(Arc::clone(self), context)
    }

    /// All figures of the service, in the text format of Prometheus. `requests` are inside the
    /// gateway.
    pub async fn metrics_text(&self, requests: usize) -> String {
        let can_serve = self.standing.borrow().serving().is_ok();
        let own = GatewayFigures { requests, can_serve, bytes: self.budget.figures() };
        self.metrics.text(own, self.upstream.service()).await
    }

    /// The service, once it serves. A request waits for a target that is being started as long as
    /// it would wait in the queue (`limits.queue_wait_s`), unless the target is known to need more
    /// time.
    ///
    /// # Errors
    /// Why the service does not serve.
    pub(crate) async fn service(&self) -> Result<Served> {
        let mut standing = self.standing.clone();
        let most = Duration::from_secs(self.limits.queue_wait_s);
        let until = Deadline::new(monotonic_ns(), most, None);
        loop {
            let awaited = standing.borrow_and_update().awaited();
            let refusal = match awaited {
                Ok(serving) => match self.with_language(serving) {
                    Ok(served) => return Ok(served),
                    Err(error) => error,
                },
                Err(Refused::Now(error)) => return Err(error),
                Err(Refused::Awaited(error)) => error,
            };
            let left = until.until(Duration::ZERO);
            if refusal.retry_after > left {
                return Err(refusal);
            }
            match tokio::time::timeout(left, standing.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(refusal),
            }
        }
    }

    /// Resolves when the supervisor hangs, with what a request gets that has no token yet.
    async fn supervisor_hangs(&self) -> InferenceError {
        let mut standing = self.standing.clone();
        let hangs = standing.wait_for(|standing| standing.supervisor_hangs());
        let refusal = hangs.await.ok().and_then(|standing| standing.serving().err());
        match refusal {
            Some(error) => error,
            // The sender is gone, so this process ends; the request is ended by that.
            None => std::future::pending().await,
        }
    }

    /// Makes a prompt, which may be too long for the model.
    async fn prompt(
        &self,
        context: &ModelContext<'_>,
        party: &Party,
        mut source: Source,
        field: &'static str,
    ) -> Result<Prompt> {
        let encoded = source.take_images();
        let earlier = match &source {
            Source::Chat(conversation) => truncation::earlier_images(&conversation.messages),
            Source::Text(_) | Source::Ids(_) | Source::IdsWithImages { .. } => 0,
        };
        let processor = context.language.images.as_ref().filter(|_| context.model.vision);
        let inspected = self.images.inspect(encoded, earlier, processor).await?;
        if let Source::Chat(conversation) = &mut source {
            let is_left_out = |number: usize| inspected.get(number).is_some_and(Option::is_none);
            truncation::leave_out_images(&mut conversation.messages, is_left_out);
        }
        let images: Vec<InspectedImage> = inspected.into_iter().flatten().collect();
        let image_tokens: Vec<u64> = images.iter().map(|image| image.tokens).collect();
        let tokens = image_tokens.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        context.check_images(tokens)?;
        let made =
            self.prompter.ids(context.language, party, source, context.max_prompt_tokens()).await;
        let made = made.map_err(|problem| match problem {
            PromptError::TooLong { at_least } => context.too_long(field, at_least),
            other => other.into(),
        })?;
        Ok(Prompt { made, images, image_tokens })
    }

    /// Makes the prompt of a conversation. If it is too long, as few of the oldest messages as
    /// possible are left out, so that the answer has room. If that does not help, the prompt is
    /// refused as it is.
    async fn fitting_prompt(
        &self,
        context: &ModelContext<'_>,
        party: &Party,
        whole: &Conversation,
        params: &GenerationParams,
    ) -> Result<Prompt> {
        let made = async |conversation: Conversation| {
            self.prompt(context, party, Source::Chat(conversation), "messages").await
        };
        let whole_prompt = made(whole.clone()).await;
        let fits = |made: &Result<Prompt>, most: u32| match made {
            Ok(prompt) => prompt.tokens() <= u64::from(most),
            Err(error) => error.kind != Reason::PromptTooLong,
        };
        if fits(&whole_prompt, context.max_prompt_tokens()) {
            return whole_prompt;
        }
        let most = context.max_prompt_tokens_before(params.max_tokens);
        let starts = truncation::starts(&whole.messages);
        let (mut search, mut best) = (Bisection::new(starts.len()), None);
        while let Some(at) = search.next() {
            let shorter = made(truncation::beginning_at(whole, starts[at])).await;
            let is_fitting = fits(&shorter, most);
            search.record(at, is_fitting);
            if is_fitting {
                best = Some(shorter?);
            }
        }
        best.map_or(whole_prompt, Ok)
    }

    /// Makes the prompt of a well-formed request and checks that it fits the model.
    async fn prepare(
        &self,
        request: Request,
        served: Served,
        party: &Party,
        labels: RequestLabels,
        record: &mut Record,
    ) -> Result<Prepared> {
        let Served { serving, language: ServedLanguage { language, version, .. } } = &served;
        let field = request.prompt_field();
        let Request { source, params, language: checked } = request;
        if checked != *version {
            return Err(InferenceError::model_changed());
        }
        check_model(&params.model, &serving.model)?;
        let context = ModelContext { model: &serving.model, language, limits: &self.limits };
        let asked = params.shape.asked(&source);
        if !asked.is_free() {
            params.check_held()?;
        }
        asked.check(language)?;
        let Prompt { made, images, image_tokens: counts } = match &source {
            Source::Chat(whole) if params.drop_oldest => {
                self.fitting_prompt(&context, party, whole, &params).await?
            }
            _ => self.prompt(&context, party, source, field).await?,
        };
        let PromptIds { ids: prompt_ids, last_turn } = made;
        let labels = if images.is_empty() { labels } else { labels.with_images() };
        record.images = images.len();
        let vocabulary = serving.model.vocab_size;
        let shaped = asked.after(&prompt_ids, language, vocabulary, self.thinking_budget);
        let processor = language.images.as_deref();
        let expanded = expand_placeholders(prompt_ids, field, processor, &counts)?;
        let last_turn = last_turn.map(|place| expanded.shifted(place, &counts));
        let ExpandedPrompt { ids, image_starts, .. } = expanded;
        record.prompt_tokens = ids.len();
        let mut generation = context.fit(&params, field, ids, labels)?;
        generation.last_turn = last_turn.and_then(|place| u32::try_from(place).ok());
        let ShapedAnswer { reading, grammar, thought } = shaped?;
        (generation.grammar, generation.thought) = (grammar, thought);
        Ok(Prepared { served, params, generation, reading, images, image_starts })
    }

    /// From a well-formed request to its first tokens. It may be dropped at any await: its requests
    /// to the supervisor are dropped with it.
    async fn begin(
        &self,
        request: Request,
        sender: Sender,
        labels: RequestLabels,
        key: KeyId,
        deadline: Deadline,
        record: &mut Record,
    ) -> Result<Answer> {
        let served = self.service().await?;
        self.backlog.check(key, served.serving.term)?;
        record.span.set("paceline.model", served.serving.model.name.as_str());
        let tokenizing = record.span.child("tokenize");
        let prepared = self.prepare(request, served, &sender.party, labels, record).await;
        drop(tokenizing);
        let Prepared { served, params, mut generation, reading, images, image_starts } = prepared?;
        let Served { serving, language: ServedLanguage { language, .. } } = served;
        let mut stored = match language.images.as_ref().filter(|_| !images.is_empty()) {
            None => None,
            Some(processor) => Some(self.images.store(images, processor).await?),
        };
        if let Some(stored) = &mut stored {
            stored.place(&image_starts);
            generation.images = stored.images().to_vec();
            record.image_times = Some(stored.times);
        }
        // Only ids and files of pixels are left of the message.
        drop(sender);
        if deadline.passed() {
            return Err(InferenceError::deadline_passed());
        }
        let (place, term) = (self.backlog.enter(key), serving.term);
        let destination = Destination {
            upstream: self.upstream.clone(),
            term,
            model: serving.model,
            key,
            standing: self.standing.clone(),
            space: Arc::clone(&self.journals),
            trace: record.span.context(),
        };
        let bounds = AnswerBounds { deadline, cancel: self.cancel.clone() };
        let samples = params.samples.get() as usize;
        let texts = self.logs_texts.then(|| TextLog::begin(&generation, samples, &language));
        let answer = Answer::new(generation, &params, reading, &language, destination, bounds);
        let mut answer = answer.with_images(stored).with_texts(texts);
        let opened = tokio::select! {
            biased;
            opened = answer.open() => opened,
            error = self.supervisor_hangs() => Err(error),
        };
        if let Err(error) = opened {
            place.refused(term, &error);
            return Err(error);
        }
        place.begun();
        answer.hold(place);
        Ok(answer)
    }
}
