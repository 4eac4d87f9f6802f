//! A request of the Responses protocol as the input of [`crate::inference`]. The service keeps no
//! conversation: each request has all of it.

use std::collections::HashMap;

use base64::Engine as _;
use paceline_proto::limits;
use paceline_text::prompt::conversation::Effort;
use paceline_text::shape::AnswerShape;
use paceline_vocabulary::generation::TextForm;
use paceline_vocabulary::sampling::SamplingWish;
use serde_json::{Map, Value};

use super::accepted;
use super::parts::{parts, said};
use super::tools::{SEARCH, Tools, custom_arguments, model_name};
use super::types::{
    AdditionalToolsItem, CustomToolCallItem, FunctionCallItem, InputItem, Item, MessageItem,
    OutputItem, Reasoning, ReasoningItem, ReasoningText, ResponsesRequest, ShellCallItem,
    ShellOutputItem, TextConfig, TextFormat, ToolSearchCallItem, ToolSearchOutputItem,
};
use crate::accepted::check;
use crate::effort::{ENABLE_THINKING, Thoughts};
use crate::files::Turn;
use crate::inference::bounds::check_elements;
use crate::inference::error::{Result, quoted, refuse};
use crate::inference::input::{
    ContentPartInput, ConversationInput, JsonInput, MessageInput, PromptInput, RequestInput,
    ToolCallInput,
};
use crate::inference::params::GenerationParams;
use crate::number::{MaxTokensOrNone, Seed, TopLogprobs};
use crate::paths::{FieldName, FieldPaths, MessagePath};
use crate::protocol::{AllowedToolCalls, Decoded, Extension};
use crate::values::{self, TextOr, ToolKind};

/// The protocol's names of fields.
pub const FIELDS: &[FieldName] = &[
    FieldName { inner: "limits.max_tokens", outer: "max_output_tokens" },
    FieldName { inner: "limits.stop", outer: "stop" },
    FieldName { inner: "sampling", outer: "" },
    FieldName { inner: "logprobs", outer: "top_logprobs" },
    FieldName { inner: "messages", outer: "input" },
    FieldName { inner: "template_arguments", outer: "paceline.template_arguments" },
    FieldName { inner: "grammar.json_schema", outer: "text.format.schema" },
    FieldName { inner: "grammar.json_object", outer: "text.format" },
    FieldName { inner: "grammar", outer: "text.format" },
];

/// Types of tools.
const KINDS: &[ToolKind] = &[
    ToolKind { name: "function", path: &["name"], accepted: &[] },
    ToolKind { name: "custom", path: &["name"], accepted: &[] },
    ToolKind { name: SEARCH, path: &[], accepted: accepted::CHOSEN_SEARCH },
];

/// Marks a thought in `encrypted_content` as one of this service.
const THOUGHT: &str = "paceline1:";

/// Parts of the request that the writer of an answer needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// The tools that the model may call.
    pub tools: Tools,
    /// Whether thoughts come in a form that the client resends.
    pub encrypted_reasoning: bool,
    /// Fields that the answer repeats.
    pub repeated: Map<String, Value>,
}

