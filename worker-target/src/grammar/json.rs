//! A JSON schema made ready for the compiler: checked, closed, and with the style of its answers.

use serde_json::{Value, json};

use super::schema::{Check, LIST, OBJECT, SCHEMA};
use super::{GrammarError, closing, pattern};

/// How JSON is written: on one line, with the separators of Python's `json.dumps`, which most models
/// were trained on. The compiler reads it from the schema's root.
fn style() -> Value {
    json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "})
}

/// A schema that any JSON object matches.
pub(super) fn any_object() -> Value {
    json!({"type": "object", "x-guidance": style()})
}

/// Writes the patterns of a schema, and of those in it, as the compiler enforces them.
fn write_patterns(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    for (name, value) in members {
        match value {
            Value::String(pattern) if name == "pattern" => {
                *pattern = pattern::of_json(pattern).unwrap_or(std::mem::take(pattern));
            }
            Value::Object(inner) if OBJECT.contains(&name.as_str()) => {
                if name == "patternProperties" {
                    let written = std::mem::take(inner)
                        .into_iter()
                        .map(|(name, schema)| (pattern::of_json(&name).unwrap_or(name), schema));
                    *inner = written.collect();
                }
                inner.values_mut().for_each(write_patterns);
            }
            Value::Array(list) if LIST.contains(&name.as_str()) => {
                list.iter_mut().for_each(write_patterns);
            }
            inner if SCHEMA.contains(&name.as_str()) => write_patterns(inner),
            _ => {}
        }
    }
}

/// Checks a schema and makes it ready for the compiler.
///
/// # Errors
/// It is no schema, it has a keyword that cannot be enforced, or it is too large.
pub(super) fn prepare(text: &str) -> Result<Value, GrammarError> {
    let parsed = serde_json::from_str(text);
    let schema: Value =
        parsed.map_err(|error| GrammarError::new("a JSON schema", format!("{error}")))?;
    let mut check = Check::default();
    check.schema(&schema, &mut vec![])?;
    let mut closed = closing::rewrite(&schema, check)?;
    write_patterns(&mut closed);
    match closed {
        Value::Object(mut members) => {
            members.insert("x-guidance".into(), style());
            Ok(Value::Object(members))
        }
        Value::Bool(true) => Ok(json!({"x-guidance": style()})),
        _ => Err(GrammarError::new("a schema that some value matches", "false (unsatisfiable)")),
    }
}
