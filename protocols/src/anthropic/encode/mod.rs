//! Answers of the Messages protocol: blocks of content, whole or as events.

use paceline_text::stream::{AnswerEnd, AnswerEvent, AnswerPart, ToolCallStart, Usage};
use paceline_vocabulary::generation::FinishReason;
use serde_json::{Value, json};

use super::decode::Asked;
use super::error::Anthropic;
use crate::answer::Totals;
use crate::dialect::{Dialect, ErrorView, status};
use crate::inference::error::InferenceError;
use crate::pieces::WholeAnswer;
use crate::protocol::AnswerWriter;
use crate::sse::{KeepAlive, SseEvent};

/// In the place of a signature: thoughts are not signed here, and clients expect one.
const SIGNATURE: &str = "unsigned";

/// Writes one answer.
#[derive(Debug)]
pub struct MessageWriter {
    request_id: String,
    model: String,
    asked: Asked,
    /// Whether `message_start` is written.
    begun: bool,
    /// The kind of the block that is open.
    open: Option<Kind>,
    /// Index of the next block.
    next_block: usize,
    /// Whether the answer has a whole tool call.
    calls: bool,
    /// Report of this service, for which the protocol has no field.
    totals: Totals,
    end: Option<AnswerEnd>,
}

/// Kinds of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    ToolUse,
}

impl MessageWriter {
    /// The writer of the answer to this request by this model.
    pub fn new(request_id: &str, model: &str, asked: Asked) -> Self {
        Self {
            request_id: request_id.to_owned(),
            model: model.to_owned(),
            asked,
            begun: false,
            open: None,
            next_block: 0,
            calls: false,
            totals: Totals::default(),
            end: None,
        }
    }

    /// The message without its content and end.
    fn message(&self, usage: Value) -> Value {
        json!({
            "id": format!("msg_{}", self.request_id),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    fn begin(&mut self, event: &AnswerEvent, events: &mut Vec<SseEvent>) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let so_far = event.last.as_ref().map(|end| end.usage).or(event.so_far);
        let message = self.message(usage(so_far.unwrap_or_default()));
        events.push(named("message_start", json!({ "message": message })));
    }

    fn part(&mut self, part: AnswerPart, events: &mut Vec<SseEvent>) {
        match part {
            AnswerPart::Text(text) => {
                self.block(Kind::Text, || json!({"type": "text", "text": ""}), events);
                self.delta(json!({"type": "text_delta", "text": text}), events);
            }
            AnswerPart::Reasoning(text) => {
                let start = || json!({"type": "thinking", "thinking": "", "signature": ""});
                self.block(Kind::Thinking, start, events);
                if !self.asked.hide_thinking {
                    self.delta(json!({"type": "thinking_delta", "thinking": text}), events);
                }
            }
            AnswerPart::ToolCallStart(ToolCallStart { index: _, id, name }) => {
                self.close(events);
                let start = || json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.block(Kind::ToolUse, start, events);
            }
            AnswerPart::ToolCallArguments(text) => {
                self.delta(json!({"type": "input_json_delta", "partial_json": text}), events);
            }
            AnswerPart::ToolCallEnd => {
                self.calls = true;
                self.close(events);
            }
            AnswerPart::ToolCallCut => self.close(events),
            AnswerPart::MalformedToolCall(fault) => {
                self.void(events);
                self.totals.warn(0, fault.warning);
            }
            AnswerPart::Warning(warning) => self.totals.warn(0, warning),
        }
    }

    /// Opens a block of this kind unless one is open.
    fn block(&mut self, kind: Kind, start: impl FnOnce() -> Value, events: &mut Vec<SseEvent>) {
        if self.open == Some(kind) {
            return;
        }
        self.close(events);
        let body = json!({"index": self.next_block, "content_block": start()});
        events.push(named("content_block_start", body));
        self.open = Some(kind);
    }

    /// A piece of the open block.
    fn delta(&self, delta: Value, events: &mut Vec<SseEvent>) {
        let body = json!({"index": self.next_block, "delta": delta});
        events.push(named("content_block_delta", body));
    }

    /// Closes the open block.
    fn close(&mut self, events: &mut Vec<SseEvent>) {
        match self.open.take() {
            None => return,
            Some(Kind::Thinking) => {
                self.delta(json!({"type": "signature_delta", "signature": SIGNATURE}), events);
            }
            Some(Kind::Text | Kind::ToolUse) => {}
        }
        events.push(named("content_block_stop", json!({ "index": self.next_block })));
        self.next_block += 1;
    }

    /// Ends the block before a malformed tool call. Clients run a tool call when its block stops, so
    /// that of a void one never does. Its characters follow in a block of text.
    fn void(&mut self, events: &mut Vec<SseEvent>) {
        if self.open == Some(Kind::ToolUse) {
            self.open = None;
            self.next_block += 1;
        }
        self.close(events);
    }

    fn take_end(&mut self, last: Option<AnswerEnd>) {
        if let Some(end) = last {
            self.totals.add(0, &end);
            self.end = Some(end);
        }
    }

    /// Why the answer ended, in the protocol's words.
    fn stop_reason(&self, end: &AnswerEnd) -> &'static str {
        match end.finish_reason {
            // Fewer tokens than the client allows: the context had no room for more.
            Some(FinishReason::Length) if end.usage.completion_tokens < self.asked.max_tokens => {
                "model_context_window_exceeded"
            }
            Some(FinishReason::Length) => "max_tokens",
            Some(FinishReason::Stop) | None if !end.stop.is_empty() => "stop_sequence",
            Some(FinishReason::Stop) | None if self.calls => "tool_use",
            Some(FinishReason::Stop) | None => "end_turn",
        }
    }
}

impl AnswerWriter for MessageWriter {
    fn event(&mut self, event: AnswerEvent) -> Vec<SseEvent> {
        let mut events = Vec::new();
        self.begin(&event, &mut events);
        for part in event.parts {
            self.part(part, &mut events);
        }
        self.take_end(event.last);
        events
    }

