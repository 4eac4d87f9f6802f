//! Writes the answers to a conversation: in chunks as events come, or whole from all of them.

use paceline_text::stream::{AnswerEvent, AnswerPart, ToolCallFault, ToolCallStart};
use serde_json::json;

use super::answer::{
    ChatAnswer, ChatAnswerFunction, ChatAnswerToolCall, ChatChoice, ChatChunkChoice,
    ChatCompletion, ChatCompletionChunk, ChatDelta, ChatDeltaFunction, ChatDeltaToolCall,
};
use crate::answer::{Head, Totals};
use crate::inference::bounds::SampleCount;
use crate::inference::error::InferenceError;
use crate::openai::logprobs::{ChatLogprobs, LogprobWriter, TokenList, tokens};
use crate::openai::params::Asked;
use crate::openai::{DONE, error_event, events, finish_reason};
use crate::pieces::{LongList, WholeAnswer};
use crate::protocol::{AnswerWriter, TokenTexts};
use crate::sse::SseEvent;

/// Writes the answers to one conversation.
#[derive(Clone, Debug)]
pub struct ChatWriter {
    head: Head,
    samples: Vec<Sample>,
    asked: Asked,
    /// Present if the request asked for log-probabilities.
    logprobs: Option<LogprobWriter>,
    totals: Totals,
}

/// State of one answer while it is written.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    begun: bool,
    /// Index of the tool call that began last.
    call: Option<u32>,
    /// Whether a tool call is complete.
    called: bool,
}

impl ChatWriter {
    /// For as many answers as the request asks for.
    pub(crate) fn new(
        head: Head,
        samples: SampleCount,
        asked: Asked,
        logprobs: Option<TokenTexts>,
    ) -> Self {
        let samples = samples.each(|_| Sample::default());
        let logprobs = logprobs.map(LogprobWriter::new);
        Self { head, samples, asked, logprobs, totals: Totals::default() }
    }

    /// The chunks of one event.
    pub(crate) fn chunks(&mut self, event: AnswerEvent) -> Vec<ChatCompletionChunk> {
        let AnswerEvent { sample_index: index, parts, token_ids, logprobs, last, .. } = event;
        let mut choices = Vec::new();
        let mut add = |delta| choices.push(ChatChunkChoice { index, delta, ..Default::default() });
        if let Some(sample) = self.samples.get_mut(index as usize)
            && !sample.begun
        {
            sample.begun = true;
            let (role, content) = (Some("assistant".to_owned()), Some(String::new()));
            add(ChatDelta { role, content, ..Default::default() });
        }
        for part in parts {
            if let Some(delta) = self.delta(index, part) {
                add(delta);
            }
        }
        if let Some(end) = &last {
            add(ChatDelta::default());
            let calls = self.sample(index).called;
            if let Some(choice) = choices.last_mut() {
                choice.finish_reason = Some(finish_reason(end.finish_reason, calls).to_owned());
            }
            self.totals.add(index, end);
        }
        let logprobs = self
            .logprobs
            .as_ref()
            .filter(|_| !token_ids.is_empty())
            .map(|writer| writer.chat(&tokens(token_ids, logprobs)));
        if logprobs.is_some() {
            if choices.is_empty() {
                choices.push(ChatChunkChoice { index, ..Default::default() });
            }
            if let Some(choice) = choices.first_mut() {
                choice.logprobs = logprobs;
            }
        }
        let mut chunks: Vec<_> =
            choices.into_iter().map(|choice| self.chunk(vec![choice])).collect();
        if last.is_some()
            && !self.asked.include_usage
            && self.all_ended()
            && let Some(chunk) = chunks.last_mut()
        {
            chunk.paceline = Some(self.totals.extension());
        }
        chunks
    }

    /// The chunk after the last event.
    pub(crate) fn last_chunk(&self) -> Option<ChatCompletionChunk> {
        if !self.asked.include_usage {
            return None;
        }
        let usage = Some(Some(self.totals.usage()));
        let paceline = Some(self.totals.extension());
        Some(ChatCompletionChunk { usage, paceline, ..self.chunk(Vec::new()) })
    }

