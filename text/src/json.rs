//! JSON of a request whose shape no type has: tools' parameters, tool calls' arguments, variables
//! of the template. It comes as text, or as a value of a body that was parsed before. One visitor
//! reads both with one budget for all of a request, which is checked before a value is made.
//!
//! An object with a key twice is refused: which of the two values the client means is unknown. In
//! the arguments of an earlier tool call the last value counts: a model wrote them, and the client
//! that resends them ran its tool with the last value.

use std::borrow::Cow;
use std::fmt;
use std::io;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{FieldError, quoted};
use crate::prompt::conversation::ToolCallArguments;

/// Bytes of all JSON of a request: about 260,000 tokens, more than most contexts have.
const MAX_BYTES: usize = 1 << 20;
/// Values of all JSON of a request, at all depths. A value takes 72 bytes and one in an object of
/// its own about 600: 40 MiB at worst, 5 MiB for numbers in a list. The schemas of 100 tools and
/// 5,000 tool calls of them have about 30,000 values.
const MAX_VALUES: usize = 1 << 16;
/// Objects and lists inside one another. Published schemas have at most 20; a template's own
/// functions recurse by it.
const MAX_DEPTH: usize = 64;

/// JSON for a field of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonInput {
    /// A text that has not been parsed. An empty one is an empty object.
    Text(String),
    /// A value of a body that was parsed.
    Value(Value),
}

impl JsonInput {
    /// As text.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Value(value) => Cow::Owned(value.to_string()),
        }
    }

    /// Bytes of its text.
    fn bytes(&self) -> usize {
        struct Counter(usize);

        impl io::Write for Counter {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len();
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        match self {
            Self::Text(text) => text.len(),
            Self::Value(value) => {
                let mut counter = Counter(0);
                // Neither the counter nor a value has an error.
                let _ = serde_json::to_writer(&mut counter, value);
                counter.0
            }
        }
    }
}

impl Default for JsonInput {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<&str> for JsonInput {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Value> for JsonInput {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// Without members as if the field were absent.
impl From<Map<String, Value>> for JsonInput {
    fn from(members: Map<String, Value>) -> Self {
        if members.is_empty() { Self::default() } else { Self::Value(members.into()) }
    }
}

/// Why a value is refused.
#[derive(Clone, Debug)]
enum JsonProblem {
    TooManyValues,
    TooDeep,
    /// An object has this key twice.
    KeyTwice(String),
}

/// Treatment of an object that has a key twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyTwice {
    Refused,
    LastCounts,
}

/// Bytes and values of a request's JSON, counted so far against their limits.
#[derive(Debug)]
pub struct JsonBudget {
    bytes: usize,
    values: usize,
    max_values: usize,
    max_depth: usize,
    problem: Option<JsonProblem>,
}

impl Default for JsonBudget {
    fn default() -> Self {
        let (max_values, max_depth) = (MAX_VALUES, MAX_DEPTH);
        Self { bytes: 0, values: 0, max_values, max_depth, problem: None }
    }
}

/// Reads a value of a body whose bounds were checked before.
///
/// # Errors
/// An object has a key twice; those of the deserializer.
pub fn value_of_body<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let (max_values, max_depth) = (usize::MAX, usize::MAX);
    let mut budget = JsonBudget { max_values, max_depth, ..JsonBudget::default() };
    let key_twice = KeyTwice::Refused;
    Bounded { budget: &mut budget, depth: 1, key_twice }.deserialize(deserializer)
}

/// Why an object with this key twice is refused.
pub fn key_twice(key: &str) -> String {
    format!("the key {} twice", quoted(key))
}

impl JsonBudget {
    /// Bytes of JSON text that were read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A JSON object.
    ///
    /// # Errors
    /// It is none, an object has a key twice, or the request's JSON is over a bound with it.
    pub fn object(
        &mut self,
        field: &str,
        json: &JsonInput,
    ) -> Result<Map<String, Value>, FieldError> {
        if *json == JsonInput::default() {
            return Ok(Map::new());
        }
        self.count_bytes(field, json)?;
        match (self.read(json, KeyTwice::Refused), self.problem.take()) {
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
            (Ok(_), None) => Err(FieldError::new(field, "a JSON object", quoted(&json.text()))),
            (Err(error), None) => {
                let found = format!("{}: {error}", quoted(&json.text()));
                Err(FieldError::new(field, "a JSON object", found))
            }
        }
    }

    /// Arguments of an earlier tool call, which the model wrote: a JSON object, or another text as
    /// it is. Of a key that comes twice the last value counts, as for clients that ran the call.
    ///
    /// # Errors
    /// The request's JSON is over the bound of bytes with it.
    pub fn tool_call_arguments(
        &mut self,
        field: &str,
        json: &JsonInput,
    ) -> Result<ToolCallArguments, FieldError> {
        if *json == JsonInput::default() {
            return Ok(Map::new().into());
        }
        self.count_bytes(field, json)?;
        let values_before = self.values;
        match (self.read(json, KeyTwice::LastCounts), self.problem.take()) {
            (Ok(Value::Object(members)), None) => Ok(members.into()),
            _ => {
                self.values = values_before;
                Ok(ToolCallArguments::Text(json.text().into_owned()))
            }
        }
    }

