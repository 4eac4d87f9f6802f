//! ⑧ The answer comes back: batches of token ids become messages of text. Pull-driven, without a
//! task or a queue of its own: a client that does not read stops the streams below by flow control,
//! one that leaves drops them.
//!
//! A request has as many streams below as it wants answers: each with an id of its own and its
//! sample index, the same seed. They are submitted at once, so that below the prompt is read once;
//! pieces go out as they come. Where there is no room below for all, the others run first.

mod assemble;
mod detokenizer;
mod sample;
mod stop;
mod unread;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt;
use paceline_proto::internal::v1::supervisor_client::SupervisorClient;
use paceline_proto::internal::v1::{Generation, Stamp, SubmitRequest, TokenBatch};
use paceline_proto::status::{COMPLETION_TOKENS, Reason, ReasonStatus as _};
use paceline_proto::v1::GenerateResponse;
use paceline_vocabulary::KeyId;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tracing::{Instrument, Span};

use crate::deadline::Deadline;
use crate::error;
use crate::images::StoredImages;
use crate::prompt::Language;
use crate::record::Record;
use crate::request::Wishes;
use crate::serve::BACKSTOP;
use crate::serve::backlog::Place;
use crate::serve::gate::Slot;
use crate::wire;
use sample::{News, Sample, Submission};

pub use assemble::Assembler;
pub use detokenizer::Detokenizer;
pub use stop::Stops;
pub use unread::Unread;

/// What ends an answer from outside.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The request's deadline.
    pub deadline: Deadline,
    /// The gateway stops.
    pub cancel: CancellationToken,
}

/// Where samples are submitted.
#[derive(Clone, Debug)]
pub struct Below {
    /// The supervisor.
    pub supervisor: SupervisorClient<Channel>,
    /// Whose life it is, and whose ours.
    pub stamp: Stamp,
    /// Whose request it is.
    pub key: KeyId,
}

/// One request's answer: all its samples.
#[derive(Debug)]
pub struct Answer {
    request_id: String,
    span: Span,
    below: Below,
    /// What is submitted, but for id and index; empty once that was done for the only sample.
    generation: Generation,
    /// Its pictures' files; they go when this does.
    shown: Option<StoredImages>,
    samples: Vec<Sample>,
    /// The sample to look at first, so that none is kept waiting by another.
    turn: usize,
    first: Option<(usize, TokenBatch)>,
    ended: bool,
    cancel: CancellationToken,
    deadline: Pin<Box<Sleep>>,
    kept: Option<(Record, Option<Arc<Slot>>)>,
    place: Option<Place>,
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
    /// The answers to `generation`, before they are submitted. Made inside the request's span.
    pub fn new(
        generation: Generation,
        wishes: &Wishes,
        language: &Arc<Language>,
        below: Below,
        bounds: Bounds,
    ) -> Self {
        let sample = |index: u32| {
            Sample::new(Assembler::new(
                &generation,
                index,
                wishes.stop.clone(),
                Arc::clone(language),
            ))
        };
        Self {
            request_id: generation.request_id.clone(),
            span: Span::current(),
            below,
            samples: (0..wishes.samples.max(1)).map(sample).collect(),
            generation,
            shown: None,
            turn: 0,
            first: None,
            ended: false,
            cancel: bounds.cancel,
            deadline: Box::pin(tokio::time::sleep(bounds.deadline.until(BACKSTOP))),
            kept: None,
            place: None,
            unread: Arc::default(),
        }
    }

    /// With pictures in these files.
    pub fn showing(mut self, shown: Option<StoredImages>) -> Self {
        self.shown = shown;
        self
    }

    /// Submits all samples and waits for the first batch of one of them.
    ///
    /// # Errors
    /// The first sample's that failed.
    pub async fn open(&mut self) -> Result<(), Status> {
        self.submit_waiting();
        let first = std::future::poll_fn(|context| self.poll_batch(context)).await;
        self.first = first.transpose().map_err(|status| self.named(status))?;
        Ok(())
    }

    /// Keeps what lives as long as the answer: its log line and its place among the calls.
    pub fn keep(&mut self, record: Record, slot: Option<Arc<Slot>>) {
        self.kept = Some((record, slot));
    }

