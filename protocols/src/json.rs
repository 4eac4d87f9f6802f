//! JSON of clients: bounded before it is decoded, refused with the path of the field.
//!
//! One pass over the bytes counts values, numbers, levels and the bytes of keys. A value that takes two bytes may take
//! a hundred decoded; without bounds a body of 16 MiB becomes a gigabyte. The pass decides nothing
//! else: what is no JSON is refused by the decoder.

use std::fmt;

use paceline_text::json::value_of_body;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::inference::error::{InferenceError, Result};
use crate::inference::input::JsonInput;
use crate::shorten::shorten;

/// Values of a body other than numbers, keys left out. A conversation of 16,384 turns, the most
/// that is served, has about 100,000.
const MAX_VALUES: usize = 1 << 17;
/// Numbers of a body, unless its protocol takes prompts of token ids.
pub const MAX_NUMBERS: usize = 1 << 16;
/// Objects and lists inside one another: the 64 levels that a tool's schema may have, and the body
/// around it. The decoder's own bound is 128.
const MAX_DEPTH: usize = 80;
/// Bytes of a key. Errors and decoders copy keys that they do not know. No protocol and no
/// published schema has a name as long as this.
const MAX_KEY_BYTES: usize = 1 << 10;
/// Characters of the decoder's words, and of a path, in an error. They may quote the client's own
/// text.
const MAX_WORDS: usize = 200;

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Decodes a body with at most `numbers` numbers.
///
/// # Errors
/// It is over a bound; it is no JSON; it is not of this type. The error names the field.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], numbers: usize) -> Result<T> {
    // Editors of some systems write the mark in front of a text file (RFC 8259, section 8.1: a parser
    // may ignore it).
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    check_bounds(bytes, numbers)?;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let body = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| refusal(&error.path().to_string(), error.inner()))?;
    reader.end().map_err(|error| refusal(".", &error))?;
    Ok(body)
}

/// Counts values, numbers and levels.
fn check_bounds(bytes: &[u8], numbers: usize) -> Result<()> {
    let over = |limit: usize, what: &str| {
        let expected = format!("JSON of at most {limit} {what}");
        Err(InferenceError::invalid("body", expected, "more").fact("limit", limit))
    };
    let (mut values, mut figures, mut depth, mut at) = (0usize, 0usize, 0usize, 0usize);
    let mut string_bytes = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                (values, depth) = (values + 1, depth + 1);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                values += 1;
                let end = after_string(bytes, at);
                (string_bytes, at) = (end - at, end); // with the closing quote
            }
            // The string before it was a key.
            b':' => {
                values = values.saturating_sub(1);
                if string_bytes > MAX_KEY_BYTES {
                    return over(MAX_KEY_BYTES, "bytes in a key");
                }
            }
            b'-' | b'0'..=b'9' => {
                figures += 1;
                while matches!(bytes.get(at), Some(b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
                {
                    at += 1;
                }
            }
            b't' | b'f' | b'n' => {
                values += 1;
                while bytes.get(at).is_some_and(u8::is_ascii_lowercase) {
                    at += 1;
                }
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return over(MAX_DEPTH, "levels");
        }
        if values > MAX_VALUES {
            return over(MAX_VALUES, "values");
        }
        if figures > numbers {
            return over(numbers, "numbers");
        }
    }
    Ok(())
}