    fn end(&mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        self.close(&mut events);
        let end = self.end.take().unwrap_or_default();
        let body = json!({
            "delta": {"stop_reason": self.stop_reason(&end), "stop_sequence": stop_sequence(&end)},
            "usage": usage(end.usage),
            "paceline": json!(self.totals.extension()),
        });
        events.push(named("message_delta", body));
        events.push(named("message_stop", json!({})));
        events
    }

    fn error(&mut self, error: &InferenceError) -> Vec<SseEvent> {
        let view = ErrorView { status: status(error.kind), error, request_id: &self.request_id };
        vec![SseEvent::named("error", Anthropic::error(&view).to_string())]
    }

    fn keep_alive(&self) -> KeepAlive {
        KeepAlive::Event(named("ping", json!({})))
    }

    fn whole(mut self, events: Vec<AnswerEvent>) -> WholeAnswer {
        let mut content = Content { blocks: Vec::new(), hide: self.asked.hide_thinking };
        for event in events {
            for part in event.parts {
                match &part {
                    AnswerPart::ToolCallEnd => self.calls = true,
                    AnswerPart::MalformedToolCall(fault) => {
                        self.totals.warn(0, fault.warning.clone())
                    }
                    AnswerPart::Warning(warning) => self.totals.warn(0, warning.clone()),
                    _ => {}
                }
                content.take(part);
            }
            self.take_end(event.last);
        }
        let end = self.end.take().unwrap_or_default();
        let mut message = self.message(usage(end.usage));
        message["content"] = content.blocks.into_iter().filter_map(Block::json).collect();
        message["stop_reason"] = self.stop_reason(&end).into();
        message["stop_sequence"] = stop_sequence(&end);
        message["paceline"] = json!(self.totals.extension());
        message.into()
    }
}

/// The content of a whole answer.
struct Content {
    blocks: Vec<Block>,
    /// Whether the text of thoughts is left out.
    hide: bool,
}

/// A block of a whole answer.
enum Block {
    Text(String),
    Thinking(String),
    ToolUse {
        call: ToolCallStart,
        arguments: String,
        end: Option<CallEnd>,
    },
    /// End of a block. The next part begins another one.
    Closed,
}

/// How a tool call ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallEnd {
    Whole,
    /// The limit of tokens cut it.
    Cut,
}

