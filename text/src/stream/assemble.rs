//! Makes the events of one sample: checks that no token is missing or repeated, turns ids into
//! text, and adds the sample's end with its figures.

use std::sync::Arc;

use paceline_vocabulary::generation::{Done, Figures, FinishReason, TokenBatch};

use super::parts::Parts;
use super::reading::AnswerReader;
use super::{
    AnswerEnd, AnswerEvent, AnswerPart, ConversationReading, Ending, OfferedTools, SpecialTokens,
    StopStrings, Timing, Usage,
};
use crate::prompt::Language;

/// Times since the request arrived, as far as the gateway measures them, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ElapsedTimes {
    /// Until the first token.
    pub ttft_ms: f64,
    /// Until now.
    pub total_ms: f64,
    /// Decoding of images.
    pub image_decode_ms: f64,
    /// Resizing and writing of images.
    pub image_resize_ms: f64,
}

/// A batch that does not follow the one before, or that lacks a part. Each is a mistake of the
/// service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenStream {
    /// A token is missing or repeated.
    #[error("expected the token at {expected}, found the one at {found}")]
    Gap {
        /// Index of the next token.
        expected: u32,
        /// Index of the token that came.
        found: u32,
    },
    /// Not every token has a margin.
    #[error("expected {expected} margins, one for each token, found {found}")]
    Margins {
        /// Tokens.
        expected: usize,
        /// Margins.
        found: usize,
    },
    /// Not every token has log-probabilities.
    #[error("expected {expected} log-probabilities, one for each token, found {found}")]
    Logprobs {
        /// Tokens.
        expected: usize,
        /// Log-probabilities.
        found: usize,
    },
    /// The batch that completed a stop string has no figures.
    #[error("a stop string ended a stream without figures")]
    NoFigures,
}

/// Facts of a sample that an [`Assembler`] needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssemblerSettings {
    /// Index of the sample in the request.
    pub sample_index: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// The seed of the request.
    pub seed: u64,
    /// Whether the client gets margins.
    pub report_margins: bool,
    /// Whether the client gets log-probabilities.
    pub report_logprobs: bool,
    /// Number of tokens before which no stop string ends the answer.
    pub min_tokens: u32,
    /// Strings before which the answer ends. They are looked for in its text alone.
    pub stop: Vec<String>,
    /// Whether special tokens are part of the answer's text.
    pub special: SpecialTokens,
    /// How thoughts and tool calls are read; without it all of the answer is text.
    pub reading: Option<ConversationReading>,
}

/// Makes one sample's events.
#[derive(Debug)]
pub struct Assembler {
    settings: AssemblerSettings,
    next_index: u32,
    /// Tokens of thoughts so far.
    reasoning_tokens: u32,
    reader: AnswerReader,
    stops: StopStrings,
    /// Of an answer that ends after its first tool call.
    first_call: Option<FirstCall>,
}

/// The first complete call of an offered tool.
#[derive(Debug)]
struct FirstCall {
    tools: Option<Arc<OfferedTools>>,
    /// Whether the tool of the call that began last is offered.
    is_offered: bool,
}

impl FirstCall {
    /// Removes the parts after the call, if it ends in them. Returns whether it does.
    fn ends_in(&mut self, parts: &mut Parts) -> bool {
        let ends = |part: &AnswerPart| {
            if let AnswerPart::ToolCallStart(start) = part {
                self.is_offered = self.tools.as_ref().is_some_and(|tools| tools.has(&start.name));
            }
            *part == AnswerPart::ToolCallEnd && self.is_offered
        };
        let at = parts.all().iter().position(ends);
        if let Some(at) = at {
            parts.truncate(at + 1);
        }
        at.is_some()
    }
}

/// Parts of the answer that the tokens of a batch complete.
struct NewParts {
    parts: Vec<AnswerPart>,
    /// The stop string that the tokens completed; an empty one if a tool call ended the answer.
    stop: Option<String>,
}