/// The place after the string whose first byte is at `at`.
fn after_string(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match bytes.get(at) {
            None => return bytes.len(),
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

fn refusal(path: &str, error: &serde_json::Error) -> InferenceError {
    let words = error.to_string();
    // The decoder writes "?" for a place that it did not reach.
    let parent = match path {
        "." | "?" => "",
        path => path.trim_end_matches(".?"),
    };
    let name = |start: &str| {
        let rest = words.strip_prefix(start)?;
        rest.split_once('`').map(|(name, _)| name)
    };
    // The decoder may be at the parent or at the field when it does not know a key.
    let child = |name: &str| {
        let is_there = parent == name || parent.ends_with(&format!(".{name}"));
        match parent.is_empty() || is_there {
            true if is_there => short(parent),
            true => short(name),
            false => short(&format!("{parent}.{name}")),
        }
    };
    if let Some(name) = name("unknown field `") {
        let field = child(name);
        return InferenceError::invalid(
            &field,
            "no such field: it is not served",
            "it in the body",
        );
    }
    if let Some(name) = name("missing field `") {
        return InferenceError::invalid(&child(name), "a value", "none");
    }
    if let Some(name) = name("duplicate field `") {
        return InferenceError::invalid(&child(name), "the field once", "it twice");
    }
    let field = short(if parent.is_empty() { "body" } else { parent });
    if let Some((found, expected)) = out_of_range(&words) {
        return InferenceError::invalid(&field, short(expected), short(found));
    }
    let words = short(&words);
    let kind = if error.is_data() { "a value of this field" } else { "JSON" };
    InferenceError::invalid(&field, kind, words)
}

/// The found and the expected value, if these words of the decoder are about a value that its
/// field does not take.
fn out_of_range(words: &str) -> Option<(&str, &str)> {
    let rest = words.strip_prefix("invalid value: integer `")?;
    let (found, rest) = rest.split_once("`, expected ")?;
    let (expected, _place) = rest.rsplit_once(" at line ")?;
    Some((found, expected))
}

/// A text that may quote the client's own, cut if it is long.
fn short(text: &str) -> String {
    // Not copied whole: it may be as long as the body.
    let mut text: String = text.chars().take(MAX_WORDS + 1).collect();
    shorten(&mut text, MAX_WORDS);
    text
}

/// JSON of a client whose shape no type has, such as a tool's schema. An object with a key twice is
/// refused: which of the two values the client means is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct AnyJson(pub Value);

impl From<AnyJson> for JsonInput {
    fn from(AnyJson(value): AnyJson) -> Self {
        Self::Value(value)
    }
}

impl AnyJson {
    /// The JSON as text.
    pub fn text(&self) -> String {
        self.0.to_string()
    }
}

/// A JSON object of a client with any members, such as labels. As [`AnyJson`], with each key once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = Object)]
pub struct AnyObject(pub Map<String, Value>);

/// Arguments of an earlier tool call, which a client resends as the model wrote them: an object,
/// the text of one, or nothing. A model may have written a key twice. The last value counts, as for
/// the client that ran the tool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct ResentArguments(pub Value);

impl ResentArguments {
    /// For the middle.
    pub fn input(self) -> JsonInput {
        match self.0 {
            Value::Null => JsonInput::default(),
            Value::String(text) => JsonInput::Text(text),
            other => JsonInput::Value(other),
        }
    }
}

impl<'de> Deserialize<'de> for AnyObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = AnyObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<AnyObject, A::Error> {
                let mut members = Map::new();
                while let Some(name) = object.next_key::<String>()? {
                    if members.contains_key(&name) {
                        // The words by which `refusal` finds the field.
                        return Err(A::Error::custom(format!("duplicate field `{name}`")));
                    }
                    let AnyJson(value) = object.next_value()?;
                    members.insert(name, value);
                }
                Ok(AnyObject(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

impl<'de> Deserialize<'de> for AnyJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        value_of_body(deserializer).map(AnyJson)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        name: String,
        #[serde(default)]
        inner: Vec<Inner>,
        #[serde(default)]
        any: AnyJson,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        count: u32,
    }

    fn refused(text: &str) -> (String, String) {
        let error = decode::<Outer>(text.as_bytes(), MAX_NUMBERS).expect_err(text);
        (error.field.expect("a field"), error.message)
    }

    #[test]
    fn an_error_names_the_field_by_its_path() {
        for (text, field, word) in [
            (r#"{"name": 3}"#, "name", "expected a string"),
            (r#"{"name": "a", "inner": [{"count": 1}, {"count": "x"}]}"#, "inner[1].count", "u32"),
            (r#"{"name": "a", "inner": [{"count": -1}]}"#, "inner[0].count", "-1"),
            (r#"{"name": "a", "inner": [{"counts": 1}]}"#, "inner[0].counts", "not served"),
            (r#"{"name": "a", "other": 1}"#, "other", "not served"),
            (r#"{"inner": []}"#, "name", "found none"),
            (r#"{"name": "a", "inner": [{}]}"#, "inner[0].count", "found none"),
            (r#"{"name": "a", "any": {"b": [{"c": 1, "c": 2}]}}"#, "any", "twice"),
            (r#"{"name": "a"} x"#, "body", "trailing"),
            ("", "body", "EOF"),
            ("{", "body", "EOF"),
            ("[]", "body", "Outer"),
            (r#"{"name": "a", "name": "b"}"#, "name", "found it twice"),
        ] {
            let (found, message) = refused(text);
            assert!(found.starts_with(field), "{text}: {found}: {message}");
            assert!(message.contains(word), "{text}: {message}");
        }
        let (_, message) = refused(&format!("{{\"name\": [\"{}\"]}}", "é".repeat(1 << 16)));
        assert!(message.len() < 1000, "{}", message.len());
        let (field, message) = refused(&format!("{{\"{}\": 1}}", "é".repeat(1 << 9)));
        assert!(field.len() < 500 && message.len() < 1000);
    }

    #[test]
    fn a_byte_order_mark_in_front_is_ignored() {
        let body = decode::<Outer>("\u{feff}{\"name\": \"a\"}".as_bytes(), MAX_NUMBERS);
        assert_eq!(body.expect("served").name, "a");
        decode::<Outer>("{\u{feff}\"name\": \"a\"}".as_bytes(), MAX_NUMBERS).expect_err("inside");
    }

    #[test]
    fn values_numbers_and_levels_are_bounded_before_they_are_made() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        let value = |text: String| {
            decode::<AnyJson>(text.as_bytes(), MAX_NUMBERS).map(|_| ()).map_err(|e| e.message)
        };
        assert_eq!(value(list("1", MAX_NUMBERS)), Ok(()));
        assert!(value(list("-1.5e3", MAX_NUMBERS + 1)).expect_err("one more").contains("numbers"));
        for item in ["true", "\"a\\\"b\"", "[]"] {
            assert_eq!(value(list(item, MAX_VALUES - 1)), Ok(()), "{item}");
            let error = value(list(item, MAX_VALUES)).expect_err("one more");
            assert!(error.contains("131072 values"), "{error}");
        }
        let key = |bytes: usize| format!("{{\"{}\": \"a\"}}", "k".repeat(bytes));
        assert_eq!(value(key(MAX_KEY_BYTES - 1)), Ok(()));
        assert!(value(key(MAX_KEY_BYTES)).expect_err("longer").contains("bytes in a key"));
        // Keys are not counted, and braces inside strings are text.
        assert_eq!(value(list("{\"[[[\":\"{{{\"}", (MAX_VALUES - 1) / 2)), Ok(()));
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(value(nested(MAX_DEPTH)), Ok(()));
        assert!(value(nested(MAX_DEPTH + 1)).expect_err("deeper").contains("80 levels"));
        assert!(value("[".repeat(1 << 20)).expect_err("deeper").contains("80 levels"));
    }
}
