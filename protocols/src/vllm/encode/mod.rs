//! Events of an answer as messages of the engine protocol: pieces of each sample and its end, or one
//! message for each sample.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

use paceline_proto::vllm::grpc::engine as vllm;
use paceline_text::stream::{AnswerEnd, AnswerEvent};
use paceline_vocabulary::generation::{FinishReason, TokenLogprobs};
use vllm::generate_complete::MatchedStop;
use vllm::generate_response::Response;

use super::decode::AnswerWish;
use crate::inference::error::Result;

/// Memory for an answer that is kept until it is whole.
pub trait AnswerRoom: Debug + Send + Sync {
    /// Counts `bytes` in all for the answer.
    ///
    /// # Errors
    /// More bytes than are left for it.
    fn grow_answer(&self, bytes: u64) -> Result<()>;
}

/// Messages that are ready to be sent.
pub type Outbox = VecDeque<vllm::GenerateResponse>;

/// Makes the messages of one answer.
#[derive(Debug)]
pub struct AnswerEncoder {
    wish: AnswerWish,
    /// Number of samples.
    samples: u32,
    /// The samples that have begun and not ended.
    open: BTreeMap<u32, OpenSample>,
    /// The samples that have ended.
    ended: BTreeSet<u32>,
    /// Their ends by their index, if the answer does not come in pieces: a router reads them in this
    /// order.
    ends: BTreeMap<u32, vllm::GenerateResponse>,
    /// Bytes of an answer that does not come in pieces, in the budget.
    room: Arc<dyn AnswerRoom>,
}

/// A sample that runs.
#[derive(Debug, Default)]
struct OpenSample {
    /// Tokens that are not sent yet.
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    prompt_tokens: u32,
    cached_tokens: u32,
    last_id: Option<u32>,
}

impl AnswerEncoder {
    /// For the answer to a request of `samples` samples. `room` holds the bytes of an answer that is
    /// kept until it is whole.
    pub fn new(wish: AnswerWish, samples: u32, room: Arc<dyn AnswerRoom>) -> Self {
        Self {
            wish,
            samples,
            open: BTreeMap::new(),
            ended: BTreeSet::new(),
            ends: BTreeMap::new(),
            room,
        }
    }

    /// Adds the messages of an event to `outbox`.
    ///
    /// # Errors
    /// There is no room for an answer that is kept until it is whole.
    pub fn event(&mut self, event: AnswerEvent, outbox: &mut Outbox) -> Result<()> {
        let index = event.sample_index;
        if !self.wish.in_pieces {
            self.room.grow_answer(event.written_bytes())?;
        }
        let sample = self.open.entry(index).or_default();
        if let Some(usage) = event.last.as_ref().map(|end| end.usage).or(event.so_far) {
            (sample.prompt_tokens, sample.cached_tokens) =
                (usage.prompt_tokens, usage.cached_tokens);
        }
        sample.last_id = event.token_ids.last().copied().or(sample.last_id);
        append(&mut sample.ids, event.token_ids);
        append(&mut sample.logprobs, event.logprobs);
        if self.wish.in_pieces && !sample.ids.is_empty() {
            let is_last = event.last.is_some();
            outbox.push_back(piece(index, sample, self.wish.logprobs, is_last));
        }
        if let Some(end) = event.last {
            let sample = self.open.remove(&index).unwrap_or_default();
            self.ended.insert(index);
            let end = self.end(index, sample, end);
            match self.wish.in_pieces {
                true => outbox.push_back(end),
                false => drop(self.ends.insert(index, end)),
            }
            if self.ended.len() == self.samples as usize {
                outbox.extend(std::mem::take(&mut self.ends).into_values());
            }
        }
        Ok(())
    }

    /// Adds the ends of all samples that have not ended: the router has ended the request.
    pub fn aborted(&mut self, outbox: &mut Outbox) {
        for index in 0..self.samples {
            if self.ended.insert(index) {
                let sample = self.open.remove(&index).unwrap_or_default();
                let complete = complete(index, sample, self.wish.logprobs, "abort");
                self.ends.insert(index, response(Response::Complete(complete)));
            }
        }
        outbox.extend(std::mem::take(&mut self.ends).into_values());
    }

    fn end(&self, index: u32, sample: OpenSample, end: AnswerEnd) -> vllm::GenerateResponse {
        let word = match end.finish_reason {
            Some(FinishReason::Length) => "length",
            Some(FinishReason::Stop) | None => "stop",
        };
        let last_id = sample.last_id.filter(|_| end.finish_reason == Some(FinishReason::Stop));
        let stop_id = last_id.filter(|id| self.wish.stop_token_ids.contains(id));
        let matched_stop = match end.stop.is_empty() {
            false => Some(MatchedStop::MatchedStopStr(end.stop)),
            true => stop_id.map(MatchedStop::MatchedTokenId),
        };
        let count = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
        response(Response::Complete(vllm::GenerateComplete {
            matched_stop,
            spec_accepted_tokens: count(end.speculation.accepted),
            spec_draft_tokens: count(end.speculation.drafted),
            ..complete(index, sample, self.wish.logprobs, word)
        }))
    }
}

/// The tokens of a sample that are not sent yet. The end of a sample has those of the last piece as
/// well, so they stay if this is the last one.
fn piece(
    index: u32,
    sample: &mut OpenSample,
    logprobs: Option<u32>,
    is_last: bool,
) -> vllm::GenerateResponse {
    let (ids, at) = match is_last {
        true => (sample.ids.clone(), sample.logprobs.clone()),
        false => (std::mem::take(&mut sample.ids), std::mem::take(&mut sample.logprobs)),
    };
    response(Response::Chunk(vllm::GenerateStreamChunk {
        prompt_tokens: sample.prompt_tokens,
        completion_tokens: length(&ids),
        cached_tokens: sample.cached_tokens,
        output_logprobs: logprobs.map(|_| output_logprobs(&ids, at)),
        input_logprobs: None,
        index,
        token_ids: ids,
    }))
}

fn complete(
    index: u32,
    sample: OpenSample,
    logprobs: Option<u32>,
    finish_reason: &str,
) -> vllm::GenerateComplete {
    vllm::GenerateComplete {
        finish_reason: finish_reason.to_owned(),
        prompt_tokens: sample.prompt_tokens,
        completion_tokens: length(&sample.ids),
        cached_tokens: sample.cached_tokens,
        output_logprobs: logprobs.map(|_| output_logprobs(&sample.ids, sample.logprobs)),
        output_ids: sample.ids,
        index,
        ..Default::default()
    }
}

fn output_logprobs(ids: &[u32], at: Vec<TokenLogprobs>) -> vllm::OutputLogProbs {
    vllm::OutputLogProbs {
        token_logprobs: at.iter().map(|one| one.logprob).collect(),
        token_ids: ids.to_vec(),
        top_logprobs: at
            .into_iter()
            .map(|one| vllm::TopLogProbs {
                values: one.top.iter().map(|top| top.logprob).collect(),
                token_ids: one.top.iter().map(|top| top.token_id).collect(),
            })
            .collect(),
    }
}

/// Adds the elements of a list. Between two pieces there are none before, and the list is moved.
fn append<T>(list: &mut Vec<T>, mut more: Vec<T>) {
    match list.is_empty() {
        true => *list = more,
        false => list.append(&mut more),
    }
}

fn length(ids: &[u32]) -> u32 {
    u32::try_from(ids.len()).unwrap_or(u32::MAX)
}

fn response(response: Response) -> vllm::GenerateResponse {
    vllm::GenerateResponse { response: Some(response) }
}

#[cfg(test)]
mod tests;
