//! The variables of a chat template: the conversation in the form of the OpenAI interface, and the
//! special tokens. They borrow from the conversation, so that megabytes of text are copied once,
//! into the template engine's own values.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
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
pub(super) enum Content<'a> {
    /// The content is one text.
    Text(Cow<'a, str>),
    /// As a list of parts.
    Parts(&'a [ContentPart]),
    /// The message has none.
    None,
}

type ContentOf<'a> = &'a dyn Fn(&'a Message) -> Content<'a>;

/// All variables of a rendering.
pub(super) struct Variables<'a> {
    pub(super) conversation: &'a Conversation,
    /// A message's parts in the form that the template takes.
    pub(super) content: ContentOf<'a>,
    /// Whether the template has the word `reasoning`, an older name of a thought.
    pub(super) names_reasoning: bool,
    pub(super) bos_token: Option<&'a str>,
    pub(super) eos_token: Option<&'a str>,
}

impl Serialize for Variables<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Conversation { messages, tools, arguments, .. } = self.conversation;
        let mut variables = serializer.serialize_map(None)?;
        for (name, value) in
            arguments.iter().filter(|(name, _)| !OWN_NAMES.contains(&name.as_str()))
        {
            variables.serialize_entry(name, value)?;
        }
        variables.serialize_entry("messages", &Messages(messages, self))?;
        // The reference implementation passes `none` instead of an empty list.
        let tools = (!tools.is_empty()).then(|| Each(tools, offered));
        variables.serialize_entry("tools", &tools)?;
        variables.serialize_entry("add_generation_prompt", &true)?;
        // A special token that the model lacks stays undefined: it prints as nothing, not as
        // "None".
        for (name, token) in [("bos_token", self.bos_token), ("eos_token", self.eos_token)] {
            if let Some(token) = token {
                variables.serialize_entry(name, token)?;
            }
        }
        if !arguments.contains_key("documents") {
            variables.serialize_entry("documents", &())?;
        }
        variables.end()
    }
}

/// A list, each element in another form.
struct Each<'a, T, U>(&'a [T], fn(&'a T) -> U);

impl<T, U: Serialize> Serialize for Each<'_, T, U> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

struct Messages<'a, 'b>(&'a [Message], &'b Variables<'a>);

impl Serialize for Messages<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for message in self.0 {
            list.serialize_element(&message_variables(message, self.1))?;
        }
        list.end()
    }
}

impl Serialize for Content<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Text(text) => serializer.serialize_str(text),
            Content::Parts(parts) => Each(parts, shown).serialize(serializer),
            Content::None => serializer.serialize_unit(),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Each<'a, ToolCall, ToolCallVariables<'a>>>,
}

fn message_variables<'a>(message: &'a Message, variables: &Variables<'a>) -> MessageVariables<'a> {
    MessageVariables {
        // gpt-oss' template refuses a thought under this name beside a text and calls.
        thinking: if message.calls.is_empty() || message.has_no_content() {
            &message.reasoning
        } else {
            ""
        },
        role: message.role.word(),
        content: (variables.content)(message),
        name: &message.name,
        reasoning_content: &message.reasoning,
        reasoning: if variables.names_reasoning { &message.reasoning } else { "" },
        tool_call_id: &message.call_id,
        tool_calls: (!message.calls.is_empty()).then_some(Each(&message.calls, called)),
    }
}

/// A part. The template gets no pixels of an image.
#[derive(Serialize)]
struct PartVariables<'a> {
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
    function: CalledFunction<'a>,
}

#[derive(Serialize)]
struct CalledFunction<'a> {
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
        function: CalledFunction { name: &call.name, arguments },
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
