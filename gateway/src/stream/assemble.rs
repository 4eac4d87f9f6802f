//! Batches to messages: checks that no token is missing or repeated, turns ids into text, and says
//! at the end what can be said. No clock, no socket.

use std::sync::Arc;

use paceline_proto::internal::v1::{Done, Generation, TokenBatch};
use paceline_proto::status::{COMPLETION_TOKENS, Reason, Refusal};
use paceline_proto::v1;
use tonic::Status;

use super::{Detokenizer, Stops};
use crate::error::bug;
use crate::images::ImageTimes;
use crate::prompt::Language;

/// Milliseconds since the request was read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Until the first token.
    pub ttft_ms: f64,
    /// Until now.
    pub total_ms: f64,
    /// What its pictures took here.
    pub pictures: ImageTimes,
}

/// Makes one sample's messages.
#[derive(Debug)]
pub struct Assembler {
    request_id: String,
    sample_index: u32,
    prompt_tokens: u32,
    seed: u64,
    report_margins: bool,
    report_logprobs: bool,
    min_tokens: u32,
    next_index: u32,
    text: Detokenizer,
    stops: Stops,
}

impl Assembler {
    /// For the answer of this index to `generation`, which ends before any of `stop`.
    pub fn new(
        generation: &Generation,
        sample_index: u32,
        stop: Vec<String>,
        language: Arc<Language>,
    ) -> Self {
        Self {
            request_id: generation.request_id.clone(),
            sample_index,
            prompt_tokens: u32::try_from(generation.prompt_ids.len()).unwrap_or(u32::MAX),
            seed: generation.seed,
            report_margins: generation.report_margins,
            report_logprobs: generation.logprobs.is_some(),
            min_tokens: generation.min_tokens,
            next_index: u32::try_from(generation.continuation_ids.len()).unwrap_or(u32::MAX),
            text: Detokenizer::new(language),
            stops: Stops::new(stop),
        }
    }

    /// Place of the next token in the stream: how many there are.
    pub fn next_index(&self) -> u32 {
        self.next_index
    }

    /// The message a batch becomes; `None` if it says nothing. What comes behind a stop string is
    /// left out.
    ///
    /// # Errors
    /// INTERNAL, if the batch does not follow the one before.
    pub fn take(
        &mut self,
        batch: TokenBatch,
        times: Times,
    ) -> Result<Option<v1::GenerateResponse>, Status> {
        let TokenBatch {
            stamp: _,
            first_index,
            mut ids,
            mut margins,
            mut logprobs,
            step_end_ns,
            done,
            so_far,
        } = batch;
        if first_index != self.next_index && !ids.is_empty() {
            return Err(bug(&format!(
                "expected the token at {}, found the one at {first_index}",
                self.next_index
            )));
        }
        if self.report_margins && margins.len() != ids.len() {
            return Err(bug(&format!(
                "expected {} margins, one for each token, found {}",
                ids.len(),
                margins.len()
            )));
        }
        if self.report_logprobs && logprobs.len() != ids.len() {
            let what = format!(
                "expected {} log-probabilities, one for each token, found {}",
                ids.len(),
                logprobs.len()
            );
            return Err(bug(&what));
        }
        if ids.is_empty() && done.is_none() {
            return Ok(None);
        }
        let (text, stop) = self.read(&mut ids, done.is_some());
        margins.truncate(ids.len());
        logprobs.truncate(ids.len());
        let last = match (stop, done) {
            (None, done) => done.map(|done| self.last(done, times)),
            (Some(stop), done) => {
                // The stream below goes on, and will not say how it was served.
                let known = done
                    .or(so_far)
                    .ok_or_else(|| bug("a stop string ended a stream without figures"))?;
                let done = Done { finish_reason: v1::FinishReason::Stop.into(), ..known };
                Some(v1::Final { stop, ..self.last(done, times) })
            }
        };
        Ok(Some(v1::GenerateResponse {
            request_id: self.request_id.clone(),
            text,
            token_ids: ids,
            margins: if self.report_margins { margins } else { Vec::new() },
            logprobs: if self.report_logprobs { logprobs } else { Vec::new() },
            step_end_ns,
            r#final: last,
            sample_index: self.sample_index,
        }))
    }

    /// The text that these ids make it possible to show, and the stop string that ends it: then the
    /// ids behind the one that completed it are taken away.
    fn read(&mut self, ids: &mut Vec<u32>, at_end: bool) -> (String, Option<String>) {
        let mut text = String::new();
        for at in 0..ids.len() {
            self.next_index = self.next_index.saturating_add(1);
            let piece = self.text.push(ids[at]);
            if let Some(stop) =
                self.stops.take(&piece, self.next_index >= self.min_tokens, &mut text)
            {
                ids.truncate(at + 1);
                return (text, Some(stop));
            }
        }
        if at_end {
            let piece = self.text.finish();
            if let Some(stop) =
                self.stops.take(&piece, self.next_index >= self.min_tokens, &mut text)
            {
                return (text, Some(stop));
            }
            text.push_str(&self.stops.finish());
        }
        (text, None)
    }

