//! Fields of requests that no part of the service reads and that are accepted nevertheless: clients
//! of the protocol always send them, and the answer is the same without them.
//!
//! Each protocol has a table for each kind of object, with the field's name, the values that change
//! nothing, and the client that sends it. Another value, and a field that is in no table, is refused
//! by its path (I5), unless its value is null.

use serde_json::{Map, Value};

use super::json::AnyObject;
use crate::inference::error::{Result, quoted, refuse};

/// The fields of one object besides those that are served, each once.
pub type Rest = AnyObject;

/// A field that is accepted and not read.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Name of the field in the JSON object.
    pub field: &'static str,
    /// The values that change nothing. `null` is always one of them.
    pub values: Values,
    /// The clients that send it.
    pub client: &'static str,
}

/// Values of a field that change nothing.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Every value.
    Any,
    /// None but `null`: the protocol has the field, and the service does not serve it.
    Null,
    /// `null`, an empty text, list or object.
    Empty,
    /// This boolean.
    Boolean(bool),
    /// One of these texts.
    Words(&'static [&'static str]),
    /// One of these numbers.
    Numbers(&'static [f64]),
    /// A list of this one text.
    ListOf(&'static str),
}

/// Tiers of OpenAI's service.
pub const TIERS: Values = Values::Words(&["auto", "default", "flex", "priority", "scale"]);
/// Lengths of answers of OpenAI's service.
pub const LENGTHS: Values = Values::Words(&["low", "medium", "high"]);

/// An accepted field.
pub const fn accepted(field: &'static str, values: Values, client: &'static str) -> Accepted {
    Accepted { field, values, client }
}

/// Of an assistant's message: the parts of a thought that another service made, such as its summary
/// or its encrypted form. The thought's text has a field of its own.
pub const REASONING_DETAILS: Accepted =
    accepted("reasoning_details", Values::Any, "Cline, clients of OpenRouter");

/// Declares the objects of a request. Each object keeps the fields of the client that it does not
/// declare, and `accepts` names the table of `accepted` with those that change nothing. An object
/// without a table has none.
macro_rules! objects {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident $(as $schema:ident)? $(accepts $table:ident)? { $($fields:tt)* }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, PartialEq, serde::Deserialize, utoipa::ToSchema)]
            $(#[schema(as = $schema)])?
            pub struct $name {
                $($fields)*
                /// All other fields of the client's object.
                #[serde(flatten)]
                #[schema(ignore)]
                pub rest: $crate::accepted::Rest,
            }

            impl $name {
                /// The fields in `rest` that are accepted and not read. Others are refused.
                pub const ACCEPTED: &'static [$crate::accepted::Accepted] =
                    $crate::accepted::objects!(@table $($table)?);
            }
        )*

        /// The accepted fields of each object, by the name of the object's schema.
        #[cfg(any(test, feature = "samples"))]
        pub fn accepted_by_schema() -> $crate::accepted::BySchema {
            vec![$((<$name as utoipa::ToSchema>::name(), $name::ACCEPTED)),*]
        }
    };
    (@table) => { &[] };
    (@table $table:ident) => { accepted::$table };
}
pub(crate) use objects;

/// Declares the forms of a part that has a type. Each form is an object that `objects!` declares.
macro_rules! forms {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident as $schema:ident { $($forms:tt)* }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, PartialEq, serde::Deserialize, utoipa::ToSchema)]
            #[serde(tag = "type", rename_all = "snake_case")]
            #[schema(as = $schema)]
            pub enum $name { $($forms)* }
        )*
    };
}
pub(crate) use forms;

/// Tables of accepted fields, by the names of schemas.
#[cfg(any(test, feature = "samples"))]
pub type BySchema = Vec<(std::borrow::Cow<'static, str>, &'static [Accepted])>;

/// Checks the fields of an object besides those that are served. `path` is the object's own: empty,
/// or with a dot at its end.
///
/// # Errors
/// A field that is not accepted, or not with its value.
pub fn check(path: &str, rest: &Rest, table: &[Accepted]) -> Result<()> {
    check_members(path, &rest.0, table)
}

