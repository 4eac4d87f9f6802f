//! One sample of a request: its stream from the upstream, from the submission to the end.
//!
//! If the stream breaks, the sample waits until the service is there again and is submitted again
//! with the ids it has sent.
//!
//! ```text
//! Waiting ──▶ Submitted ──▶ Running ──▶ Closing ──▶ Ended
//!     ▲           │ no room     │ broken
//!     └───────────┤             ▼
//!                 └──────▶ Interrupted ── the service is there ──▶ Submitted
//! ```

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use paceline_process::telemetry::trace::Span;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_text::stream::Assembler;
use paceline_vocabulary::generation::{Figures, TokenBatch};
use paceline_vocabulary::{Reason, Term};
use tokio::time::Sleep;

use super::upstream::{BatchStream, Submission};

/// The upstream's stream may take this long to close after its last batch.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Submissions in a row that broke without a new token, after which no further one follows.
const MAX_TRIES: u32 = 2;

/// Resolves to the supervisor's life when the service is there again, or to why it will not be.
pub(super) type ServiceReturn = BoxFuture<'static, Result<Term>>;

/// State of a sample.
enum SampleState {
    /// The upstream has no room for it. It is submitted again when another sample of its request
    /// has ended.
    Waiting,
    /// It is submitted, and no batch has come.
    Submitted(Submission),
    /// Batches come.
    Running(BatchStream),
    /// Its stream broke. It is submitted again when the service is there again.
    Interrupted(ServiceReturn),
    /// The last batch of the sample came. The stream is read to its end, so that the request counts
    /// as finished upstream and not as cancelled.
    Closing(BatchStream, Pin<Box<Sleep>>),
    /// Nothing more comes.
    Ended,
}

/// One sample.
pub(super) struct Sample {
    state: SampleState,
    /// Whether another sample of its request has ended since it was submitted.
    outdated: bool,
    pub(super) assembler: Assembler,
    /// Time until its first token, in milliseconds.
    pub(super) ttft_ms: Option<f64>,
    /// When its latest tokens came, in milliseconds since the request's arrival.
    pub(super) last_ms: Option<f64>,
    /// Ids that it has sent, if the request has a journal.
    pub(super) sent: Vec<u32>,
    /// Streams of a target that broke.
    pub(super) resumed: u32,
    /// Those of them since its last token.
    tries: u32,
    /// Interruptions since its last token, with those before a target had the sample.
    interruptions: u32,
    /// Latest figures of the present stream.
    figures: Option<Figures>,
    /// Figures of the streams that broke.
    earlier: Option<Figures>,
    /// The span of the present submission.
    span: Span,
}

/// Result of a poll of a sample.
pub(super) enum SampleEvent {
    /// Tokens.
    Batch(Box<TokenBatch>),
    /// The upstream has no room for the sample now.
    NoRoom(InferenceError),
    /// The stream broke, or the service was not there. The sample may be submitted again.
    Interrupted(InferenceError),
    /// The service is there again, with a supervisor of this life.
    Returned(Term),
    /// The sample failed.
    Failed(InferenceError),
    /// The stream of the sample is closed.
    Closed,
}

impl Sample {
    pub(super) fn new(assembler: Assembler) -> Self {
        Self {
            state: SampleState::Waiting,
            outdated: false,
            assembler,
            ttft_ms: None,
            last_ms: None,
            sent: Vec::new(),
            resumed: 0,
            tries: 0,
            interruptions: 0,
            figures: None,
            earlier: None,
            span: Span::NONE,
        }
    }

    /// Follows a submission, whose span ends with its stream.
    pub(super) fn submit(&mut self, submission: Submission, span: Span) {
        self.span = span;
        self.state = SampleState::Submitted(submission);
        self.outdated = false;
    }

    /// Interruptions since its last token.
    pub(super) fn interruptions(&self) -> u32 {
        self.interruptions
    }

    /// Waits for the service after an interruption.
    pub(super) fn interrupted(&mut self, service: ServiceReturn) {
        self.state = SampleState::Interrupted(service);
        self.interruptions = self.interruptions.saturating_add(1);
        if let Some(figures) = self.figures.take() {
            self.earlier = Some(self.earlier.map_or(figures, |earlier| sum(earlier, figures)));
        }
    }

    /// Whether submissions broke too often without a token between them.
    pub(super) fn gives_up(&self) -> bool {
        self.tries > MAX_TRIES
    }

    /// Adds the figures of the streams that broke to a batch of the present one.
    pub(super) fn complete_figures(&mut self, batch: &mut TokenBatch) {
        if !batch.ids.is_empty() {
            (self.tries, self.interruptions) = (0, 0);
        }
        self.figures = batch.so_far.or(self.figures);
        let Some(earlier) = self.earlier else { return };
        if let Some(figures) = &mut batch.so_far {
            *figures = sum(earlier, *figures);
        }
        if let Some(done) = &mut batch.done {
            done.figures = sum(earlier, done.figures);
        }
    }

