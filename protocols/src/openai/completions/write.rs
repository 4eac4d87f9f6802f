//! Writes the answers to a text: in chunks as events come, or whole from all of them.

use std::mem::take;

use paceline_text::stream::AnswerEvent;
use serde_json::json;

use super::answer::{Completion, CompletionChoice, CompletionChunk};
use crate::answer::{Head, Totals};
use crate::inference::bounds::SampleCount;
use crate::inference::error::InferenceError;
use crate::openai::logprobs::{LogprobWriter, TokenList, tokens};
use crate::openai::params::Asked;
use crate::openai::{DONE, error_event, events, finish_reason};
use crate::pieces::{LongList, WholeAnswer};
use crate::protocol::{AnswerWriter, TokenTexts};
use crate::sse::SseEvent;

/// How many answers a request has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    /// Of each prompt.
    pub(crate) of_prompt: SampleCount,
    /// Of all prompts.
    pub(crate) all: SampleCount,
}

/// Writes the answers to one request.
#[derive(Clone, Debug)]
pub struct CompletionWriter {
    head: Head,
    samples: SampleCount,
    asked: Asked,
    /// One for each answer if the request asked for log-probabilities, else none.
    logprobs: Vec<LogprobWriter>,
    totals: Totals,
}

impl CompletionWriter {
    /// For as many answers as the request asks for.
    pub(crate) fn new(
        head: Head,
        answers: Answers,
        asked: Asked,
        logprobs: Option<TokenTexts>,
    ) -> Self {
        let samples = answers.all;
        let logprobs = match logprobs {
            None => Vec::new(),
            Some(texts) => samples.each(|_| LogprobWriter::new(texts.clone())),
        };
        let totals = Totals::of_prompts(answers.of_prompt.get());
        Self { head, samples, asked, logprobs, totals }
    }

    /// The chunk of one event, if it has anything for the client.
    pub(crate) fn chunk(&mut self, event: AnswerEvent) -> Option<CompletionChunk> {
        let choice = self.choice(event);
        let CompletionChoice { text, logprobs, finish_reason, .. } = &choice;
        if text.is_empty() && logprobs.is_none() && finish_reason.is_none() {
            return None;
        }
        let ended = finish_reason.is_some() && self.totals.ended >= self.samples.get();
        let paceline = (ended && !self.asked.include_usage).then(|| self.totals.extension());
        Some(CompletionChunk { paceline, ..self.around(vec![choice]) })
    }

    /// The chunk after the last event.
    pub(crate) fn last_chunk(&self) -> Option<CompletionChunk> {
        if !self.asked.include_usage {
            return None;
        }
        let usage = Some(Some(self.totals.usage()));
        let paceline = Some(self.totals.extension());
        Some(CompletionChunk { usage, paceline, ..self.around(Vec::new()) })
    }

    /// The whole answer without its log-probabilities, which are in the lists, from all its events.
    fn completion(mut self, events: Vec<AnswerEvent>) -> (Completion, Vec<LongList>) {
        let mut choices =
            self.samples.each(|index| CompletionChoice { index, ..Default::default() });
        let mut tokens_of: Vec<TokenList> = self.samples.each(|_| TokenList::new());
        for mut event in events {
            let (ids, logprobs) = (take(&mut event.token_ids), take(&mut event.logprobs));
            let more = self.choice(event);
            let index = more.index as usize;
            let Some(choice) = choices.get_mut(index) else { continue };
            choice.text.push_str(&more.text);
            if !self.logprobs.is_empty() && !ids.is_empty() {
                choice.logprobs.get_or_insert_default();
                tokens_of[index].extend(tokens(ids, logprobs));
            }
            choice.finish_reason = choice.finish_reason.take().or(more.finish_reason);
        }
        let CompletionChunk { id, object, created, model, .. } = self.around(Vec::new());
        let (usage, paceline) = (self.totals.usage(), self.totals.extension());
        let writers = self.logprobs.into_iter().zip(tokens_of).enumerate();
        let written = |(_, (_, tokens)): &(usize, (LogprobWriter, TokenList))| !tokens.is_empty();
        let lists = writers.filter(written).flat_map(|(index, (writer, tokens))| {
            writer.text_lists(&format!("/choices/{index}/logprobs"), tokens)
        });
        let lists = lists.collect();
        (Completion { id, object, created, model, choices, usage, paceline }, lists)
    }

    /// Part of an answer from one event. A continued text is raw: it has no parts but text.
    fn choice(&mut self, event: AnswerEvent) -> CompletionChoice {
        let (index, text) = (event.sample_index, event.text());
        let AnswerEvent { token_ids, logprobs, last, .. } = event;
        let writer = self.logprobs.get_mut(index as usize).filter(|_| !token_ids.is_empty());
        let logprobs = writer.map(|writer| writer.text(&tokens(token_ids, logprobs)));
        let finish_reason = last.map(|end| {
            self.totals.add(index, &end);
            finish_reason(end.finish_reason, false).to_owned()
        });
        CompletionChoice { index, text, logprobs, finish_reason }
    }

    fn around(&self, choices: Vec<CompletionChoice>) -> CompletionChunk {
        let Head { request_id, created, model } = &self.head;
        CompletionChunk {
            id: format!("cmpl-{request_id}"),
            object: "text_completion".to_owned(),
            created: *created,
            model: model.clone(),
            choices,
            usage: self.asked.include_usage.then_some(None),
            paceline: None,
        }
    }
}

impl AnswerWriter for CompletionWriter {
    fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent> {
        events(self.chunk(event))
    }

    fn end(&mut self) -> Vec<SseEvent> {
        let mut last = events(self.last_chunk());
        last.push(SseEvent::data(DONE));
        last
    }

    fn error(&mut self, error: &InferenceError) -> Vec<SseEvent> {
        vec![error_event(error, &self.head.request_id)]
    }

    fn whole(self, events: Vec<AnswerEvent>) -> WholeAnswer {
        let (completion, lists) = self.completion(events);
        WholeAnswer::new(json!(completion), lists)
    }
}
