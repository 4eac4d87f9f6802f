//! Markup in resent answers: the text of an earlier answer can have the model's own markup for
//! thoughts and tool calls. The markup is moved to the fields it belongs in, because markup in a
//! client's text is ordinary text.
//!
//! Only markup where a model writes it is moved: a thought in front, and calls at the end with
//! nothing after them. All else stays text.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::conversation::{ContentPart, Message, Role, ToolCall};
use super::format::is_tool_name;

/// The markup that the model's template writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AssistantMarkup {
    /// `<think>` around thoughts.
    pub(super) thoughts: bool,
    /// `<tool_call>` around tool calls.
    pub(super) calls: bool,
}

impl AssistantMarkup {
    /// Moves the thought and the tool calls of an assistant's message to their fields.
    pub(super) fn move_to_fields(self, message: &mut Message) {
        if message.role != Role::Assistant {
            return;
        }
        if self.thoughts
            && message.reasoning.is_empty()
            && let Some(ContentPart::Text(text)) = message.parts.first_mut()
            && let Some(found) = thought(text)
        {
            message.reasoning = found.thought.to_owned();
            *text = found.answer.to_owned();
        }
        if self.calls
            && message.calls.is_empty()
            && let Some(ContentPart::Text(text)) = message.parts.last_mut()
            && let Some(found) = calls(text)
        {
            message.calls = found.calls;
            *text = found.before.to_owned();
        }
    }
}

/// A text with a thought in front.
struct Thought<'a> {
    thought: &'a str,
    answer: &'a str,
}

/// A text with tool calls at its end.
struct Calls<'a> {
    before: &'a str,
    calls: Vec<ToolCall>,
}

/// A thought and the text after it. Templates that open the thought themselves leave it to the
/// model to close it.
fn thought(text: &str) -> Option<Thought<'_>> {
    let (thought, answer) = text.split_once("</think>")?;
    let thought = match thought.trim_start().strip_prefix("<think>") {
        Some(thought) => thought,
        None if answer.is_empty() || answer.starts_with('\n') => thought,
        None => return None,
    };
    if thought.contains("<think>") {
        return None;
    }
    Some(Thought { thought: thought.trim_matches('\n'), answer: answer.trim_start_matches('\n') })
}

/// The text before the first tool call, and calls up to the end.
fn calls(text: &str) -> Option<Calls<'_>> {
    const OPEN: &str = "<tool_call>";
    let at = match text.starts_with(OPEN) {
        true => 0,
        false => text.find("\n<tool_call>")? + 1,
    };
    let (before, mut rest) = text.split_at(at);
    let mut calls = Vec::new();
    while let Some(inside) = rest.trim_start().strip_prefix(OPEN) {
        let (call, behind) = tagged(inside).or_else(|| written(inside))?;
        if !is_tool_name(&call.name) {
            return None;
        }
        calls.push(call);
        rest = behind.trim_start().strip_prefix("</tool_call>")?;
    }
    rest.trim().is_empty().then(|| Calls { before: before.trim_end_matches('\n'), calls })
}

/// A tool call as JSON, and the rest of the text.
fn written(text: &str) -> Option<(ToolCall, &str)> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Written {
        name: String,
        #[serde(default)]
        arguments: Map<String, Value>,
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Written>();
    let Written { name, arguments } = values.next()?.ok()?;
    let call = ToolCall { id: String::new(), name, arguments: arguments.into() };
    Some((call, &text[values.byte_offset()..]))
}