    fn count_bytes(&mut self, field: &str, json: &JsonInput) -> Result<(), FieldError> {
        self.bytes = self.bytes.saturating_add(json.bytes());
        if self.bytes <= MAX_BYTES {
            return Ok(());
        }
        let expected = format!("at most {MAX_BYTES} bytes of JSON in all fields of a request");
        let found = format!("{} with this field", self.bytes);
        Err(FieldError::new(field, expected, found))
    }

    /// The value. A problem of ours is in `problem`.
    fn read(&mut self, json: &JsonInput, key_twice: KeyTwice) -> Result<Value, serde_json::Error> {
        let bounded = Bounded { budget: self, depth: 1, key_twice };
        match json {
            JsonInput::Text(text) => {
                let mut reader = serde_json::Deserializer::from_str(text);
                let value = bounded.deserialize(&mut reader)?;
                reader.end().map(|()| value)
            }
            JsonInput::Value(value) => bounded.deserialize(value),
        }
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
        if self.depth > self.budget.max_depth {
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
        if self.budget.values > self.budget.max_values {
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

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
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
                let error = A::Error::custom(key_twice(&name));
                self.budget.problem = Some(JsonProblem::KeyTwice(name));
                return Err(error);
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
        JsonBudget::default().object("f", &text.into()).map_err(|error| {
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
        let read = |text: &str| {
            JsonBudget::default().tool_call_arguments("f", &text.into()).expect("within")
        };
        let deep = "[".repeat(1 << 19);
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(MAX_VALUES));
        for text in ["{\"item\": \"bri", "3", "[]", "null", "\"a\"", "{} x", " ", &deep, &many] {
            assert_eq!(read(text), ToolCallArguments::Text(text.to_owned()));
        }
        let one =
            |value: i32| ToolCallArguments::Object(Map::from_iter([("a".into(), value.into())]));
        assert_eq!(read(r#"{"a": 1, "a": 2}"#), one(2));
        assert_eq!(read(""), Map::new().into());
        // A text takes nothing of the budget of values.
        let mut budget = JsonBudget::default();
        budget.tool_call_arguments("f", &many.as_str().into()).expect("a text");
        assert_eq!(budget.tool_call_arguments("f", &r#"{"a": 1}"#.into()).expect("within"), one(1));
        let long = JsonInput::Text("x".repeat(MAX_BYTES));
        budget.tool_call_arguments("g", &long).expect_err("more bytes than a request may have");
    }

    #[test]
    fn a_parsed_value_has_the_bounds_of_its_text() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(MAX_VALUES));
        let long = format!("{{\"a\":\"{}\\n\"}}", "é\\u0001".repeat(MAX_BYTES / 8 + 1));
        let fine = r#"{"b":{"c":[1,-2.5,true,null,"é\n\""]},"a":{}}"#;
        for text in [&deep, &many, &long, fine, "{}", "[]", "[1]", "3", "null", "\"a\""] {
            let value = serde_json::from_str::<Value>(text).expect("JSON");
            let text = value.to_string();
            let (parsed, text) = (JsonInput::Value(value), JsonInput::Text(text));
            let object = |json| {
                let mut budget = JsonBudget::default();
                (budget.object("f", json), budget.bytes, budget.values)
            };
            assert_eq!(object(&parsed), object(&text));
            let arguments = |json| {
                let mut budget = JsonBudget::default();
                (budget.tool_call_arguments("f", json), budget.bytes, budget.values)
            };
            assert_eq!(arguments(&parsed), arguments(&text));
        }
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
        let half = JsonInput::Text(format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_BYTES / 2 - 8)));
        for _ in 0..2 {
            budget.object("f", &half).expect("within");
        }
        assert_eq!(budget.bytes(), MAX_BYTES);
        let error = budget.object("g", &"{}".into()).expect_err("two bytes more");
        let expected = "g: expected at most 1048576 bytes of JSON in all fields of a request, found 1048578 with this field";
        assert_eq!(error.to_string(), expected);
        let mut budget = JsonBudget::default();
        let quarter = JsonInput::Text(format!("{{\"a\":[{}0]}}", "0,".repeat(MAX_VALUES / 4)));
        let refused = (0..4)
            .find_map(|at| budget.object(&format!("f[{at}]"), &quarter).err())
            .expect("too many values in all");
        assert!(
            refused.to_string().starts_with("f[3]: expected at most 65536 JSON values"),
            "{refused}"
        );
    }
}
