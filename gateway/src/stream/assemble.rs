//! Batches to messages: checks that no token is missing or repeated, turns ids into text, and says at the end what can be
//! said. No clock, no socket.

use std::sync::Arc;

use paceline_proto::internal::v1::{Generation, TokenBatch};
use paceline_proto::status::{Reason, Refusal};
use paceline_proto::v1;
use tonic::Status;

use super::Detokenizer;
use crate::error::bug;
use crate::prompt::Language;

/// Milliseconds since the request was read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Until the first token.
    pub ttft_ms: f64,
    /// Until now.
    pub total_ms: f64,
}

/// Makes one request's messages.
#[derive(Debug)]
pub struct Assembler {
    request_id: String,
    prompt_tokens: u32,
    seed: u64,
    report_margins: bool,
    report_logprobs: bool,
    next_index: u32,
    text: Detokenizer,
}

impl Assembler {
    /// For the answer to `generation`.
    pub fn new(generation: &Generation, language: Arc<Language>) -> Self {
        Self {
            request_id: generation.request_id.clone(),
            prompt_tokens: u32::try_from(generation.prompt_ids.len()).unwrap_or(u32::MAX),
            seed: generation.seed,
            report_margins: generation.report_margins,
            report_logprobs: generation.logprobs.is_some(),
            next_index: u32::try_from(generation.continuation_ids.len()).unwrap_or(u32::MAX),
            text: Detokenizer::new(language),
        }
    }

    /// Place of the next token in the stream: how many there are.
    pub fn next_index(&self) -> u32 {
        self.next_index
    }

    /// The message a batch becomes; `None` if it says nothing.
    ///
    /// # Errors
    /// INTERNAL, if the batch does not follow the one before.
    pub fn take(&mut self, batch: TokenBatch, times: Times) -> Result<Option<v1::GenerateResponse>, Status> {
        let TokenBatch { stamp: _, first_index, ids, margins, step_end_ns, done, logprobs } = batch;
        if first_index != self.next_index && !ids.is_empty() {
            return Err(bug(&format!("expected the token at {}, found the one at {first_index}", self.next_index)));
        }
        if self.report_margins && margins.len() != ids.len() {
            return Err(bug(&format!("expected {} margins, one for each token, found {}", ids.len(), margins.len())));
        }
        if self.report_logprobs && logprobs.len() != ids.len() {
            let what = format!("expected {} log-probabilities, one for each token, found {}", ids.len(), logprobs.len());
            return Err(bug(&what));
        }
        if ids.is_empty() && done.is_none() {
            return Ok(None);
        }
        self.next_index = self.next_index.saturating_add(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        let mut text: String = ids.iter().map(|id| self.text.push(*id)).collect();
        let last = done.map(|done| {
            text.push_str(&self.text.finish());
            v1::Final {
                finish_reason: done.finish_reason,
                usage: Some(v1::Usage {
                    prompt_tokens: self.prompt_tokens,
                    completion_tokens: self.next_index,
                    cached_tokens: done.cached_tokens,
                }),
                route: Some(done.route.unwrap_or_default()),
                speculation: Some(done.speculation.unwrap_or_default()),
                timing: Some(v1::Timing { queue_ms: done.queue_ms, ttft_ms: times.ttft_ms, total_ms: times.total_ms }),
                resumed: 0,
                seed: self.seed,
                ..v1::Final::default()
            }
        });
        Ok(Some(v1::GenerateResponse {
            request_id: self.request_id.clone(),
            text,
            token_ids: ids,
            margins: if self.report_margins { margins } else { Vec::new() },
            logprobs: if self.report_logprobs { logprobs } else { Vec::new() },
            step_end_ns,
            r#final: last,
            ..v1::GenerateResponse::default()
        }))
    }

    /// The deadline came between two batches.
    pub fn deadline_passed(&self) -> Status {
        let message =
            format!("the request's deadline passed after {} tokens; allow more time, or ask for fewer", self.next_index);
        Refusal::new(Reason::DeadlinePassed, message).fact("completion_tokens", self.next_index).into()
    }
}

#[cfg(test)]
mod tests {
    use paceline_proto::internal::v1::Done;

    use super::*;