    fn last(&self, done: Done, times: Times) -> v1::Final {
        v1::Final {
            finish_reason: done.finish_reason,
            usage: Some(v1::Usage {
                prompt_tokens: self.prompt_tokens,
                completion_tokens: self.next_index,
                cached_tokens: done.cached_tokens,
            }),
            route: Some(done.route.unwrap_or_default()),
            speculation: Some(done.speculation.unwrap_or_default()),
            timing: Some(v1::Timing {
                queue_ms: done.queue_ms,
                ttft_ms: times.ttft_ms,
                total_ms: times.total_ms,
                picture_decode_ms: times.pictures.decode_ms,
                picture_resize_ms: times.pictures.resize_ms,
                tower_ms: done.tower_ms,
                prefill_ms: done.prefill_ms,
            }),
            resumed: 0,
            seed: self.seed,
            stop: String::new(),
        }
    }
}

/// The deadline came between two batches, behind so many tokens.
pub(super) fn deadline_passed(tokens: u32) -> Status {
    let message = format!(
        "the request's deadline passed after {tokens} tokens; allow more time, or ask for fewer"
    );
    Refusal::new(Reason::DeadlinePassed, message).fact(COMPLETION_TOKENS, tokens).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::status::ReasonStatus as _;

    fn assembler(report_margins: bool) -> Assembler {
        let generation = Generation {
            request_id: "r".into(),
            prompt_ids: vec![1, 2, 3],
            seed: 9,
            report_margins,
            ..Default::default()
        };
        Assembler::new(&generation, 3, vec![], Arc::new(crate::demo::language()))
    }

    fn stopping(stop: &[&str], min_tokens: u32) -> Assembler {
        let generation = Generation {
            prompt_ids: vec![1],
            report_margins: true,
            min_tokens,
            ..Default::default()
        };
        let stop = stop.iter().map(ToString::to_string).collect();
        Assembler::new(&generation, 0, stop, Arc::new(crate::demo::language()))
    }

    /// As the target sends them to who may end the request.
    fn going_on(first_index: u32, ids: &[u32]) -> TokenBatch {
        let speculation = Some(v1::Speculation { cycles: 2, drafted: 9, accepted: 4 });
        let so_far = Done { cached_tokens: 1, queue_ms: 0.5, speculation, ..Default::default() };
        TokenBatch {
            margins: vec![1.0; ids.len()],
            so_far: Some(so_far),
            ..batch(first_index, ids, None)
        }
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
        let first = assembler
            .take(batch(0, head, None), Times::default())
            .expect("follows")
            .expect("a message");
        assert_eq!(
            (first.text.as_str(), first.token_ids.as_slice(), first.r#final),
            ("Hello ", head, None)
        );
        assert_eq!(assembler.take(batch(0, &[], None), Times::default()).expect("fine"), None);

        let done = Done {
            finish_reason: v1::FinishReason::Stop as i32,
            cached_tokens: 1,
            queue_ms: 0.5,
            tower_ms: 1.25,
            prefill_ms: 1.5,
            ..Default::default()
        };
        let times = Times {
            ttft_ms: 3.0,
            total_ms: 8.0,
            pictures: ImageTimes { decode_ms: 0.25, resize_ms: 0.75 },
        };
        let end = [tail, &[2]].concat();
        let last = assembler
            .take(batch(head.len() as u32, &end, Some(done)), times)
            .expect("follows")
            .expect("a message");
        assert_eq!(
            (last.text.as_str(), last.request_id.as_str(), last.sample_index),
            ("🦀", "r", 3)
        );
        let said = last.r#final.expect("the last");
        let completion_tokens = ids.len() as u32 + 1;
        assert_eq!(
            said.usage,
            Some(v1::Usage { prompt_tokens: 3, completion_tokens, cached_tokens: 1 })
        );
        let timing = v1::Timing {
            queue_ms: 0.5,
            ttft_ms: 3.0,
            total_ms: 8.0,
            picture_decode_ms: 0.25,
            picture_resize_ms: 0.75,
            tower_ms: 1.25,
            prefill_ms: 1.5,
        };
        assert_eq!(said.timing, Some(timing));
        assert_eq!(
            (said.seed, said.resumed, said.finish_reason),
            (9, 0, v1::FinishReason::Stop as i32)
        );
    }

    #[test]
    fn a_gap_or_a_repetition_is_our_bug() {
        for wrong in [0, 1, 3] {
            let mut assembler = assembler(false);
            assembler.take(batch(0, &[10, 11], None), Times::default()).expect("follows");
            let status = assembler
                .take(batch(wrong, &[12], None), Times::default())
                .expect_err("does not follow");
            assert_eq!(Reason::of(&status), Some(Reason::Bug), "{wrong}");
        }
    }

    #[test]
    fn margins_come_one_for_each_token_or_not_at_all() {
        let with = |margins: Vec<f32>| TokenBatch { margins, ..batch(0, &[10, 11], None) };
        let message = assembler(true)
            .take(with(vec![0.5, 1.0]), Times::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(message.margins, [0.5, 1.0]);
        assert_eq!(
            Reason::of(
                &assembler(true).take(with(vec![0.5]), Times::default()).expect_err("short")
            ),
            Some(Reason::Bug)
        );
        let message = assembler(false)
            .take(with(vec![0.5, 1.0]), Times::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(message.margins, [0.0; 0]);
    }

    #[test]
    fn log_probabilities_come_one_for_each_token_or_not_at_all() {
        let one = v1::TokenLogprobs {
            logprob: -0.5,
            top: vec![v1::TopLogprob { token_id: 9, logprob: -0.25 }],
        };
        let assembler = |logprobs| {
            let generation = Generation { prompt_ids: vec![1], logprobs, ..Default::default() };
            Assembler::new(&generation, 0, vec![], Arc::new(crate::demo::language()))
        };
        let with =
            |count| TokenBatch { logprobs: vec![one.clone(); count], ..batch(0, &[10, 11], None) };
        let message =
            assembler(Some(1)).take(with(2), Times::default()).expect("fine").expect("a message");
        assert_eq!(message.logprobs, [one.clone(), one.clone()]);
        for count in [0, 1, 3] {
            let status = assembler(Some(0))
                .take(with(count), Times::default())
                .expect_err("not one for each");
            assert_eq!(Reason::of(&status), Some(Reason::Bug), "{count}");
        }
        let message =
            assembler(None).take(with(2), Times::default()).expect("fine").expect("a message");
        assert_eq!(message.logprobs, []);
    }

    #[test]
    fn a_stop_string_ends_it_with_what_is_known() {
        let language = crate::demo::language();
        let ids = language.tokens.encode("one two. three", false).expect("encodes");
        // The token with the dot, and those behind it in the same batch.
        let dot = ids
            .iter()
            .position(|id| language.tokens.decode(&[*id]).expect("decodes").contains('.'))
            .expect("a dot");
        let mut assembler = stopping(&["."], 0);
        let message =
            assembler.take(going_on(0, &ids), Times::default()).expect("fine").expect("a message");
        assert_eq!(
            (message.text.as_str(), message.token_ids.as_slice()),
            ("one two", &ids[..=dot])
        );
        assert_eq!(message.margins.len(), dot + 1);
        let said = message.r#final.expect("the last");
        assert_eq!((said.stop.as_str(), said.finish_reason()), (".", v1::FinishReason::Stop));
        assert_eq!(
            said.usage,
            Some(v1::Usage {
                prompt_tokens: 1,
                completion_tokens: dot as u32 + 1,
                cached_tokens: 1
            })
        );
        assert_eq!(said.speculation.map(|counts| counts.accepted), Some(4));
        assert_eq!(said.timing.map(|timing| timing.queue_ms), Some(0.5));

        let unknown = TokenBatch { so_far: None, ..going_on(0, &ids) };
        let status = stopping(&["."], 0).take(unknown, Times::default()).expect_err("no figures");
        assert_eq!(Reason::of(&status), Some(Reason::Bug));
    }

    #[test]
    fn a_stop_string_counts_from_min_tokens_on() {
        let language = crate::demo::language();
        let ids = language.tokens.encode("a.b.c.d", false).expect("encodes");
        let ending = |min_tokens: u32| {
            let mut assembler = stopping(&["."], min_tokens);
            let mut text = String::new();
            for (at, id) in ids.iter().enumerate() {
                let message = assembler
                    .take(going_on(at as u32, &[*id]), Times::default())
                    .expect("fine")
                    .expect("a message");
                text += &message.text;
                if let Some(said) = message.r#final {
                    return (text, said.usage.expect("set").completion_tokens);
                }
            }
            (text, 0)
        };
        let decoded = |count: u32| language.tokens.decode(&ids[..count as usize]).expect("decodes");
        let (_, first) = ending(0);
        assert_eq!(ending(first), ending(0), "it ends with that token, not before");
        let (text, second) = ending(first + 1);
        assert!(second > first);
        assert!(
            decoded(second).starts_with(&text) && text.contains('.') && !text.ends_with('.'),
            "{text:?}"
        );
        assert_eq!(ending(99).1, 0);
    }

    #[test]
    fn what_is_held_at_the_end_is_shown() {
        let language = crate::demo::language();
        let ids = language.tokens.encode("see <", false).expect("encodes");
        let mut assembler = stopping(&["<end>"], 0);
        let message =
            assembler.take(going_on(0, &ids), Times::default()).expect("fine").expect("a message");
        assert_eq!(message.text, "see ");
        let done = Done { finish_reason: v1::FinishReason::Length.into(), ..Default::default() };
        let last = assembler
            .take(batch(ids.len() as u32, &[], Some(done)), Times::default())
            .expect("fine")
            .expect("the last");
        assert_eq!(last.text, "<");
        let said = last.r#final.expect("the last");
        assert_eq!((said.stop.as_str(), said.finish_reason()), ("", v1::FinishReason::Length));
    }
}
