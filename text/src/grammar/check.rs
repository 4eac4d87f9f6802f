//! Bounds of what clients send, checked before anything else is done with it. The target checks the
//! same bounds again, and the keywords of schemas.

use paceline_vocabulary::grammar::{
    MAX_LARK_BYTES, MAX_LEVELS, MAX_REGEX_BYTES, MAX_SCHEMA_BYTES, bracket_levels,
};

use paceline_vocabulary::generation::{GrammarPart, TextForm};

use crate::error::FieldError;
use crate::json::JsonBudget;

/// Checks the form of an answer.
///
/// # Errors
/// It is too large or too deep, or its schema is no JSON object.
pub fn check_form(form: &TextForm) -> Result<(), FieldError> {
    match form {
        TextForm::JsonObject => Ok(()),
        TextForm::JsonSchema(schema) => check_schema("grammar.json_schema", schema),
        TextForm::Regex(text) => check_text("grammar.regex", text, MAX_REGEX_BYTES),
        TextForm::Lark(text) => check_text("grammar.lark", text, MAX_LARK_BYTES),
    }
}

/// Checks a schema's size; its levels are those of its JSON.
pub(super) fn check_size(field: &str, schema: &str) -> Result<(), FieldError> {
    if schema.len() <= MAX_SCHEMA_BYTES {
        return Ok(());
    }
    let expected = format!("a schema of at most {MAX_SCHEMA_BYTES} bytes");
    Err(FieldError::new(field, expected, schema.len()))
}

/// Checks all schemas of an answer together: those of tools cost as much as one of their size.
pub(super) fn check_all(parts: &[GrammarPart]) -> Result<(), FieldError> {
    let bytes = |part: &GrammarPart| match &part.content {
        TextForm::JsonSchema(text) | TextForm::Regex(text) | TextForm::Lark(text) => text.len(),
        TextForm::JsonObject => 0,
    };
    check_sum(parts.iter().map(bytes).sum())
}

/// Checks the bytes of all tools' schemas together.
pub(super) fn check_sum(all: usize) -> Result<(), FieldError> {
    if all <= MAX_SCHEMA_BYTES {
        return Ok(());
    }
    let expected = format!(
        "schemas of at most {MAX_SCHEMA_BYTES} bytes in all tools that are called by force or strictly"
    );
    Err(FieldError::new("tools", expected, all))
}

fn check_schema(field: &str, schema: &str) -> Result<(), FieldError> {
    check_size(field, schema)?;
    if schema.is_empty() {
        return Err(FieldError::new(field, "a JSON schema", "none"));
    }
    JsonBudget::default().object(field, &schema.into()).map(|_| ())
}

fn check_text(field: &str, text: &str, most: usize) -> Result<(), FieldError> {
    if text.is_empty() {
        return Err(FieldError::new(field, "a text", "an empty one"));
    }
    if text.len() > most {
        return Err(FieldError::new(field, format!("at most {most} bytes"), text.len()));
    }
    if bracket_levels(text) > MAX_LEVELS {
        let expected = format!("at most {MAX_LEVELS} levels of brackets");
        return Err(FieldError::new(field, expected, "more"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_of_all_tools_have_one_bound() {
        let part = |bytes: usize| GrammarPart {
            field: "tools[0].parameters".into(),
            lenient: true,
            content: TextForm::JsonSchema("a".repeat(bytes)),
        };
        check_all(&[part(MAX_SCHEMA_BYTES / 2), part(MAX_SCHEMA_BYTES / 2)]).expect("as large");
        let error = check_all(&[part(MAX_SCHEMA_BYTES), part(1)]).expect_err("one byte more");
        assert_eq!(error.field, "tools");
    }

    #[test]
    fn each_form_is_bounded_and_named() {
        let refused = |form: TextForm| check_form(&form).expect_err("refused").field;
        for (most, field, form) in [
            (MAX_REGEX_BYTES, "grammar.regex", TextForm::Regex as fn(String) -> TextForm),
            (MAX_LARK_BYTES, "grammar.lark", TextForm::Lark),
        ] {
            check_form(&form("a".repeat(most))).expect("as long as may be");
            assert_eq!(refused(form("a".repeat(most + 1))), field);
            assert_eq!(refused(form(String::new())), field);
            check_form(&form(format!("{}a{}", "(".repeat(64), ")".repeat(64)))).expect("64 levels");
            assert_eq!(refused(form("(".repeat(65))), field);
            check_form(&form("\\(".repeat(65))).expect("characters");
        }
        let schema = |text: &str| TextForm::JsonSchema(text.to_owned());
        check_form(&schema(r#"{"type": "object"}"#)).expect("a schema");
        let long = format!("{{\"title\": \"{}\"}}", "a".repeat(MAX_SCHEMA_BYTES));
        let deep = format!("{}{}", "{\"items\":".repeat(65), "}".repeat(65));
        for text in ["", "[]", "{", "3", r#"{"a": 1, "a": 2}"#, &long, &deep] {
            assert_eq!(refused(schema(text)), "grammar.json_schema");
        }
    }
}