/// The request in a body of `/v1/responses`.
/// Longer than 60 lines: all fields are taken apart in one place.
///
/// # Errors
/// The first field that is not served, by its path in the body.
pub fn decode(body: ResponsesRequest) -> Result<Decoded<Asked>> {
    let repeated = repeated(&body);
    let ResponsesRequest {
        model: _, // checked by the front
        input,
        instructions,
        max_output_tokens,
        stream,
        temperature,
        top_p,
        seed,
        stop,
        skip_special_tokens,
        tools,
        tool_choice,
        reasoning,
        text,
        include,
        top_logprobs,
        parallel_tool_calls,
        metadata: _,
        truncation,
        paceline,
        rest,
    } = body;
    check("", &rest, ResponsesRequest::ACCEPTED)?;
    let form = text_form(text)?;
    let Included { encrypted_reasoning, logprobs } =
        included(include.unwrap_or_default(), top_logprobs.map(TopLogprobs::get))?;
    let mut items = Items::default();
    items.tools.add("tools", tools.unwrap_or_default())?;
    let mut of_field = |field: &str, role: &str, text: String| {
        let mut path = MessagePath::new(field);
        path.record("content[0]", field);
        items.push(path, message(role, vec![said(text)]));
    };
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        of_field("instructions", "system", instructions);
    }
    match input {
        TextOr::Text(text) => of_field("input", "user", text),
        TextOr::List(list) => {
            check_elements("input", list.len(), limits::MAX_TURNS)?;
            let newest = list.iter().rposition(begins_turn).unwrap_or(0);
            for (at, InputItem(item)) in list.into_iter().enumerate() {
                if let Some(item) = item {
                    items.item(format!("input[{at}]"), item, Turn::of(at, newest))?;
                }
            }
        }
    }
    let Items { messages, paths, tools, called: _ } = items;
    let is_left_out = |tool: &Map<String, Value>| tools.is_left_out(tool);
    let choice = tool_choice.map(|choice| choice.rule(KINDS, None, is_left_out));
    let choice = choice.transpose()?.unwrap_or_default();
    let model_name = |name: &str| tools.model_name_of(name);
    let (mut offered, rule) = choice.applied(tools.all.clone(), model_name)?;
    offered.retain(|tool| !tools.waits(&tool.name));
    let Thoughts { mut variables, effort } = thoughts(reasoning)?;
    let Extension { route, template_arguments, rest } = paceline.unwrap_or_default();
    check("paceline.", &rest, Extension::ACCEPTED)?;
    // What the client sets by name counts more than what follows from other fields.
    variables.extend(template_arguments.unwrap_or_default().0);
    let paths = FieldPaths { messages: paths, ..FieldPaths::new(FIELDS).of_tools(&offered) };
    let conversation = ConversationInput {
        messages,
        tools: offered,
        calls: rule,
        template_arguments: variables.into(),
        effort,
    };
    let params = GenerationParams {
        sampling: SamplingWish { temperature, top_p, ..Default::default() },
        seed: seed.and_then(|Seed(seed)| seed),
        max_tokens: max_output_tokens.and_then(MaxTokensOrNone::get),
        // The protocol's max_output_tokens is an upper bound.
        lower_max_tokens: true,
        drop_oldest: truncates(truncation)?,
        stop: match stop {
            None => Vec::new(),
            Some(TextOr::Text(stop)) => vec![stop],
            Some(TextOr::List(stops)) => stops,
        },
        show_special: !skip_special_tokens.unwrap_or(true),
        route: route.map(|word| values::route(&word)).transpose()?,
        logprobs,
        shape: AnswerShape::of_text(form),
        ..Default::default()
    };
    Ok(Decoded {
        input: RequestInput { prompt: PromptInput::Conversation(conversation), params },
        more: Vec::new(),
        writer: Asked { tools, encrypted_reasoning, repeated },
        stream: stream.unwrap_or(false),
        calls: AllowedToolCalls::one_if(parallel_tool_calls == Some(false)),
        paths,
    })
}

/// A thought in the form that clients resend. It is not a secret: the client has its text.
pub fn encrypted(thought: &str) -> String {
    format!("{THOUGHT}{}", base64::engine::general_purpose::STANDARD.encode(thought))
}

/// The thought in that form; `None` if it is of another service.
fn decrypted(text: &str) -> Option<String> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text.strip_prefix(THOUGHT)?);
    String::from_utf8(bytes.ok()?).ok()
}

/// Whether the items before this one are of earlier turns: the user or the model says something.
fn begins_turn(InputItem(item): &InputItem) -> bool {
    match item {
        Some(Item::Message(message)) => ["user", "assistant"].contains(&message.role.as_str()),
        Some(
            Item::FunctionCall(_)
            | Item::CustomToolCall(_)
            | Item::LocalShellCall(_)
            | Item::ShellCall(_)
            | Item::ApplyPatchCall(_),
        ) => true,
        Some(_) | None => false,
    }
}

/// A conversation in the making. Neighbours of one author become one message later.
#[derive(Default)]
struct Items {
    messages: Vec<MessageInput>,
    paths: Vec<MessagePath>,
    tools: Tools,
    /// Names of the called tools by the ids of the tool calls.
    called: HashMap<String, String>,
}

impl Items {
    fn push(&mut self, path: MessagePath, message: MessageInput) {
        self.messages.push(message);
        self.paths.push(path);
    }