    fn assembler(report_margins: bool) -> Assembler {
        let generation =
            Generation { request_id: "r".into(), prompt_ids: vec![1, 2, 3], seed: 9, report_margins, ..Default::default() };
        Assembler::new(&generation, Arc::new(crate::demo::language()))
    }

    fn batch(first_index: u32, ids: &[u32], done: Option<Done>) -> TokenBatch {
        TokenBatch { first_index, ids: ids.to_vec(), done, ..Default::default() }
    }

    #[test]
    fn batches_become_messages_and_the_last_says_it_all() {
        let language = crate::demo::language();
        let ids = language.tokens.encode("Hello 🦀", false).expect("encodes");
        let (head, tail) = ids.split_at(ids.len() - 1);
        let mut assembler = assembler(false);
        let first = assembler.take(batch(0, head, None), Times::default()).expect("follows").expect("a message");
        assert_eq!((first.text.as_str(), first.token_ids.as_slice(), first.r#final), ("Hello ", head, None));
        assert_eq!(assembler.take(batch(0, &[], None), Times::default()).expect("fine"), None);

        let done = Done { finish_reason: v1::FinishReason::Stop as i32, cached_tokens: 1, queue_ms: 0.5, ..Default::default() };
        let times = Times { ttft_ms: 3.0, total_ms: 8.0 };
        let end = [tail, &[2]].concat();
        let last = assembler.take(batch(head.len() as u32, &end, Some(done)), times).expect("follows").expect("a message");
        assert_eq!((last.text.as_str(), last.request_id.as_str()), ("🦀", "r"));
        let said = last.r#final.expect("the last");
        let completion_tokens = ids.len() as u32 + 1;
        assert_eq!(said.usage, Some(v1::Usage { prompt_tokens: 3, completion_tokens, cached_tokens: 1 }));
        assert_eq!(said.timing, Some(v1::Timing { queue_ms: 0.5, ttft_ms: 3.0, total_ms: 8.0 }));
        assert_eq!((said.seed, said.resumed, said.finish_reason), (9, 0, v1::FinishReason::Stop as i32));
    }

    #[test]
    fn a_gap_or_a_repetition_is_our_bug() {
        for wrong in [0, 1, 3] {
            let mut assembler = assembler(false);
            assembler.take(batch(0, &[10, 11], None), Times::default()).expect("follows");
            let status = assembler.take(batch(wrong, &[12], None), Times::default()).expect_err("does not follow");
            assert_eq!(Reason::of(&status), Some(Reason::Bug), "{wrong}");
        }
    }

    #[test]
    fn margins_come_one_for_each_token_or_not_at_all() {
        let with = |margins: Vec<f32>| TokenBatch { margins, ..batch(0, &[10, 11], None) };
        let message = assembler(true).take(with(vec![0.5, 1.0]), Times::default()).expect("fine").expect("a message");
        assert_eq!(message.margins, [0.5, 1.0]);
        assert_eq!(Reason::of(&assembler(true).take(with(vec![0.5]), Times::default()).expect_err("short")), Some(Reason::Bug));
        let message = assembler(false).take(with(vec![0.5, 1.0]), Times::default()).expect("fine").expect("a message");
        assert_eq!(message.margins, [0.0; 0]);
    }

    #[test]
    fn log_probabilities_come_one_for_each_token_or_not_at_all() {
        let one = v1::TokenLogprobs { logprob: -0.5, top: vec![v1::TopLogprob { token_id: 9, logprob: -0.25 }] };
        let assembler = |logprobs| {
            let generation = Generation { prompt_ids: vec![1], logprobs, ..Default::default() };
            Assembler::new(&generation, Arc::new(crate::demo::language()))
        };
        let with = |count| TokenBatch { logprobs: vec![one.clone(); count], ..batch(0, &[10, 11], None) };
        let message = assembler(Some(1)).take(with(2), Times::default()).expect("fine").expect("a message");
        assert_eq!(message.logprobs, [one.clone(), one.clone()]);
        for count in [0, 1, 3] {
            let status = assembler(Some(0)).take(with(count), Times::default()).expect_err("not one for each");
            assert_eq!(Reason::of(&status), Some(Reason::Bug), "{count}");
        }
        let message = assembler(None).take(with(2), Times::default()).expect("fine").expect("a message");
        assert_eq!(message.logprobs, []);
    }
}
