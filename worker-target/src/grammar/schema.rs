//! Checks of a JSON schema before it is rewritten and compiled: keywords that would be ignored are
//! refused by name, and numbers that would make the grammar large are bounded.
//!
//! Bounds: the compiler takes no cancellation, so that its work must be bounded by its input. The
//! numbers are measured by the tests of hostile schemas (`tests::compile`).

use std::collections::{HashMap, HashSet};

use paceline_vocabulary::grammar::MAX_LEVELS;
use serde_json::{Map, Value};

use super::text::{self, brief};
use super::{GrammarError, pattern};

/// Schemas within a schema.
const MAX_SCHEMAS: usize = 4_096;
/// Properties of one object. Each optional one takes four items of a row in the parser, which bounds
/// its rows.
const MAX_PROPERTIES: usize = 500;
/// Alternatives of one `anyOf` or `oneOf`: the compiler compares each with each other one.
const MAX_OPTIONS: usize = 256;
/// Values of one `enum`.
const MAX_VALUES: usize = 4_096;
/// The least common multiple of all `multipleOf`, decimal point aside: the lexer has a state for each
/// remainder.
const MAX_MULTIPLE: u64 = 10_000;
/// Patterns of properties in all of a schema: each is compared with each other one, and with names.
const MAX_PATTERN_PROPERTIES: usize = 16;
/// Bytes of one pattern.
const MAX_PATTERN_BYTES: usize = 1_024;
/// Members or items that a schema counts. Each one is a rule of the grammar.
const MAX_COUNT: u64 = 256;
/// Longest text that a schema counts, in characters. Each one is a state of the lexer, once it is
/// generated.
const MAX_LENGTH: u64 = 8_192;