impl Content {
    fn take(&mut self, part: AnswerPart) {
        match (part, self.blocks.last_mut()) {
            (AnswerPart::Text(more), Some(Block::Text(text))) => text.push_str(&more),
            (AnswerPart::Text(text), _) => self.blocks.push(Block::Text(text)),
            (AnswerPart::Reasoning(_), Some(Block::Thinking(_))) if self.hide => {}
            (AnswerPart::Reasoning(_), _) if self.hide => {
                self.blocks.push(Block::Thinking(String::new()));
            }
            (AnswerPart::Reasoning(more), Some(Block::Thinking(text))) => text.push_str(&more),
            (AnswerPart::Reasoning(text), _) => self.blocks.push(Block::Thinking(text)),
            (AnswerPart::ToolCallStart(call), _) => {
                self.blocks.push(Block::ToolUse { call, arguments: String::new(), end: None });
            }
            (AnswerPart::ToolCallArguments(more), Some(Block::ToolUse { arguments, .. })) => {
                arguments.push_str(&more);
            }
            (AnswerPart::ToolCallEnd, Some(Block::ToolUse { end, .. })) => {
                *end = Some(CallEnd::Whole);
            }
            (AnswerPart::ToolCallCut, Some(Block::ToolUse { end, .. })) => {
                *end = Some(CallEnd::Cut);
            }
            // The text of the tool call that had begun follows.
            (AnswerPart::MalformedToolCall(_), Some(block @ Block::ToolUse { end: None, .. })) => {
                *block = Block::Closed;
            }
            (AnswerPart::MalformedToolCall(_), _) => self.blocks.push(Block::Closed),
            (
                AnswerPart::ToolCallArguments(_)
                | AnswerPart::ToolCallEnd
                | AnswerPart::ToolCallCut
                | AnswerPart::Warning(_),
                _,
            ) => {}
        }
    }
}

impl Block {
    fn json(self) -> Option<Value> {
        Some(match self {
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::Thinking(thinking) => {
                json!({"type": "thinking", "thinking": thinking, "signature": SIGNATURE})
            }
            Block::ToolUse { call: ToolCallStart { index: _, id, name }, arguments, end } => {
                let input = match serde_json::from_str::<Value>(&arguments) {
                    Ok(input) if input.is_object() => input,
                    _ if arguments.is_empty() && end == Some(CallEnd::Whole) => json!({}),
                    // A tool call that was cut: its text is all there is.
                    _ => json!({ "incomplete": arguments }),
                };
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
            Block::Closed => return None,
        })
    }
}

/// `input_tokens` does not count the cached ones.
fn usage(usage: Usage) -> Value {
    // The protocol has no place for the tokens of thoughts.
    let Usage { prompt_tokens, completion_tokens, reasoning_tokens: _, cached_tokens } = usage;
    json!({
        "input_tokens": prompt_tokens.saturating_sub(cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens.min(prompt_tokens),
        "output_tokens": completion_tokens,
    })
}

fn stop_sequence(end: &AnswerEnd) -> Value {
    if end.stop.is_empty() { Value::Null } else { end.stop.as_str().into() }
}

/// An event whose data repeats its name as `type`.
fn named(name: &'static str, mut body: Value) -> SseEvent {
    body["type"] = name.into();
    SseEvent::named(name, body.to_string())
}

#[cfg(test)]
mod tests;
