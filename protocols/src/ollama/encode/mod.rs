//! Answers of `/api/chat` and `/api/generate`: JSON lines, or one object.
//!
//! All tool calls of an answer are one line: litellm numbers the calls of each line from 0. A call that
//! the limit of tokens cut is left out, because its arguments are no object.

use paceline_text::stream::{AnswerEnd, AnswerEvent, AnswerPart, Timing, ToolCallStart};
use paceline_vocabulary::generation::FinishReason;
use serde_json::{Map, Value, json};

use super::request::KeepLoaded;
use crate::answer::{Head, Totals};
use crate::inference::error::InferenceError;
use crate::openai::logprobs::{LogprobWriter, TokenList, tokens};
use crate::pieces::{LongList, WholeAnswer};
use crate::protocol::{AnswerWriter, TokenTexts};
use crate::sse::{KeepAlive, SseEvent, StreamForm};

/// The path that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OllamaPath {
    /// `/api/chat`
    Chat,
    /// `/api/generate`
    Generate,
}

/// Writes one answer.
#[derive(Clone, Debug)]
pub struct OllamaWriter {
    /// Fields that every object of the answer begins with.
    head: Map<String, Value>,
    form: OllamaPath,
    /// Present if the request asked for log-probabilities.
    logprobs: Option<LogprobWriter>,
    calls: CallsSoFar,
    /// Report of this service, for which the protocol has no field.
    totals: Totals,
    end: AnswerEnd,
}

/// The tool calls of an answer.
#[derive(Clone, Debug, Default)]
struct CallsSoFar {
    open: Option<(ToolCallStart, String)>,
    whole: Vec<Value>,
}

/// A part of an answer's text.
#[derive(Clone, Debug, Default, PartialEq)]
struct SaidPart {
    text: String,
    thinking: String,
    tool_calls: Vec<Value>,
}

impl CallsSoFar {
    /// Takes the parts of tool calls, and gives back the others.
    fn take(&mut self, part: AnswerPart) -> Option<AnswerPart> {
        match part {
            AnswerPart::ToolCallStart(start) => self.open = Some((start, String::new())),
            AnswerPart::ToolCallArguments(more) => {
                if let Some((_, arguments)) = &mut self.open {
                    arguments.push_str(&more);
                }
            }
            AnswerPart::ToolCallEnd => {
                if let Some((ToolCallStart { index: _, id, name }, arguments)) = self.open.take() {
                    let arguments = serde_json::from_str::<Map<String, Value>>(&arguments);
                    let arguments = arguments.unwrap_or_default();
                    let function =
                        json!({"index": self.whole.len(), "name": name, "arguments": arguments});
                    self.whole.push(json!({"id": id, "function": function}));
                }
            }
            AnswerPart::ToolCallCut => self.open = None,
            AnswerPart::MalformedToolCall(_) => {
                self.open = None;
                return Some(part);
            }
            other => return Some(other),
        }
        None
    }
}

impl OllamaWriter {
    /// The writer of one answer on this path.
    pub(crate) fn new(head: Head, form: OllamaPath, logprobs: Option<TokenTexts>) -> Self {
        let logprobs = logprobs.map(LogprobWriter::new);
        let (calls, totals, end) = <(CallsSoFar, Totals, AnswerEnd)>::default();
        let mut begun = Map::new();
        begun.insert("model".into(), head.model.into());
        begun.insert("created_at".into(), time(head.created).into());
        Self { head: begun, form, logprobs, calls, totals, end }
    }

    /// An object of the answer.
    fn object(&self, piece: SaidPart, done: bool) -> Value {
        let SaidPart { text, thinking, tool_calls } = piece;
        let mut said = Map::new();
        if !thinking.is_empty() {
            said.insert("thinking".into(), thinking.into());
        }
        if !tool_calls.is_empty() {
            said.insert("tool_calls".into(), tool_calls.into());
        }
        let mut object = self.head.clone();
        object.insert("done".into(), done.into());
        match self.form {
            OllamaPath::Chat => {
                said.insert("role".into(), "assistant".into());
                said.insert("content".into(), text.into());
                object.insert("message".into(), said.into());
            }
            OllamaPath::Generate => {
                object.insert("response".into(), text.into());
                object.extend(said);
            }
        }
        object.into()
    }

    /// What a part adds to the answer's text. Remarks about the answer are kept for its end.
    fn piece(&mut self, part: AnswerPart) -> Option<SaidPart> {
        match self.calls.take(part)? {
            AnswerPart::Text(text) => Some(SaidPart { text, ..SaidPart::default() }),
            AnswerPart::Reasoning(thinking) => Some(SaidPart { thinking, ..SaidPart::default() }),
            AnswerPart::MalformedToolCall(fault) => {
                self.totals.warn(0, fault.warning);
                None
            }
            AnswerPart::Warning(warning) => {
                self.totals.warn(0, warning);
                None
            }
            _ => None,
        }
    }

