//! Fields of the OpenAI API that are accepted and not read, each with the client that sends it.
//!
//! vllm-router writes every request of chat and completions again, with the fields of the engines
//! that it knows and their default values. `skip_special_tokens` and `ignore_eos` are among them,
//! and are served.

use crate::accepted::{Accepted, LENGTHS, REASONING_DETAILS, TIERS, Values, accepted};

/// The router for engines that speak as vLLM does (tried: 0.1.17).
const VLLM_ROUTER: &str = "vllm-router";

/// Of a request of `/v1/chat/completions`.
pub const CHAT: &[Accepted] = &[
    accepted("add_generation_prompt", Values::Boolean(true), "clients of vLLM"),
    accepted("audio", Values::Null, "openai (Python), where it is set to None"),
    accepted("cache_prompt", Values::Any, "clients of llama.cpp; the prefix cache decides"),
    accepted("continue_final_message", Values::Boolean(false), "clients of vLLM"),
    accepted("function_call", Values::Words(&["auto"]), "clients of before the field `tools`"),
    accepted("functions", Values::Empty, "clients of before the field `tools`"),
    accepted("include_reasoning", Values::Boolean(true), "clients of OpenRouter"),
    accepted("metadata", Values::Any, "openai (Python)"),
    accepted("modalities", Values::ListOf("text"), "openai (Python)"),
    accepted("moderation", Values::Null, "openai (Python), where it is set to None"),
    accepted("no_stop_trim", Values::Boolean(false), VLLM_ROUTER),
    accepted("num_ctx", Values::Any, "clients of Ollama; the context is the service's"),
    accepted("prediction", Values::Null, "Continue, where it has none"),
    accepted("prompt_cache_key", Values::Any, "opencode, Zed"),
    accepted("prompt_cache_options", Values::Any, "openai (Python)"),
    accepted("prompt_cache_retention", Values::Any, "openai (Python)"),
    accepted("return_hidden_states", Values::Boolean(false), VLLM_ROUTER),
    accepted("safety_identifier", Values::Any, "openai (Python)"),
    accepted("separate_reasoning", Values::Boolean(true), VLLM_ROUTER),
    accepted("service_tier", TIERS, "openai (Python); all requests have one tier"),
    accepted("store", Values::Boolean(false), "opencode"),
    accepted("stream_reasoning", Values::Boolean(true), VLLM_ROUTER),
    accepted("user", Values::Any, "Open WebUI, opencode"),
    accepted("verbosity", LENGTHS, "opencode, Codex CLI; the model is not told of it"),
    accepted("web_search_options", Values::Null, "openai (Python), where it is set to None"),
];

/// Of a message of a conversation. Clients resend an assistant's message with all its fields. Its
/// text is whole without its sources (`annotations`) and its value in their language (`parsed`).
pub const MESSAGE: &[Accepted] = &[
    accepted("annotations", Values::Any, "openai (Python), in messages that it resends"),
    accepted("audio", Values::Any, "openai (Python), in messages that it resends"),
    accepted("cache_control", Values::Any, "opencode"),
    accepted("function_call", Values::Null, "openai (Python), in messages that it resends"),
    accepted("parsed", Values::Any, "openai (Python), in messages of `parse()`"),
    accepted("provider_specific_fields", Values::Any, "litellm, in messages that it resends"),
    REASONING_DETAILS,
    accepted("thinking_blocks", Values::Any, "litellm, in messages that it resends"),
];

/// Of a called function, whose arguments are there as text.
pub const CALLED: &[Accepted] =
    &[accepted("parsed_arguments", Values::Any, "openai (Python), of `parse()` and `.stream()`")];

/// Of the fields that say whether the model thinks.
pub const THINKING: &[Accepted] =
    &[accepted("clear_thinking", Values::Any, "clients of GLM; the template decides")];