/// Keywords of the standard that change what is valid and that cannot be enforced.
const UNSERVED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
];
/// Keywords that the rewritten schema has. All others say nothing about a value.
const ASSERTING: &[&str] = &[
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
    "unevaluatedProperties",
];
/// Formats that the compiler enforces. By the standard, others say nothing.
pub(super) const FORMATS: &[&str] =
    &["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// Keywords whose value is a schema.
pub(super) const SCHEMA: &[&str] = &["additionalItems", "additionalProperties", "items"];
/// Keywords whose value is a list of schemas.
pub(super) const LIST: &[&str] = &["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
pub(super) const OBJECT: &[&str] = &["$defs", "definitions", "patternProperties", "properties"];

/// Whether a keyword says something about a value, in a schema that has passed the check.
pub(super) fn asserts(name: &str) -> bool {
    ASSERTING.contains(&name)
}

/// Counts over a whole schema, and the schemas that have passed.
#[derive(Debug)]
pub(super) struct Check {
    schemas: usize,
    pattern_properties: usize,
    /// Least common multiple of all multiples so far.
    multiple: u64,
    /// Schemas that have passed, by their places in memory.
    passed: HashSet<usize>,
    /// Paths of the lists of `oneOf`, for errors that are found later.
    paths: HashMap<usize, String>,
}

impl Default for Check {
    fn default() -> Self {
        let (passed, paths) = (HashSet::new(), HashMap::new());
        Self { schemas: 0, pattern_properties: 0, multiple: 1, passed, paths }
    }
}

/// The place of a value in memory: it identifies a schema while the client's text is borrowed.
pub(super) fn place(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// Refuses more than the most. `place` is the keyword's path.
fn at_most(place: &[String], most: u64, found: u64) -> Result<(), GrammarError> {
    if found <= most {
        return Ok(());
    }
    Err(GrammarError::new(format!("at most {most} at {}", place.join(".")), found))
}

impl Check {
    /// One schema at `path`, and the schemas in it.
    ///
    /// # Errors
    /// It is no schema, it has a keyword that cannot be enforced, or it is too large.
    pub(super) fn schema(
        &mut self,
        schema: &Value,
        path: &mut Vec<String>,
    ) -> Result<(), GrammarError> {
        self.schemas += 1;
        self.passed.insert(place(schema));
        at_most(&["all schemas".into()], MAX_SCHEMAS as u64, self.schemas as u64)?;
        if path.len() > MAX_LEVELS {
            return Err(GrammarError::new(format!("at most {MAX_LEVELS} levels"), "more"));
        }
        let members = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(members) => members,
            other => {
                let place = if path.is_empty() { "the root".into() } else { path.join(".") };
                let expected = format!("a schema (an object or a boolean) at {place}");
                return Err(GrammarError::new(expected, kind(other)));
            }
        };
        for (name, value) in members {
            path.push(brief(name));
            self.keyword(name, value, path)?;
            path.pop();
        }
        Ok(())
    }

    /// Whether a schema has passed.
    pub(super) fn has_passed(&self, schema: &Value) -> bool {
        self.passed.contains(&place(schema))
    }

    /// The path of a list of `oneOf`.
    pub(super) fn path_of(&self, list: &Value) -> &str {
        self.paths.get(&place(list)).map_or("the root", String::as_str)
    }

    fn keyword(
        &mut self,
        name: &str,
        value: &Value,
        path: &mut Vec<String>,
    ) -> Result<(), GrammarError> {
        let excludes_nothing = name == "uniqueItems" && *value == Value::Bool(false);
        let is_unserved = match name {
            "uniqueItems" => !excludes_nothing,
            "unevaluatedProperties" => !value.is_boolean(),
            name => UNSERVED.contains(&name),
        };
        if is_unserved {
            let found = format!("the keyword {name} at {}", path.join("."));
            return Err(GrammarError::new("only keywords that can be enforced", found));
        }
        if name == "multipleOf" {
            self.multiple(value, path)?;
        }
        check_numbers(name, value, path)?;
        match value {
            Value::Object(members) if OBJECT.contains(&name) => {
                if name == "properties" {
                    at_most(path, MAX_PROPERTIES as u64, members.len() as u64)?;
                }
                if name == "patternProperties" {
                    self.patterns(members, path)?;
                }
                for (key, inner) in members {
                    path.push(brief(key));
                    self.schema(inner, path)?;
                    path.pop();
                }
                Ok(())
            }
            Value::Array(list) if LIST.contains(&name) => {
                at_most(path, MAX_OPTIONS as u64, list.len() as u64)?;
                if name == "oneOf" {
                    self.paths.insert(place(value), path.join("."));
                }
                for (at, inner) in list.iter().enumerate() {
                    path.push(format!("[{at}]"));
                    self.schema(inner, path)?;
                    path.pop();
                }
                Ok(())
            }
            inner if SCHEMA.contains(&name) => self.schema(inner, path),
            other if LIST.contains(&name) || OBJECT.contains(&name) => {
                let form = if LIST.contains(&name) { "a list" } else { "an object" };
                let expected = format!("{form} of schemas at {}", path.join("."));
                Err(GrammarError::new(expected, kind(other)))
            }
            _ => Ok(()),
        }
    }

    /// A multiple: its digits without the decimal point.
    fn multiple(&mut self, value: &Value, path: &[String]) -> Result<(), GrammarError> {
        let digits = value.as_f64().map(|number| format!("{:e}", number.abs()));
        let digits = digits.as_deref().and_then(|text| text.split('e').next());
        let digits = digits.map(|text| text.replace('.', ""));
        // Without digits it is no number: the compiler's error says so.
        let Some(Ok(digits)) = digits.map(|digits| digits.parse::<u64>()) else { return Ok(()) };
        let (mut a, mut b) = (self.multiple, digits.max(1));
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let all = (self.multiple / a).saturating_mul(digits.max(1));
        at_most(path, MAX_MULTIPLE, all)?;
        self.multiple = all;
        Ok(())
    }

    fn patterns(
        &mut self,
        members: &Map<String, Value>,
        path: &[String],
    ) -> Result<(), GrammarError> {
        self.pattern_properties += members.len();
        at_most(path, MAX_PATTERN_PROPERTIES as u64, self.pattern_properties as u64)?;
        members.keys().try_for_each(|pattern| check_pattern(pattern, path))
    }
}

fn check_numbers(name: &str, value: &Value, path: &[String]) -> Result<(), GrammarError> {
    // Whole numbers may be written as 3.0.
    let number = || value.as_u64().or_else(|| value.as_f64().map(|number| number as u64));
    match name {
        "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            at_most(path, MAX_COUNT, number().unwrap_or(0))
        }
        "minLength" | "maxLength" => at_most(path, MAX_LENGTH, number().unwrap_or(0)),
        "enum" => {
            let values = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let nested = values.iter().filter(|value| value.is_object() || value.is_array());
            at_most(path, MAX_OPTIONS as u64, nested.count() as u64)?;
            at_most(path, MAX_VALUES as u64, values.len() as u64)
        }
        "pattern" => value.as_str().map_or(Ok(()), |pattern| check_pattern(pattern, path)),
        _ => Ok(()),
    }
}

fn check_pattern(pattern: &str, path: &[String]) -> Result<(), GrammarError> {
    let place = path.join(".");
    if pattern.len() > MAX_PATTERN_BYTES {
        let expected = format!("a pattern of at most {MAX_PATTERN_BYTES} bytes at {place}");
        return Err(GrammarError::new(expected, pattern.len()));
    }
    text::check_brackets(pattern)?;
    let expected = || format!("a pattern that can be enforced at {place}");
    pattern::check(pattern, pattern::Kind::Schema)
        .map_err(|fault| GrammarError::new(expected(), fault))
}

/// A value's kind, for errors.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::json::prepare;
    use super::*;

    fn refused(schema: Value) -> String {
        prepare(&schema.to_string()).expect_err("refused").to_string()
    }

    #[test]
    fn keywords_that_cannot_be_enforced_are_refused_by_name_and_place() {
        for name in UNSERVED {
            let schema = json!({"properties": {"a": {"items": {(*name): {}}}}});
            let place = format!("{name} at properties.a.items.{name}");
            assert!(refused(schema).contains(&place), "{name}");
        }
        assert!(refused(json!({"uniqueItems": true})).contains("uniqueItems"));
        prepare(r#"{"uniqueItems": false, "x-order": 3, "title": "not"}"#).expect("no effect");
        let unevaluated = json!({"unevaluatedProperties": {"type": "string"}});
        assert!(refused(unevaluated).contains("unevaluatedProperties"));
    }

    #[test]
    fn names_of_properties_and_values_are_no_keywords() {
        let schema = json!({
            "properties": {"not": {"type": "string"}, "if": {"enum": [{"contains": 1}]}},
            "default": {"not": {}}, "const": {"if": 1}, "examples": [{"else": 2}],
        });
        prepare(&schema.to_string()).expect("fine");
    }

    #[test]
    fn numbers_lists_and_levels_are_bounded() {
        for name in ["minItems", "maxItems", "minProperties", "maxProperties"] {
            assert!(refused(json!({ (name): MAX_COUNT + 1 })).contains(name));
            assert!(refused(json!({ (name): 1e300 })).contains(name));
        }
        assert!(refused(json!({"maxLength": MAX_LENGTH + 1})).contains("maxLength"));
        assert!(refused(json!({"enum": vec![0; MAX_VALUES + 1]})).contains("enum"));
        assert!(refused(json!({"enum": vec![json!({}); MAX_OPTIONS + 1]})).contains("enum"));
        let properties: Map<String, Value> =
            (0..=MAX_PROPERTIES).map(|at| (format!("p{at}"), json!(true))).collect();
        assert!(refused(json!({ "properties": properties })).contains("properties"));
        for multiples in [vec![10_007], vec![101, 103], vec![9, 16, 25, 7]] {
            let of = |of: &i32| json!({ "multipleOf": of });
            let all: Vec<Value> = multiples.iter().map(of).collect();
            assert!(refused(json!({ "allOf": all })).contains("multipleOf"), "{multiples:?}");
        }
        prepare(r#"{"allOf": [{"multipleOf": 0.01}, {"multipleOf": 25}, {"multipleOf": 1000}]}"#)
            .expect("small multiples");
        assert!(refused(json!({"anyOf": vec![true; MAX_OPTIONS + 1]})).contains("anyOf"));
        assert!(refused(json!({"pattern": "a".repeat(MAX_PATTERN_BYTES + 1)})).contains("pattern"));
        let patterns: Map<String, Value> =
            (0..=MAX_PATTERN_PROPERTIES).map(|at| (format!("^{at}$"), json!({}))).collect();
        assert!(refused(json!({ "patternProperties": patterns })).contains("patternProperties"));
        let mut deep = json!({});
        for _ in 0..=MAX_LEVELS {
            deep = json!({ "items": deep });
        }
        assert!(refused(deep).contains("levels"));
        let many: Vec<Value> = (0..100).map(|_| json!({"prefixItems": vec![true; 100]})).collect();
        assert!(refused(json!({ "prefixItems": many })).contains("all schemas"));
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        assert!(refused(json!([1])).contains("a list"));
        assert!(refused(json!({"properties": {"a": 3}})).contains("properties.a"));
        assert!(refused(json!({"anyOf": {}})).contains("a list of schemas at anyOf"));
        assert!(refused(json!({"properties": []})).contains("an object of schemas at properties"));
        assert!(refused(json!(false)).contains("false"));
        assert!(prepare("{").expect_err("cut").to_string().contains("EOF"));
        assert!(prepare("true").is_ok());
    }
}
