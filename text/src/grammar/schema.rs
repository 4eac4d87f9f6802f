//! A tool's schema in a grammar.

use serde_json::{Map, Value};

use super::{CallableTool, Parts, TextForm, check};
use crate::error::FieldError;

/// A tool's schema is not enforced in tool calls of this family.
pub(super) fn not_strict(tool: &CallableTool, why: &str) -> FieldError {
    FieldError::new(&tool.field, format!("a tool without `strict`, {why}"), "one with it")
}

/// A schema of a tool as a part of the frame.
pub(super) fn schema_part(
    tool: &CallableTool,
    schema: &Value,
    parts: &mut Parts,
) -> Result<String, FieldError> {
    let text = schema.to_string();
    check::check_size(&tool.field, &text)?;
    Ok(parts.add(&tool.field, !tool.strict, TextForm::JsonSchema(text)))
}

/// The type that a schema names; nothing if it names several or none.
pub(super) fn type_of(schema: &Map<String, Value>) -> Option<&str> {
    schema.get("type").and_then(Value::as_str)
}