impl Assembler {
    /// Before the first token of a sample.
    pub fn new(mut settings: AssemblerSettings, language: Arc<Language>) -> Self {
        let stops = StopStrings::new(std::mem::take(&mut settings.stop));
        let special = std::mem::take(&mut settings.special);
        let reading = settings.reading.take();
        let first_call = reading.as_ref().filter(|reading| reading.one_call);
        let first_call =
            first_call.map(|reading| FirstCall { tools: reading.tools.clone(), is_offered: false });
        let reader = AnswerReader::new(language, reading).with_special(special);
        Self { settings, next_index: 0, reasoning_tokens: 0, reader, stops, first_call }
    }

    /// Index of the next token, which is the number of tokens so far.
    pub fn next_index(&self) -> u32 {
        self.next_index
    }

    /// The event that a batch becomes; `None` for an empty batch. Tokens after the one that
    /// completes a stop string are dropped.
    ///
    /// # Errors
    /// The batch does not follow the one before.
    pub fn take(
        &mut self,
        batch: TokenBatch,
        times: ElapsedTimes,
    ) -> Result<Option<AnswerEvent>, BrokenStream> {
        self.check(&batch)?;
        let TokenBatch { mut ids, mut margins, mut logprobs, step_end_ns, done, so_far, .. } =
            batch;
        if ids.is_empty() && done.is_none() {
            return Ok(None);
        }
        let ending = done.as_ref().map(|done| Ending::of(done.finish_reason));
        let NewParts { parts, stop } = self.read(&mut ids, ending);
        margins.truncate(ids.len());
        logprobs.truncate(ids.len());
        let goes_on = stop.is_none() && done.is_none();
        let usage = so_far.filter(|_| goes_on).map(|figures| self.usage(&figures));
        let last = match (stop, done) {
            (None, done) => done.map(|done| self.end(done, String::new(), times)),
            (Some(stop), done) => {
                // The stream of the target goes on, and its own end will not be read.
                let figures = done.map(|done| done.figures).or(so_far);
                let figures = figures.ok_or(BrokenStream::NoFigures)?;
                let done = Done { finish_reason: Some(FinishReason::Stop), figures };
                Some(self.end(done, stop, times))
            }
        };
        let Self { settings, .. } = self;
        Ok(Some(AnswerEvent {
            sample_index: settings.sample_index,
            parts,
            token_ids: ids,
            margins: if settings.report_margins { margins } else { Vec::new() },
            logprobs: if settings.report_logprobs { logprobs } else { Vec::new() },
            step_end_ns,
            so_far: usage,
            last,
        }))
    }

    fn check(&self, batch: &TokenBatch) -> Result<(), BrokenStream> {
        let TokenBatch { first_index, ids, margins, logprobs, .. } = batch;
        if *first_index != self.next_index && !ids.is_empty() {
            return Err(BrokenStream::Gap { expected: self.next_index, found: *first_index });
        }
        let expected = ids.len();
        if self.settings.report_margins && margins.len() != expected {
            return Err(BrokenStream::Margins { expected, found: margins.len() });
        }
        if self.settings.report_logprobs && logprobs.len() != expected {
            return Err(BrokenStream::Logprobs { expected, found: logprobs.len() });
        }
        Ok(())
    }

    /// Reads these ids and returns the parts they complete. Ids after a stop string are removed.
    fn read(&mut self, ids: &mut Vec<u32>, ending: Option<Ending>) -> NewParts {
        let (mut new, mut out) = (Parts::default(), Parts::default());
        for at in 0..ids.len() {
            self.next_index = self.next_index.saturating_add(1);
            let was_thinking = self.reader.is_thinking();
            self.reader.push(ids[at], &mut new);
            // The tags of a thought are its tokens, too.
            if was_thinking || self.reader.is_thinking() {
                self.reasoning_tokens = self.reasoning_tokens.saturating_add(1);
            }
            let called = self.first_call.as_mut().is_some_and(|first| first.ends_in(&mut new));
            let stop = self.find_stop(&mut new, &mut out).or(called.then(String::new));
            if stop.is_some() {
                ids.truncate(at + 1);
                return NewParts { parts: out.take(), stop };
            }
        }
        let mut stop = None;
        if let Some(ending) = ending {
            self.reader.finish(ending, &mut new);
            stop = self.find_stop(&mut new, &mut out);
            if stop.is_none() {
                out.text(&self.stops.finish());
            }
        }
        NewParts { parts: out.take(), stop }
    }

