//! Tools that a request offers: those of `tools`, less those that wait for a reference
//! (`defer_loading`), as messages of the conversation change them.

use std::collections::HashSet;

use paceline_proto::limits;

use super::accepted;
use super::types::{
    ChangedTool, DefinedTool, FoundTool, FoundTools, NamedTool, Tool, ToolChangeBlock,
    ToolReferenceBlock, ToolSearchContent, ToolSearchError, ToolSearchResultBlock,
};
use crate::accepted::check;
use crate::inference::bounds::check_elements;
use crate::inference::error::{Result, quoted, refuse};
use crate::inference::input::ToolInput;

/// A change of the offered tools by a message of the conversation.
#[derive(Debug)]
pub(super) enum ToolChange {
    /// A search found a tool. A client may have dropped the tool since.
    Reference { name: String },
    /// A tool of the request is offered from here on, or no longer.
    Named { path: String, name: String, is_offered: bool },
    /// A new tool is offered from here on.
    Definition { path: String, tool: Tool },
}

impl ToolChange {
    /// The changes of a block `tool_search_tool_result`, whose search Anthropic's service made.
    ///
    /// # Errors
    /// A field that is not served, and too many tools.
    pub(super) fn found(path: &str, block: ToolSearchResultBlock) -> Result<Vec<Self>> {
        let ToolSearchResultBlock { tool_use_id: _, content, rest } = block;
        check(&format!("{path}."), &rest, ToolSearchResultBlock::ACCEPTED)?;
        let path = format!("{path}.content");
        let references = match content {
            ToolSearchContent::ToolSearchToolResultError(ToolSearchError { rest }) => {
                check(&format!("{path}."), &rest, ToolSearchError::ACCEPTED)?;
                return Ok(Vec::new());
            }
            ToolSearchContent::ToolSearchToolSearchResult(FoundTools { tool_references, rest }) => {
                check(&format!("{path}."), &rest, FoundTools::ACCEPTED)?;
                tool_references
            }
        };
        let path = format!("{path}.tool_references");
        check_elements(&path, references.len(), limits::MAX_TOOLS)?;
        let reference = |(at, FoundTool::ToolReference(block)): (usize, FoundTool)| {
            let ToolReferenceBlock { tool_name, rest } = block;
            check(&format!("{path}[{at}]."), &rest, ToolReferenceBlock::ACCEPTED)?;
            Ok(Self::Reference { name: tool_name })
        };
        references.into_iter().enumerate().map(reference).collect()
    }

    /// The change of a block `tool_addition`, or `tool_removal` if the tool is not offered any more.
    ///
    /// # Errors
    /// A field that is not served.
    pub(super) fn of_block(path: &str, block: ToolChangeBlock, is_offered: bool) -> Result<Self> {
        let ToolChangeBlock { tool, rest } = block;
        check(&format!("{path}."), &rest, ToolChangeBlock::ACCEPTED)?;
        let path = format!("{path}.tool");
        match tool {
            ChangedTool::ToolReference(NamedTool { name, rest }) => {
                check(&format!("{path}."), &rest, NamedTool::ACCEPTED)?;
                Ok(Self::Named { path: format!("{path}.name"), name, is_offered })
            }
            ChangedTool::ToolDefinition(_) if !is_offered => {
                refuse(&format!("{path}.type"), "tool_reference", "tool_definition")
            }
            ChangedTool::ToolDefinition(DefinedTool { definition, rest }) => {
                check(&format!("{path}."), &rest, DefinedTool::ACCEPTED)?;
                Ok(Self::Definition { path: format!("{path}.definition"), tool: *definition })
            }
        }
    }
}

/// The tools of a request by their names, and which of them are offered.
#[derive(Debug, Default)]
struct Tools {
    all: Vec<ToolInput>,
    /// Whether the tool of the same index is offered.
    is_offered: Vec<bool>,
    /// Names of tools that Anthropic's service runs. They are never offered.
    left_out: HashSet<String>,
    /// Whether Anthropic's service would search for those that wait. Here no search finds them.
    has_hosted_search: bool,
}

/// The offered tools.
///
/// # Errors
/// The first field that is not served, and a change of a tool that the request does not have.
pub(super) fn offered(tools: Vec<Tool>, changes: Vec<ToolChange>) -> Result<Vec<ToolInput>> {
    let mut all = Tools::default();
    for (at, tool) in tools.into_iter().enumerate() {
        all.add(&format!("tools[{at}]"), tool)?;
    }
    if all.has_hosted_search {
        all.is_offered.fill(true);
    }
    for change in changes {
        match change {
            ToolChange::Reference { name } => {
                all.set(&name, true);
            }
            ToolChange::Named { path, name, is_offered } => {
                all.change(&path, &name, is_offered)?;
            }
            ToolChange::Definition { path, tool } => all.define(&path, tool)?,
        }
    }
    let Tools { all, is_offered, .. } = all;
    Ok(all
        .into_iter()
        .zip(is_offered)
        .filter(|(_, offered)| *offered)
        .map(|(tool, _)| tool)
        .collect())
}

