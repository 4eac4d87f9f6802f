//! Fields of requests that no part of the service reads and that are accepted nevertheless: clients
//! of the protocol always send them, and the answer is the same without them.
//!
//! Each field stands here once, with the values that change nothing and the client that sends it.
//! Another value, and a field that is in no table, is refused by its path (I5).

use serde_json::{Map, Value};

use crate::inference::error::{InferenceError, quoted};

/// The fields of one object besides those that are served.
pub type Rest = Map<String, Value>;

/// A field that is accepted and not read.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Its name.
    pub field: &'static str,
    /// The values that change nothing. `null` is always one of them.
    pub values: Values,
    /// Who sends it.
    pub client: &'static str,
}

/// Values of a field that change nothing.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Every value.
    Any,
    /// None but `null`: the protocol has the field, and the service does not serve it.
    Null,
    /// `null`, an empty text, list or object.
    Empty,
    /// This boolean.
    Boolean(bool),
    /// One of these texts.
    Words(&'static [&'static str]),
    /// A list of this one text.
    ListOf(&'static str),
}

const fn accepted(field: &'static str, values: Values, client: &'static str) -> Accepted {
    Accepted { field, values, client }
}

/// Of a request of `/v1/chat/completions`.
pub const CHAT: &[Accepted] = &[
    accepted("audio", Values::Null, "openai (Python), where it is set to None"),
    accepted("function_call", Values::Words(&["auto"]), "clients of before the field `tools`"),
    accepted("functions", Values::Empty, "clients of before the field `tools`"),
    accepted("metadata", Values::Any, "openai (Python)"),
    accepted("modalities", Values::ListOf("text"), "openai (Python)"),
    accepted("moderation", Values::Null, "openai (Python), where it is set to None"),
    accepted("parallel_tool_calls", Values::Boolean(true), "Cline, Zed"),
    accepted("prediction", Values::Null, "Continue, where it has none"),
    accepted("prompt_cache_key", Values::Any, "opencode, Zed"),
    accepted("prompt_cache_options", Values::Any, "openai (Python)"),
    accepted("prompt_cache_retention", Values::Any, "openai (Python)"),
    accepted("safety_identifier", Values::Any, "openai (Python)"),
    accepted("service_tier", Values::Words(&["auto", "default"]), "openai (Python)"),
    accepted("store", Values::Boolean(false), "opencode"),
    accepted("user", Values::Any, "Open WebUI, opencode"),
    accepted("verbosity", Values::Words(&["medium"]), "opencode"),
    accepted("web_search_options", Values::Null, "openai (Python), where it is set to None"),
];

/// Of a message of a conversation. Clients resend an assistant's message with all its fields.
pub const MESSAGE: &[Accepted] = &[
    accepted("annotations", Values::Empty, "openai (Python), in messages that it resends"),
    accepted("audio", Values::Null, "openai (Python), in messages that it resends"),
    accepted("cache_control", Values::Any, "opencode"),
    accepted("function_call", Values::Null, "openai (Python), in messages that it resends"),
    accepted("reasoning_details", Values::Empty, "Cline"),
    accepted("refusal", Values::Empty, "openai (Python), in messages that it resends"),
];

/// Of a part of a message's content.
pub const PART: &[Accepted] = &[
    accepted("cache_control", Values::Any, "opencode, Cline"),
    accepted("prompt_cache_breakpoint", Values::Any, "openai (Python)"),
];

/// Of an image's address.
pub const IMAGE: &[Accepted] =
    &[accepted("detail", Values::Words(&["auto", "high"]), "Continue, openai (Python)")];

/// Of a tool.
pub const TOOL: &[Accepted] = &[accepted("cache_control", Values::Any, "Cline")];

/// Of a tool's function.
pub const FUNCTION: &[Accepted] = &[accepted("strict", Values::Boolean(false), "Cline")];

/// Of a call of a tool.
pub const CALL: &[Accepted] =
    &[accepted("index", Values::Any, "clients that resend streamed calls")];

/// Of the options of a stream.
pub const STREAM: &[Accepted] =
    &[accepted("include_obfuscation", Values::Boolean(false), "openai (Python)")];

/// Of a request of `/v1/completions`.
pub const COMPLETIONS: &[Accepted] = &[
    accepted("suffix", Values::Null, "Continue, where it has none"),
    accepted("user", Values::Any, "openai (Python)"),
];

