//! Tools of the Responses protocol as functions, the one kind that templates know: tools of a group
//! get the group's name in front of theirs, and a tool that takes any text becomes a function with
//! one argument. A client's search for tools becomes a function, too, and the tools that are deferred
//! wait until it finds them.

use std::collections::{HashMap, HashSet};

use paceline_proto::limits;
use serde_json::{Map, Value, json};

use super::accepted;
use super::types::{
    self, CustomFormat, CustomTool, FunctionTool, GrammarFormat, GroupedTool, NamespaceTool,
    PlainFormat, Tool, ToolSearchTool,
};
use crate::accepted::check;
use crate::inference::bounds::check_elements;
use crate::inference::error::Result;
use crate::inference::input::{JsonInput, ToolInput};

/// The argument that holds the text of a custom tool.
pub(super) const ARGUMENT: &str = "input";

/// The name by which the model knows the client's search for tools.
pub(super) const SEARCH: &str = "tool_search";

/// The form of the tool calls of one tool in the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCallForm {
    /// Arguments, as text.
    #[default]
    Function,
    /// Any text.
    Custom,
    /// A search for tools: arguments, as an object.
    Search,
}

/// A tool as the client knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTool {
    /// Group of the tool.
    pub namespace: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// The form of its tool calls.
    pub form: ToolCallForm,
}

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tools {
    /// For the middle, with those that wait.
    pub all: Vec<ToolInput>,
    /// The client's tools by the names that the model knows.
    known: HashMap<String, ClientTool>,
    /// Names of deferred tools that no search has found, as the model knows them.
    deferred: HashSet<String>,
    /// Whether the client searches for tools.
    has_search: bool,
    /// How many tools the client gave, those included that are not offered.
    given: usize,
}

/// The name that the model knows a tool by.
pub fn model_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        Some(namespace) if namespace.ends_with("__") || name.starts_with("__") => {
            format!("{namespace}{name}")
        }
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// The arguments by which the model calls a custom tool with this text.
pub fn custom_arguments(input: &str) -> JsonInput {
    json!({ ARGUMENT: input }).into()
}

/// The text in the arguments of a custom tool call: the argument that the prompt names. A model
/// that uses another name for its only argument means the same. Other arguments are passed on as
/// they are.
pub fn custom_input(arguments: &str) -> String {
    let Ok(Value::Object(mut object)) = serde_json::from_str(arguments) else {
        return arguments.to_owned();
    };
    let only = if object.len() == 1 { object.keys().next().cloned() } else { None };
    let told = object.contains_key(ARGUMENT).then(|| ARGUMENT.to_owned());
    match told.or(only).and_then(|name| object.remove(&name)) {
        Some(Value::String(input)) => input,
        _ => arguments.to_owned(),
    }
}

impl Tools {
    /// The client's tool that the model calls by this name.
    pub fn client(&self, name: &str) -> ClientTool {
        let unknown = || ClientTool { name: name.to_owned(), ..Default::default() };
        self.known.get(name).cloned().unwrap_or_else(unknown)
    }

    /// The name by which the model knows a tool that the client calls so.
    pub fn model_name_of(&self, name: &str) -> String {
        let known = self.known.iter().find(|(model, tool)| *model == name || tool.name == name);
        known.map_or_else(|| name.to_owned(), |(model, _)| model.clone())
    }

    /// Whether an entry of the allowed tools is of a tool that OpenAI's service runs. The word
    /// `tool_search` alone means the client's search, if the client searches.
    pub fn is_left_out(&self, entry: &Map<String, Value>) -> bool {
        let text = |name| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let is_own = self.has_search && text("type") == SEARCH && text("execution") != "server";
        accepted::is_run_by_provider(text("type")) && !is_own
    }

    /// Whether a tool waits for the client's search. Without a search nothing would ever offer it.
    pub fn waits(&self, model_name: &str) -> bool {
        self.has_search && self.deferred.contains(model_name)
    }

