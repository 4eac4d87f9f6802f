//! Fields of the OpenAI API that are accepted and not read, each with the client that sends it.

use crate::front::http::accepted::{Accepted, Values, accepted};

/// Of a request of `/v1/chat/completions`.
pub const CHAT: &[Accepted] = &[
    accepted("audio", Values::Null, "openai (Python), where it is set to None"),
    accepted("function_call", Values::Words(&["auto"]), "clients of before the field `tools`"),
    accepted("functions", Values::Empty, "clients of before the field `tools`"),
    accepted("metadata", Values::Any, "openai (Python)"),
    accepted("modalities", Values::ListOf("text"), "openai (Python)"),
    accepted("moderation", Values::Null, "openai (Python), where it is set to None"),
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
pub const FUNCTION: &[Accepted] = &[];

/// Of the form of an answer.
pub const FORMAT: &[Accepted] = &[];

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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::front::http::accepted::check;
    use crate::front::http::json::AnyObject;

    fn refused(rest: Value, table: &[Accepted]) -> Option<String> {
        let Value::Object(rest) = rest else { panic!("an object") };
        Some(check("messages[1].", &AnyObject(rest), table).err()?.field.expect("a field"))
    }

    #[test]
    fn values_that_would_change_something_are_refused() {
        let changing = json!({
            "audio": {"voice": "a"}, "functions": [{"name": "f"}], "function_call": {"name": "f"},
            "modalities": ["text", "audio"], "prediction": {"type": "content"},
            "service_tier": "flex", "store": true, "verbosity": "high", "web_search_options": {},
            "moderation": {"model": "m"},
        });
        let Value::Object(changing) = changing else { panic!("an object") };
        for (name, value) in changing {
            let found = refused(json!({ (name.as_str()): value }), CHAT).expect("refused");
            assert_eq!(found, format!("messages[1].{name}"));
        }
        assert!(refused(json!({"refusal": "no"}), MESSAGE).is_some(), "its text would be dropped");
        assert!(refused(json!({"detail": "low"}), IMAGE).is_some());
        assert!(refused(json!({"output_schema": {}}), FUNCTION).is_some());
        assert!(refused(json!({"suffix": "x"}), COMPLETIONS).is_some());
    }

    #[test]
    fn values_that_change_nothing_are_accepted() {
        let unchanging = json!({
            "audio": null, "functions": [], "modalities": ["text"], "user": "u",
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
        for table in [CHAT, MESSAGE, PART, IMAGE, TOOL, FUNCTION, FORMAT, CALL, STREAM, COMPLETIONS]
        {
            for (at, one) in table.iter().enumerate() {
                assert!(table[..at].iter().all(|other| other.field != one.field), "{}", one.field);
                assert!(!one.client.is_empty());
            }
        }
    }
}
