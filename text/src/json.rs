//! JSON that a request has as text: tools' parameters, calls' arguments, variables of the template.
//! It is read with one budget for all of a request, which is checked before a value is made.
//!
//! An object with a key twice is refused: which of the two values the client means is unknown. In
//! the arguments of an earlier call the last value counts: a model wrote them, and the client that
//! resends them ran its tool with the last value.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{FieldError, quoted};
use crate::prompt::conversation::CallArguments;

/// Bytes of all JSON of a request: about 260,000 tokens, more than most contexts have.
const MAX_BYTES: usize = 1 << 20;
/// Values of all JSON of a request, at all depths. A value takes 72 bytes and one in an object of
/// its own about 600: 40 MiB at worst, 5 MiB for numbers in a list. The schemas of 100 tools and
/// 5,000 calls of them have about 30,000 values.
const MAX_VALUES: usize = 1 << 16;
/// Objects and lists inside one another. Published schemas have at most 20; a template's own
/// functions recurse by it.
const MAX_DEPTH: usize = 64;

/// Why a value is refused.
#[derive(Clone, Debug)]
enum JsonProblem {
    TooManyValues,
    TooDeep,
    /// An object has this key twice.
    KeyTwice(String),
}

/// What becomes of an object with a key twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyTwice {
    Refused,
    LastCounts,
}

/// What a request's JSON took so far.
#[derive(Debug, Default)]
pub struct JsonBudget {
    bytes: usize,
    values: usize,
    problem: Option<JsonProblem>,
}

impl JsonBudget {
    /// Bytes of JSON text that were read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A JSON object as text; empty text is an empty one.
    ///
    /// # Errors
    /// It is none, an object has a key twice, or the request's JSON is over a bound with it.
    pub fn object(&mut self, field: &str, text: &str) -> Result<Map<String, Value>, FieldError> {
        if text.is_empty() {
            return Ok(Map::new());
        }
        self.count_bytes(field, text)?;
        match (self.read(text, KeyTwice::Refused), self.problem.take()) {
            (_, Some(JsonProblem::TooManyValues)) => {
                let expected =
                    format!("at most {MAX_VALUES} JSON values in all fields of a request");
                Err(FieldError::new(field, expected, "more"))
            }
            (_, Some(JsonProblem::TooDeep)) => {
                Err(FieldError::new(field, format!("JSON of at most {MAX_DEPTH} levels"), "more"))
            }
            (_, Some(JsonProblem::KeyTwice(key))) => {
                let found = format!("{} twice", quoted(&key));
                Err(FieldError::new(field, "JSON objects with each key once", found))
            }
            (Ok(Value::Object(object)), None) => Ok(object),
            (Ok(_), None) => Err(FieldError::new(field, "a JSON object", quoted(text))),
            (Err(error), None) => {
                Err(FieldError::new(field, "a JSON object", format!("{}: {error}", quoted(text))))
            }
        }
    }

    /// Arguments of an earlier call, which the model wrote: a JSON object, or another text as it is.
    /// Of a key that comes twice the last value counts, as for the clients that ran the call.
    ///
    /// # Errors
    /// The request's JSON is over the bound of bytes with it.
    pub fn call_arguments(&mut self, field: &str, text: &str) -> Result<CallArguments, FieldError> {
        if text.is_empty() {
            return Ok(Map::new().into());
        }
        self.count_bytes(field, text)?;
        let values_before = self.values;
        match (self.read(text, KeyTwice::LastCounts), self.problem.take()) {
            (Ok(Value::Object(members)), None) => Ok(members.into()),
            _ => {
                self.values = values_before;
                Ok(CallArguments::Text(text.to_owned()))
            }
        }
    }

    fn count_bytes(&mut self, field: &str, text: &str) -> Result<(), FieldError> {
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes <= MAX_BYTES {
            return Ok(());
        }
        let expected = format!("at most {MAX_BYTES} bytes of JSON in all fields of a request");
        let found = format!("{} with this field", self.bytes);
        Err(FieldError::new(field, expected, found))
    }

    /// The JSON of a text. A problem of ours is in `problem`.
    fn read(&mut self, text: &str, key_twice: KeyTwice) -> Result<Value, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let value = Bounded { budget: self, depth: 1, key_twice }.deserialize(&mut reader)?;
        reader.end().map(|()| value)
    }
}

/// Makes one value and counts it and those in it.
struct Bounded<'a> {
    budget: &'a mut JsonBudget,
    /// Of the value: 1 for the outermost.
    depth: usize,
    key_twice: KeyTwice,
}

