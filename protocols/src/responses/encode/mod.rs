//! Answers of the Responses protocol: items of output, whole or as events. Codex CLI reads an
//! item's content from its last event and shows the pieces before it, which must belong to an item
//! that was announced.

use paceline_text::stream::{AnswerEnd, AnswerEvent, AnswerPart, ToolCallStart};
use paceline_vocabulary::Reason;
use paceline_vocabulary::generation::FinishReason;
use serde_json::{Map, Value, json};

use super::custom_input::CustomInput;
use super::decode::{Asked, encrypted};
use super::logprobs::MessageLogprobs;
use super::tools::{ClientTool, ToolCallForm};
use crate::answer::{Head, Totals};
use crate::dialect::status;
use crate::inference::error::InferenceError;
use crate::openai::logprobs::{ChatTokenLogprob, TokenList};
use crate::pieces::{LongList, WholeAnswer};
use crate::protocol::{AnswerWriter, TokenTexts};
use crate::sse::SseEvent;

/// Writes one answer.
#[derive(Debug)]
pub struct ResponseWriter {
    /// The request that is answered, and the served model.
    pub(super) head: Head,
    asked: Asked,
    /// Number of the next event.
    sequence: u64,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<OpenItem>,
    logprobs: MessageLogprobs,
    /// Log-probabilities of the items of a whole answer; `None` if the answer is streamed. A whole
    /// answer has no events.
    lists: Option<Vec<LongList>>,
    /// Report of this service, for which the protocol has no field.
    totals: Totals,
    end: Option<AnswerEnd>,
}

/// How far an item came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItemState {
    InProgress,
    Completed,
    /// The limit of tokens cut it.
    Incomplete,
    /// A tool call that is none. Its characters follow as text.
    Void,
}

impl ItemState {
    fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete | Self::Void => "incomplete",
        }
    }
}

/// The item that pieces are added to.
#[derive(Debug)]
struct OpenItem {
    id: String,
    kind: Kind,
    /// Text of the item, or the arguments of its tool call.
    text: String,
    /// Tokens of the item, if it is a message whose request asked for log-probabilities.
    tokens: TokenList,
}

/// Kinds of items.
#[derive(Debug)]
enum Kind {
    Message,
    Reasoning,
    FunctionCall {
        id: String,
        tool: ClientTool,
    },
    /// A tool call with any text.
    CustomCall {
        id: String,
        tool: ClientTool,
        input: CustomInput,
    },
    /// A search of the client for tools. It has no pieces.
    SearchCall {
        id: String,
    },
}

impl ResponseWriter {
    /// The writer of the answer to a request. `texts`: those of the model's tokens, if the request
    /// asked for log-probabilities.
    pub fn new(head: Head, asked: Asked, texts: Option<TokenTexts>) -> Self {
        Self {
            head,
            asked,
            sequence: 0,
            output: Vec::new(),
            open: None,
            logprobs: MessageLogprobs::new(texts),
            lists: None,
            totals: Totals::default(),
            end: None,
        }
    }

    /// The response with this status and what is known of it.
    fn response(&self, status: &str) -> Value {
        let mut response = Map::from_iter(
            [
                ("id", json!(format!("resp_{}", self.head.request_id))),
                ("object", json!("response")),
                ("created_at", json!(self.head.created)),
                ("status", json!(status)),
                ("error", Value::Null),
                ("incomplete_details", Value::Null),
                ("model", json!(self.head.model)),
                ("output", Value::from(self.output.clone())),
                ("previous_response_id", Value::Null),
                ("store", json!(false)),
                ("text", json!({"format": {"type": "text"}})),
                ("tool_choice", json!("auto")),
                ("tools", json!([])),
                ("truncation", json!("disabled")),
                ("usage", Value::Null),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        response.extend(self.asked.repeated.clone());
        Value::Object(response)
    }

    /// The response after its end.
    fn ended(&self) -> Value {
        let end = self.end.clone().unwrap_or_default();
        let cut = end.finish_reason == Some(FinishReason::Length);
        let mut response = self.response(if cut { "incomplete" } else { "completed" });
        if cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let usage = end.usage;
        response["usage"] = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        });
        response["paceline"] = json!(self.totals.extension());
        response
    }