    fn take_end(&mut self, last: Option<AnswerEnd>) {
        if let Some(end) = last {
            self.totals.add(0, &end);
            self.end = end;
        }
    }

    /// The object that ends the answer.
    fn last(&self, piece: SaidPart) -> Value {
        let AnswerEnd { finish_reason, usage, timing, .. } = &self.end;
        let Timing { queue_ms, ttft_ms, total_ms, .. } = *timing;
        let ns = |ms: f64| (ms.max(0.0) * 1e6).round() as u64;
        let mut object = self.object(piece, true);
        object["done_reason"] = match finish_reason {
            Some(FinishReason::Length) => "length".into(),
            Some(FinishReason::Stop) | None => "stop".into(),
        };
        object["total_duration"] = ns(total_ms).into();
        // The model is loaded before it is asked.
        object["load_duration"] = 0.into();
        object["prompt_eval_count"] = usage.prompt_tokens.into();
        object["prompt_eval_duration"] = ns(ttft_ms - queue_ms).into();
        object["eval_count"] = usage.completion_tokens.into();
        object["eval_duration"] = ns(total_ms - ttft_ms).into();
        object["paceline"] = json!(self.totals.extension());
        object
    }
}

/// Seconds since 1970 as RFC 3339 in UTC.
pub(super) fn time(unix_s: i64) -> String {
    jiff::Timestamp::from_second(unix_s).unwrap_or_default().to_string()
}

/// The answer to a request that asks nothing of the model.
pub(super) fn loaded(of: &Head, form: OllamaPath, keep: KeepLoaded) -> Value {
    let writer = OllamaWriter::new(of.clone(), form, None);
    let mut object = writer.object(SaidPart::default(), true);
    object["done_reason"] = match keep {
        KeepLoaded::Yes => "load".into(),
        KeepLoaded::No => "unload".into(),
    };
    object
}

fn line(object: &Value) -> SseEvent {
    SseEvent::data(object.to_string())
}

impl AnswerWriter for OllamaWriter {
    const FORM: StreamForm = StreamForm::JsonLines;

    fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent> {
        let AnswerEvent { parts, token_ids, logprobs, last, .. } = event;
        let pieces: Vec<SaidPart> = parts.into_iter().filter_map(|part| self.piece(part)).collect();
        let mut objects: Vec<Value> =
            pieces.into_iter().map(|piece| self.object(piece, false)).collect();
        if let Some(writer) = self.logprobs.as_ref().filter(|_| !token_ids.is_empty()) {
            let content = json!(writer.chat(&tokens(token_ids, logprobs)).content);
            if objects.is_empty() {
                objects.push(self.object(SaidPart::default(), false));
            }
            objects[0]["logprobs"] = content;
        }
        self.take_end(last);
        objects.iter().map(line).collect()
    }

    fn end(&mut self) -> Vec<SseEvent> {
        let mut lines = Vec::new();
        let tool_calls = std::mem::take(&mut self.calls.whole);
        if !tool_calls.is_empty() {
            let calls = self.object(SaidPart { tool_calls, ..SaidPart::default() }, false);
            lines.push(line(&calls));
        }
        lines.push(line(&self.last(SaidPart::default())));
        lines
    }

    fn error(&mut self, error: &InferenceError) -> Vec<SseEvent> {
        vec![line(&json!({ "error": error.message }))]
    }

    fn keep_alive(&self) -> KeepAlive {
        // The format has no comments, and an empty line breaks a client.
        KeepAlive::Event(line(&self.object(SaidPart::default(), false)))
    }

    fn whole(mut self, events: Vec<AnswerEvent>) -> WholeAnswer {
        let (mut all, mut listed) = (SaidPart::default(), TokenList::new());
        for event in events {
            let AnswerEvent { parts, token_ids, logprobs, last, .. } = event;
            for part in parts {
                if let Some(piece) = self.piece(part) {
                    all.text.push_str(&piece.text);
                    all.thinking.push_str(&piece.thinking);
                }
            }
            if self.logprobs.is_some() {
                listed.extend(tokens(token_ids, logprobs));
            }
            self.take_end(last);
        }
        all.tool_calls = std::mem::take(&mut self.calls.whole);
        let mut body = self.last(all);
        let Some(writer) = self.logprobs else { return body.into() };
        body["logprobs"] = json!([]);
        let length = listed.len();
        let list = LongList::new("/logprobs".to_owned(), length, move |at| {
            json!(writer.chat_token(&listed[at]))
        });
        WholeAnswer::new(body, vec![list])
    }
}

#[cfg(test)]
mod tests;
