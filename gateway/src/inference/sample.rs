//! One sample of a request: its stream from the upstream, from the submission to the end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use paceline_text::stream::Assembler;
use paceline_vocabulary::Reason;
use paceline_vocabulary::generation::TokenBatch;
use tokio::time::Sleep;

use super::error::InferenceError;
use super::upstream::{BatchStream, Submission};

/// The upstream's stream may take this long to close after its last batch.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// State of a sample.
enum SampleState {
    /// The upstream has no room for it. It is submitted again when another sample of its request
    /// has ended.
    Waiting,
    /// It is submitted, and no batch has come.
    Submitted(Submission),
    /// Batches come.
    Running(BatchStream),
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
}

/// Result of a poll of a sample.
pub(super) enum SampleEvent {
    /// Tokens.
    Batch(Box<TokenBatch>),
    /// The upstream has no room for the sample now.
    NoRoom(InferenceError),
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
        }
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        self.state = SampleState::Submitted(submission);
        self.outdated = false;
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
        matches!(self.state, SampleState::Submitted(_) | SampleState::Running(_))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, SampleState::Ended)
    }

    /// Notes that its last event is out. If it has not `finished` upstream, it is cancelled there.
    pub(super) fn last_is_out(&mut self, finished: bool) {
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
                    self.state = SampleState::Waiting;
                    return Poll::Ready(match error.kind {
                        Reason::QueueFull | Reason::QueueWait => SampleEvent::NoRoom(error),
                        _ => SampleEvent::Failed(error),
                    });
                }
            }
        }
        match &mut self.state {
            SampleState::Running(batches) => {
                Poll::Ready(match ready!(batches.poll_next_unpin(context)) {
                    Some(Ok(batch)) => SampleEvent::Batch(Box::new(batch)),
                    None => SampleEvent::Failed(target_gone()),
                    Some(Err(error)) => SampleEvent::Failed(error),
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