    /// An event whose data has its name and its number.
    fn named(&mut self, name: &'static str, mut body: Value) -> SseEvent {
        body["type"] = name.into();
        body["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        SseEvent::named(name, body.to_string())
    }

    /// An event of the open item. With `content` it is about a part of the item.
    fn of_item(
        &mut self,
        name: &'static str,
        content: bool,
        body: impl FnOnce(&MessageLogprobs) -> Value,
    ) -> Option<SseEvent> {
        if self.lists.is_some() {
            return None;
        }
        let mut body = body(&self.logprobs);
        body["item_id"] = self.open.as_ref()?.id.as_str().into();
        body["output_index"] = self.output.len().into();
        if content {
            body["content_index"] = 0.into();
        }
        Some(self.named(name, body))
    }

    fn begin(&mut self, events: &mut Vec<SseEvent>) {
        if self.sequence == 0 {
            let response = self.response("in_progress");
            events.push(self.named("response.created", json!({ "response": response })));
            events.push(self.named("response.in_progress", json!({ "response": response })));
        }
    }

    fn part(&mut self, part: AnswerPart, events: &mut Vec<SseEvent>) {
        match part {
            AnswerPart::Text(text) => {
                if !matches!(self.open, Some(OpenItem { kind: Kind::Message, .. })) {
                    self.open(Kind::Message, events);
                }
                let tokens = self.logprobs.take();
                events.extend(self.of_item(
                    "response.output_text.delta",
                    true,
                    |logprobs| json!({"delta": text, "logprobs": logprobs.written(&tokens)}),
                ));
                self.push(&text);
                if let Some(open) = &mut self.open {
                    open.tokens.extend(tokens);
                }
            }
            AnswerPart::Reasoning(text) => {
                if !matches!(self.open, Some(OpenItem { kind: Kind::Reasoning, .. })) {
                    self.open(Kind::Reasoning, events);
                }
                let body = |_: &_| json!({ "delta": text });
                events.extend(self.of_item("response.reasoning_text.delta", true, body));
                self.push(&text);
            }
            AnswerPart::ToolCallStart(ToolCallStart { index: _, id, name }) => {
                let tool = self.asked.tools.client(&name);
                let kind = match tool.form {
                    ToolCallForm::Custom => {
                        Kind::CustomCall { id, tool, input: CustomInput::default() }
                    }
                    ToolCallForm::Function => Kind::FunctionCall { id, tool },
                    ToolCallForm::Search => Kind::SearchCall { id },
                };
                self.open(kind, events);
            }
            AnswerPart::ToolCallArguments(text) => {
                self.push(&text);
                let open = self.open.as_mut().map(|open| (&mut open.kind, &open.text));
                let (name, delta) = match open {
                    Some((Kind::CustomCall { input, .. }, object)) => {
                        ("response.custom_tool_call_input.delta", input.more(object))
                    }
                    Some((Kind::SearchCall { .. }, _)) => return,
                    _ => ("response.function_call_arguments.delta", text),
                };
                if !delta.is_empty() {
                    events.extend(self.of_item(name, false, |_| json!({ "delta": delta })));
                }
            }
            AnswerPart::ToolCallEnd => self.close(ItemState::Completed, events),
            AnswerPart::ToolCallCut => self.close(ItemState::Incomplete, events),
            AnswerPart::MalformedToolCall(fault) => {
                self.close_broken(events);
                self.totals.warn(0, fault.warning);
            }
            AnswerPart::Warning(warning) => self.totals.warn(0, warning),
        }
    }

    /// Closes the open item. A tool call was broken off, so that no client may run it.
    fn close_broken(&mut self, events: &mut Vec<SseEvent>) {
        let is_call = self.open.as_ref().is_some_and(|open| open.kind.is_call());
        let state = if is_call { ItemState::Void } else { ItemState::Completed };
        self.close(state, events);
    }

    fn push(&mut self, text: &str) {
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
        }
    }

