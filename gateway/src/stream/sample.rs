//! One of the answers of a request: its stream below, from the submission to the end.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use paceline_proto::internal::v1::TokenBatch;
use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use tokio::time::Sleep;
use tonic::{Status, Streaming};

use super::Assembler;
use crate::error;

/// The stream below may take this long to close behind its last batch.
const CLOSING: Duration = Duration::from_secs(1);

/// A submission under way.
pub(super) type Submission = BoxFuture<'static, Result<Streaming<TokenBatch>, Status>>;

/// Where a sample stands.
enum State {
    /// There is no room below; submitted again when another sample of its request has ended.
    Waiting,
    /// Submitted; no batch has come.
    Submitted(Submission),
    /// Batches come.
    Running(Streaming<TokenBatch>),
    /// The last batch is out; read to the stream's end, so that below it counts as finished and not
    /// as cancelled.
    Closing(Streaming<TokenBatch>, Pin<Box<Sleep>>),
    /// Nothing more comes.
    Ended,
}

/// One sample.
pub(super) struct Sample {
    state: State,
    /// Another of its request gave its place back since this was submitted.
    outdated: bool,
    pub(super) assembler: Assembler,
    /// Until its first token, in milliseconds.
    pub(super) ttft_ms: Option<f64>,
}

/// What a poll of a sample brought.
pub(super) enum News {
    /// Tokens.
    Batch(Box<TokenBatch>),
    /// There is no room below for it now, in the words of this status.
    NoRoom(Status),
    /// It failed.
    Failed(Status),
    /// Its stream is closed.
    Closed,
}

impl Sample {
    pub(super) fn new(assembler: Assembler) -> Self {
        Self { state: State::Waiting, outdated: false, assembler, ttft_ms: None }
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        self.state = State::Submitted(submission);
        self.outdated = false;
    }

    /// Another of its request gave its place back.
    pub(super) fn place_came_free(&mut self) {
        self.outdated = true;
    }

    /// Whether there is more room below than there was when this was submitted.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// Whether it has a place below, or stands in the row for one.
    pub(super) fn is_below(&self) -> bool {
        matches!(self.state, State::Submitted(_) | State::Running(_))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// Its last message is out. `finished`: below it ended as well; else it is cancelled there.
    pub(super) fn last_is_out(&mut self, finished: bool) {
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Running(below) if finished => {
                State::Closing(below, Box::pin(tokio::time::sleep(CLOSING)))
            }
            _ => State::Ended,
        };
    }

    /// What comes next of it; pending for ever while it waits or is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<News> {
        if let State::Submitted(submission) = &mut self.state {
            match ready!(submission.poll_unpin(context)) {
                Ok(below) => self.state = State::Running(below),
                Err(status) => {
                    self.state = State::Waiting;
                    let status = error::from_below(status);
                    return Poll::Ready(match Reason::of(&status) {
                        Some(Reason::QueueFull | Reason::QueueWait) => News::NoRoom(status),
                        _ => News::Failed(status),
                    });
                }
            }
        }
        match &mut self.state {
            State::Running(below) => Poll::Ready(match ready!(below.poll_next_unpin(context)) {
                Some(Ok(batch)) => News::Batch(Box::new(batch)),
                None => News::Failed(target_gone()),
                Some(Err(status)) => News::Failed(error::from_below(status)),
            }),
            State::Closing(below, patience) => {
                let fine = match below.poll_next_unpin(context) {
                    Poll::Ready(end) => end.is_none(),
                    Poll::Pending => {
                        ready!(patience.poll_unpin(context));
                        false
                    }
                };
                if !fine {
                    tracing::warn!("the stream below did not end with its last batch");
                }
                self.state = State::Ended;
                Poll::Ready(News::Closed)
            }
            State::Waiting | State::Submitted(_) | State::Ended => Poll::Pending,
        }
    }
}

impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sample").field("assembler", &self.assembler).finish_non_exhaustive()
    }
}

/// The stream ended as if all were well, without saying how the request ended.
fn target_gone() -> Status {
    Refusal::new(
        Reason::TargetGone,
        "the model's process ended before the answer was complete; try again",
    )
    .into()
}
