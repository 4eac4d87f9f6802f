//! Fields of the Messages protocol that are accepted and not read, each with the client that sends
//! it, and the values of read fields that change nothing.

use serde_json::Value;

use crate::accepted::{Accepted, REASONING_DETAILS, Values, accepted};
use crate::inference::error::{Result, quoted, refuse};
use crate::json::AnyObject;

/// Of a request.
pub const REQUEST: &[Accepted] = &[
    accepted("betas", Values::Any, "anthropic (Python), which also sends them as a header"),
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("compaction", Values::Null, "anthropic (Python), where it is set to None"),
    accepted("container", Values::Null, "anthropic (Python), where it is set to None"),
    accepted("diagnostics", Values::Any, "Claude Code, for its own statistics of cache misses"),
    accepted("fallbacks", Values::Empty, "anthropic (Python), where it is set to None"),
    accepted("inference_geo", Values::Null, "anthropic (Python), where it is set to None"),
    accepted("mcp_servers", Values::Empty, "anthropic (Python)"),
    accepted("metadata", Values::Any, "Claude Code, with an id of its user"),
    accepted("service_tier", Values::Words(&["auto", "standard_only"]), "anthropic (Python)"),
    accepted("speed", Values::Words(&["standard"]), "Claude Code"),
    accepted("user_profile_id", Values::Any, "anthropic (Python)"),
    accepted("workspace_id", Values::Any, "anthropic (Python)"),
];

/// Of a message.
pub const MESSAGE: &[Accepted] = &[REASONING_DETAILS];

/// Of a text. It is whole without its sources.
pub const TEXT: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("citations", Values::Any, "anthropic (Python), in messages that it resends"),
];

/// Of an image.
pub const IMAGE: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("transformations", Values::Empty, "anthropic (Python)"),
];

/// Of a document, of what a search found and of the tabs of a browser.
pub const DOCUMENT: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("citations", Values::Any, "anthropic (Python); answers name no places"),
];