    /// The whole answer without its log-probabilities, which are in the lists, from all its events.
    fn completion(mut self, events: Vec<AnswerEvent>) -> (ChatCompletion, Vec<LongList>) {
        let choice = |index: usize| ChatChoice {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            message: ChatAnswer { role: "assistant".to_owned(), ..Default::default() },
            logprobs: self.logprobs.as_ref().map(|_| ChatLogprobs::default()),
            ..Default::default()
        };
        let mut choices: Vec<ChatChoice> = (0..self.samples.len()).map(choice).collect();
        let mut open_tool_calls = vec![false; choices.len()];
        let mut tokens_of: Vec<TokenList> = vec![TokenList::new(); choices.len()];
        for event in events {
            let AnswerEvent { sample_index: index, parts, token_ids, logprobs, last, .. } = event;
            let sample =
                choices.get_mut(index as usize).zip(open_tool_calls.get_mut(index as usize));
            let Some((choice, open)) = sample else { continue };
            for part in parts {
                match &part {
                    AnswerPart::ToolCallStart(_) => *open = true,
                    AnswerPart::ToolCallEnd | AnswerPart::ToolCallCut => *open = false,
                    AnswerPart::Warning(warning) => self.totals.warn(index, warning.clone()),
                    AnswerPart::MalformedToolCall(ToolCallFault { warning }) => {
                        self.totals.warn(index, warning.clone());
                        // The text of a tool call that had begun follows.
                        if std::mem::take(open) {
                            choice.message.tool_calls.pop();
                        }
                    }
                    _ => {}
                }
                choice.message.add(part);
            }
            if self.logprobs.is_some() {
                tokens_of[index as usize].extend(tokens(token_ids, logprobs));
            }
            if let Some(end) = last {
                let calls = !choice.message.tool_calls.is_empty();
                choice.finish_reason = finish_reason(end.finish_reason, calls).to_owned();
                self.totals.add(index, &end);
            }
        }
        for choice in &mut choices {
            if choice.message.tool_calls.is_empty() {
                choice.message.content.get_or_insert_default();
            }
        }
        let lists = self.lists(tokens_of);
        let Head { request_id, created, model } = self.head;
        let completion = ChatCompletion {
            id: id(&request_id),
            object: "chat.completion".to_owned(),
            created,
            model,
            choices,
            usage: self.totals.usage(),
            paceline: self.totals.extension(),
        };
        (completion, lists)
    }

    /// Log-probabilities of the tokens of each answer.
    fn lists(&self, tokens_of: Vec<TokenList>) -> Vec<LongList> {
        let list = |(index, tokens): (usize, TokenList)| {
            let writer = self.logprobs.clone()?;
            let (pointer, length) = (format!("/choices/{index}/logprobs/content"), tokens.len());
            Some(LongList::new(pointer, length, move |at| json!(writer.chat_token(&tokens[at]))))
        };
        tokens_of.into_iter().enumerate().filter_map(list).collect()
    }

    fn sample(&self, index: u32) -> Sample {
        self.samples.get(index as usize).copied().unwrap_or_default()
    }

    fn all_ended(&self) -> bool {
        self.totals.ended as usize >= self.samples.len()
    }

    /// Delta of an answer from one part.
    fn delta(&mut self, index: u32, part: AnswerPart) -> Option<ChatDelta> {
        let call = |call| ChatDelta { tool_calls: Some(vec![call]), ..Default::default() };
        match part {
            AnswerPart::Text(text) => Some(ChatDelta { content: Some(text), ..Default::default() }),
            AnswerPart::Reasoning(text) => {
                Some(ChatDelta { reasoning_content: Some(text), ..Default::default() })
            }
            AnswerPart::ToolCallStart(ToolCallStart { index: place, id, name }) => {
                if let Some(sample) = self.samples.get_mut(index as usize) {
                    sample.call = Some(place);
                }
                let function = ChatDeltaFunction { name: Some(name), arguments: String::new() };
                let kind = Some("function".to_owned());
                Some(call(ChatDeltaToolCall { index: place, id: Some(id), kind, function }))
            }
            AnswerPart::ToolCallArguments(arguments) => {
                let place = self.sample(index).call?;
                let function = ChatDeltaFunction { name: None, arguments };
                Some(call(ChatDeltaToolCall { index: place, function, ..Default::default() }))
            }
            AnswerPart::ToolCallEnd => {
                if let Some(sample) = self.samples.get_mut(index as usize) {
                    sample.called = true;
                }
                None
            }
            // The end's reason tells it.
            AnswerPart::ToolCallCut => None,
            AnswerPart::MalformedToolCall(ToolCallFault { warning })
            | AnswerPart::Warning(warning) => {
                self.totals.warn(index, warning);
                None
            }
        }
    }

    fn chunk(&self, choices: Vec<ChatChunkChoice>) -> ChatCompletionChunk {
        let Head { request_id, created, model } = &self.head;
        ChatCompletionChunk {
            id: id(request_id),
            object: "chat.completion.chunk".to_owned(),
            created: *created,
            model: model.clone(),
            choices,
            usage: self.asked.include_usage.then_some(None),
            paceline: None,
        }
    }
}

impl AnswerWriter for ChatWriter {
    fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent> {
        events(self.chunks(event))
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

impl ChatAnswer {
    /// Adds a part of the answer.
    fn add(&mut self, part: AnswerPart) {
        match part {
            AnswerPart::Text(text) => self.content.get_or_insert_default().push_str(&text),
            AnswerPart::Reasoning(text) => {
                self.reasoning_content.get_or_insert_default().push_str(&text);
            }
            AnswerPart::ToolCallStart(ToolCallStart { index: _, id, name }) => {
                let function = ChatAnswerFunction { name, arguments: String::new() };
                self.tool_calls.push(ChatAnswerToolCall {
                    id,
                    kind: "function".to_owned(),
                    function,
                });
            }
            AnswerPart::ToolCallArguments(arguments) => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.function.arguments.push_str(&arguments);
                }
            }
            AnswerPart::ToolCallEnd
            | AnswerPart::ToolCallCut
            | AnswerPart::MalformedToolCall(_)
            | AnswerPart::Warning(_) => {}
        }
    }
}

fn id(request_id: &str) -> String {
    format!("chatcmpl-{request_id}")
}

#[cfg(test)]
mod tests;
