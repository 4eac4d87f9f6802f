//! Fields of the Responses protocol that are accepted and not read, each with the client that sends
//! it.

use crate::front::http::accepted::{Accepted, Values, accepted};

/// Of a request. `store: true` would promise that a later request can name this one, and the service
/// keeps none. Clients that resend the conversation send false or nothing.
pub const REQUEST: &[Accepted] = &[
    accepted("background", Values::Boolean(false), "openai (Python)"),
    accepted("client_metadata", Values::Any, "Codex CLI"),
    accepted("context_management", Values::Empty, "openai (Python)"),
    accepted("conversation", Values::Null, "openai (Python), where it is set to None"),
    accepted("max_tool_calls", Values::Null, "openai (Python), where it is set to None"),
    accepted("moderation", Values::Null, "openai (Python), where it is set to None"),
    accepted("previous_response_id", Values::Null, "clients that resend the conversation"),
    accepted("prompt", Values::Null, "openai (Python), where it is set to None"),
    accepted("prompt_cache_key", Values::Any, "Codex CLI; the prefix cache needs no key"),
    accepted("prompt_cache_options", Values::Any, "openai (Python)"),
    accepted("prompt_cache_retention", Values::Any, "openai (Python)"),
    accepted("safety_identifier", Values::Any, "openai (Python)"),
    accepted("service_tier", Values::Words(&["auto", "default"]), "Codex CLI"),
    accepted("store", Values::Boolean(false), "Codex CLI"),
    accepted("stream_options", Values::Any, "Codex CLI; there is no obfuscation here"),
    accepted("truncation", Values::Words(&["disabled"]), "openai (Python)"),
    accepted("user", Values::Any, "openai (Python)"),
];

/// Of an item that a client resends.
pub const ITEM: &[Accepted] = &[
    accepted("caller", Values::Null, "openai (Python), in items that it resends"),
    accepted("id", Values::Any, "openai (Python), Codex CLI, in items that they resend"),
    accepted(
        "internal_chat_message_metadata_passthrough",
        Values::Any,
        "Codex CLI, in items that it resends",
    ),
    accepted("name", Values::Any, "Codex CLI, in answers of tools; the call has the name"),
    accepted("namespace", Values::Any, "openai (Python), in answers of tools"),
    accepted("phase", Values::Any, "Codex CLI, in messages that it resends"),
    accepted("role", Values::Words(&["developer"]), "Codex CLI, in further tools"),
    accepted("status", Values::Any, "openai (Python), in items that it resends"),
];

/// Of a text.
pub const TEXT: &[Accepted] = &[
    accepted("annotations", Values::Empty, "openai (Python), in messages that it resends"),
    accepted("logprobs", Values::Any, "openai (Python), in messages that it resends"),
    accepted("prompt_cache_breakpoint", Values::Any, "openai (Python)"),
];

/// Of an image.
pub const IMAGE: &[Accepted] = &[
    accepted("detail", Values::Words(&["auto", "high", "original"]), "Codex CLI"),
    accepted("file_id", Values::Null, "openai (Python), where it is set to None"),
    accepted("prompt_cache_breakpoint", Values::Any, "openai (Python)"),
];

/// Fields of a function that Responses clients send and that change nothing.
pub const FUNCTION: &[Accepted] = &[
    accepted("allowed_callers", Values::ListOf("direct"), "openai (Python)"),
    accepted("defer_loading", Values::Boolean(false), "Codex CLI"),
    accepted("output_schema", Values::Any, "Codex CLI; the model is not told of it"),
];

/// Of another tool, and of a group of tools.
pub const TOOL: &[Accepted] = &[
    accepted("allowed_callers", Values::ListOf("direct"), "openai (Python)"),
    accepted("defer_loading", Values::Boolean(false), "Codex CLI"),
    accepted("output_schema", Values::Any, "Codex CLI; the model is not told of it"),
    accepted("strict", Values::Boolean(false), "Codex CLI, which sends it of every tool"),
];

/// Of reasoning.
pub const REASONING: &[Accepted] = &[
    accepted("context", Values::Any, "Codex CLI"),
    accepted("generate_summary", Values::Any, "openai (Python)"),
    accepted("summary", Values::Any, "Codex CLI; thoughts come whole and not as a summary"),
];

/// Of the form of text.
pub const TEXT_CONFIG: &[Accepted] =
    &[accepted("verbosity", Values::Words(&["low", "medium", "high"]), "Codex CLI")];

/// Of a format of text.
pub const FORMAT: &[Accepted] = &[
    accepted("description", Values::Any, "openai (Python); the model is not told of it"),
    accepted("strict", Values::Any, "Codex CLI; answers always follow the schema"),
];

/// What an answer may be asked to include, with the client that asks. The last is never there.
pub const INCLUDE: &[(&str, &str)] = &[
    (ENCRYPTED_REASONING, "Codex CLI"),
    (LOGPROBS, "openai (Python)"),
    ("web_search_call.action.sources", "Codex CLI; the service makes no such call"),
];

/// Asks for thoughts in a form that the client resends.
pub const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// Asks for the log-probabilities of a message's tokens.
pub const LOGPROBS: &str = "message.output_text.logprobs";
