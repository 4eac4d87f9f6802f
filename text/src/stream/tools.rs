//! The tools of a request, as far as the answer's parser needs them: their names, and the types of
//! their arguments. Some families write every argument as text, and the schema tells which texts
//! stand for other values.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::prompt::conversation::Tool;

/// The types that a schema allows for an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentType {
    /// Text alone, or the schema does not say.
    Text,
    /// Text or null.
    TextOrNull,
    /// Something else than text.
    Json,
}

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferedTools {
    types: HashMap<String, HashMap<String, ArgumentType>>,
}

impl OfferedTools {
    /// These tools.
    pub fn new(tools: &[Tool]) -> Self {
        let types = |tool: &Tool| {
            let properties = tool.parameters.get("properties").and_then(Value::as_object);
            let typed = |(name, schema): (&String, &Value)| (name.clone(), argument_type(schema));
            (tool.name.clone(), properties.into_iter().flatten().map(typed).collect())
        };
        Self { types: tools.iter().map(types).collect() }
    }

    /// Whether there is a tool of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.types.contains_key(name)
    }

    /// Whether a tool's name begins so.
    pub(super) fn has_beginning(&self, name: &str) -> bool {
        self.types.keys().any(|known| known.starts_with(name))
    }

    /// The type of a tool's argument.
    pub(super) fn argument(&self, tool: &str, name: &str) -> ArgumentType {
        let found = self.types.get(tool).and_then(|types| types.get(name));
        found.copied().unwrap_or(ArgumentType::Text)
    }
}

fn argument_type(schema: &Value) -> ArgumentType {
    let mut names = Vec::new();
    if let Some(schema) = schema.as_object() {
        add_types(schema, &mut names, 0);
    }
    let has = |name: &str| names.iter().any(|found| found == name);
    match () {
        () if names.is_empty() => ArgumentType::Text,
        () if has("string") && has("null") => ArgumentType::TextOrNull,
        () if has("string") => ArgumentType::Text,
        () => ArgumentType::Json,
    }
}

/// Adds the names of all types that a schema allows. Choices inside of choices are read to a small
/// depth.
fn add_types(schema: &Map<String, Value>, names: &mut Vec<String>, depth: usize) {
    match schema.get("type") {
        Some(Value::String(name)) => names.push(name.clone()),
        Some(Value::Array(list)) => {
            names.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        _ => {}
    }
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    if !schema.contains_key("type") {
        names.extend(values.chain(schema.get("const")).map(|value| type_of(value).to_owned()));
    }
    let choices = ["anyOf", "oneOf"].into_iter().filter_map(|word| schema.get(word));
    for choice in choices.filter_map(Value::as_array).flatten().filter_map(Value::as_object) {
        if depth < 4 {
            add_types(choice, names, depth + 1);
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// How the answer to a conversation is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationReading {
    /// The tools that the request offers; none if it has none. Then no tool call is recognized.
    pub tools: Option<Arc<OfferedTools>>,
    /// Whether the prompt ends in a thought.
    pub thought_is_open: bool,
    /// The beginning of the ids of tool calls.
    pub call_ids: String,
    /// Whether the answer ends after its first complete call of an offered tool, and a call of
    /// another tool is text. Otherwise the client gets each call.
    pub one_call: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_tells_which_arguments_are_text() {
        let properties = json!({
            "text": {"type": "string"}, "count": {"type": "integer"}, "any": {},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "either": {"type": ["string", "number"]}, "word": {"enum": ["a", "b"]},
            "flag": {"const": true}, "list": {"oneOf": [{"type": "array"}, {"type": "null"}]},
        });
        let parameters = json!({"type": "object", "properties": properties});
        let parameters = parameters.as_object().cloned().unwrap_or_default();
        let tool = Tool { name: "f".into(), description: String::new(), parameters, strict: false };
        let tools = OfferedTools::new(&[tool]);
        let types = |name: &str| tools.argument("f", name);
        use ArgumentType::{Json, Text, TextOrNull};
        assert_eq!(["text", "any", "either", "word", "absent"].map(types), [Text; 5]);
        assert_eq!(["count", "flag", "list"].map(types), [Json; 3]);
        assert_eq!((types("maybe"), tools.argument("g", "count")), (TextOrNull, Text));
        assert!(tools.has("f") && !tools.has("g"));
        assert!(tools.has_beginning("") && tools.has_beginning("f") && !tools.has_beginning("fg"));
    }
}