    /// Notes that another sample of the request has ended.
    pub(super) fn place_came_free(&mut self) {
        self.outdated = true;
    }

    /// Whether the upstream has more room than it had when this was submitted.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, SampleState::Waiting)
    }

    /// Whether it runs or waits in the upstream's queue.
    pub(super) fn is_upstream(&self) -> bool {
        matches!(
            self.state,
            SampleState::Submitted(_) | SampleState::Running(_) | SampleState::Interrupted(_)
        )
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, SampleState::Ended)
    }

    /// Notes that its last event is out. If it has not `finished` upstream, it is cancelled there.
    pub(super) fn last_is_out(&mut self, finished: bool) {
        self.span = Span::NONE;
        self.state = match std::mem::replace(&mut self.state, SampleState::Ended) {
            SampleState::Running(batches) if finished => {
                SampleState::Closing(batches, Box::pin(tokio::time::sleep(CLOSE_TIMEOUT)))
            }
            _ => SampleState::Ended,
        };
    }

    /// The next event; pending while it waits, and for ever once it is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<SampleEvent> {
        if let SampleState::Submitted(submission) = &mut self.state {
            match ready!(submission.poll_unpin(context)) {
                Ok(batches) => self.state = SampleState::Running(batches),
                Err(error) => {
                    self.submission_failed(error.kind);
                    self.state = SampleState::Waiting;
                    return Poll::Ready(self.refused(error));
                }
            }
        }
        match &mut self.state {
            SampleState::Running(batches) => {
                let error = match ready!(batches.poll_next_unpin(context)) {
                    Some(Ok(batch)) => return Poll::Ready(SampleEvent::Batch(Box::new(batch))),
                    None => target_gone(),
                    Some(Err(error)) => error,
                };
                self.submission_failed(error.kind);
                Poll::Ready(self.broken(error))
            }
            SampleState::Interrupted(service) => {
                Poll::Ready(match ready!(service.poll_unpin(context)) {
                    Ok(term) => SampleEvent::Returned(term),
                    Err(error) => SampleEvent::Failed(error),
                })
            }
            SampleState::Closing(batches, timeout) => {
                let closed = match batches.poll_next_unpin(context) {
                    Poll::Ready(next) => next.is_none(),
                    Poll::Pending => {
                        ready!(timeout.poll_unpin(context));
                        false
                    }
                };
                if !closed {
                    tracing::warn!("the stream of the supervisor did not end with its last batch");
                }
                self.state = SampleState::Ended;
                Poll::Ready(SampleEvent::Closed)
            }
            SampleState::Waiting | SampleState::Submitted(_) | SampleState::Ended => Poll::Pending,
        }
    }
}

impl Sample {
    /// Ends the span of the present submission.
    fn submission_failed(&mut self, reason: Reason) {
        let mut span = std::mem::take(&mut self.span);
        span.fail(reason.word());
    }

    /// The end of a submission before its first batch.
    fn refused(&mut self, error: InferenceError) -> SampleEvent {
        match error.kind {
            // The request ran already: it waits for its place as long as it has time.
            Reason::QueueFull | Reason::QueueWait if self.resumed > 0 => {
                SampleEvent::Interrupted(error)
            }
            Reason::QueueFull | Reason::QueueWait => SampleEvent::NoRoom(error),
            // The target had it.
            Reason::TargetGone => self.broken(error),
            kind if kind.is_interruption() => SampleEvent::Interrupted(error),
            _ => SampleEvent::Failed(error),
        }
    }

    /// The end of a stream of a target.
    fn broken(&mut self, error: InferenceError) -> SampleEvent {
        if !error.kind.is_interruption() {
            return SampleEvent::Failed(error);
        }
        self.tries = self.tries.saturating_add(1);
        self.resumed = self.resumed.saturating_add(1);
        SampleEvent::Interrupted(error)
    }
}

/// Figures of an answer of two streams. Drafts add up. The prompt was read for the client once: of
/// its cached tokens and times the first count.
fn sum(earlier: Figures, later: Figures) -> Figures {
    let (mut all, more) = (earlier.speculation, later.speculation);
    all.cycles += more.cycles;
    all.drafted += more.drafted;
    all.accepted += more.accepted;
    Figures { speculation: all, route: later.route, ..earlier }
}

impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample").field("assembler", &self.assembler).finish_non_exhaustive()
    }
}

/// The stream ended without an error and without the end of the answer.
fn target_gone() -> InferenceError {
    let message = "the model's process ended before the answer was complete; try again";
    InferenceError::new(Reason::TargetGone, message)
}
