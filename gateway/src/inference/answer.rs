//! ⑧ The answer comes back: batches of token ids become events. An answer is pulled by its reader
//! and has no task and no queue of its own. A reader that does not read stops the upstream's
//! streams by flow control; a reader that leaves drops them.
//!
//! A request has one stream for each sample, with an id of its own, its sample index and the same
//! seed. All are submitted at once, so that the prompt is prefilled once; events go out as they
//! come. If the upstream has no room for all samples, the others run first.
//!
//! If a process below the gateway ends, the samples that ran are submitted again when the service
//! is there again ([`super::journal`]). The reader sees a pause.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use paceline_process::telemetry::trace::{Kind, Span};
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::params::GenerationParams;
use paceline_text::prompt::Language;
use paceline_text::stream::{
    AnswerEvent, Assembler, AssemblerSettings, ConversationReading, ElapsedTimes, SpecialTokens,
};
use paceline_vocabulary::generation::Generation;
use paceline_vocabulary::generation::TokenBatch;
use paceline_vocabulary::reason::COMPLETION_TOKENS;
use paceline_vocabulary::report::ModelInfo;
use paceline_vocabulary::{KeyId, Reason, Term, TraceContext};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::admission::{QueuePlace, RequestSlot};
use super::deadline::{BACKSTOP, Deadline};
use super::journal::{Journal, JournalSpace, replay_lost};
use super::record::Record;
use super::sample::{Sample, SampleEvent, ServiceReturn};
use super::standing::Standing;
use super::text_log::TextLog;
use super::upstream::Upstream;
use crate::images::StoredImages;

/// Causes that end an answer early: its deadline and the end of the gateway.
#[derive(Clone, Debug)]
pub(super) struct AnswerBounds {
    /// The request's deadline.
    pub(super) deadline: Deadline,
    /// Cancelled when the gateway stops.
    pub(super) cancel: CancellationToken,
}

/// Where an answer's samples are submitted.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    /// The supervisor.
    pub(super) upstream: Upstream,
    /// The life of the supervisor.
    pub(super) term: Term,
    /// The served model.
    pub(super) model: ModelInfo,
    /// The request's key.
    pub(super) key: KeyId,
    /// The state of the service, for the return after an interruption.
    pub(super) standing: watch::Receiver<Standing>,
    /// Space of the request's journal.
    pub(super) space: Arc<JournalSpace>,
    /// The span of the request, if it is traced.
    pub(super) trace: Option<TraceContext>,
}

/// Pause before the first look at the service after an interruption. The notice of an end may
/// arrive after the broken stream.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause: an interrupted request goes on within this time after the service is back.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

impl Destination {
    /// Waits until the service is there again. `interruptions` counts those since the last token;
    /// each doubles the pause.
    fn returned(&self, interruptions: u32) -> ServiceReturn {
        let (mut standing, model) = (self.standing.clone(), self.model.clone());
        let pause = (FIRST_PAUSE * (1 << interruptions.min(8))).min(LONGEST_PAUSE);
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            let returned = standing.wait_for(|standing| standing.returned().is_some()).await;
            // The sender ends with this process.
            let returned = returned.ok().and_then(|standing| standing.returned());
            let serving = returned.unwrap_or_else(|| Err(InferenceError::draining()))?;
            if serving.model != model {
                return Err(InferenceError::model_changed());
            }
            Ok(serving.term)
        })
    }
}

/// A batch of one of the samples.
#[derive(Debug)]
struct SampleBatch {
    /// Index of the sample.
    sample: usize,
    batch: TokenBatch,
}

/// Log record and slot of a request. They live as long as its answer.
#[derive(Debug)]
struct RequestState {
    record: Record,
    _slot: Option<Arc<RequestSlot>>,
}

/// One request's answer: all its samples.
#[derive(Debug)]
pub struct Answer {
    span: tracing::Span,
    destination: Destination,
    /// The request, for each submission.
    journal: Journal,
    /// The files of the prompt's images. They are removed with this value.
    images: Option<StoredImages>,
    samples: Vec<Sample>,
    /// The sample that is polled first, so that no sample waits for another one.
    turn: usize,
    first: Option<SampleBatch>,
    ended: bool,
    cancel: CancellationToken,
    deadline: Pin<Box<Sleep>>,
    request: Option<RequestState>,
    place: Option<QueuePlace>,
    /// The texts of the request, if they are logged.
    texts: Option<TextLog>,
    /// Whether its reader did not read. Set by `unread` before it drops this.
    unread: Arc<AtomicBool>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.unread.load(Ordering::Relaxed) {
            self.end(Err(Reason::SlowReader));
        }
    }
}