impl Tools {
    /// Adds a tool of the request. One of a name that is there already is refused later, with all
    /// other checks of names.
    fn add(&mut self, path: &str, tool: Tool) -> Result<()> {
        let Tool { name, description, input_schema, strict, kind, defer_loading, rest } = tool;
        if let Some(kind) = kind.filter(|kind| kind != "custom") {
            if accepted::is_run_by_provider(&kind) {
                self.has_hosted_search |= accepted::is_hosted_search(&kind);
                self.left_out.extend(name);
                return Ok(());
            }
            let expected = "custom, because the model does not know the arguments of other tools";
            return refuse(&format!("{path}.type"), expected, quoted(&kind));
        }
        check(&format!("{path}."), &rest, Tool::ACCEPTED)?;
        let Some(name) = name else {
            return refuse(&format!("{path}.name"), "a name", "none");
        };
        let Some(schema) = input_schema else {
            return refuse(&format!("{path}.input_schema"), "a JSON schema", "none");
        };
        self.all.push(ToolInput {
            name,
            description: description.unwrap_or_default(),
            parameters: schema.into(),
            strict: strict.unwrap_or(false),
            path: path.to_owned(),
        });
        self.is_offered.push(defer_loading != Some(true));
        Ok(())
    }

    /// Offers a new tool, in the place of an earlier one of its name.
    fn define(&mut self, path: &str, tool: Tool) -> Result<()> {
        let tool = Tool { defer_loading: None, ..tool };
        if let Some(name) = &tool.name
            && let Some(at) = self.all.iter().position(|known| known.name == *name)
        {
            self.all.remove(at);
            self.is_offered.remove(at);
        }
        self.add(path, tool)
    }

    /// Offers a tool, or offers it no more. Returns whether the request has it.
    fn set(&mut self, name: &str, offered: bool) -> bool {
        let mut known = self.left_out.contains(name);
        for (tool, is_offered) in self.all.iter().zip(&mut self.is_offered) {
            if tool.name == name {
                (known, *is_offered) = (true, offered);
            }
        }
        known
    }

    fn change(&mut self, path: &str, name: &str, offered: bool) -> Result<()> {
        match self.set(name, offered) {
            true => Ok(()),
            false => refuse(path, "the name of a tool of this request", quoted(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tool(name: &str, deferred: bool) -> Value {
        json!({"name": name, "input_schema": {"type": "object"}, "defer_loading": deferred})
    }

    fn names(tools: Value, changes: Vec<ToolChange>) -> Result<Vec<String>, Option<String>> {
        let tools = serde_json::from_value(tools).expect("tools");
        let offered = offered(tools, changes).map_err(|error| error.field)?;
        Ok(offered.into_iter().map(|tool| tool.name).collect())
    }

    fn block(kind: &str, name: &str) -> ToolChangeBlock {
        let tool = json!({"type": kind, "name": name});
        serde_json::from_value(json!({ "tool": tool })).expect("a block")
    }

    #[test]
    fn a_deferred_tool_waits_for_its_name() {
        let tools = json!([tool("search", false), tool("read", true), tool("write", true)]);
        assert_eq!(names(tools.clone(), vec![]), Ok(vec!["search".into()]));
        let found = |name: &str| ToolChange::Reference { name: name.into() };
        let offered = names(tools.clone(), vec![found("write"), found("gone")]);
        assert_eq!(offered, Ok(vec!["search".into(), "write".into()]));
        let added =
            ToolChange::of_block("p", block("tool_reference", "read"), true).expect("served");
        assert_eq!(names(tools, vec![added]), Ok(vec!["search".into(), "read".into()]));
    }

    #[test]
    fn a_deferred_tool_is_offered_at_once_if_nobody_here_searches_for_it() {
        let hosted =
            |kind: &str| json!([{"type": kind, "name": "s"}, tool("a", true), tool("b", false)]);
        for kind in ["tool_search_tool_regex_20251119", "tool_search_tool_bm25"] {
            assert_eq!(names(hosted(kind), vec![]), Ok(vec!["a".into(), "b".into()]), "{kind}");
        }
        assert_eq!(names(hosted("web_search_20250305"), vec![]), Ok(vec!["b".into()]));
    }

    #[test]
    fn messages_of_the_system_change_the_tools_in_order() {
        let tools = json!([tool("a", false), tool("b", false)]);
        let removed = |name| ToolChange::of_block("p", block("tool_reference", name), false);
        let removed = |name| removed(name).expect("served");
        let added = |name| ToolChange::of_block("p", block("tool_reference", name), true);
        let added = |name| added(name).expect("served");
        assert_eq!(names(tools.clone(), vec![removed("a")]), Ok(vec!["b".into()]));
        let back = vec![removed("a"), added("a")];
        assert_eq!(names(tools.clone(), back), Ok(vec!["a".into(), "b".into()]));
        let unknown = names(tools.clone(), vec![removed("x")]);
        assert_eq!(unknown, Err(Some("p.tool.name".into())));
        let define = |name: &str| {
            let definition = json!({"type": "tool_definition", "definition": tool(name, true)});
            let block = serde_json::from_value(json!({ "tool": definition })).expect("a block");
            ToolChange::of_block("p", block, true).expect("served")
        };
        let defined = vec![define("c"), define("a"), removed("b")];
        assert_eq!(names(tools, defined), Ok(vec!["c".into(), "a".into()]));
    }

    #[test]
    fn tools_that_the_provider_runs_are_left_out() {
        let tools = json!([
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
            {"type": "mcp_toolset", "mcp_server_name": "m"},
            tool("own", false),
        ]);
        assert_eq!(names(tools.clone(), vec![]), Ok(vec!["own".into()]));
        let change = ToolChange::of_block("p", block("tool_reference", "web_search"), false);
        assert_eq!(names(tools, vec![change.expect("served")]), Ok(vec!["own".into()]));
        let client = json!([{"type": "bash_20250124", "name": "bash"}]);
        assert_eq!(names(client, vec![]), Err(Some("tools[0].type".into())));
    }
}
