//! The variables of a chat template: the conversation in the form of the OpenAI interface, and the
//! special tokens. They borrow from the conversation, so that megabytes of text are copied once,
//! into the template engine's own values.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::conversation::{ContentPart, Conversation, Message, Tool, ToolCall, ToolCallArguments};
use super::tool_call_text::ToolCallText;

/// Variables that are set here, or could be by a model's files. A request may set others.
pub const OWN_NAMES: [&str; 14] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
    "raise_exception",
    "strftime_now",
];

/// `content` of a message.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a> {
    /// The content is one text.
    Text(Cow<'a, str>),
    /// As a list of parts.
    Parts(Vec<PartVariables<'a>>),
    /// The message has none.
    None,
}

impl<'a> Content<'a> {
    /// These parts as a list.
    pub(super) fn of_parts(parts: &'a [ContentPart]) -> Self {
        Self::Parts(parts.iter().map(shown).collect())
    }
}

/// All variables of a rendering.
#[derive(Serialize)]
pub(super) struct Variables<'a> {
    /// Those that the request sets.
    #[serde(flatten)]
    arguments: BTreeMap<&'a str, &'a Value>,
    messages: Vec<MessageVariables<'a>>,
    /// The reference implementation passes `none` instead of an empty list.
    tools: Option<Vec<ToolVariables<'a>>>,
    add_generation_prompt: bool,
    /// A special token that the model lacks stays undefined: it prints as nothing, not as "None".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bos_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eos_token: Option<&'a str>,
}

impl<'a> Variables<'a> {
    /// The variables of a conversation, without special tokens. `form` gives a message's content
    /// and its thought under the name `thinking`, as the template takes them. `names_reasoning`: the
    /// template has the word `reasoning`, an older name of a thought.
    pub(super) fn new(
        conversation: &'a Conversation,
        form: impl Fn(&'a Message) -> (Content<'a>, &'a str),
        names_reasoning: bool,
    ) -> Self {
        let Conversation { messages, tools, arguments, .. } = conversation;
        let arguments = arguments.iter().map(|(name, value)| (name.as_str(), value));
        let arguments = arguments.filter(|(name, _)| !OWN_NAMES.contains(name));
        let message = |message| message_variables(message, form(message), names_reasoning);
        Self {
            arguments: [("documents", &Value::Null)].into_iter().chain(arguments).collect(),
            messages: messages.iter().map(message).collect(),
            tools: (!tools.is_empty()).then(|| tools.iter().map(offered).collect()),
            add_generation_prompt: true,
            bos_token: None,
            eos_token: None,
        }
    }
}

/// A message. Arguments of its tool calls are mappings, also those that are a text
/// ([`ToolCallText`]).
#[derive(Serialize)]
struct MessageVariables<'a> {
    /// The name that gpt-oss' template reads. The reference puts it in front of all keys.
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    role: &'static str,
    content: Content<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning_content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_call_id: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallVariables<'a>>,
}

fn message_variables<'a>(
    message: &'a Message,
    (content, thinking): (Content<'a>, &'a str),
    names_reasoning: bool,
) -> MessageVariables<'a> {
    MessageVariables {
        thinking,
        role: message.role.word(),
        content,
        name: &message.name,
        reasoning_content: &message.reasoning,
        reasoning: if names_reasoning { &message.reasoning } else { "" },
        tool_call_id: &message.call_id,
        tool_calls: message.calls.iter().map(called).collect(),
    }
}

/// A part. The template gets no pixels of an image.
#[derive(Serialize)]
pub(super) struct PartVariables<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

fn shown(part: &ContentPart) -> PartVariables<'_> {
    let text = part.text();
    PartVariables { r#type: if text.is_some() { "text" } else { "image" }, text }
}

#[derive(Serialize)]
struct ToolCallVariables<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    r#type: &'static str,
    function: FunctionVariable<'a>,
}

#[derive(Serialize)]
struct FunctionVariable<'a> {
    name: &'a str,
    arguments: ShownArguments<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ShownArguments<'a> {
    Object(&'a Map<String, Value>),
    Text(minijinja::Value),
}

fn called(call: &ToolCall) -> ToolCallVariables<'_> {
    let arguments = match &call.arguments {
        ToolCallArguments::Object(members) => ShownArguments::Object(members),
        ToolCallArguments::Text(text) => ShownArguments::Text(ToolCallText::value(text)),
    };
    ToolCallVariables {
        id: &call.id,
        r#type: "function",
        function: FunctionVariable { name: &call.name, arguments },
    }
}

#[derive(Serialize)]
struct ToolVariables<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    parameters: &'a Map<String, Value>,
}

fn offered(tool: &Tool) -> ToolVariables<'_> {
    let Tool { name, description, parameters, strict: _ } = tool;
    ToolVariables { r#type: "function", function: Function { name, description, parameters } }
}
