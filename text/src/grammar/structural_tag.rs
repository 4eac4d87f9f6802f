//! Structural tags, by which a router constrains answers in channels (Harmony): a schema of the
//! answer's text, or tool calls. The algorithm: the tags are read for what they ask, and the frame of
//! the model's family is written for that, as for a conversation. The router's own characters around
//! a schema are not used.
//!
//! Source: the two forms that smg makes for gpt-oss, `triggered_tags` of `XGrammar`.

use std::collections::HashSet;

use paceline_vocabulary::generation::TextForm;
use serde_json::{Map, Value};

use super::check::check_size;
use super::{AnswerForm, CallableTool};
use crate::error::FieldError;
use crate::json::JsonBudget;
use crate::prompt::conversation::ToolCallRule;

/// Begin of a channel.
const CHANNEL: &str = "<|channel|>";
/// Begin of a message in a channel.
const MESSAGE: &str = "<|message|>";
/// Begin of another message of the assistant.
const START: &str = "<|start|>assistant";
/// Receiver of a tool call.
const RECEIVER: &str = " to=functions.";

impl AnswerForm {
    /// Constraints that a structural tag asks for. `field` is its field in the request.
    ///
    /// # Errors
    /// It is no JSON object of one of the two forms.
    pub fn of_structural_tag(field: &str, tag: &str) -> Result<Self, FieldError> {
        check_size(field, tag)?;
        let whole = JsonBudget::default().object(field, &tag.into())?;
        let format = whole.get("format").and_then(Value::as_object);
        let of_type = |format: &&Map<String, Value>| format["type"] == "triggered_tags";
        let format = format.filter(|format| format.contains_key("type")).filter(of_type);
        let tags = format.and_then(|format| format.get("tags")).and_then(Value::as_array);
        let (Some(format), Some(tags)) = (format, tags) else {
            let expected = "an object with a format of type triggered_tags and its tags";
            return Err(FieldError::new(field, expected, "another one"));
        };
        let mut form = Self::default();
        let mut names = HashSet::new();
        for (at, tag) in tags.iter().enumerate() {
            match wanted(tag) {
                Some(WantedContent::Thought) => {}
                Some(WantedContent::Text(schema)) => {
                    form.text = Some(TextForm::JsonSchema(Value::Object(schema).to_string()));
                }
                // A tool has a tag for each place in which its call may stand.
                Some(WantedContent::Call { name, parameters }) if names.insert(name.clone()) => {
                    let field = field.to_owned();
                    form.tools.push(CallableTool { name, parameters, strict: true, field });
                }
                Some(WantedContent::Call { .. }) => {}
                None => {
                    let field = format!("{field}.format.tags[{at}]");
                    let expected =
                        "a thought, a schema of the final channel, or a tool's arguments";
                    return Err(FieldError::new(&field, expected, "another tag"));
                }
            }
        }
        let is_one = format.get("stop_after_first") == Some(&Value::Bool(true));
        form.calls = match form.tools.as_slice() {
            [] => ToolCallRule::Auto,
            [only] if is_one => ToolCallRule::Named(only.name.clone()),
            _ => ToolCallRule::Required,
        };
        if form.is_free() {
            let expected = "at least one tag with a schema";
            return Err(FieldError::new(field, expected, "none"));
        }
        Ok(form)
    }
}

/// What a tag asks.
enum WantedContent {
    /// A thought, in any words.
    Thought,
    /// The answer's text is of this schema.
    Text(Map<String, Value>),
    /// A call of this tool.
    Call { name: String, parameters: Map<String, Value> },
}

/// What a tag asks; `None` if it is of another form.
fn wanted(tag: &Value) -> Option<WantedContent> {
    let begin = tag.get("begin")?.as_str()?;
    let begin = begin.strip_prefix(START).unwrap_or(begin);
    let head = begin.strip_prefix(CHANNEL)?.strip_suffix(MESSAGE)?;
    let content = tag.get("content")?;
    match (content.get("type")?.as_str()?, head.split_once(RECEIVER)) {
        ("any_text", None) if head.starts_with("analysis") => Some(WantedContent::Thought),
        ("json_schema", None) if head.starts_with("final") => {
            Some(WantedContent::Text(schema(content)?))
        }
        ("json_schema", Some((_, name))) => {
            let name = name.split("<|").next().unwrap_or_default().trim().to_owned();
            let parameters = schema(content)?;
            (!name.is_empty()).then_some(WantedContent::Call { name, parameters })
        }
        _ => None,
    }
}

fn schema(content: &Value) -> Option<Map<String, Value>> {
    content.get("json_schema")?.as_object().cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(start: &str, name: &str) -> Value {
        let begin =
            format!("{start}<|channel|>commentary to=functions.{name}<|constrain|>json<|message|>");
        let content = json!({"type": "json_schema", "json_schema": {"type": "object"}});
        json!({"begin": begin, "content": content, "end": ""})
    }

    fn read(tags: &[Value], more: &Value) -> Result<AnswerForm, FieldError> {
        let mut format = json!({"type": "triggered_tags", "triggers": [], "tags": tags});
        for (name, value) in more.as_object().expect("an object") {
            format[name] = value.clone();
        }
        AnswerForm::of_structural_tag("tag", &json!({ "format": format }).to_string())
    }

    #[test]
    fn tool_calls_of_channels_are_forced() {
        let tags = [call(START, "add"), call("", "add"), call("", "sub")];
        let form = read(&tags, &json!({"stop_after_first": false})).expect("calls");
        let names: Vec<&str> = form.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((names, &form.calls), (vec!["add", "sub"], &ToolCallRule::Required));
        assert!(form.tools.iter().all(|tool| tool.strict));
        let one = read(&tags[..2], &json!({"stop_after_first": true})).expect("a call");
        assert_eq!(one.calls, ToolCallRule::Named("add".into()));
    }

    #[test]
    fn a_schema_of_the_final_channel_is_one_of_the_text() {
        let thought = json!({"begin": "<|channel|>analysis<|message|>", "content": {"type": "any_text"}, "end": "<|end|>"});
        let content = json!({"type": "json_schema", "json_schema": {"type": "object"}});
        let begin = "<|channel|>final<|constrain|>json<|message|>";
        let text = json!({"begin": begin, "content": content, "end": ""});
        let form = read(&[thought.clone(), text], &json!({})).expect("a text");
        assert_eq!(form.text, Some(TextForm::JsonSchema("{\"type\":\"object\"}".into())));
        assert_eq!((form.tools.len(), form.calls), (0, ToolCallRule::Auto));
        assert!(read(&[thought], &json!({})).is_err(), "it constrains nothing");
    }

    #[test]
    fn other_tags_are_refused_by_their_place() {
        let refused = |tag: Value| read(&[call("", "f"), tag], &json!({})).expect_err("refused");
        let other = json!({"begin": "<tool>", "content": {"type": "any_text"}, "end": "</tool>"});
        let nameless = call("", "");
        let mut unknown = call("", "g");
        unknown["content"]["type"] = "regex".into();
        for tag in [other, nameless, unknown, json!(3), json!({})] {
            assert_eq!(refused(tag).field, "tag.format.tags[1]");
        }
        for text in
            ["", "[]", "{}", "{\"format\":{\"type\":\"sequence\",\"tags\":[]}}", "{\"format\":{}}"]
        {
            let refused = AnswerForm::of_structural_tag("tag", text).expect_err(text);
            assert!(refused.field.starts_with("tag"), "{refused:?}");
        }
    }
}
