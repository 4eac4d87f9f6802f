//! JSON that is checked by character, so that a tool call's arguments are sent before they end.
//!
//! The algorithm: a pushdown automaton takes one object or one text. Every character that it writes
//! out belongs to a beginning of valid JSON. Control characters in texts, which some models leave
//! as they are, are written as escapes.

use std::fmt::Write as _;

/// Levels of arrays and objects, at most, as in a request's fields.
pub(super) const MAX_DEPTH: usize = 64;
/// Longest number or word, in bytes.
const MAX_LITERAL_BYTES: usize = 64;

/// Container around the next value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Object,
    Array,
}

/// Kind of the next character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The object or the text.
    Begin,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    ValueOrEnd,
    CommaOrEnd,
    /// More of a text.
    Text,
    /// The character after a backslash.
    Escape,
    /// Hexadecimal digits of an escape, this many of them.
    Digits(u8),
    /// The backslash of the second half of a surrogate pair.
    SecondHalf,
    /// The `u` of the second half.
    SecondHalfU,
    /// More of a number or a word.
    Literal,
    Nothing,
}

/// A character that valid JSON cannot have at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BrokenJson {
    #[error("expected {0} in JSON, found another character")]
    Expected(&'static str),
    #[error("expected at most {MAX_DEPTH} levels of JSON, found more")]
    TooDeep,
}

/// Checks one JSON object or text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonScanner {
    stack: Vec<Frame>,
    expected: Expected,
    /// Whether the text that runs is a key.
    is_key: bool,
    /// The code unit of an escape, and the first half of a surrogate pair.
    unit: u32,
    half: bool,
    literal: String,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self {
            stack: vec![],
            expected: Expected::Begin,
            is_key: false,
            unit: 0,
            half: false,
            literal: String::new(),
        }
    }

    /// Whether the value is complete.
    pub(super) fn is_done(&self) -> bool {
        self.expected == Expected::Nothing
    }

    /// Whether the next character belongs to a text.
    pub(super) fn in_text(&self) -> bool {
        use Expected::{Digits, Escape, SecondHalf, SecondHalfU, Text};
        matches!(self.expected, Text | Escape | Digits(_) | SecondHalf | SecondHalfU)
    }

    /// Takes the next character, and writes what is certain to `out`.
    ///
    /// # Errors
    /// It cannot stand there.
    pub(super) fn push(&mut self, character: char, out: &mut String) -> Result<(), BrokenJson> {
        if self.in_text() {
            return self.push_in_text(character, out);
        }
        if self.expected == Expected::Literal {
            let goes_on = character.is_ascii_alphanumeric() || matches!(character, '+' | '-' | '.');
            if goes_on && self.literal.len() < MAX_LITERAL_BYTES {
                self.literal.push(character);
                return Ok(());
            }
            if serde_json::from_str::<serde_json::Value>(&self.literal).is_err() {
                return Err(BrokenJson::Expected("a number, true, false or null"));
            }
            out.push_str(&std::mem::take(&mut self.literal));
            self.value_ended();
        }
        if matches!(character, ' ' | '\t' | '\n' | '\r') {
            if self.expected != Expected::Begin && !self.is_done() {
                out.push(character);
            }
            return Ok(());
        }
        self.push_outside(character, out)
    }

    /// Writes the beginning of a number or a word that is cut.
    pub(super) fn cut(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.literal));
    }

    fn push_outside(&mut self, character: char, out: &mut String) -> Result<(), BrokenJson> {
        use Expected::{Begin, Colon, CommaOrEnd, Key, KeyOrEnd, Text, Value, ValueOrEnd};
        let top = self.stack.last().copied();
        self.expected = match (self.expected, character) {
            (KeyOrEnd | Key, '"') => {
                self.is_key = true;
                Text
            }
            (KeyOrEnd | CommaOrEnd, '}') if top == Some(Frame::Object) => self.close(),
            (ValueOrEnd | CommaOrEnd, ']') if top == Some(Frame::Array) => self.close(),
            (Colon, ':') => Value,
            (CommaOrEnd, ',') => match top {
                Some(Frame::Array) => Value,
                _ => Key,
            },
            (Begin | Value | ValueOrEnd, '"') => {
                self.is_key = false;
                Text
            }
            (Begin | Value | ValueOrEnd, '{') => self.open(Frame::Object)?,
            (Value | ValueOrEnd, '[') => self.open(Frame::Array)?,
            (Value | ValueOrEnd, character)
                if character.is_ascii_alphanumeric() || character == '-' =>
            {
                self.literal.push(character);
                self.expected = Expected::Literal;
                return Ok(());
            }
            (expected, _) => return Err(BrokenJson::Expected(expected.words())),
        };
        out.push(character);
        Ok(())
    }

    fn push_in_text(&mut self, character: char, out: &mut String) -> Result<(), BrokenJson> {
        use Expected::{Colon, Digits, Escape, SecondHalf, SecondHalfU, Text};
        self.expected = match (self.expected, character) {
            (Text, '"') if self.is_key => Colon,
            (Text, '"') => {
                out.push('"');
                self.value_ended();
                return Ok(());
            }
            (Text, '\\') => Escape,
            (Text, character) => {
                escape(character, out);
                return Ok(());
            }
            (Escape, 'u') | (SecondHalfU, 'u') => {
                self.unit = 0;
                Digits(4)
            }
            (Escape, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Text,
            (SecondHalf, '\\') => SecondHalfU,
            (Digits(left), character) if character.is_ascii_hexdigit() => {
                self.unit = self.unit * 16 + character.to_digit(16).unwrap_or(0);
                if left > 1 { Digits(left - 1) } else { self.unit_ended()? }
            }
            _ => return Err(BrokenJson::Expected("an escape")),
        };
        out.push(character);
        Ok(())
    }

    /// The state after four digits of an escape.
    fn unit_ended(&mut self) -> Result<Expected, BrokenJson> {
        let second = (0xDC00..0xE000).contains(&self.unit);
        match (std::mem::take(&mut self.half), second) {
            (true, true) => Ok(Expected::Text),
            (false, false) => {
                self.half = (0xD800..0xDC00).contains(&self.unit);
                Ok(if self.half { Expected::SecondHalf } else { Expected::Text })
            }
            _ => Err(BrokenJson::Expected("both halves of a surrogate pair")),
        }
    }

    fn open(&mut self, frame: Frame) -> Result<Expected, BrokenJson> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(BrokenJson::TooDeep);
        }
        self.stack.push(frame);
        Ok(match frame {
            Frame::Object => Expected::KeyOrEnd,
            Frame::Array => Expected::ValueOrEnd,
        })
    }

    fn close(&mut self) -> Expected {
        self.stack.pop();
        self.value_ended();
        self.expected
    }

    fn value_ended(&mut self) {
        self.expected =
            if self.stack.is_empty() { Expected::Nothing } else { Expected::CommaOrEnd };
    }
}