    /// Holds its place below until it ends.
    pub fn hold(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// The next message, then the terminal status, then nothing.
    pub async fn next(&mut self) -> Option<Result<GenerateResponse, Status>> {
        let span = self.span.clone();
        let step = AssertUnwindSafe(self.step()).catch_unwind();
        let guarded = async {
            step.await.unwrap_or_else(|_| Some(Err(error::bug("a panic while answering"))))
        };
        let next = guarded.instrument(span).await;
        if let Some(Err(status)) = next {
            self.end(status.code(), Reason::of(&status));
            return Some(Err(error::with_request_id(status, &self.request_id)));
        }
        next
    }

    async fn step(&mut self) -> Option<Result<GenerateResponse, Status>> {
        loop {
            if self.ended {
                return None;
            }
            let (at, batch) = match self.first.take() {
                Some(first) => first,
                None => match self.batch().await {
                    Some(Ok(batch)) => batch,
                    Some(Err(status)) => return Some(Err(self.named(status))),
                    None => {
                        self.end(Code::Ok, None);
                        return None;
                    }
                },
            };
            match self.assemble(at, batch) {
                Ok(None) => {}
                Ok(Some(message)) => return Some(Ok(message)),
                Err(status) => return Some(Err(status)),
            }
        }
    }

    /// A status from below. The target knows that the deadline passed, and we how much of the
    /// answer there is. (One that waited in the queue had no answer, and its status says so
    /// itself.)
    fn named(&self, status: Status) -> Status {
        let counted = Reason::fact(&status, COMPLETION_TOKENS).is_some();
        match Reason::of(&status) {
            Some(Reason::DeadlinePassed) if !counted => assemble::deadline_passed(self.tokens()),
            _ => status,
        }
    }

    /// The next batch and whose it is, within the answer's bounds; `None` when all samples are
    /// over.
    async fn batch(&mut self) -> Option<Result<(usize, TokenBatch), Status>> {
        let cancel = self.cancel.clone();
        let cancelled = std::pin::pin!(cancel.cancelled());
        let mut cancelled = cancelled.fuse();
        std::future::poll_fn(|context| {
            if cancelled.poll_unpin(context).is_ready() {
                return Poll::Ready(Some(Err(error::cancelled_by_draining())));
            }
            if self.deadline.poll_unpin(context).is_ready() {
                return Poll::Ready(Some(Err(assemble::deadline_passed(self.tokens()))));
            }
            self.poll_batch(context)
        })
        .await
    }

    fn poll_batch(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, TokenBatch), Status>>> {
        let count = self.samples.len();
        let mut again = true;
        while std::mem::take(&mut again) {
            let first = self.turn;
            for at in (0..count).map(|step| (first + step) % count) {
                match self.samples[at].poll(context) {
                    Poll::Pending => {}
                    Poll::Ready(News::Batch(batch)) => {
                        self.turn = at + 1;
                        return Poll::Ready(Some(Ok((at, *batch))));
                    }
                    // It waits while others of this request have a place below that they will give
                    // back.
                    Poll::Ready(News::NoRoom(_)) if self.samples.iter().any(Sample::is_below) => {}
                    // The refusal is older than the place that another of this request gave back.
                    Poll::Ready(News::NoRoom(_)) if self.samples[at].is_outdated() => {
                        self.submit_waiting();
                        again = true;
                    }
                    Poll::Ready(News::NoRoom(status) | News::Failed(status)) => {
                        return Poll::Ready(Some(Err(status)));
                    }
                    Poll::Ready(News::Closed) => again = true,
                }
            }
        }
        if self.samples.iter().all(Sample::is_over) { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Submits what has no place below.
    fn submit_waiting(&mut self) {
        let single = self.samples.len() == 1;
        for at in 0..self.samples.len() {
            if !self.samples[at].is_waiting() {
                continue;
            }
            let generation = if single {
                std::mem::take(&mut self.generation)
            } else {
                // Below, an id is one sequence's.
                let request_id = format!("{}-{at}", self.request_id);
                let mut generation =
                    Generation { request_id, sample_index: at as u32, ..self.generation.clone() };
                // Whoever reads a picture removes its file.
                if let Some(shown) = &mut self.shown {
                    match shown.link_again() {
                        Ok(images) => generation.pictures = wire::pictures(&images),
                        Err(error) => {
                            let refused = std::future::ready(Err(error.into()));
                            self.samples[at].submit(Box::pin(refused));
                            continue;
                        }
                    }
                }
                generation
            };
            self.samples[at].submit(self.below.submission(generation));
        }
    }

    fn assemble(
        &mut self,
        at: usize,
        batch: TokenBatch,
    ) -> Result<Option<GenerateResponse>, Status> {
        let finished = batch.done.is_some();
        let sample = &mut self.samples[at];
        let mut times = assemble::Times::default();
        if let Some((record, _)) = &mut self.kept {
            record.first_token();
            let now = record.elapsed_ms();
            let pictures = record.picture_times.unwrap_or_default();
            times = assemble::Times {
                ttft_ms: *sample.ttft_ms.get_or_insert(now),
                total_ms: now,
                pictures,
            };
        }
        let message = sample.assembler.take(batch, times)?;
        let ends = message.as_ref().is_some_and(|message| message.r#final.is_some());
        if ends {
            sample.last_is_out(finished);
            self.samples.iter_mut().for_each(Sample::place_came_free);
            self.submit_waiting();
        }
        let tokens = self.tokens();
        let over = !self.samples.iter().any(|sample| sample.is_waiting() || sample.is_below());
        if let Some((record, _)) = &mut self.kept {
            record.completion_tokens = tokens;
            if ends && over {
                record.ended(Code::Ok, None);
            }
        }
        Ok(message)
    }

    /// Tokens of all samples.
    fn tokens(&self) -> u32 {
        self.samples.iter().fold(0, |sum, sample| sum.saturating_add(sample.assembler.next_index()))
    }

    /// Drops the streams below, writes the log line, gives the place back.
    fn end(&mut self, code: Code, reason: Option<Reason>) {
        self.ended = true;
        self.samples.clear();
        (self.shown, self.place) = (None, None);
        if let Some((mut record, _slot)) = self.kept.take() {
            record.ended(code, reason);
        }
    }
}

impl Below {
    fn submission(&self, generation: Generation) -> Submission {
        // A clone shares the connection.
        let mut supervisor = self.supervisor.clone();
        let submitted = SubmitRequest {
            stamp: Some(self.stamp),
            generation: Some(generation),
            key_id: self.key.0,
        };
        Box::pin(async move { supervisor.submit(submitted).await.map(tonic::Response::into_inner) })
    }
}