    /// Adds an item. Longer than 60 lines: an arm for each type of item.
    fn item(&mut self, path: String, item: Item, turn: Turn) -> Result<()> {
        let check = |rest| check(&format!("{path}."), rest, accepted::ITEM);
        let mut place = MessagePath::new(path.as_str());
        let made = match item {
            Item::Message(item) => {
                check(&item.rest)?;
                let MessageItem { role, content, reasoning_content, thinking, reasoning, rest: _ } =
                    item;
                let texts = [reasoning_content, thinking, reasoning];
                let reasoning = values::thought(&format!("{path}."), &role, texts)?;
                let content = parts(&mut place, &format!("{path}.content"), content, turn)?;
                MessageInput { reasoning, ..message(&role, content) }
            }
            Item::Reasoning(item) => {
                check(&item.rest)?;
                place.record("reasoning", path.as_str());
                let reasoning = thought(&path, item)?;
                MessageInput { reasoning, ..message("assistant", vec![said(String::new())]) }
            }
            Item::FunctionCall(item) => {
                check(&item.rest)?;
                let FunctionCallItem { call_id, name, namespace, arguments, rest: _ } = item;
                place_tool_call(&mut place, &path, "arguments");
                self.tool_call(call_id, namespace.as_deref(), &name, arguments.input())
            }
            Item::CustomToolCall(item) => {
                check(&item.rest)?;
                let CustomToolCallItem { call_id, name, namespace, input, rest: _ } = item;
                place_tool_call(&mut place, &path, "input");
                self.tool_call(call_id, namespace.as_deref(), &name, custom_arguments(&input))
            }
            Item::FunctionCallOutput(item) | Item::CustomToolCallOutput(item) => {
                check(&item.rest)?;
                let OutputItem { call_id, output, rest: _ } = item;
                place.record("tool_call_id", format!("{path}.call_id"));
                let content = parts(&mut place, &format!("{path}.output"), output, turn)?;
                self.tool_answer(call_id, content)
            }
            Item::LocalShellCall(item) => {
                self.shell_call(&mut place, &path, "local_shell", item)?
            }
            Item::ShellCall(item) => self.shell_call(&mut place, &path, "shell", item)?,
            Item::ApplyPatchCall(item) => {
                self.shell_call(&mut place, &path, "apply_patch", item)?
            }
            Item::LocalShellCallOutput(item)
            | Item::ShellCallOutput(item)
            | Item::ApplyPatchCallOutput(item) => {
                check(&item.rest)?;
                let ShellOutputItem { call_id, id, output, rest: _ } = item;
                place.record("content[0]", format!("{path}.output"));
                place.record("tool_call_id", format!("{path}.call_id"));
                let text = match output.0 {
                    Value::Null => String::new(),
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                self.tool_answer(call_id.or(id).unwrap_or_default(), vec![said(text)])
            }
            Item::ItemReference(_) => {
                let expected = "the item itself, because this service keeps no conversation";
                return refuse(&path, expected, "an item_reference");
            }
            Item::ConfigurationUpdate(_) => {
                let expected = "another item, because these settings are fields of the request";
                return refuse(&path, expected, "a configuration_update");
            }
            Item::CompactionTrigger(_) => {
                let expected = "another item, because this service compacts no conversation";
                return refuse(&path, expected, "a compaction_trigger");
            }
            Item::AdditionalTools(AdditionalToolsItem { tools, rest }) => {
                check(&rest)?;
                return self.tools.add(&format!("{path}.tools"), tools);
            }
            Item::ToolSearchCall(item) => {
                check(&item.rest)?;
                let Some(call) = self.search(&mut place, &path, item) else { return Ok(()) };
                call
            }
            Item::ToolSearchOutput(item) => {
                check(&item.rest)?;
                let Some(found) = self.found(&mut place, &path, item)? else { return Ok(()) };
                found
            }
        };
        self.push(place, made);
        Ok(())
    }

    /// A search for tools as a tool call. A search by OpenAI's service has no id, and the model is
    /// not shown it.
    fn search(
        &mut self,
        place: &mut MessagePath,
        path: &str,
        item: ToolSearchCallItem,
    ) -> Option<MessageInput> {
        let ToolSearchCallItem { call_id, execution: _, arguments, rest: _ } = item;
        let call_id = call_id?;
        place_tool_call(place, path, "arguments");
        Some(self.tool_call(call_id, None, SEARCH, arguments.input()))
    }

    /// Offers the tools that a search found, and returns the answer of the search.
    fn found(
        &mut self,
        place: &mut MessagePath,
        path: &str,
        item: ToolSearchOutputItem,
    ) -> Result<Option<MessageInput>> {
        let ToolSearchOutputItem { call_id, execution: _, tools, rest: _ } = item;
        let path = |name: &str| format!("{path}.{name}");
        let found = self.tools.find(&path("tools"), tools)?;
        let Some(call_id) = call_id else { return Ok(None) };
        place.record("content[0]", path("tools"));
        place.record("tool_call_id", path("call_id"));
        let each = found.iter().map(|name| format!("The tool {name} is offered now."));
        let text = match found.is_empty() {
            true => "No tool was found.".to_owned(),
            false => each.collect::<Vec<_>>().join(" "),
        };
        let name = SEARCH.to_owned();
        Ok(Some(MessageInput { tool_call_id: call_id, name, ..message("tool", vec![said(text)]) }))
    }

    /// The answer of a tool.
    fn tool_answer(&self, call_id: String, content: Vec<ContentPartInput>) -> MessageInput {
        let name = self.called.get(&call_id).cloned().unwrap_or_default();
        MessageInput { tool_call_id: call_id, name, ..message("tool", content) }
    }

    /// A call of a tool that has its own type of item, as a tool call of this name.
    fn shell_call(
        &mut self,
        place: &mut MessagePath,
        path: &str,
        name: &str,
        item: ShellCallItem,
    ) -> Result<MessageInput> {
        let ShellCallItem { call_id, id, action, operation, rest } = item;
        check(&format!("{path}."), &rest, ShellCallItem::ACCEPTED)?;
        place_tool_call(place, path, if action.is_some() { "action" } else { "operation" });
        let arguments = action.or(operation).unwrap_or_default().input();
        Ok(self.tool_call(call_id.or(id).unwrap_or_default(), None, name, arguments))
    }

    /// A message of one tool call.
    fn tool_call(
        &mut self,
        id: String,
        namespace: Option<&str>,
        name: &str,
        arguments: JsonInput,
    ) -> MessageInput {
        let name = model_name(namespace, name);
        self.called.insert(id.clone(), name.clone());
        let tool_calls = vec![ToolCallInput { id, name, arguments }];
        MessageInput { tool_calls, ..message("assistant", Vec::new()) }
    }
}

/// Records where the fields of an item that is a tool call stand.
fn place_tool_call(place: &mut MessagePath, path: &str, arguments: &str) {
    place.record("tool_calls[0].arguments", format!("{path}.{arguments}"));
    place.record("tool_calls[0].id", format!("{path}.call_id"));
    place.record("tool_calls[0]", path);
}

fn message(role: &str, content: Vec<ContentPartInput>) -> MessageInput {
    MessageInput { role: role.to_owned(), content, ..Default::default() }
}

/// The text of a thought: as it is, as this service hid it, or its summary. A thought that another
/// service hid has no text here.
fn thought(path: &str, item: ReasoningItem) -> Result<String> {
    let ReasoningItem { summary, content, encrypted_content, rest: _ } = item;
    let length = |texts: &Option<Vec<_>>| texts.as_ref().map_or(0, Vec::len);
    check_elements(&format!("{path}.content"), length(&content), limits::MAX_PARTS)?;
    check_elements(&format!("{path}.summary"), length(&summary), limits::MAX_PARTS)?;
    let join = |name: &str, parts: Option<Vec<ReasoningText>>| {
        let parts = parts.unwrap_or_default().into_iter().enumerate();
        let text = |(at, ReasoningText { kind: _, text, rest }): (usize, ReasoningText)| {
            check(&format!("{path}.{name}[{at}]."), &rest, ReasoningText::ACCEPTED)?;
            Ok(text)
        };
        let texts: Result<Vec<String>> = parts.map(text).collect();
        texts.map(|texts| texts.join("\n\n"))
    };
    let (content, summary) = (join("content", content)?, join("summary", summary)?);
    if !content.is_empty() {
        return Ok(content);
    }
    Ok(encrypted_content.as_deref().and_then(decrypted).unwrap_or(summary))
}

/// Form of the answer's text that the request demands.
fn text_form(text: Option<TextConfig>) -> Result<Option<TextForm>> {
    const FIELD: &str = "text.format.schema";
    let Some(TextConfig { format, rest }) = text else { return Ok(None) };
    check("text.", &rest, TextConfig::ACCEPTED)?;
    let Some(TextFormat { kind, schema, name: _, rest }) = format else { return Ok(None) };
    check("text.format.", &rest, TextFormat::ACCEPTED)?;
    match (kind.as_str(), schema) {
        ("text", None) => Ok(None),
        ("json_object", None) => Ok(Some(TextForm::JsonObject)),
        ("json_schema", Some(schema)) => Ok(Some(TextForm::JsonSchema(schema.text()))),
        ("json_schema", None) => refuse(FIELD, "a JSON schema", "none"),
        ("text" | "json_object", Some(_)) => {
            refuse(FIELD, format!("nothing with the type {kind}"), "a schema")
        }
        (other, _) => refuse("text.format.type", "text, json_object or json_schema", quoted(other)),
    }
}

/// Parts of an answer that `include` asks for.
struct Included {
    encrypted_reasoning: bool,
    /// Alternatives of each token of a message.
    logprobs: Option<u32>,
}

/// Whether thoughts come in a form that the client resends.
fn included(include: Vec<String>, top: Option<u32>) -> Result<Included> {
    let unknown = |wanted: &String| !accepted::INCLUDE.iter().any(|(known, _)| known == wanted);
    if let Some(at) = include.iter().position(unknown) {
        let words: Vec<_> = accepted::INCLUDE.iter().map(|(known, _)| known).collect();
        let field = format!("include[{at}]");
        return refuse(&field, format!("one of {words:?}"), quoted(&include[at]));
    }
    let asks = |word: &str| include.iter().any(|wanted| wanted == word);
    let logprobs = match (asks(accepted::LOGPROBS), top) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(top)) => {
            let expected = format!("0, because `include` has no {:?}", accepted::LOGPROBS);
            return refuse("top_logprobs", expected, top);
        }
    };
    Ok(Included { encrypted_reasoning: asks(accepted::ENCRYPTED_REASONING), logprobs })
}