    /// Offers the tools that a search found, which stand at `path` of the body, and returns their
    /// names as the model knows them.
    ///
    /// # Errors
    /// The first field that is not served.
    pub fn find(&mut self, path: &str, tools: Vec<Tool>) -> Result<Vec<String>> {
        let mut found = Self::default();
        found.add(path, tools)?;
        let mut names = Vec::new();
        for tool in found.all {
            self.deferred.remove(&tool.name);
            names.push(tool.name.clone());
            match self.all.iter_mut().find(|known| known.name == tool.name) {
                Some(known) => *known = tool,
                None => {
                    // A client resends what it found in each search of a long session.
                    self.count(path, 1)?;
                    self.all.push(tool);
                }
            }
        }
        self.known.extend(found.known);
        Ok(names)
    }

    /// Adds a list of tools that is at `path` of the body.
    ///
    /// # Errors
    /// The first field that is not served.
    pub fn add(&mut self, path: &str, tools: Vec<Tool>) -> Result<()> {
        self.count(path, tools.len())?;
        for (at, tool) in tools.into_iter().enumerate() {
            let path = format!("{path}[{at}]");
            let tool = match tool {
                Tool::Provider(_) => continue,
                Tool::Client(tool) => tool,
            };
            match tool {
                types::ClientTool::Function(tool) => self.function(&path, None, tool)?,
                types::ClientTool::Custom(tool) => self.custom(&path, None, tool)?,
                types::ClientTool::Namespace(tool) => self.namespace(&path, tool)?,
                types::ClientTool::ToolSearch(tool) => self.search(&path, tool)?,
            }
        }
        Ok(())
    }

    fn namespace(&mut self, path: &str, tool: NamespaceTool) -> Result<()> {
        let NamespaceTool { name, description, tools, defer_loading, rest } = tool;
        check(&format!("{path}."), &rest, NamespaceTool::ACCEPTED)?;
        self.count(&format!("{path}.tools"), tools.len())?;
        let description = description.unwrap_or_default();
        let group = Group { name, description, is_deferred: defer_loading == Some(true) };
        for (at, tool) in tools.into_iter().enumerate() {
            let path = format!("{path}.tools[{at}]");
            match tool {
                GroupedTool::Function(tool) => self.function(&path, Some(&group), tool)?,
                GroupedTool::Custom(tool) => self.custom(&path, Some(&group), tool)?,
            }
        }
        Ok(())
    }

    fn search(&mut self, path: &str, tool: ToolSearchTool) -> Result<()> {
        let ToolSearchTool { execution: _, description, parameters, rest } = tool;
        check(&format!("{path}."), &rest, ToolSearchTool::ACCEPTED)?;
        let description = description.unwrap_or_else(|| "Searches for further tools.".to_owned());
        let parameters = parameters.map(JsonInput::from).unwrap_or_default();
        let input = ToolInput {
            name: SEARCH.to_owned(),
            description,
            parameters,
            strict: false,
            path: path.to_owned(),
        };
        self.has_search = true;
        self.offer(None, ToolCallForm::Search, input, false);
        Ok(())
    }

    /// Notes further tools of the request.
    fn count(&mut self, path: &str, more: usize) -> Result<()> {
        self.given = self.given.saturating_add(more);
        check_elements(path, self.given, limits::MAX_TOOLS)
    }

    fn function(&mut self, path: &str, group: Option<&Group>, tool: FunctionTool) -> Result<()> {
        let FunctionTool { name, description, parameters, strict, defer_loading, rest } = tool;
        check(&format!("{path}."), &rest, FunctionTool::ACCEPTED)?;
        let parameters = parameters.map(JsonInput::from).unwrap_or_default();
        let description = described(group, description.unwrap_or_default());
        let strict = strict.unwrap_or(false);
        let path = path.to_owned();
        let input = ToolInput { name, description, parameters, strict, path };
        self.offer(group, ToolCallForm::Function, input, defer_loading == Some(true));
        Ok(())
    }