    /// Moves new parts to `out`, up to a stop string in their text. A stop string does not reach
    /// over a thought or a tool call.
    fn find_stop(&mut self, new: &mut Parts, out: &mut Parts) -> Option<String> {
        let counts = self.next_index >= self.settings.min_tokens;
        for part in new.take() {
            let AnswerPart::Text(piece) = part else {
                out.text(&self.stops.finish());
                out.push(part);
                continue;
            };
            let mut text = String::new();
            let stop = self.stops.take(&piece, counts, &mut text);
            out.text(&text);
            if stop.is_some() {
                return stop;
            }
        }
        None
    }

    /// Tokens up to now.
    fn usage(&self, figures: &Figures) -> Usage {
        Usage {
            prompt_tokens: self.settings.prompt_tokens,
            completion_tokens: self.next_index,
            reasoning_tokens: self.reasoning_tokens,
            cached_tokens: figures.cached_tokens,
        }
    }

    fn end(&self, done: Done, stop: String, times: ElapsedTimes) -> AnswerEnd {
        let Done { finish_reason, figures } = done;
        AnswerEnd {
            finish_reason,
            stop,
            usage: self.usage(&figures),
            route: figures.route,
            speculation: figures.speculation,
            timing: Timing {
                queue_ms: figures.queue_ms,
                ttft_ms: times.ttft_ms,
                total_ms: times.total_ms,
                image_decode_ms: times.image_decode_ms,
                image_resize_ms: times.image_resize_ms,
                tower_ms: figures.tower_ms,
                prefill_ms: figures.prefill_ms,
            },
            seed: self.settings.seed,
            resumed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::generation::{Speculation, TokenLogprobs, TopLogprob};

    use super::*;

    fn assembler(report_margins: bool) -> Assembler {
        let settings = AssemblerSettings {
            sample_index: 3,
            prompt_tokens: 3,
            seed: 9,
            report_margins,
            ..Default::default()
        };
        Assembler::new(settings, Arc::new(crate::samples::language()))
    }

    fn stopping(stop: &[&str], min_tokens: u32) -> Assembler {
        let settings = AssemblerSettings {
            prompt_tokens: 1,
            report_margins: true,
            min_tokens,
            stop: stop.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        Assembler::new(settings, Arc::new(crate::samples::language()))
    }

    /// A batch as the target sends it for a request with stop strings.
    fn going_on(first_index: u32, ids: &[u32]) -> TokenBatch {
        let speculation = Speculation { cycles: 2, drafted: 9, accepted: 4 };
        let so_far = Figures { cached_tokens: 1, queue_ms: 0.5, speculation, ..Default::default() };
        TokenBatch {
            margins: vec![1.0; ids.len()],
            so_far: Some(so_far),
            ..batch(first_index, ids, None)
        }
    }

    fn batch(first_index: u32, ids: &[u32], done: Option<Done>) -> TokenBatch {
        TokenBatch { first_index, ids: ids.to_vec(), done, ..Default::default() }
    }

    fn finished(finish_reason: FinishReason) -> Done {
        Done { finish_reason: Some(finish_reason), ..Default::default() }
    }

    #[test]
    fn batches_become_events_and_the_last_has_all_figures() {
        let language = crate::samples::language();
        let ids = language.tokens.encode("Hello 🦀", false).expect("encodes");
        let (head, tail) = ids.split_at(ids.len() - 1);
        let mut assembler = assembler(false);
        let first = assembler
            .take(batch(0, head, None), ElapsedTimes::default())
            .expect("follows")
            .expect("a message");
        assert_eq!(
            (first.text().as_str(), first.token_ids.as_slice(), first.last),
            ("Hello ", head, None)
        );
        assert_eq!(
            assembler.take(batch(0, &[], None), ElapsedTimes::default()).expect("fine"),
            None
        );

        let figures = Figures {
            cached_tokens: 1,
            queue_ms: 0.5,
            tower_ms: 1.25,
            prefill_ms: 1.5,
            ..Default::default()
        };
        let done = Done { figures, ..finished(FinishReason::Stop) };
        let times = ElapsedTimes {
            ttft_ms: 3.0,
            total_ms: 8.0,
            image_decode_ms: 0.25,
            image_resize_ms: 0.75,
        };
        let end = [tail, &[2]].concat();
        let last = assembler
            .take(batch(head.len() as u32, &end, Some(done)), times)
            .expect("follows")
            .expect("a message");
        assert_eq!((last.text().as_str(), last.sample_index), ("🦀", 3));
        let end = last.last.expect("the last");
        let completion_tokens = ids.len() as u32 + 1;
        let usage =
            Usage { prompt_tokens: 3, completion_tokens, cached_tokens: 1, reasoning_tokens: 0 };
        assert_eq!(end.usage, usage);
        let timing = Timing {
            queue_ms: 0.5,
            ttft_ms: 3.0,
            total_ms: 8.0,
            image_decode_ms: 0.25,
            image_resize_ms: 0.75,
            tower_ms: 1.25,
            prefill_ms: 1.5,
        };
        assert_eq!(end.timing, timing);
        assert_eq!((end.seed, end.finish_reason), (9, Some(FinishReason::Stop)));
    }

    #[test]
    fn a_gap_or_a_repetition_breaks_the_stream() {
        for wrong in [0, 1, 3] {
            let mut assembler = assembler(false);
            assembler.take(batch(0, &[10, 11], None), ElapsedTimes::default()).expect("follows");
            let error = assembler
                .take(batch(wrong, &[12], None), ElapsedTimes::default())
                .expect_err("does not follow");
            assert_eq!(error, BrokenStream::Gap { expected: 2, found: wrong });
        }
    }

    #[test]
    fn margins_come_one_for_each_token_or_not_at_all() {
        let with = |margins: Vec<f32>| TokenBatch { margins, ..batch(0, &[10, 11], None) };
        let message = assembler(true)
            .take(with(vec![0.5, 1.0]), ElapsedTimes::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(message.margins, [0.5, 1.0]);
        let error =
            assembler(true).take(with(vec![0.5]), ElapsedTimes::default()).expect_err("short");
        assert_eq!(error, BrokenStream::Margins { expected: 2, found: 1 });
        let message = assembler(false)
            .take(with(vec![0.5, 1.0]), ElapsedTimes::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(message.margins, [0.0; 0]);
    }

    #[test]
    fn log_probabilities_come_one_for_each_token_or_not_at_all() {
        let one =
            TokenLogprobs { logprob: -0.5, top: vec![TopLogprob { token_id: 9, logprob: -0.25 }] };
        let assembler = |report_logprobs| {
            let settings = AssemblerSettings { report_logprobs, ..Default::default() };
            Assembler::new(settings, Arc::new(crate::samples::language()))
        };
        let with =
            |count| TokenBatch { logprobs: vec![one.clone(); count], ..batch(0, &[10, 11], None) };
        let message = assembler(true)
            .take(with(2), ElapsedTimes::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(message.logprobs, [one.clone(), one.clone()]);
        for count in [0, 1, 3] {
            let error = assembler(true)
                .take(with(count), ElapsedTimes::default())
                .expect_err("not one for each");
            assert_eq!(error, BrokenStream::Logprobs { expected: 2, found: count });
        }
        let message = assembler(false)
            .take(with(2), ElapsedTimes::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(message.logprobs, []);
    }

    #[test]
    fn a_stop_string_ends_the_answer_with_the_figures_so_far() {
        let language = crate::samples::language();
        let ids = language.tokens.encode("one two. three", false).expect("encodes");
        // The token with the dot; further tokens follow in the same batch.
        let dot = ids
            .iter()
            .position(|id| language.tokens.decode(&[*id]).expect("decodes").contains('.'))
            .expect("a dot");
        let mut assembler = stopping(&["."], 0);
        let message = assembler
            .take(going_on(0, &ids), ElapsedTimes::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(
            (message.text().as_str(), message.token_ids.as_slice()),
            ("one two", &ids[..=dot])
        );
        assert_eq!(message.margins.len(), dot + 1);
        let end = message.last.expect("the last");
        assert_eq!((end.stop.as_str(), end.finish_reason), (".", Some(FinishReason::Stop)));
        let completion_tokens = dot as u32 + 1;
        let usage =
            Usage { prompt_tokens: 1, completion_tokens, cached_tokens: 1, reasoning_tokens: 0 };
        assert_eq!(end.usage, usage);
        assert_eq!((end.speculation.accepted, end.timing.queue_ms), (4, 0.5));

        let unknown = TokenBatch { so_far: None, ..going_on(0, &ids) };
        let error =
            stopping(&["."], 0).take(unknown, ElapsedTimes::default()).expect_err("no figures");
        assert_eq!(error, BrokenStream::NoFigures);
    }

    #[test]
    fn the_usage_so_far_is_in_each_event_but_the_last() {
        let mut assembler = stopping(&["<end>"], 0);
        let mut take = |batch| {
            let event = assembler.take(batch, ElapsedTimes::default()).expect("follows");
            event.expect("an event").so_far
        };
        let usage = |completion_tokens| {
            Some(Usage {
                prompt_tokens: 1,
                completion_tokens,
                cached_tokens: 1,
                reasoning_tokens: 0,
            })
        };
        assert_eq!(take(going_on(0, &[10, 11])), usage(2));
        assert_eq!(take(going_on(2, &[12])), usage(3));
        assert_eq!(take(TokenBatch { so_far: None, ..going_on(3, &[13]) }), None);
        let done = Some(finished(FinishReason::Length));
        assert_eq!(take(TokenBatch { done, ..going_on(4, &[14]) }), None);
    }

    #[test]
    fn a_stop_string_counts_from_min_tokens_on() {
        let language = crate::samples::language();
        let ids = language.tokens.encode("a.b.c.d", false).expect("encodes");
        let ending = |min_tokens: u32| {
            let mut assembler = stopping(&["."], min_tokens);
            let mut text = String::new();
            for (at, id) in ids.iter().enumerate() {
                let message = assembler
                    .take(going_on(at as u32, &[*id]), ElapsedTimes::default())
                    .expect("fine")
                    .expect("a message");
                text += &message.text();
                if let Some(end) = message.last {
                    return (text, end.usage.completion_tokens);
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
    fn text_that_was_held_back_is_shown_at_the_end() {
        let language = crate::samples::language();
        let ids = language.tokens.encode("see <", false).expect("encodes");
        let mut assembler = stopping(&["<end>"], 0);
        let message = assembler
            .take(going_on(0, &ids), ElapsedTimes::default())
            .expect("fine")
            .expect("a message");
        assert_eq!(message.text(), "see ");
        let done = finished(FinishReason::Length);
        let last = assembler
            .take(batch(ids.len() as u32, &[], Some(done)), ElapsedTimes::default())
            .expect("fine")
            .expect("the last");
        assert_eq!(last.text(), "<");
        let end = last.last.expect("the last");
        assert_eq!((end.stop.as_str(), end.finish_reason), ("", Some(FinishReason::Length)));
    }
}