/// As [`check`], for an object without a type.
///
/// # Errors
/// Those of [`check`].
pub fn check_members(path: &str, rest: &Map<String, Value>, table: &[Accepted]) -> Result<()> {
    for (name, value) in rest {
        let field = format!("{path}{name}");
        match table.iter().find(|accepted| accepted.field == name) {
            // A field without a value carries nothing: clients resend objects with all their fields.
            None if value.is_null() => {}
            None => {
                return refuse(&field, "no such field", "a field that this service does not serve");
            }
            Some(accepted) if accepted.values.have(value) => {}
            Some(accepted) => {
                let words = accepted.values.words();
                return refuse(&field, words, quoted_value(value));
            }
        }
    }
    Ok(())
}

/// A value for an error. A text has quotes once.
pub fn quoted_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    }
}

impl Values {
    /// Whether the value is one of them.
    fn have(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) | (Values::Any, _) => true,
            (Values::Empty, Value::String(text)) => text.is_empty(),
            (Values::Empty, Value::Array(list)) => list.is_empty(),
            (Values::Empty, Value::Object(object)) => object.is_empty(),
            (Values::Boolean(wanted), Value::Bool(found)) => wanted == *found,
            (Values::Words(words), Value::String(found)) => words.contains(&found.as_str()),
            (Values::Numbers(numbers), Value::Number(found)) => {
                found.as_f64().is_some_and(|found| numbers.contains(&found))
            }
            (Values::ListOf(word), Value::Array(list)) => list.iter().all(|one| one == word),
            _ => false,
        }
    }

    /// The values in words, for a client.
    fn words(self) -> String {
        match self {
            Values::Any => "any value".to_owned(),
            Values::Null | Values::Empty => {
                "no value, because this service does not serve the field".to_owned()
            }
            Values::Boolean(value) => format!("{value}, the one value that is served"),
            Values::Words(words) => format!("one of {words:?}, the values that are served"),
            Values::Numbers(numbers) => format!("one of {numbers:?}, the values that are served"),
            Values::ListOf(word) => format!("[{word:?}], the one value that is served"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    const TABLE: &[Accepted] = &[
        accepted("any", Values::Any, "a client"),
        accepted("null", Values::Null, "a client"),
        accepted("empty", Values::Empty, "a client"),
        accepted("boolean", Values::Boolean(true), "a client"),
        accepted("word", Values::Words(&["a", "b"]), "a client"),
        accepted("number", Values::Numbers(&[0.0, 1.0]), "a client"),
        accepted("list", Values::ListOf("a"), "a client"),
    ];

    fn refused(name: &str, value: Value) -> Option<(String, String)> {
        let rest = AnyObject(Map::from_iter([(name.to_owned(), value)]));
        let error = check("messages[1].", &rest, TABLE).err()?;
        Some((error.field.expect("a field"), error.message))
    }

    #[test]
    fn a_field_in_no_table_is_refused_by_its_path() {
        let (field, message) = refused("guided_regex", json!("a*")).expect("refused");
        assert_eq!(field, "messages[1].guided_regex");
        assert!(message.contains("does not serve"), "{message}");
        assert_eq!(refused("guided_regex", Value::Null), None);
    }

    #[test]
    fn an_error_quotes_a_text_once() {
        let (_, message) = refused("null", json!("a b")).expect("refused");
        assert!(message.contains("found \"a b\""), "{message}");
    }

    #[test]
    fn a_field_has_its_values_and_null_and_no_others() {
        for (name, accepted, other) in [
            ("any", vec![json!({"a": [1]}), json!(7)], vec![]),
            ("null", vec![], vec![json!(""), json!({}), json!(false)]),
            ("empty", vec![json!(""), json!([]), json!({})], vec![json!("a"), json!(0)]),
            ("boolean", vec![json!(true)], vec![json!(false), json!("true")]),
            ("word", vec![json!("a"), json!("b")], vec![json!("c"), json!(["a"])]),
            ("number", vec![json!(0), json!(1.0)], vec![json!(2), json!("0")]),
            ("list", vec![json!(["a"]), json!([])], vec![json!(["a", "b"]), json!("a")]),
        ] {
            assert_eq!(refused(name, Value::Null), None);
            for value in accepted {
                assert_eq!(refused(name, value), None);
            }
            for value in other {
                assert_eq!(refused(name, value).expect("refused").0, format!("messages[1].{name}"));
            }
        }
    }
}
