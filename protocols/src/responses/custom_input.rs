//! The text of a custom tool call while it comes: the characters of the argument `input` in the
//! JSON object that the model writes.

use super::tools::{ARGUMENT, custom_input};

/// Decodes the argument `input` character by character. Any other object is decoded at its end.
#[derive(Debug, Default)]
pub(super) struct CustomInput {
    /// The characters so far.
    sent: String,
    /// Bytes of the object that have been read.
    read: usize,
    state: State,
}

/// Where the reading is.
#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the first character.
    #[default]
    Before,
    /// In the text.
    Inside,
    /// Behind its end, or in an object of another form.
    Over,
}

/// Beginning of the object before the first character of the text, without white space.
enum Opening {
    /// The text begins at this byte.
    At(usize),
    /// It has not come whole.
    Incomplete,
    /// It is something else.
    Other,
}

impl CustomInput {
    /// The characters that have not been sent, from the object's text so far.
    pub(super) fn more(&mut self, object: &str) -> String {
        if self.state == State::Before {
            match opening(object) {
                Opening::At(place) => (self.state, self.read) = (State::Inside, place),
                Opening::Incomplete => {}
                Opening::Other => self.state = State::Over,
            }
        }
        let mut characters = String::new();
        while self.state == State::Inside
            && let Some((character, bytes)) = next(&object[self.read..])
        {
            match character {
                Some(character) => characters.push(character),
                None => self.state = State::Over,
            }
            self.read += bytes;
        }
        self.sent += &characters;
        characters
    }

    /// The characters that have been sent, for a tool call that is cut.
    pub(super) fn sent(&self) -> &str {
        &self.sent
    }

    /// The whole text of the complete object, and its characters that have not been sent.
    pub(super) fn end(&self, object: &str) -> (String, String) {
        let is_whole = serde_json::from_str::<serde_json::Value>(object).is_ok();
        let input = if is_whole || self.sent.is_empty() {
            custom_input(object)
        } else {
            // The tool call is void. Text that was sent cannot be taken back.
            self.sent.clone()
        };
        let rest = input.strip_prefix(&self.sent).unwrap_or_default().to_owned();
        (input, rest)
    }
}

/// Looks for `{"input": "`.
fn opening(object: &str) -> Opening {
    let mut rest = object;
    for token in ["{", &format!("\"{ARGUMENT}\""), ":", "\""] {
        rest = rest.trim_start();
        match rest.strip_prefix(token) {
            Some(behind) => rest = behind,
            None if token.starts_with(rest) => return Opening::Incomplete,
            None => return Opening::Other,
        }
    }
    Opening::At(object.len() - rest.len())
}

/// The next character of a JSON text and its bytes. No character at the text's end, or if it is no
/// JSON. `None` if it has not come whole.
fn next(rest: &str) -> Option<(Option<char>, usize)> {
    let first = rest.chars().next()?;
    if first == '"' {
        return Some((None, 1));
    }
    if first != '\\' {
        return Some((Some(first), first.len_utf8()));
    }
    let character = match rest.as_bytes().get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unit(rest),
        _ => return Some((None, 0)),
    };
    Some((Some(character), 2))
}

/// A character written as one or two units of UTF-16.
fn unit(rest: &str) -> Option<(Option<char>, usize)> {
    let at = |from: usize| {
        let digits = rest.get(from..from + 6)?;
        Some(digits.strip_prefix("\\u").and_then(|digits| u16::from_str_radix(digits, 16).ok()))
    };
    let Some(first) = at(0)? else { return Some((None, 0)) };
    let mut units = vec![first];
    if (0xD800..0xDC00).contains(&first) {
        match at(6)? {
            Some(second) => units.push(second),
            None => return Some((None, 0)),
        }
    }
    let character = char::decode_utf16(units.iter().copied()).next().and_then(Result::ok);
    Some((character, character.map_or(0, |_| 6 * units.len())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The pieces of an object that comes in parts of `bytes` bytes, and its end.
    fn pieces(object: &str, bytes: usize) -> (Vec<String>, String) {
        let mut input = CustomInput::default();
        let mut all = Vec::new();
        let mut seen = 0;
        while seen < object.len() {
            seen += bytes;
            while !object.is_char_boundary(seen.min(object.len())) {
                seen += 1;
            }
            all.push(input.more(&object[..seen.min(object.len())]));
        }
        let (whole, rest) = input.end(object);
        all.push(rest);
        (all, whole)
    }

    #[test]
    fn characters_come_as_they_are_written() {
        let text = "*** Begin \"Patch\"\\\n\ta/b 🦀 é\u{8}\u{c}\r";
        let escaped =
            r#" { "input" : "*** Begin \"Patch\"\\\n\ta\/b \ud83e\udd80 \u00e9\b\f\r" } "#;
        for object in [json!({ ARGUMENT: text }).to_string(), escaped.to_owned()] {
            for bytes in [1, 2, 7, 1000] {
                let (pieces, whole) = pieces(&object, bytes);
                assert_eq!((pieces.concat(), whole), (text.to_owned(), text.to_owned()), "{bytes}");
                assert_eq!(pieces.last().map(String::as_str), Some(""));
            }
        }
    }

    #[test]
    fn other_objects_come_at_their_end() {
        for object in [r#"{"patch": "a"}"#, r#"{"input": 1}"#, r#"{"a": "1", "input": "b"}"#, "{}"]
        {
            let (pieces, whole) = pieces(object, 1);
            assert_eq!(whole, custom_input(object));
            assert_eq!(pieces.iter().filter(|piece| !piece.is_empty()).count(), 1, "{object}");
            assert_eq!(pieces.concat(), whole);
        }
    }

    #[test]
    fn what_is_no_json_ends_the_characters() {
        for object in [r#"{"input": "a\q"#, r#"{"input": "a\ud83e\u0041"#, r#"{"input": "a\uzzzz"#]
        {
            let (pieces, whole) = pieces(object, 1);
            assert_eq!((pieces.concat().as_str(), whole.as_str()), ("a", "a"), "{object}");
        }
    }
}
