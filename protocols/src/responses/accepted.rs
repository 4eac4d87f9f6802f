//! Fields of the Responses protocol that are accepted and not read, each with the client that sends
//! it.

use crate::accepted::{Accepted, LENGTHS, REASONING_DETAILS, TIERS, Values, accepted};

/// Of a request. `store: true` would promise that a later request can name this one, and the service
/// keeps none. Clients that resend the conversation send false or nothing.
pub const REQUEST: &[Accepted] = &[
    accepted("background", Values::Boolean(false), "openai (Python)"),
    accepted("client_metadata", Values::Any, "Codex CLI"),
    accepted("context_management", Values::Empty, "openai (Python)"),
    accepted("conversation", Values::Null, "openai (Python), where it is set to None"),
    accepted("max_tool_calls", Values::Any, "openai (Python); the service calls no tool itself"),
    accepted("moderation", Values::Null, "openai (Python), where it is set to None"),
    accepted("previous_response_id", Values::Null, "clients that resend the conversation"),
    accepted("prompt", Values::Null, "openai (Python), where it is set to None"),
    accepted("prompt_cache_key", Values::Any, "Codex CLI; the prefix cache needs no key"),
    accepted("prompt_cache_options", Values::Any, "openai (Python)"),
    accepted("prompt_cache_retention", Values::Any, "openai (Python)"),
    accepted("safety_identifier", Values::Any, "openai (Python)"),
    accepted("service_tier", TIERS, "Codex CLI, openai (Python); all requests have one tier"),
    accepted("store", Values::Boolean(false), "Codex CLI"),
    accepted("stream_options", Values::Any, "Codex CLI; there is no obfuscation here"),
    accepted("user", Values::Any, "openai (Python)"),
];

/// Of an item that a client resends. The arguments of a tool call are there as text.
pub const ITEM: &[Accepted] = &[
    accepted("caller", Values::Any, "openai (Python), in items that it resends"),
    accepted("environment", Values::Any, "openai (Python), in calls of a shell that it resends"),
    accepted("id", Values::Any, "openai (Python), Codex CLI, in items that they resend"),
    accepted("internal_chat_message_metadata_passthrough", Values::Any, "Codex CLI, in messages"),
    accepted("max_output_length", Values::Any, "openai (Python), in items of a shell"),
    accepted("name", Values::Any, "Codex CLI, in answers of tools; the tool call has the name"),
    accepted("namespace", Values::Any, "openai (Python), in answers of tools"),
    accepted("parsed_arguments", Values::Any, "openai (Python), in tool calls of `parse()`"),
    accepted("phase", Values::Any, "Codex CLI, in messages that it resends"),
    REASONING_DETAILS,
    accepted("role", Values::Words(&["developer"]), "Codex CLI, in further tools"),
    accepted("status", Values::Any, "openai (Python), in items that it resends"),
];

/// Types of items that another service made, for itself or of a tool that it ran: summaries that only
/// it reads, searches, programs, images, tools of servers. The model is not shown them.
pub const OTHER_SERVICES_ITEMS: &[&str] = &[
    "code_interpreter_call",
    "compaction",
    "compaction_summary",
    "computer_call",
    "computer_call_output",
    "context_compaction",
    "file_search_call",
    "ghost_snapshot",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "other",
    "program",
    "program_output",
    "web_search_call",
];

/// Tools that OpenAI's service runs itself. Their types may end with a date.
const PROVIDER_TOOLS: &[&str] = &[
    "code_interpreter",
    "file_search",
    "image_generation",
    "mcp",
    "programmatic_tool_calling",
    "tool_search",
    "web_search",
    "web_search_preview",
];

/// Whether a tool of this type is one that OpenAI's service runs itself. The model is not told of it,
/// so it does not try.
pub fn is_run_by_provider(kind: &str) -> bool {
    let is_date = |date: &str| {
        date.len() == "2025_08_26".len()
            && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
    };
    PROVIDER_TOOLS.iter().any(|known| {
        let rest = kind.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('_').is_some_and(is_date))
    })
}

/// Of a text. It is whole without its sources (`annotations`) and its value in the client's language
/// (`parsed`).
pub const TEXT: &[Accepted] = &[
    accepted("annotations", Values::Any, "openai (Python), in messages that it resends"),
    accepted("logprobs", Values::Any, "openai (Python), in messages that it resends"),
    accepted("parsed", Values::Any, "openai (Python), in messages of `parse()`"),
    accepted("prompt_cache_breakpoint", Values::Any, "openai (Python)"),
];

/// Of an image and of a sound.
pub const IMAGE: &[Accepted] =
    &[accepted("prompt_cache_breakpoint", Values::Any, "openai (Python)")];

/// Of a file.
pub const FILE: &[Accepted] = &[
    accepted("detail", Values::Any, "openai (Python); a text is read whole"),
    accepted("prompt_cache_breakpoint", Values::Any, "openai (Python)"),
];

/// Fields of a function that Responses clients send and that change nothing.
pub const FUNCTION: &[Accepted] = &[
    accepted("allowed_callers", Values::ListOf("direct"), "openai (Python)"),
    accepted("output_schema", Values::Any, "Codex CLI; the model is not told of it"),
];

/// Of the client's search for tools where a choice of tools names it.
pub const CHOSEN_SEARCH: &[Accepted] = &[
    accepted("description", Values::Any, "clients that repeat the definition of the search"),
    accepted("execution", Values::Words(&["client"]), "clients that repeat the definition"),
    accepted("parameters", Values::Any, "clients that repeat the definition of the search"),
];

/// Of another tool, and of a group of tools.
pub const TOOL: &[Accepted] = &[
    accepted("allowed_callers", Values::ListOf("direct"), "openai (Python)"),
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
pub const TEXT_CONFIG: &[Accepted] = &[accepted("verbosity", LENGTHS, "Codex CLI")];

/// Of a format of text.
pub const FORMAT: &[Accepted] = &[
    accepted("description", Values::Any, "openai (Python); the model is not told of it"),
    accepted("strict", Values::Any, "Codex CLI; answers always follow the schema"),
];

/// Values of `include`, with the client that sends each. Answers only ever have the first two.
pub const INCLUDE: &[(&str, &str)] = &[
    (ENCRYPTED_REASONING, "Codex CLI"),
    (LOGPROBS, "openai (Python)"),
    ("code_interpreter_call.outputs", "openai-agents; the service makes no such tool call"),
    ("computer_call_output.output.image_url", "openai-agents; the service makes no such tool call"),
    ("file_search_call.results", "openai-agents; the service makes no such tool call"),
    ("message.input_image.image_url", "openai (Python); the service keeps no image"),
    ("web_search_call.action.sources", "Codex CLI; the service makes no such tool call"),
    ("web_search_call.results", "openai-agents; the service makes no such tool call"),
];

/// Asks for thoughts in a form that the client resends.
pub const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// Asks for the log-probabilities of a message's tokens.
pub const LOGPROBS: &str = "message.output_text.logprobs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_the_provider_are_known_with_any_date() {
        for kind in [
            "web_search",
            "web_search_2025_08_26",
            "web_search_preview_2025_03_11",
            "mcp",
            "tool_search",
        ] {
            assert!(is_run_by_provider(kind), "{kind}");
        }
        // The client runs these, and only OpenAI's models know their arguments.
        for kind in ["computer_use_preview", "local_shell", "web_search_x", "function", ""] {
            assert!(!is_run_by_provider(kind), "{kind}");
        }
    }
}