impl Bounded<'_> {
    /// For a value inside this one.
    fn inner(&mut self) -> Bounded<'_> {
        Bounded { budget: self.budget, depth: self.depth + 1, key_twice: self.key_twice }
    }

    /// Lists and objects are bounded in depth.
    fn enter<E: serde::de::Error>(&mut self) -> Result<(), E> {
        if self.depth > MAX_DEPTH {
            self.budget.problem = Some(JsonProblem::TooDeep);
            return Err(E::custom("too deep"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.budget.values += 1;
        if self.budget.values > MAX_VALUES {
            self.budget.problem = Some(JsonProblem::TooManyValues);
            return Err(D::Error::custom("too many values"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        self.enter()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self.inner())? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<Value, A::Error> {
        self.enter()?;
        let mut members = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            if self.key_twice == KeyTwice::Refused && members.contains_key(&name) {
                self.budget.problem = Some(JsonProblem::KeyTwice(name));
                return Err(A::Error::custom("a key twice"));
            }
            let value = object.next_value_seed(self.inner())?;
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Map<String, Value>, String> {
        JsonBudget::default().object("f", text).map_err(|error| {
            assert_eq!(error.field, "f");
            error.to_string()
        })
    }

    #[test]
    fn json_is_read_as_the_library_reads_it() {
        let text = r#"{"a": [1, -2, 3.5, 1e400, 18446744073709551615, "x\u00e9\n", true, null, {}], "b": {"c": []}, "d": {"z": 1, "y": 2}}"#;
        let texts = [
            text,
            "{}",
            r#"{"a": 1e308}"#,
            r#"{"": {"": [[]]}}"#,
            "{",
            "[1]",
            "3",
            "{} x",
            r#"{"a": 01}"#,
            "{\"a\": \"\u{1}\"}",
        ];
        for text in texts {
            let library = serde_json::from_str::<Map<String, Value>>(text).ok();
            let found = read(text).ok();
            assert_eq!(found, library, "{text}");
            let order = |map: &Option<Map<String, Value>>| {
                map.as_ref().map(|map| map.keys().cloned().collect::<Vec<_>>())
            };
            assert_eq!(order(&found), order(&library), "{text}");
        }
        assert_eq!(read(""), Ok(Map::new()));
    }

    #[test]
    fn a_key_that_is_in_an_object_twice_is_refused_by_name() {
        let twice = "f: expected JSON objects with each key once, found \"a\" twice";
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"a": 1, "b": 2, "\u0061": {}}"#,
            r#"{"b": [{"a": null, "a": null}]}"#,
        ] {
            assert_eq!(read(text).expect_err("twice"), twice, "{text}");
        }
        assert!(read(r#"{"a": {"a": 1}, "A": 2}"#).is_ok(), "each is in an object of its own");
    }

    #[test]
    fn arguments_that_are_no_object_stay_a_text() {
        let read = |text: &str| JsonBudget::default().call_arguments("f", text).expect("within");
        let deep = "[".repeat(1 << 19);
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(MAX_VALUES));
        for text in ["{\"item\": \"bri", "3", "[]", "null", "\"a\"", "{} x", " ", &deep, &many] {
            assert_eq!(read(text), CallArguments::Text(text.to_owned()));
        }
        let one = |value: i32| CallArguments::Object(Map::from_iter([("a".into(), value.into())]));
        assert_eq!(read(r#"{"a": 1, "a": 2}"#), one(2));
        assert_eq!(read(""), Map::new().into());
        // A text takes nothing of the budget of values.
        let mut budget = JsonBudget::default();
        budget.call_arguments("f", &many).expect("a text");
        assert_eq!(budget.call_arguments("f", r#"{"a": 1}"#).expect("within"), one(1));
        let long = "x".repeat(MAX_BYTES);
        budget.call_arguments("g", &long).expect_err("more bytes than a request may have");
    }

    #[test]
    fn values_are_bounded_before_they_are_made() {
        let list = |values: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(values - 1));
        // The object and the list are values, too.
        assert!(read(&list(MAX_VALUES - 2)).is_ok());
        let error = read(&list(MAX_VALUES - 1)).expect_err("one too many");
        assert_eq!(
            error,
            "f: expected at most 65536 JSON values in all fields of a request, found more"
        );
    }

    #[test]
    fn depth_is_bounded() {
        let lists =
            |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(read(&lists(MAX_DEPTH)).is_ok());
        let objects = format!("{}1{}", "{\"a\":".repeat(MAX_DEPTH + 1), "}".repeat(MAX_DEPTH + 1));
        for text in [lists(MAX_DEPTH + 1), objects, format!("{{\"a\":{}", "[".repeat(1 << 19))] {
            assert_eq!(
                read(&text).expect_err("too deep"),
                "f: expected JSON of at most 64 levels, found more"
            );
        }
    }

    #[test]
    fn all_json_of_a_request_has_one_budget() {
        let mut budget = JsonBudget::default();
        let half = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_BYTES / 2 - 8));
        for _ in 0..2 {
            budget.object("f", &half).expect("within");
        }
        assert_eq!(budget.bytes(), MAX_BYTES);
        let error = budget.object("g", "{}").expect_err("two bytes more");
        let expected = "g: expected at most 1048576 bytes of JSON in all fields of a request, found 1048578 with this field";
        assert_eq!(error.to_string(), expected);
        let mut budget = JsonBudget::default();
        let quarter = format!("{{\"a\":[{}0]}}", "0,".repeat(MAX_VALUES / 4));
        let refused = (0..4)
            .find_map(|at| budget.object(&format!("f[{at}]"), &quarter).err())
            .expect("too many values in all");
        assert!(
            refused.to_string().starts_with("f[3]: expected at most 65536 JSON values"),
            "{refused}"
        );
    }
}
