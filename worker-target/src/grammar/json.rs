//! A JSON schema made ready for the compiler: checked, closed, and with the style of its answers.

use serde_json::{Value, json};

use super::schema::Check;
use super::{GrammarError, closing};

/// How JSON is written: on one line, with the separators of Python's `json.dumps`, which most models
/// were trained on. The compiler reads it from the schema's root.
fn style() -> Value {
    json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "})
}

/// A schema that any JSON object matches.
pub(super) fn any_object() -> Value {
    json!({"type": "object", "x-guidance": style()})
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
    match closing::rewrite(&schema, check)? {
        Value::Object(mut members) => {
            members.insert("x-guidance".into(), style());
            Ok(Value::Object(members))
        }
        Value::Bool(true) => Ok(json!({"x-guidance": style()})),
        _ => Err(GrammarError::new("a schema that some value matches", "false (unsatisfiable)")),
    }
}