impl Expected {
    fn words(self) -> &'static str {
        match self {
            Expected::Begin => "an object or a text",
            Expected::KeyOrEnd => "a key or }",
            Expected::Key => "a key",
            Expected::Colon => ":",
            Expected::Value | Expected::ValueOrEnd => "a value",
            Expected::CommaOrEnd => ", or the end of an array or object",
            Expected::Nothing => "nothing more",
            _ => "a character of a text",
        }
    }
}

/// Writes a character of a text as JSON has it, without the quotes around the text.
pub(super) fn escape(character: char, out: &mut String) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        character if character < ' ' => {
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        }
        character => out.push(character),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn scan(text: &str) -> Result<(String, bool), BrokenJson> {
        let (mut scanner, mut out) = (JsonScanner::new(), String::new());
        for character in text.chars() {
            scanner.push(character, &mut out)?;
        }
        Ok((out, scanner.is_done()))
    }

    #[test]
    fn objects_and_texts_come_through() {
        for text in [
            "{}",
            "\"a\"",
            r#"{"a": [1, -2.5e3, true, null, [], {}], "b": {"c": "\"\\\u00e9\ud83e\udd80"}}"#,
            "{ \"a\" :\n\t\"é🦀\" }",
        ] {
            assert_eq!(scan(text), Ok((text.to_owned(), true)));
        }
        assert_eq!(scan("{\"a\": \"b\nc\u{1}\"}"), Ok((r#"{"a": "b\nc\u0001"}"#.into(), true)));
        assert_eq!(scan(" {\"a\": 1").map(|(_, done)| done), Ok(false));
    }

    #[test]
    fn invalid_json_is_refused_at_its_first_invalid_character() {
        for text in [
            "1",
            "[",
            "{a",
            "{\"a\" 1",
            "{\"a\": 01}",
            "{\"a\": tru}",
            "{\"a\": 1,}",
            "{\"a\": [1,]",
            "{\"a\": 1]",
            "{}x",
            r#"{"a": "\x"#,
            r#"{"a": "\ud800x"#,
            r#"{"a": "\udc00"#,
            r#"{"a": "\ud800\n"#,
        ] {
            assert!(scan(text).is_err(), "{text}");
        }
        let deep = |levels: usize| "{\"a\":".repeat(levels - 1) + "{}" + &"}".repeat(levels - 1);
        assert!(scan(&deep(MAX_DEPTH)).is_ok());
        assert_eq!(scan(&deep(MAX_DEPTH + 1)), Err(BrokenJson::TooDeep));
    }

    #[test]
    fn the_scanner_agrees_with_a_whole_parser() {
        let mut config = ProptestConfig::with_cases(4000);
        config.rng_seed = proptest::test_runner::RngSeed::Fixed(11);
        let piece = proptest::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"", "\\n", "\\ud83e", "\\udd80", "1", "-",
            "0", ".5", "e9", "true", "null", " ", "\n", "é",
        ]);
        proptest!(config, |(pieces in proptest::collection::vec(piece, 0..10))| {
            let text = "{".to_owned() + &pieces.concat();
            let fine = matches!(scan(&text), Ok((_, true)));
            // Control characters are the one difference, and they are written as escapes.
            if let Ok((out, true)) = scan(&text) {
                prop_assert!(serde_json::from_str::<Value>(&out).is_ok(), "{}", out);
            }
            if serde_json::from_str::<Value>(&text).is_ok() {
                prop_assert!(fine, "{}", text);
            }
        });
    }
}