    fn custom(&mut self, path: &str, group: Option<&Group>, tool: CustomTool) -> Result<()> {
        let CustomTool { name, description, format, defer_loading, rest } = tool;
        check(&format!("{path}."), &rest, CustomTool::ACCEPTED)?;
        let mut description = described(group, description.unwrap_or_default());
        let mut argument = "The whole input of the tool, as text.".to_owned();
        let grammar = match format {
            None => None,
            Some(CustomFormat::Text(PlainFormat { rest })) => {
                check(&format!("{path}.format."), &rest, PlainFormat::ACCEPTED)?;
                None
            }
            Some(CustomFormat::Grammar(GrammarFormat { syntax, definition, rest })) => {
                check(&format!("{path}.format."), &rest, GrammarFormat::ACCEPTED)?;
                Some((syntax, definition))
            }
        };
        if let Some((syntax, definition)) = grammar {
            argument = "The whole input of the tool, as text of the tool's grammar.".to_owned();
            if !description.is_empty() {
                description.push_str("\n\n");
            }
            description.push_str(&format!("Grammar of the input ({syntax}):\n{definition}"));
        }
        let parameters = json!({
            "type": "object",
            "properties": { ARGUMENT: {"type": "string", "description": argument} },
            "required": [ARGUMENT],
            "additionalProperties": false,
        });
        let parameters = parameters.into();
        let path = path.to_owned();
        let input = ToolInput { name, description, parameters, strict: false, path };
        self.offer(group, ToolCallForm::Custom, input, defer_loading == Some(true));
        Ok(())
    }

    /// Offers a tool, which has the client's name, under the name that the model knows it by.
    fn offer(
        &mut self,
        group: Option<&Group>,
        form: ToolCallForm,
        input: ToolInput,
        is_deferred: bool,
    ) {
        let namespace = group.map(|group| group.name.clone());
        let model_name = model_name(namespace.as_deref(), &input.name);
        if is_deferred || group.is_some_and(|group| group.is_deferred) {
            self.deferred.insert(model_name.clone());
        }
        let client = ClientTool { namespace, name: input.name, form };
        self.known.insert(model_name.clone(), client);
        self.all.push(ToolInput { name: model_name, ..input });
    }
}

/// A group of tools.
struct Group {
    name: String,
    description: String,
    /// Whether its tools wait for a search.
    is_deferred: bool,
}