    /// Opens an item after the one that is open.
    fn open(&mut self, kind: Kind, events: &mut Vec<SseEvent>) {
        self.close(ItemState::Completed, events);
        let prefix = match &kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::CustomCall { .. } => "ctc",
            Kind::FunctionCall { .. } => "fc",
            Kind::SearchCall { .. } => "tsc",
        };
        let id = format!("{prefix}_{}_{}", self.head.request_id, self.output.len());
        let part = match kind {
            Kind::Message => Some(text_part("", vec![])),
            Kind::Reasoning => Some(reasoning_part("")),
            Kind::FunctionCall { .. } | Kind::CustomCall { .. } | Kind::SearchCall { .. } => None,
        };
        let open = OpenItem { id, kind, text: String::new(), tokens: Vec::new() };
        let body = json!({"output_index": self.output.len(), "item": open.json(ItemState::InProgress, false, vec![])});
        self.open = Some(open);
        events.push(self.named("response.output_item.added", body));
        if let Some(part) = part {
            let name = "response.content_part.added";
            events.extend(self.of_item(name, true, |_| json!({ "part": part })));
        }
    }

    /// Ends the item that is open at the end of the answer.
    fn close_last(&mut self, events: &mut Vec<SseEvent>) {
        let reason = self.end.as_ref().and_then(|end| end.finish_reason);
        let state = match reason {
            Some(FinishReason::Length) => ItemState::Incomplete,
            Some(FinishReason::Stop) | None => ItemState::Completed,
        };
        self.close(state, events);
    }

    /// Ends the open item. The arguments of a tool call that was cut are never done: a client acts
    /// on that event. Of a void tool call nothing is done: Codex CLI runs any tool call whose item is.
    fn close(&mut self, state: ItemState, events: &mut Vec<SseEvent>) {
        let Some(open) = &self.open else { return };
        let text = open.text.clone();
        let logprobs = match self.lists {
            Some(_) => Vec::new(),
            None => self.logprobs.written(&open.tokens),
        };
        match &open.kind {
            Kind::Message => {
                let body = |_: &_| json!({"text": text, "logprobs": logprobs});
                events.extend(self.of_item("response.output_text.done", true, body));
                let body = |_: &_| json!({"part": text_part(&text, logprobs.clone())});
                events.extend(self.of_item("response.content_part.done", true, body));
            }
            Kind::Reasoning => {
                let body = |_: &_| json!({ "text": text });
                events.extend(self.of_item("response.reasoning_text.done", true, body));
                let body = |_: &_| json!({"part": reasoning_part(&text)});
                events.extend(self.of_item("response.content_part.done", true, body));
            }
            Kind::SearchCall { .. } => {}
            Kind::CustomCall { .. } | Kind::FunctionCall { .. }
                if state != ItemState::Completed => {}
            Kind::CustomCall { input, .. } => {
                let (input, rest) = input.end(&text);
                if !rest.is_empty() {
                    let name = "response.custom_tool_call_input.delta";
                    events.extend(self.of_item(name, false, |_| json!({ "delta": rest })));
                }
                let name = "response.custom_tool_call_input.done";
                events.extend(self.of_item(name, false, |_| json!({ "input": input })));
            }
            Kind::FunctionCall { tool, .. } => {
                let body = json!({"arguments": arguments(&text, false), "name": tool.name});
                let name = "response.function_call_arguments.done";
                events.extend(self.of_item(name, false, |_| body));
            }
        }
        let Some(open) = self.open.take() else { return };
        // A whole answer has the text alone.
        if state == ItemState::Void && self.lists.is_some() {
            return;
        }
        let item = open.json(state, self.asked.encrypted_reasoning, logprobs);
        if let Some(lists) = &mut self.lists {
            let pointer = format!("/output/{}/content/0/logprobs", self.output.len());
            let has_some = !open.tokens.is_empty();
            lists.extend(self.logprobs.list(pointer, open.tokens).filter(|_| has_some));
            return self.output.push(item);
        }
        if state != ItemState::Void {
            let body = json!({"output_index": self.output.len(), "item": item});
            events.push(self.named("response.output_item.done", body));
        }
        self.output.push(item);
    }
}

impl Kind {
    /// Whether the item is a tool call.
    fn is_call(&self) -> bool {
        !matches!(self, Kind::Message | Kind::Reasoning)
    }
}