impl Answer {
    /// The answer to `generation`, before it is submitted. Made inside the request's span. With
    /// `reading`, thoughts and tool calls are separated from its text.
    pub(super) fn new(
        generation: Generation,
        params: &GenerationParams,
        reading: Option<ConversationReading>,
        language: &Arc<Language>,
        destination: Destination,
        bounds: AnswerBounds,
    ) -> Self {
        let sample = |sample_index| {
            let settings = AssemblerSettings {
                sample_index,
                prompt_tokens: u32::try_from(generation.prompt_ids.len()).unwrap_or(u32::MAX),
                seed: generation.seed,
                report_margins: generation.report_margins,
                report_logprobs: generation.logprobs.is_some(),
                min_tokens: generation.min_tokens,
                stop: params.stop.clone(),
                special: match params.show_special {
                    true => SpecialTokens::Shown { but: generation.stop_token_ids.clone() },
                    false => SpecialTokens::LeftOut,
                },
                reading: reading.clone().map(|reading| ConversationReading {
                    call_ids: format!("call_{}_{sample_index}_", generation.request_id),
                    ..reading
                }),
            };
            Sample::new(Assembler::new(settings, Arc::clone(language)))
        };
        Self {
            span: tracing::Span::current(),
            samples: params.samples.each(sample),
            journal: Journal::new(&destination.space, generation, params.samples.get() as usize),
            destination,
            images: None,
            turn: 0,
            first: None,
            ended: false,
            cancel: bounds.cancel,
            deadline: Box::pin(tokio::time::sleep(bounds.deadline.until(BACKSTOP))),
            request: None,
            place: None,
            texts: None,
            unread: Arc::default(),
        }
    }

    /// With images in these files.
    pub(super) fn with_images(mut self, images: Option<StoredImages>) -> Self {
        self.images = images;
        self
    }

    /// With a log of its texts.
    pub(super) fn with_texts(mut self, texts: Option<TextLog>) -> Self {
        self.texts = texts;
        self
    }