/// The variable by which published templates turn thoughts off, and how long they are to be.
fn thoughts(reasoning: Option<Reasoning>) -> Result<Thoughts> {
    let mut thoughts = Thoughts::default();
    let Some(Reasoning { effort, rest }) = reasoning else { return Ok(thoughts) };
    check("reasoning.", &rest, Reasoning::ACCEPTED)?;
    let Some(effort) = effort else { return Ok(thoughts) };
    match (effort.as_str(), Effort::from_word(&effort)) {
        ("none", _) => {
            thoughts.variables.insert(ENABLE_THINKING.to_owned(), false.into());
        }
        // Two words of Codex CLI for more than the protocol has.
        ("ultra" | "persistent", _) => thoughts.effort = Some(Effort::Max),
        (_, Some(known)) => thoughts.effort = Some(known),
        (_, None) => {
            let expected = "none, minimal, low, medium, high, xhigh or max";
            return refuse("reasoning.effort", expected, quoted(&effort));
        }
    }
    Ok(thoughts)
}

/// Whether the oldest items are left out of a conversation that does not fit.
fn truncates(word: Option<String>) -> Result<bool> {
    match word.as_deref() {
        None | Some("disabled") => Ok(false),
        Some("auto") => Ok(true),
        Some(other) => refuse("truncation", "auto or disabled", quoted(other)),
    }
}

/// The fields that the protocol has in answers too.
fn repeated(body: &ResponsesRequest) -> Map<String, Value> {
    let effort = body.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
    let format = body.text.as_ref().and_then(|text| text.format.as_ref()).map(TextFormat::repeated);
    let format = format.unwrap_or_else(|| serde_json::json!({"type": "text"}));
    let choice = body.tool_choice.as_ref().and_then(|choice| serde_json::to_value(choice).ok());
    let fields = [
        ("text", serde_json::json!({ "format": format })),
        ("tool_choice", choice.unwrap_or_else(|| "auto".into())),
        ("max_output_tokens", body.max_output_tokens.and_then(MaxTokensOrNone::get).into()),
        ("metadata", body.metadata.clone().unwrap_or_default().0.into()),
        ("parallel_tool_calls", body.parallel_tool_calls.unwrap_or(true).into()),
        ("reasoning", serde_json::json!({"effort": effort, "summary": null})),
        ("temperature", body.temperature.into()),
        ("top_p", body.top_p.into()),
        ("truncation", body.truncation.as_deref().unwrap_or("disabled").into()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests;