/// Of a file that Anthropic's service keeps.
pub const KEPT_FILE: &[Accepted] =
    &[accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks")];

/// Of a summary that Anthropic's service made.
pub const COMPACTION: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("encrypted_content", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("signature", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("tool_changes", Values::Any, "anthropic (Python); the changes stand in the messages"),
];

/// Of a mark that Anthropic's service left in a message: where another model went on, and the tools
/// of a server.
pub const PROVIDER_MARK: &[Accepted] = &[
    accepted("from", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("mcp_server_name", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("to", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("tools", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("trigger", Values::Any, "anthropic (Python), in messages that it resends"),
];

/// Of a thought. Thoughts are not signed here.
pub const THINKING: &[Accepted] =
    &[accepted("signature", Values::Any, "Claude Code, in messages that it resends")];

/// Of a tool call.
pub const TOOL_USE: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("caller", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("toolset_name", Values::Any, "anthropic (Python), in messages that it resends"),
];

/// Of a reference to a tool, and of a change of tools.
pub const TOOL_REFERENCE: &[Accepted] =
    &[accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks")];

/// Of the answer of a tool.
pub const TOOL_RESULT: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("toolset_name", Values::Any, "anthropic (Python), in messages that it resends"),
];

/// Of a tool call that Anthropic's service ran itself.
pub const PROVIDER_TOOL_USE: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("caller", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("server_name", Values::Any, "anthropic (Python), in calls of a server's tools"),
];

/// Of the result of a tool that Anthropic's service ran itself.
pub const PROVIDER_RESULT: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("caller", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("content", Values::Any, "anthropic (Python); the model is not shown it"),
    accepted("is_error", Values::Any, "anthropic (Python), in results of a server's tools"),
];

/// Of the result of a search for tools that Anthropic's service made.
pub const TOOL_SEARCH_RESULT: &[Accepted] = &[
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("caller", Values::Any, "anthropic (Python), in messages that it resends"),
];

/// Of a search for tools that failed.
pub const TOOL_SEARCH_ERROR: &[Accepted] = &[
    accepted("error_code", Values::Any, "anthropic (Python), in messages that it resends"),
    accepted("error_message", Values::Any, "anthropic (Python), in messages that it resends"),
];

/// Of a tool.
pub const TOOL: &[Accepted] = &[
    accepted("allowed_callers", Values::ListOf("direct"), "anthropic (Python)"),
    accepted("cache_control", Values::Any, "Claude Code; the prefix cache needs no marks"),
    accepted("eager_input_streaming", Values::Any, "Claude Code; arguments always stream"),
    accepted("input_examples", Values::Empty, "anthropic (Python)"),
];

/// Tools that Anthropic's service runs itself. Their types end with a date.
const PROVIDER_TOOLS: &[&str] = &[
    "advisor",
    "code_execution",
    "mcp_toolset",
    "tool_search_tool_bm25",
    "tool_search_tool_regex",
    "web_fetch",
    "web_search",
];

/// Whether a tool of this type is a search for tools that Anthropic's service makes.
pub fn is_hosted_search(kind: &str) -> bool {
    kind.starts_with("tool_search_tool_") && is_run_by_provider(kind)
}

/// Whether a tool of this type is one that Anthropic's service runs itself. The model is not told of
/// it, so it does not try.
pub fn is_run_by_provider(kind: &str) -> bool {
    let is_date = |date: &str| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
    let name = match kind.rsplit_once('_') {
        Some((name, date)) if is_date(date) => name,
        _ => kind,
    };
    PROVIDER_TOOLS.contains(&name)
}

/// Beginning of a block that Claude Code puts before its system prompt, for the bills of its own
/// service. Its text is another one in each request, so no prefix would be found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// Whether a block of the system prompt is not for the model.
pub fn is_billing(text: &str) -> bool {
    // One line alone: text after it would be lost.
    text.starts_with(BILLING) && !text.trim_end().contains('\n')
}

/// Checks that all changes of the conversation change nothing: Claude Code asks that no thought is
/// removed, and none ever is.
///
/// # Errors
/// The first change that is one.
pub fn check_edits(edits: &[AnyObject]) -> Result<()> {
    let keeps_all = |AnyObject(edit): &AnyObject| {
        edit.get("type").is_some_and(|kind| kind == "clear_thinking_20251015")
            && edit.get("keep").is_some_and(|keep| keep == "all" || keep["type"] == "all")
            && edit.values().filter(|value| !value.is_null()).count() == 2
    };
    match edits.iter().enumerate().find(|(_, edit)| !keeps_all(edit)) {
        None => Ok(()),
        Some((at, edit)) => refuse(
            &format!("context_management.edits[{at}]"),
            "clear_thinking_20251015 that keeps all, the only edit that is served",
            quoted(&Value::from(edit.0.clone()).to_string()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_edit_that_keeps_all_thoughts_is_accepted() {
        let check =
            |edits: Value| check_edits(&serde_json::from_value::<Vec<_>>(edits).expect("edits"));
        let keep = |keep: Value| json!({"type": "clear_thinking_20251015", "keep": keep});
        assert_eq!(check(json!([keep(json!("all")), keep(json!({"type": "all"}))])), Ok(()));
        assert_eq!(check(json!([])), Ok(()));
        for edits in [
            json!([keep(json!({"type": "thinking_turns", "value": 1}))]),
            json!([{"type": "clear_thinking_20251015"}]),
            json!([{"type": "clear_tool_uses_20250919"}]),
        ] {
            let error = check(edits).expect_err("it changes the conversation");
            assert_eq!(error.field.as_deref(), Some("context_management.edits[0]"));
        }
    }

    #[test]
    fn tools_of_the_provider_are_known_with_any_date() {
        for kind in ["web_search_20250305", "web_search_20270101", "web_search", "mcp_toolset"] {
            assert!(is_run_by_provider(kind), "{kind}");
        }
        // The client runs these, and only Anthropic's models know their arguments.
        for kind in ["bash_20250124", "computer_20251124", "memory_20250818", "web_search_x", ""] {
            assert!(!is_run_by_provider(kind), "{kind}");
        }
    }

    #[test]
    fn a_bill_is_told_from_a_system_prompt() {
        assert!(is_billing("x-anthropic-billing-header: cc_version=2.1; cch=00000;"));
        assert!(!is_billing("x-anthropic-billing-header: a\nYou are an agent."));
        assert!(!is_billing("You are an agent."));
    }
}