/// Of OpenRouter's `reasoning`.
pub const REASONING: &[Accepted] = &[
    accepted("exclude", Values::Boolean(false), "clients of OpenRouter"),
    accepted("summary", Values::Any, "clients of OpenRouter; thoughts come whole"),
];

/// Of a part of a message's content.
pub const PART: &[Accepted] = &[
    accepted("cache_control", Values::Any, "opencode, Cline"),
    accepted("prompt_cache_breakpoint", Values::Any, "openai (Python)"),
];

/// Of a tool.
pub const TOOL: &[Accepted] = &[accepted("cache_control", Values::Any, "Cline")];

/// Of a tool call.
pub const TOOL_CALL: &[Accepted] =
    &[accepted("index", Values::Any, "clients that resend streamed tool calls")];

/// Of the options of a stream.
pub const STREAM: &[Accepted] = &[
    accepted("continuous_usage_stats", Values::Boolean(false), "clients of vLLM"),
    accepted("include_obfuscation", Values::Boolean(false), "openai (Python)"),
];

/// Of a request of `/v1/completions`.
pub const COMPLETIONS: &[Accepted] = &[
    accepted("add_special_tokens", Values::Boolean(true), "clients of vLLM"),
    accepted("cache_prompt", Values::Any, "clients of llama.cpp; the prefix cache decides"),
    accepted("no_stop_trim", Values::Boolean(false), VLLM_ROUTER),
    accepted("num_ctx", Values::Any, "clients of Ollama; the context is the service's"),
    accepted("return_hidden_states", Values::Boolean(false), VLLM_ROUTER),
    accepted("user", Values::Any, "openai (Python)"),
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::accepted::check;
    use crate::json::AnyObject;

    fn refused(rest: Value, table: &[Accepted]) -> Option<String> {
        let Value::Object(rest) = rest else { panic!("an object") };
        Some(check("messages[1].", &AnyObject(rest), table).err()?.field.expect("a field"))
    }

    #[test]
    fn values_that_would_change_something_are_refused() {
        let changing = json!({
            "audio": {"voice": "a"}, "functions": [{"name": "f"}], "function_call": {"name": "f"},
            "modalities": ["text", "audio"], "prediction": {"type": "content"},
            "service_tier": "other", "store": true, "verbosity": "longest", "web_search_options": {},
            "moderation": {"model": "m"}, "no_stop_trim": true, "return_hidden_states": true,
            "separate_reasoning": false, "stream_reasoning": false,
        });
        let Value::Object(changing) = changing else { panic!("an object") };
        for (name, value) in changing {
            let found = refused(json!({ (name.as_str()): value }), CHAT).expect("refused");
            assert_eq!(found, format!("messages[1].{name}"));
        }
        assert!(refused(json!({"include_reasoning": false}), CHAT).is_some());
    }

    #[test]
    fn values_that_change_nothing_are_accepted() {
        let unchanging = json!({
            "audio": null, "functions": [], "modalities": ["text"], "user": "u",
            "metadata": {"a": "b"}, "service_tier": "auto", "store": false, "verbosity": "medium",
            "prompt_cache_key": "k", "prediction": null, "no_stop_trim": false,
            "return_hidden_states": false, "separate_reasoning": true, "stream_reasoning": true,
        });
        assert_eq!(refused(unchanging, CHAT), None);
        let completed = json!({"no_stop_trim": false, "return_hidden_states": false});
        assert_eq!(refused(completed, COMPLETIONS), None);
        let resent =
            json!({"annotations": [], "audio": null, "function_call": null, "parsed": null});
        assert_eq!(refused(resent, MESSAGE), None);
    }

    #[test]
    fn each_table_has_each_field_once() {
        for table in
            [CHAT, MESSAGE, PART, TOOL, TOOL_CALL, CALLED, STREAM, THINKING, REASONING, COMPLETIONS]
        {
            for (at, one) in table.iter().enumerate() {
                assert!(table[..at].iter().all(|other| other.field != one.field), "{}", one.field);
                assert!(!one.client.is_empty());
            }
        }
    }
}
