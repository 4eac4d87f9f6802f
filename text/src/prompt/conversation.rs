//! A conversation as templates expect it.
//!
//! Coding agents send system messages anywhere, `developer` for `system`, and several messages of
//! one role in a row. Published templates expect roles that alternate, and many of them one system
//! message, in front. [`normalize`] makes the one from the other. [`merge`] leaves system messages
//! in their places, for templates that show them there: a message that moves to the front changes
//! the whole prompt, and none of it is found in the prefix cache.

use paceline_vocabulary::worded;
use serde_json::{Map, Value};

use crate::images::EncodedImage;

/// Input of a chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// Oldest first.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: Vec<Tool>,
    /// Rule for the model's use of the tools. No template is told.
    pub calls: ToolCallRule,
    /// Variables of the template that the request sets.
    pub arguments: Map<String, Value>,
    /// How much the model is to think, if the request says so.
    pub effort: Option<Effort>,
    /// Images of the messages, in the order in which the messages show them.
    pub images: Vec<EncodedImage>,
    /// Bytes of the JSON texts of tool calls, tools and arguments.
    pub json_bytes: usize,
}

/// Variables of published templates that switch thinking on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

impl Conversation {
    /// Whether the request switches thinking off, by a variable of published templates. Every
    /// protocol's own field for that sets the first one.
    pub fn switches_thinking_off(&self) -> bool {
        let is_off = |name: &str| self.arguments.get(name) == Some(&Value::Bool(false));
        SWITCHES.into_iter().any(is_off)
            || self.arguments.get("reasoning_effort").is_some_and(|effort| effort == "none")
    }

    /// Bytes of the text in the conversation, without names.
    pub(super) fn bytes(&self) -> usize {
        let said = |message: &Message| {
            message.parts.iter().map(ContentPart::bytes).sum::<usize>() + message.reasoning.len()
        };
        let messages: usize = self.messages.iter().map(said).sum();
        messages
            + self.tools.iter().map(|tool| tool.description.len()).sum::<usize>()
            + self.json_bytes
    }
}

/// Edits every string that a client wrote: texts, names, ids, and in JSON the keys as well. Names
/// of the template's variables are the template's own. An edit that returns `None` leaves its
/// string as it is.
pub(super) struct Edits<'a>(pub(super) &'a mut dyn FnMut(&str) -> Option<String>);

impl Edits<'_> {
    pub(super) fn apply(&mut self, conversation: &mut Conversation) {
        // `json_bytes` stays the size that was sent. It serves to tell short requests from long.
        let Conversation {
            messages,
            tools,
            calls: _,
            arguments,
            effort: _,
            images: _,
            json_bytes: _,
        } = conversation;
        for message in messages {
            let Message { role: _, parts, calls, call_id, name, reasoning } = message;
            for part in parts {
                if let ContentPart::Text(text) = part {
                    self.text(text);
                }
            }
            [call_id, name, reasoning].into_iter().for_each(|text| self.text(text));
            for ToolCall { id, name, arguments } in calls {
                self.text(id);
                self.text(name);
                match arguments {
                    ToolCallArguments::Object(members) => self.members(members),
                    ToolCallArguments::Text(text) => self.text(text),
                }
            }
        }
        for Tool { name, description, parameters, strict: _ } in tools {
            self.text(name);
            self.text(description);
            self.members(parameters);
        }
        arguments.values_mut().for_each(|value| self.json(value));
    }

    fn text(&mut self, text: &mut String) {
        if let Some(edited) = (self.0)(text) {
            *text = edited;
        }
    }

    fn json(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::Object(members) => self.members(members),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn members(&mut self, members: &mut Map<String, Value>) {
        let edited = std::mem::take(members).into_iter().map(|(mut key, mut value)| {
            self.text(&mut key);
            self.json(&mut value);
            (key, value)
        });
        *members = edited.collect();
    }
}