/// A tool call as tags, and the rest of the text. Values are texts: the templates that write tags
/// print texts as they are.
fn tagged(text: &str) -> Option<(ToolCall, &str)> {
    let (name, mut rest) = text.trim_start().strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(behind) = rest.strip_prefix("</function>") {
            let (name, arguments) = (name.to_owned(), arguments.into());
            return Some((ToolCall { id: String::new(), name, arguments }, behind));
        }
        let (key, value) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, behind) = value.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        // A key that comes twice would lose a value.
        if arguments.insert(key.to_owned(), value.into()).is_some() {
            return None;
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::conversation::ToolCallArguments;

    const BOTH: AssistantMarkup = AssistantMarkup { thoughts: true, calls: true };

    fn message(text: &str) -> Message {
        Message::new(Role::Assistant, vec![text.to_owned()])
    }

    #[track_caller]
    fn split(text: &str) -> (String, String, Vec<String>) {
        let mut message = message(text);
        BOTH.move_to_fields(&mut message);
        let Message { reasoning, parts, calls, .. } = message;
        let [ContentPart::Text(said)] = &parts[..] else { panic!("one text") };
        let shown = |call: ToolCall| match call.arguments {
            ToolCallArguments::Object(members) => format!("{}{}", call.name, Value::from(members)),
            ToolCallArguments::Text(text) => panic!("{text:?}: markup of tool calls has objects"),
        };
        (reasoning, said.clone(), calls.into_iter().map(shown).collect())
    }

    #[test]
    fn thoughts_and_tool_calls_are_moved_to_their_fields() {
        let moved = |text: &str, thought: &str, said: &str, calls: &[&str]| {
            let calls = calls.iter().map(ToString::to_string).collect();
            assert_eq!(split(text), (thought.to_owned(), said.to_owned(), calls), "{text:?}");
        };
        moved("<think>\nso\n</think>\n\nIt is 5.", "so", "It is 5.", &[]);
        moved("so</think>\n\nIt is 5.", "so", "It is 5.", &[]);
        moved("<think>\n\n</think>\n\nIt is 5.", "", "It is 5.", &[]);
        let call = r#"<tool_call>
{"name": "read", "arguments": {"b": "</tool_call>", "a": [1.0, null]}}
</tool_call>"#;
        let shown = r#"read{"b":"</tool_call>","a":[1.0,null]}"#;
        moved(call, "", "", &[shown]);
        moved(&format!("Let me see.\n\n{call}\n{call}\n"), "", "Let me see.", &[shown, shown]);
        moved(&format!("<think>\nfiles\n</think>\n\n{call}"), "files", "", &[shown]);
        let tags = "<tool_call>\n<function=read>\n<parameter=path>\na\n b\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>";
        moved(tags, "", "", &[r#"read{"path":"a\n b","n":"5"}"#]);
        moved("<tool_call>{\"name\": \"time\"}</tool_call>", "", "", &["time{}"]);
    }

    #[test]
    fn markup_that_no_model_writes_stays_text() {
        for text in [
            "The tag </think> closes a thought.",
            "<think>never closed",
            "<think><think></think>",
            "See <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> and more",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}",
            "<tool_call>{\"name\": \"f\", \"arguments\": []}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"other\": 1}</tool_call>",
            "<tool_call>{\"name\": \"<|im_end|>\"}</tool_call>",
            "<tool_call>not JSON</tool_call>",
            "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        ] {
            assert_eq!(split(text), (String::new(), text.to_owned(), vec![]), "{text:?}");
        }
    }

    #[test]
    fn fields_that_are_set_and_other_roles_are_left_alone() {
        let thinks = "<think>a</think>b";
        let user = Message::new(Role::User, vec![thinks.into()]);
        let set = Message { reasoning: "set".into(), ..message(thinks) };
        let none = AssistantMarkup::default();
        for (markup, message) in [(BOTH, user), (BOTH, set), (none, message(thinks))] {
            let mut moved = message.clone();
            markup.move_to_fields(&mut moved);
            assert_eq!(moved, message);
        }
    }

    #[test]
    fn a_long_text_of_open_tool_calls_is_parsed_in_linear_time() {
        let text = "\n<tool_call>{\"name\": \"f\"}</tool_call>".repeat(30_000) + "x";
        let none = || calls(&text).is_none() && calls(&"\n<tool_call>".repeat(90_000)).is_none();
        let (none, took) = crate::time_of(none);
        assert!(none && took.as_secs() < 20, "{took:?}");
    }
}