/// Checks the fields of an object besides those that are served. `path` is the object's own: empty,
/// or with a dot at its end.
///
/// # Errors
/// A field that is not accepted, or not with its value.
pub fn check(path: &str, rest: &Rest, table: &[Accepted]) -> Result<(), InferenceError> {
    for (name, value) in rest {
        let field = format!("{path}{name}");
        match table.iter().find(|accepted| accepted.field == name) {
            None => {
                let found = "a field that this service does not serve";
                return Err(InferenceError::invalid(&field, "no such field", found));
            }
            Some(accepted) if accepted.values.have(value) => {}
            Some(accepted) => {
                let found = quoted(&value.to_string());
                return Err(InferenceError::invalid(&field, accepted.values.words(), found));
            }
        }
    }
    Ok(())
}

impl Values {
    /// Whether the value is one of them.
    fn have(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) | (Values::Any, _) => true,
            (Values::Empty, Value::String(text)) => text.is_empty(),
            (Values::Empty, Value::Array(list)) => list.is_empty(),
            (Values::Empty, Value::Object(object)) => object.is_empty(),
            (Values::Boolean(wanted), Value::Bool(found)) => wanted == *found,
            (Values::Words(words), Value::String(found)) => words.contains(&found.as_str()),
            (Values::ListOf(word), Value::Array(list)) => list.iter().all(|one| one == word),
            _ => false,
        }
    }

    /// The same in words, for a client.
    fn words(self) -> String {
        match self {
            Values::Any => "any value".to_owned(),
            Values::Null | Values::Empty => {
                "no value, because this service does not serve the field".to_owned()
            }
            Values::Boolean(value) => format!("{value}, the one value that is served"),
            Values::Words(words) => format!("one of {words:?}, the values that are served"),
            Values::ListOf(word) => format!("[{word:?}], the one value that is served"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(rest: Value, table: &[Accepted]) -> Option<(String, String)> {
        let Value::Object(rest) = rest else { panic!("an object") };
        let error = check("messages[1].", &rest, table).err()?;
        Some((error.field.expect("a field"), error.message))
    }

    #[test]
    fn a_field_in_no_table_is_refused_by_its_path() {
        let (field, message) = refused(json!({"guided_regex": "a*"}), CHAT).expect("refused");
        assert_eq!(field, "messages[1].guided_regex");
        assert!(message.contains("does not serve"), "{message}");
    }

    #[test]
    fn values_that_would_change_something_are_refused() {
        let changing = json!({
            "audio": {"voice": "a"}, "functions": [{"name": "f"}], "function_call": {"name": "f"},
            "modalities": ["text", "audio"], "parallel_tool_calls": false, "prediction": {"type": "content"},
            "service_tier": "flex", "store": true, "verbosity": "high", "web_search_options": {},
            "moderation": {"model": "m"},
        });
        let Value::Object(changing) = changing else { panic!("an object") };
        for (name, value) in changing {
            let found = refused(json!({ (name.as_str()): value }), CHAT).expect("refused");
            assert_eq!(found.0, format!("messages[1].{name}"));
        }
        assert!(refused(json!({"refusal": "no"}), MESSAGE).is_some(), "its text would be dropped");
        assert!(refused(json!({"detail": "low"}), IMAGE).is_some());
        assert!(refused(json!({"strict": true}), FUNCTION).is_some());
        assert!(refused(json!({"suffix": "x"}), COMPLETIONS).is_some());
    }

    #[test]
    fn values_that_change_nothing_are_accepted() {
        let unchanging = json!({
            "audio": null, "functions": [], "modalities": ["text"], "parallel_tool_calls": true, "user": "u",
            "metadata": {"a": "b"}, "service_tier": "auto", "store": false, "verbosity": "medium",
            "prompt_cache_key": "k", "prediction": null,
        });
        assert_eq!(refused(unchanging, CHAT), None);
        let resent =
            json!({"refusal": null, "annotations": [], "audio": null, "function_call": null});
        assert_eq!(refused(resent, MESSAGE), None);
        assert_eq!(refused(json!({"detail": "auto"}), IMAGE), None);
    }

    #[test]
    fn each_table_has_each_field_once() {
        for table in [CHAT, MESSAGE, PART, IMAGE, TOOL, FUNCTION, CALL, STREAM, COMPLETIONS] {
            for (at, one) in table.iter().enumerate() {
                assert!(table[..at].iter().all(|other| other.field != one.field), "{}", one.field);
                assert!(!one.client.is_empty());
            }
        }
    }
}