worded! {
    /// How much the model is to think before it answers, ascending. The words are those of OpenAI's and
    /// Anthropic's protocols.
    #[expect(missing_docs, reason = "as in `Effort::word`")]
    Effort {
        Minimal = "minimal",
        Low = "low",
        Medium = "medium",
        High = "high",
        XHigh = "xhigh",
        Max = "max",
    }
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator of the conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool that answers the model.
    Tool,
}

impl Role {
    /// The role of this name; `developer` is another name of the system.
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => return None,
        })
    }

    /// The role's name in templates.
    pub fn word(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentPart {
    /// Text.
    Text(String),
    /// The image of this number.
    Image(usize),
}

impl ContentPart {
    fn bytes(&self) -> usize {
        self.text().map_or(0, str::len)
    }

    /// The text, if the part is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            ContentPart::Text(text) => Some(text),
            ContentPart::Image(_) => None,
        }
    }
}

/// One message of a conversation. A field that is empty was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Author of the message.
    pub role: Role,
    /// Text and images.
    pub parts: Vec<ContentPart>,
    /// Tool calls that the assistant made after its text.
    pub calls: Vec<ToolCall>,
    /// Id of the tool call that a tool answers.
    pub call_id: String,
    /// The name of the author or of the tool.
    pub name: String,
    /// The assistant's thoughts before its text.
    pub reasoning: String,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Id that the tool's answer refers to.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Arguments of the tool call.
    pub arguments: ToolCallArguments,
}

/// Arguments of a tool call that the model made earlier. The protocols allow texts that are no
/// JSON: a call that `max_tokens` cut, or a mistake of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolCallArguments {
    /// By name.
    Object(Map<String, Value>),
    /// A text that is no JSON object. The template shows it as it is.
    Text(String),
}

impl From<Map<String, Value>> for ToolCallArguments {
    fn from(members: Map<String, Value>) -> Self {
        Self::Object(members)
    }
}

/// A tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Name of the tool.
    pub name: String,
    /// Description of the tool, for the model.
    pub description: String,
    /// A JSON schema; empty if it takes nothing.
    pub parameters: Map<String, Value>,
    /// Whether the arguments of every tool call follow the schema. No template is told.
    pub strict: bool,
}

/// How the model uses its tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolCallRule {
    /// As it decides.
    #[default]
    Auto,
    /// The model calls one or more tools.
    Required,
    /// The model calls the tool of this name, once or more.
    Named(String),
}

impl Message {
    /// A message of text.
    pub fn new(role: Role, parts: Vec<String>) -> Self {
        let parts = parts.into_iter().map(ContentPart::Text).collect();
        Self {
            role,
            parts,
            calls: vec![],
            call_id: String::new(),
            name: String::new(),
            reasoning: String::new(),
        }
    }

    /// Whether `next`, the following message, is merged into this one. A tool's message answers one
    /// tool call and stays alone. Text of an assistant after its calls stays a message of its own,
    /// because a template would show it before the calls.
    fn continues_with(&self, next: &Message) -> bool {
        let no_calls_between =
            self.calls.is_empty() || (next.has_no_content() && next.reasoning.is_empty());
        self.role == next.role
            && self.role != Role::Tool
            && self.name == next.name
            && no_calls_between
    }

    /// Whether all parts are empty texts.
    pub(super) fn has_no_content(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, ContentPart::Text(text) if text.is_empty()))
    }

    /// Merges `next` into this message, after a blank line.
    fn append(&mut self, next: Message) {
        if self.has_no_content() {
            self.parts = next.parts;
        } else if !next.has_no_content() {
            let mut parts = next.parts.into_iter().peekable();
            // Only two texts need the blank line: an image separates by itself.
            if let (Some(ContentPart::Text(last)), Some(ContentPart::Text(first))) =
                (self.parts.last_mut(), parts.peek())
            {
                join(last, first);
                parts.next();
            }
            self.parts.extend(parts);
        }
        join(&mut self.reasoning, &next.reasoning);
        self.calls.extend(next.calls);
    }
}