/// A tool's description. One without gets its group's.
fn described(group: Option<&Group>, description: String) -> String {
    match group {
        Some(group) if description.is_empty() => group.description.clone(),
        _ => description,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::error::InferenceError;

    fn tools(list: Value) -> Result<Tools, InferenceError> {
        let mut tools = Tools::default();
        tools.add("tools", serde_json::from_value(list).expect("known kinds"))?;
        Ok(tools)
    }

    #[test]
    fn a_tool_of_a_group_has_the_groups_name_in_front() {
        let functions = json!([
            {"type": "function", "name": "list", "parameters": {"type": "object"}, "strict": false},
            {"type": "function", "name": "read", "description": "Reads."},
        ]);
        let group = json!({"type": "namespace", "name": "mcp__docs", "description": "Files.", "tools": functions});
        let tools = tools(json!([group])).expect("served");
        let offered: Vec<_> =
            tools.all.iter().map(|tool| (tool.name.as_str(), tool.description.as_str())).collect();
        assert_eq!(offered, [("mcp__docs__list", "Files."), ("mcp__docs__read", "Reads.")]);
        let known = tools.client("mcp__docs__read");
        assert_eq!(known.namespace.as_deref(), Some("mcp__docs"));
        assert_eq!((known.name.as_str(), known.form), ("read", ToolCallForm::Function));
        assert_eq!(
            tools.client("shell"),
            ClientTool { name: "shell".into(), ..Default::default() }
        );
        assert_eq!(model_name(Some("mcp__docs__"), "read"), "mcp__docs__read");
    }

    #[test]
    fn a_custom_tool_is_a_function_of_one_text() {
        let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: LINE"});
        let patch = json!({"type": "custom", "name": "apply_patch", "description": "Edits.", "format": format});
        let tools = tools(json!([patch])).expect("served");
        let [tool] = &tools.all[..] else { panic!("one tool") };
        assert_eq!(tool.description, "Edits.\n\nGrammar of the input (lark):\nstart: LINE");
        let parameters: Value = serde_json::from_str(&tool.parameters.text()).expect("JSON");
        assert_eq!(parameters["required"], json!(["input"]));
        assert_eq!(tools.client("apply_patch").form, ToolCallForm::Custom);
        let patch = "*** Begin Patch\n*** End Patch";
        assert_eq!(custom_input(&custom_arguments(patch).text()), patch);
        assert_eq!(custom_input(&json!({ "patch": patch }).to_string()), patch);
        for other in [r#"{"a": "1", "b": "2"}"#, r#"{"a": 1}"#, "{", ""] {
            assert_eq!(custom_input(other), other);
        }
    }

    #[test]
    fn tools_of_the_service_are_left_out_and_strict_ones_stay_so() {
        let served = tools(json!([
            {"type": "web_search", "external_web_access": false},
            {"type": "web_search_preview"},
            {"type": "image_generation", "output_format": "png"},
            {"type": "web_search_2025_08_26"},
            {"type": "mcp", "server_label": "m"},
            {"type": "tool_search"},
            {"type": "tool_search", "execution": "server"},
        ]));
        assert_eq!(served, Ok(Tools { given: 7, ..Default::default() }));
        let strict = json!([{"type": "function", "name": "f", "strict": true}]);
        assert!(tools(strict).expect("served").all[0].strict);
        let custom = json!([{"type": "custom", "name": "f", "strict": true}]);
        let error = tools(custom).expect_err("it has no schema");
        assert_eq!(error.field.as_deref(), Some("tools[0].strict"));
        let unknown = json!([{"type": "computer_use_preview"}]);
        assert!(serde_json::from_value::<Vec<Tool>>(unknown).is_err());
    }
    /// The names of the tools that the model is told of.
    fn offered(tools: &Tools) -> Vec<&str> {
        let names = tools.all.iter().map(|tool| tool.name.as_str());
        names.filter(|name| !tools.waits(name)).collect()
    }

    #[test]
    fn a_deferred_tool_waits_only_if_the_client_searches() {
        let function = |name: &str, is_deferred: bool| json!({"type": "function", "name": name, "defer_loading": is_deferred});
        let grep = json!({"type": "custom", "name": "grep", "defer_loading": true});
        let list = [function("list", false), grep];
        let inside = json!({"type": "namespace", "name": "g", "tools": list});
        let group = json!({"type": "namespace", "name": "h", "defer_loading": true, "tools": list});
        let with = |search: Value| {
            tools(json!([function("now", false), function("later", true), inside, group, search]))
        };
        for search in [json!({"type": "tool_search"}), json!({"type": "web_search"})] {
            let served = with(search).expect("served");
            assert_eq!(
                offered(&served),
                ["now", "later", "g__list", "g__grep", "h__list", "h__grep"]
            );
        }
        let search = json!({"type": "tool_search", "execution": "client", "parameters": {
            "type": "object", "properties": {"goal": {"type": "string"}},
        }});
        let mut served = with(search).expect("served");
        assert_eq!(offered(&served), ["now", "g__list", "tool_search"]);
        assert_eq!(served.client(SEARCH).form, ToolCallForm::Search);

        let found = json!([
            function("later", true),
            {"type": "namespace", "name": "g", "tools": [{"type": "custom", "name": "grep"}]},
            {"type": "function", "name": "more"},
            {"type": "mcp", "server_label": "m"},
        ]);
        let found: Vec<Tool> = serde_json::from_value(found).expect("known kinds");
        for _ in 0..2 {
            let names = served.find("input[3].tools", found.clone()).expect("served");
            assert_eq!(names, ["later", "g__grep", "more"]);
        }
        let now = ["now", "later", "g__list", "g__grep", "tool_search", "more"];
        assert_eq!(offered(&served), now);
        assert_eq!(served.client("g__grep").form, ToolCallForm::Custom);
        assert_eq!(served.given, 10, "a tool that is found again is no further one");
    }
}