impl OpenItem {
    /// The item. It has its content once it has ended. Longer than 60 lines: one arm for each kind.
    fn json(
        &self,
        state: ItemState,
        encrypted_reasoning: bool,
        logprobs: Vec<ChatTokenLogprob>,
    ) -> Value {
        let text = Some(self.text.as_str()).filter(|_| state != ItemState::InProgress);
        let is_cut = matches!(state, ItemState::Incomplete | ItemState::Void);
        let state = state.word();
        let mut item = match &self.kind {
            Kind::Message => json!({
                "type": "message",
                "role": "assistant",
                "content": text
                    .map(|text| text_part(text, logprobs))
                    .into_iter()
                    .collect::<Vec<_>>(),
                "status": state,
            }),
            Kind::Reasoning => {
                let content: Vec<_> = text.map(reasoning_part).into_iter().collect();
                let hidden = text.filter(|_| encrypted_reasoning).map(encrypted);
                json!({
                    "type": "reasoning",
                    "summary": [],
                    "content": content,
                    "encrypted_content": hidden,
                    "status": state,
                })
            }
            Kind::CustomCall { id, tool, input } => json!({
                "type": "custom_tool_call",
                "call_id": id,
                "name": tool.name,
                "input": match text {
                    Some(_) if is_cut => input.sent().to_owned(),
                    Some(object) => input.end(object).0,
                    None => String::new(),
                },
                "status": state,
            }),
            Kind::FunctionCall { id, tool } => json!({
                "type": "function_call",
                "call_id": id,
                "name": tool.name,
                "arguments": text.map_or_else(String::new, |text| arguments(text, is_cut)),
                "status": state,
            }),
            Kind::SearchCall { id } => json!({
                "type": "tool_search_call",
                "call_id": id,
                "execution": "client",
                "arguments": object(text.unwrap_or_default()),
                "status": state,
            }),
        };
        if let Kind::FunctionCall { tool, .. } | Kind::CustomCall { tool, .. } = &self.kind
            && let Some(namespace) = &tool.namespace
        {
            item["namespace"] = namespace.as_str().into();
        }
        item["id"] = self.id.as_str().into();
        item
    }
}

impl AnswerWriter for ResponseWriter {
    fn event(&mut self, mut event: AnswerEvent) -> Vec<SseEvent> {
        let mut events = Vec::new();
        self.begin(&mut events);
        self.logprobs.add(&mut event);
        for part in event.parts {
            self.part(part, &mut events);
        }
        if let Some(end) = event.last {
            self.totals.add(0, &end);
            self.end = Some(end);
        }
        events
    }

    fn end(&mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        self.close_last(&mut events);
        let response = self.ended();
        let name = match response["status"] == "incomplete" {
            true => "response.incomplete",
            false => "response.completed",
        };
        events.push(self.named(name, json!({ "response": response })));
        events
    }

    fn error(&mut self, error: &InferenceError) -> Vec<SseEvent> {
        let mut response = self.response("failed");
        response["error"] = json!({"code": error_code(error), "message": error.message});
        response["paceline"] = json!({"reason": error.kind.word()});
        vec![self.named("response.failed", json!({ "response": response }))]
    }

    fn whole(mut self, events: Vec<AnswerEvent>) -> WholeAnswer {
        // One path makes the items of both forms of an answer.
        self.lists = Some(Vec::new());
        for event in events {
            self.event(event);
        }
        self.close_last(&mut Vec::new());
        WholeAnswer::new(self.ended(), self.lists.take().unwrap_or_default())
    }
}

/// The codes of errors that Codex CLI acts on.
fn error_code(error: &InferenceError) -> &'static str {
    match (error.kind, status(error.kind).as_u16()) {
        (Reason::PromptTooLong, _) => "context_length_exceeded",
        (_, 429) => "rate_limit_exceeded",
        (_, 503) => "server_is_overloaded",
        (_, 400) => "invalid_prompt",
        _ => "server_error",
    }
}

/// Arguments of a tool call as text. A function that takes nothing may come without any, and
/// clients parse the text of a whole call.
fn arguments(text: &str, is_cut: bool) -> String {
    if text.is_empty() && !is_cut { "{}".to_owned() } else { text.to_owned() }
}

/// Arguments as a value. Those that are no JSON, because they were cut, are a text.
fn object(text: &str) -> Value {
    serde_json::from_str(&arguments(text, false)).unwrap_or_else(|_| text.into())
}

fn text_part(text: &str, logprobs: Vec<ChatTokenLogprob>) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

#[cfg(test)]
mod tests;