    /// A flag to set before this is dropped because its reader does not read.
    pub(super) fn unread_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unread)
    }

    /// Submits all samples and waits for the first batch of one of them.
    ///
    /// # Errors
    /// The first error of a sample.
    pub(super) async fn open(&mut self) -> Result<()> {
        self.submit_waiting();
        let first = std::future::poll_fn(|context| self.poll_batch(context)).await;
        self.first = first.transpose().map_err(|error| self.with_tokens(error))?;
        Ok(())
    }

    /// Keeps the request's log line and its slot until the answer ends.
    pub(super) fn keep(&mut self, record: Record, slot: Option<Arc<RequestSlot>>) {
        self.request = Some(RequestState { record, _slot: slot });
    }

    /// Holds its place in the supervisor's queue or model until it ends.
    pub(super) fn hold(&mut self, place: QueuePlace) {
        self.place = Some(place);
    }

    /// The next event, then the error that ends the answer if one does, then nothing.
    pub async fn next(&mut self) -> Option<Result<AnswerEvent>> {
        let span = self.span.clone();
        let step = AssertUnwindSafe(self.step()).catch_unwind();
        let guarded = async {
            let bug = |_| Some(Err(InferenceError::bug("a panic while answering")));
            step.await.unwrap_or_else(bug)
        };
        let next = guarded.instrument(span).await;
        if let Some(Err(error)) = &next {
            self.end(Err(error.kind));
        }
        next
    }

    async fn step(&mut self) -> Option<Result<AnswerEvent>> {
        loop {
            if self.ended {
                return None;
            }
            let next = match self.first.take() {
                Some(first) => first,
                None => match self.batch().await {
                    Some(Ok(next)) => next,
                    Some(Err(error)) => return Some(Err(self.with_tokens(error))),
                    None => {
                        self.end(Ok(()));
                        return None;
                    }
                },
            };
            match self.assemble(next) {
                Ok(None) => {}
                Ok(Some(event)) => return Some(Ok(event)),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Adds the number of tokens to an error of the upstream. The target knows that the deadline
    /// passed, and the gateway how many tokens the answer has. The error of a request that waited
    /// in the queue has that number already.
    fn with_tokens(&self, error: InferenceError) -> InferenceError {
        match error.kind {
            Reason::DeadlinePassed if !error.facts.contains_key(COMPLETION_TOKENS) => {
                InferenceError::deadline_passed_after(self.tokens())
            }
            _ => error,
        }
    }

    /// The next batch, within the answer's bounds; `None` when all samples are over.
    async fn batch(&mut self) -> Option<Result<SampleBatch>> {
        let cancel = self.cancel.clone();
        let cancelled = std::pin::pin!(cancel.cancelled());
        let mut cancelled = cancelled.fuse();
        std::future::poll_fn(|context| {
            if cancelled.poll_unpin(context).is_ready() {
                return Poll::Ready(Some(Err(InferenceError::draining())));
            }
            if self.deadline.poll_unpin(context).is_ready() {
                return Poll::Ready(Some(Err(InferenceError::deadline_passed_after(
                    self.tokens(),
                ))));
            }
            self.poll_batch(context)
        })
        .await
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<SampleBatch>>> {
        let count = self.samples.len();
        let mut again = true;
        while std::mem::take(&mut again) {
            let first = self.turn;
            for at in (0..count).map(|step| (first + step) % count) {
                match self.samples[at].poll(context) {
                    Poll::Pending => {}
                    Poll::Ready(SampleEvent::Batch(batch)) => {
                        self.turn = at + 1;
                        return Poll::Ready(Some(Ok(SampleBatch { sample: at, batch: *batch })));
                    }
                    // It waits while other samples of this request run, which will make room.
                    Poll::Ready(SampleEvent::NoRoom(_))
                        if self.samples.iter().any(Sample::is_upstream) => {}
                    // The refusal is older than the end of another sample of this request.
                    Poll::Ready(SampleEvent::NoRoom(_)) if self.samples[at].is_outdated() => {
                        self.submit_waiting();
                        again = true;
                    }
                    Poll::Ready(SampleEvent::Interrupted(error)) => {
                        if let Err(error) = self.interrupted(at, error) {
                            return Poll::Ready(Some(Err(error)));
                        }
                        again = true;
                    }
                    Poll::Ready(SampleEvent::Returned(term)) => {
                        self.destination.term = term;
                        self.submit(at);
                        again = true;
                    }
                    Poll::Ready(SampleEvent::NoRoom(error) | SampleEvent::Failed(error)) => {
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(SampleEvent::Closed) => again = true,
                }
            }
        }
        if self.samples.iter().all(Sample::is_over) { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Submits the samples that wait.
    fn submit_waiting(&mut self) {
        for at in 0..self.samples.len() {
            if self.samples[at].is_waiting() {
                self.submit(at);
            }
        }
    }

    fn submit(&mut self, at: usize) {
        let Destination { upstream, term, key, model, trace, .. } = &self.destination;
        let sample = &self.samples[at];
        let mut submitted = Span::below(*trace, Kind::Client, "submission");
        submitted.set("paceline.sample", at);
        submitted.set("paceline.resumed", sample.resumed);
        let generation =
            self.journal.submission(at, &sample.sent, sample.resumed, self.images.as_mut());
        let submission = match generation {
            Ok(generation) => {
                let (resumed, trace) = (sample.resumed, submitted.context());
                upstream.submit(*term, *key, &model.path, generation, resumed, trace)
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        };
        self.samples[at].submit(submission, submitted);
    }

    /// The stream of a sample broke, or the service was not there for it.
    ///
    /// # Errors
    /// The sample cannot go on.
    fn interrupted(&mut self, at: usize, error: InferenceError) -> Result<()> {
        let sample = &mut self.samples[at];
        if sample.gives_up() {
            return Err(error);
        }
        let tokens = sample.assembler.next_index();
        if !self.journal.is_complete() {
            // A client that has no token yet can send the request again by itself.
            return Err(if tokens == 0 { error } else { replay_lost() });
        }
        tracing::info!(sample = at, tokens, reason = error.kind.word(), "interrupted");
        sample.interrupted(self.destination.returned(sample.interruptions()));
        Ok(())
    }

    fn assemble(&mut self, next: SampleBatch) -> Result<Option<AnswerEvent>> {
        let SampleBatch { sample, mut batch } = next;
        let finished = batch.done.is_some();
        if let Some(texts) = &mut self.texts {
            texts.add(sample, &batch.ids);
        }
        self.samples[sample].complete_figures(&mut batch);
        if !finished && !self.journal.record(&mut self.samples[sample].sent, &batch.ids) {
            // The bytes of a dropped journal count no more, so no sample keeps any.
            self.samples.iter_mut().for_each(|sample| sample.sent = Vec::new());
        }
        let sample = &mut self.samples[sample];
        let mut times = ElapsedTimes::default();
        if let Some(RequestState { record, .. }) = &mut self.request {
            let now = record.tokens_came(&mut sample.last_ms);
            let images = record.image_times.unwrap_or_default();
            times = ElapsedTimes {
                ttft_ms: *sample.ttft_ms.get_or_insert(now),
                total_ms: now,
                image_decode_ms: images.decode_ms,
                image_resize_ms: images.resize_ms,
            };
        }
        let mut event = sample.assembler.take(batch, times)?;
        if let Some(end) = event.as_mut().and_then(|event| event.last.as_mut()) {
            end.resumed = sample.resumed;
        }
        let end = event.as_ref().and_then(|event| event.last.as_ref());
        if let (Some(end), Some(RequestState { record, .. })) = (end, &mut self.request) {
            record.sample_ended(end);
        }
        let ends = end.is_some();
        if ends {
            sample.last_is_out(finished);
            self.samples.iter_mut().for_each(Sample::place_came_free);
            self.submit_waiting();
        }
        let tokens = self.tokens();
        let over = !self.samples.iter().any(|sample| sample.is_waiting() || sample.is_upstream());
        if let Some(RequestState { record, .. }) = &mut self.request {
            record.generated(tokens);
            if ends && over {
                record.ended(Ok(()));
            }
        }
        Ok(event)
    }

    /// Tokens of all samples.
    fn tokens(&self) -> u32 {
        self.samples.iter().fold(0, |sum, sample| sum.saturating_add(sample.assembler.next_index()))
    }

    /// Drops the upstream's streams, writes the log line, gives the slot and the place back.
    fn end(&mut self, outcome: Result<(), Reason>) {
        self.ended = true;
        self.samples.clear();
        (self.images, self.place, self.texts) = (None, None, None);
        if let Some(RequestState { mut record, _slot }) = self.request.take() {
            record.ended(outcome);
        }
    }
}
