//! ⑧ The answer comes back: batches of token ids become messages of text. Pull-driven, without a task or a queue of its own:
//! a client that does not read stops the stream below by flow control, one that leaves drops it.

mod assemble;
mod detokenizer;
mod unread;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use paceline_proto::internal::v1::{Generation, TokenBatch};
use paceline_proto::status::{Reason, Refusal};
use paceline_proto::v1::GenerateResponse;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};
use tracing::{Instrument, Span};

use crate::deadline::Deadline;
use crate::error;
use crate::prompt::Language;
use crate::record::Record;
use crate::serve::BACKSTOP;
use crate::serve::gate::Slot;

pub use assemble::Assembler;
pub use detokenizer::Detokenizer;
pub use unread::Unread;

/// The stream below may take this long to close behind its last batch.
const CLOSING: Duration = Duration::from_secs(1);

/// What ends an answer from outside.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The request's deadline.
    pub deadline: Deadline,
    /// The gateway stops.
    pub cancel: CancellationToken,
}

/// Where an answer stands.
#[derive(Debug)]
enum State {
    /// Not submitted yet.
    New,
    /// Batches come; the first is here already.
    Running { below: Streaming<TokenBatch>, first: Option<TokenBatch> },
    /// The last batch is out.
    Closing { below: Streaming<TokenBatch> },
    /// The terminal status is out.
    Ended,
}

/// One request's answer.
#[derive(Debug)]
pub struct Answer {
    request_id: String,
    span: Span,
    state: State,
    assembler: Assembler,
    cancel: CancellationToken,
    deadline: Pin<Box<Sleep>>,
    kept: Option<(Record, Option<Arc<Slot>>)>,
    /// Its reader did not read; set by [`Unread`] before it lets go.
    unread: Arc<AtomicBool>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.unread.load(Ordering::Relaxed) {
            self.end(Reason::SlowReader.code(), Some(Reason::SlowReader));
        }
    }
}

impl Answer {
    /// The answer to `generation`, before it is submitted. Made inside the request's span.
    pub fn new(generation: &Generation, language: Arc<Language>, bounds: Bounds) -> Self {
        Self {
            request_id: generation.request_id.clone(),
            span: Span::current(),
            state: State::New,
            assembler: Assembler::new(generation, language),
            cancel: bounds.cancel,
            deadline: Box::pin(tokio::time::sleep(bounds.deadline.until(BACKSTOP))),
            kept: None,
            unread: Arc::default(),
        }
    }

    /// Waits for the first batch.
    ///
    /// # Errors
    /// The stream's own, or that it ended without one.
    pub async fn open(&mut self, mut below: Streaming<TokenBatch>) -> Result<(), Status> {
        let first = below.message().await.map_err(error::from_below)?.ok_or_else(target_gone)?;
        self.state = State::Running { below, first: Some(first) };
        Ok(())
    }

    /// Keeps what lives as long as the answer: its log line and its place among the calls.
    pub fn keep(&mut self, record: Record, slot: Option<Arc<Slot>>) {
        self.kept = Some((record, slot));
    }

    /// The next message, then the terminal status, then nothing.
    pub async fn next(&mut self) -> Option<Result<GenerateResponse, Status>> {
        let span = self.span.clone();
        let step = AssertUnwindSafe(self.step()).catch_unwind();
        let guarded = async { step.await.unwrap_or_else(|_| Some(Err(error::bug("a panic while answering")))) };
        let next = guarded.instrument(span).await;
        if let Some(Err(status)) = next {
            self.end(status.code(), Reason::of(&status));
            return Some(Err(error::with_request_id(status, &self.request_id)));
        }
        next
    }

    async fn step(&mut self) -> Option<Result<GenerateResponse, Status>> {
        loop {
            let batch = match &mut self.state {
                State::Running { first, .. } if first.is_some() => first.take()?,
                State::Running { below, .. } => {
                    let batch = tokio::select! {
                        biased;
                        () = self.cancel.cancelled() => Err(error::cancelled_by_draining()),
                        () = &mut self.deadline => Err(self.assembler.deadline_passed()),
                        batch = below.message() => match batch {
                            Ok(Some(batch)) => Ok(batch),
                            Ok(None) => Err(target_gone()),
                            Err(status) => Err(self.named(error::from_below(status))),
                        },
                    };
                    match batch {
                        Ok(batch) => batch,
                        Err(status) => return Some(Err(status)),
                    }
                }
                State::Closing { below } => {
                    // Read to its end, so that below it counts as finished and not as cancelled.
                    if !matches!(tokio::time::timeout(CLOSING, below.message()).await, Ok(Ok(None))) {
                        tracing::warn!("the stream below did not end with its last batch");
                    }
                    self.end(Code::Ok, None);
                    return None;
                }
                State::New | State::Ended => return None,
            };
            match self.assemble(batch) {
                Ok(None) => {}
                Ok(Some(message)) => return Some(Ok(message)),
                Err(status) => return Some(Err(status)),
            }
        }
    }

    /// A status from below. The target knows that the deadline passed, and we how much of the answer there is.
    fn named(&self, status: Status) -> Status {
        if Reason::of(&status) == Some(Reason::DeadlinePassed) { self.assembler.deadline_passed() } else { status }
    }

    fn assemble(&mut self, batch: TokenBatch) -> Result<Option<GenerateResponse>, Status> {
        let times = match &mut self.kept {
            Some((record, _)) => {
                record.completion_tokens = self.assembler.next_index().saturating_add(batch.ids.len() as u32);
                assemble::Times { ttft_ms: record.first_token(), total_ms: record.elapsed_ms() }
            }
            None => assemble::Times::default(),
        };
        let message = self.assembler.take(batch, times)?;
        if message.as_ref().is_some_and(|message| message.r#final.is_some())
            && let State::Running { below, .. } = std::mem::replace(&mut self.state, State::Ended)
        {
            self.state = State::Closing { below };
            if let Some((record, _)) = &mut self.kept {
                record.ended(Code::Ok, None);
            }
        }
        Ok(message)
    }

    /// Drops the stream below, writes the log line, gives the place back.
    fn end(&mut self, code: Code, reason: Option<Reason>) {
        self.state = State::Ended;
        if let Some((mut record, _slot)) = self.kept.take() {
            record.ended(code, reason);
        }
    }
}

/// The stream ended as if all were well, without saying how the request ended.
fn target_gone() -> Status {
    Refusal::new(Reason::TargetGone, "the model's process ended before the answer was complete; try again").into()
}
