//! Tool calls as tags (Qwen3-Coder, Qwen3.5): each argument stands between `<parameter=name>` and
//! `</parameter>`. A text has no quotes there; other values are JSON.
//!
//! Arguments come in the order of the schema's properties, and no others come. For a tool without
//! `strict` whose schema does not say which arguments there are, names and values are free.

use serde_json::{Map, Value};

use super::lark::quoted;
use super::schema::{not_strict, schema_part, type_of};
use super::{CallableTool, Parts};
use crate::error::FieldError;

/// The end of a value.
const END: &str = "\n</parameter>\n";
/// Keywords of a text's schema that a text without quotes cannot be held to.
const UNSERVED: &[&str] =
    &["$ref", "allOf", "anyOf", "format", "maxLength", "minLength", "oneOf", "pattern"];
/// Keywords of a tool's schema beside its properties that would be left out.
const WHOLE: &[&str] = &["$ref", "allOf", "anyOf", "oneOf", "patternProperties", "minProperties"];

/// The rule `one` of these tools, and those that it needs.
///
/// # Errors
/// A strict tool's schema cannot be written so.
pub(super) fn calls(tools: &[&CallableTool], parts: &mut Parts) -> Result<String, FieldError> {
    let mut all = Vec::with_capacity(tools.len());
    for tool in tools {
        let begin = quoted(&format!("<function={}>\n", tool.name));
        all.push(format!("{begin} {} \"</function>\"", parameters(tool, parts)?));
    }
    Ok(format!(
        "one: {}\n\
         any_parameter: \"<parameter=\" NAME \">\\n\" text_value\n\
         NAME: /[A-Za-z_][A-Za-z0-9_.-]{{0,63}}/\n\
         text_value[lazy]: /(?s:.*)\\n<\\/parameter>\\n/\n",
        all.join(" | ")
    ))
}

/// The parameters of one tool, as a part of a rule.
fn parameters(tool: &CallableTool, parts: &mut Parts) -> Result<String, FieldError> {
    let refuse = |what: &str| {
        let why = format!("because this model's tool calls cannot be held to {what}");
        Err(not_strict(tool, &why))
    };
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let none = Map::new();
    let properties = properties.unwrap_or(&none);
    let is_known = |name: &str| properties.contains_key(name);
    let left_out = WHOLE.iter().copied().find(|keyword| tool.parameters.contains_key(*keyword));
    let unknown = required.iter().copied().find(|name| !is_known(name));
    let unwritable = properties.keys().find(|name| !is_writable(name)).map(String::as_str);
    if let Some(what) = left_out.or(unknown).or(unwritable) {
        return if tool.strict { refuse(what) } else { Ok("any_parameter*".to_owned()) };
    }
    let mut all = vec![];
    for (name, schema) in properties {
        let begin = quoted(&format!("<parameter={name}>\n"));
        let value = match schema.as_object() {
            Some(schema) => value(tool, name, schema, parts)?,
            None => "text_value".to_owned(),
        };
        let optional = if required.contains(&name.as_str()) { "" } else { "?" };
        all.push(format!("({begin} {value}){optional}"));
    }
    Ok(all.join(" "))
}

/// Whether a name can stand in a tag.
fn is_writable(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|character| character == '>' || character.is_control())
}

/// The value of an argument with its end, as a part of a rule.
fn value(
    tool: &CallableTool,
    name: &str,
    schema: &Map<String, Value>,
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let end = quoted(END);
    if !may_be_text(schema) {
        let schema = with_definitions(tool, schema);
        return Ok(format!("{} {end}", schema_part(tool, &schema, parts)?));
    }
    let values = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    let values = values.or(schema.get("const").map(std::slice::from_ref)).unwrap_or_default();
    let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    if !texts.is_empty() && texts.len() == values.len() {
        let texts: Vec<String> = texts.into_iter().map(quoted).collect();
        return Ok(format!("({}) {end}", texts.join(" | ")));
    }
    // `anyOf` of a text and null is a text: the reader makes null of the word.
    let unserved = UNSERVED.iter().find(|keyword| schema.contains_key(**keyword));
    let is_held = tool.strict && (unserved.is_some() || !values.is_empty());
    if is_held && !is_optional_text(schema) {
        let keyword = unserved.copied().unwrap_or("enum");
        let why = format!(
            "because this model writes texts without quotes, which cannot be held to {keyword} of {name}"
        );
        return Err(not_strict(tool, &why));
    }
    Ok("text_value".to_owned())
}

/// Whether the reader of tool calls takes a value of this schema as a text: if it may be one, or if
/// the schema does not name its type.
fn may_be_text(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => return kind == "string",
        Some(Value::Array(kinds)) => return kinds.iter().any(|kind| kind == "string"),
        _ => {}
    }
    let options = ["anyOf", "oneOf"].into_iter().filter_map(|name| schema.get(name)?.as_array());
    let options: Vec<&Value> = options.flatten().collect();
    let text = |option: &&Value| option.as_object().is_none_or(may_be_text);
    options.is_empty() || options.iter().any(text)
}

/// Whether a schema is `anyOf` of a plain text and null, as Pydantic writes an optional text.
fn is_optional_text(schema: &Map<String, Value>) -> bool {
    let Some(options) = schema.get("anyOf").and_then(Value::as_array) else { return false };
    let is_plain = |option: &Value| {
        option.as_object().is_some_and(|option| {
            option.len() == 1 && matches!(type_of(option), Some("string" | "null"))
        })
    };
    options.iter().all(is_plain)
}

/// The schema of one property, with the definitions that it may refer to.
fn with_definitions(tool: &CallableTool, schema: &Map<String, Value>) -> Value {
    let mut whole = schema.clone();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = tool.parameters.get(name) {
            whole.insert(name.to_owned(), definitions.clone());
        }
    }
    Value::Object(whole)
}