/// Appends `next` to `text`, after a blank line if neither is empty. In place: thousands of
/// messages of one role become one, and a copy for each would take minutes.
fn join(text: &mut String, next: &str) {
    if !text.is_empty() && !next.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(next);
}

/// Puts images in the order in which the messages show them, and numbers them in this order.
pub fn in_order(messages: &mut [Message], images: Vec<EncodedImage>) -> Vec<EncodedImage> {
    let mut images: Vec<Option<EncodedImage>> = images.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(images.len());
    for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
        if let ContentPart::Image(number) = part
            && let Some(image) = images.get_mut(*number).and_then(Option::take)
        {
            *number = ordered.len();
            ordered.push(image);
        }
    }
    ordered
}

/// Merges system messages into one in front, and messages of one author in a row into one. A
/// conversation in that order stays as it is.
pub fn normalize(messages: Vec<Message>) -> Vec<Message> {
    let (system, others): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| message.role == Role::System);
    merge(system.into_iter().chain(others))
}

/// Merges messages of one author in a row into one, each in its place.
pub fn merge(messages: impl IntoIterator<Item = Message>) -> Vec<Message> {
    let mut merged: Vec<Message> = Vec::new();
    for message in messages {
        match merged.last_mut() {
            Some(last) if last.continues_with(&message) => last.append(message),
            _ => merged.push(message),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages in a short form, as `user:text`; `assistant:text!f` calls the tool f.
    fn messages(line: &[&str]) -> Vec<Message> {
        let one = |word: &&str| {
            let (role, rest) = word.split_once(':').expect("role:text");
            let (text, call) =
                rest.split_once('!').map_or((rest, None), |(text, call)| (text, Some(call)));
            let mut message =
                Message::new(Role::from_word(role).expect("a role"), vec![text.to_owned()]);
            message.calls = call
                .iter()
                .map(|name| ToolCall {
                    id: String::new(),
                    name: (*name).to_owned(),
                    arguments: Map::new().into(),
                })
                .collect();
            message
        };
        line.iter().map(one).collect()
    }

    fn short(messages: &[Message]) -> Vec<String> {
        let calls = |message: &Message| {
            message.calls.iter().map(|call| format!("!{}", call.name)).collect::<String>()
        };
        let part = |part: &ContentPart| match part {
            ContentPart::Text(text) => text.clone(),
            ContentPart::Image(number) => format!("<{number}>"),
        };
        let said = |message: &Message| message.parts.iter().map(part).collect::<Vec<_>>().join("|");
        messages
            .iter()
            .map(|message| format!("{}:{}{}", message.role.word(), said(message), calls(message)))
            .collect()
    }

    #[track_caller]
    fn check(before: &[&str], after: &[&str]) {
        assert_eq!(short(&normalize(messages(before))), after);
    }

    #[test]
    fn a_conversation_in_order_stays_as_it_is() {
        let ordered =
            ["system:s", "user:a", "assistant:b!f", "tool:1", "tool:2", "assistant:c", "user:"];
        assert_eq!(normalize(messages(&ordered)), messages(&ordered));
        check(&["user:a"], &["user:a"]);
        check(&[], &[]);
    }

    #[test]
    fn system_messages_come_to_the_front_as_one() {
        check(
            &["user:a", "system:s", "developer:t", "assistant:b", "system:u", "user:c"],
            &["system:s\n\nt\n\nu", "user:a", "assistant:b", "user:c"],
        );
        // What stood between them is gone: its neighbours are one turn.
        check(&["user:a", "system:s", "user:b"], &["system:s", "user:a\n\nb"]);
        check(&["system:", "user:a", "system:s"], &["system:s", "user:a"]);
    }

    #[test]
    fn merged_system_messages_stay_in_their_places() {
        let said = messages(&["system:s", "developer:t", "user:a", "user:b", "system:u", "user:c"]);
        assert_eq!(short(&merge(said)), ["system:s\n\nt", "user:a\n\nb", "system:u", "user:c"]);
    }

    #[test]
    fn a_speakers_turns_in_a_row_become_one() {
        check(
            &["user:a", "user:", "user:b", "assistant:c", "assistant:d"],
            &["user:a\n\nb", "assistant:c\n\nd"],
        );
        let several = |parts: &[&str]| {
            Message::new(Role::User, parts.iter().map(ToString::to_string).collect())
        };
        assert_eq!(
            normalize(vec![several(&["a", "b"]), several(&["c", "d"])]),
            [several(&["a", "b\n\nc", "d"])]
        );
        let mut named = messages(&["user:a", "user:b", "user:c"]);
        (named[1].name, named[2].name) = ("Eve".into(), "Eve".into());
        assert_eq!(short(&normalize(named)), ["user:a", "user:b\n\nc"], "two people are not one");
    }

    /// A copy of the text so far for each turn would be 137 GB here.
    #[test]
    fn thousands_of_turns_of_one_speaker_become_one_without_copies() {
        let mut said: Vec<Message> =
            (0..16_384).map(|_| Message::new(Role::Assistant, vec!["x".repeat(1022)])).collect();
        for message in &mut said {
            message.reasoning = "y".repeat(62);
        }
        let (normal, took) = crate::time_of(|| normalize(said));
        let text = normal[0].parts[0].text().expect("text");
        assert_eq!((normal.len(), normal[0].parts.len()), (1, 1));
        assert_eq!((text.len(), normal[0].reasoning.len()), (16_384 * 1024 - 2, 16_384 * 64 - 2));
        assert!(took.as_secs() < 5, "{took:?}");
    }

    #[test]
    fn images_keep_their_places_and_are_counted_as_shown() {
        let with =
            |role: Role, parts: Vec<ContentPart>| Message { parts, ..Message::new(role, vec![]) };
        let (text, image) = (|text: &str| ContentPart::Text(text.into()), ContentPart::Image);
        let said = vec![
            with(Role::User, vec![text("a"), image(0)]),
            with(Role::User, vec![text("b"), image(1)]),
            with(Role::User, vec![image(2), text("c")]),
            with(Role::System, vec![image(3), text("s")]),
            with(Role::User, vec![text("d")]),
        ];
        let mut messages = normalize(said);
        assert_eq!(short(&messages), ["system:<3>|s", "user:a|<0>|b|<1>|<2>|c\n\nd"]);
        let source = || crate::images::ImageSource::Address(String::new());
        let images = (0..4)
            .map(|number| EncodedImage {
                field: number.to_string(),
                source: source(),
                detail: crate::images::Detail::Full,
            })
            .collect();
        let ordered = in_order(&mut messages, images);
        assert_eq!(ordered.iter().map(|image| image.field.as_str()).collect::<String>(), "3012");
        assert_eq!(short(&messages), ["system:<0>|s", "user:a|<1>|b|<2>|<3>|c\n\nd"]);
    }

    #[test]
    fn tools_answer_one_by_one_and_tool_calls_end_a_turn() {
        check(
            &[
                "user:a",
                "assistant:text",
                "assistant:!f",
                "assistant:!g",
                "tool:1",
                "tool:2",
                "assistant:b",
            ],
            &["user:a", "assistant:text!f!g", "tool:1", "tool:2", "assistant:b"],
        );
        check(&["assistant:a!f", "assistant:b"], &["assistant:a!f", "assistant:b"]);
        let mut thought = messages(&["assistant:", "assistant:b", "assistant:!f", "assistant:!g"]);
        thought[0].reasoning = "hm".into();
        thought[1].reasoning = "so".into();
        thought[3].reasoning = "now".into();
        let normal = normalize(thought);
        assert_eq!(
            short(&normal),
            ["assistant:b!f", "assistant:!g"],
            "a thought after tool calls begins a turn"
        );
        assert_eq!(
            (normal[0].reasoning.as_str(), normal[1].reasoning.as_str()),
            ("hm\n\nso", "now")
        );
    }
}
