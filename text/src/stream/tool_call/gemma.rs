//! A tool call as Gemma 4 writes it: `call:name{key:value,…}`. Keys have no quotes, texts are
//! between the tag `<|"|>`, and have no escapes. Other values are as in JSON.

use serde_json::Value;

use super::super::json::{JsonScanner, MAX_DEPTH, escape};
use super::{BrokenToolCall, PartialToolCall, Word, word_of_json};

const CALL: &str = "call:";
/// Bytes of a key, a name or a number, at most.
const MAX_WORD_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Object,
    Array,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Call(Word),
    /// The tool's name, up to the brace.
    Name(String),
    KeyOrEnd,
    NextKey,
    /// A key, up to the colon; whether it is between tags.
    Key(String, bool),
    /// The colon after a key between tags.
    Colon,
    Value,
    ValueOrEnd,
    /// A text between tags.
    Text,
    /// A text between quotes, as some answers have it.
    Json(Box<JsonScanner>),
    /// A number or a word.
    Literal(String),
    CommaOrEnd,
    Nothing,
}

/// Reads one tool call.
#[derive(Clone, Debug)]
pub(in super::super) struct GemmaToolCall {
    expected: Expected,
    stack: Vec<Frame>,
}

impl Default for GemmaToolCall {
    fn default() -> Self {
        Self { expected: Expected::Call(Word::default()), stack: vec![] }
    }
}

impl GemmaToolCall {
    pub(super) fn is_done(&self) -> bool {
        self.expected == Expected::Nothing
    }

    pub(super) fn in_text(&self) -> bool {
        match &self.expected {
            Expected::Text | Expected::Key(_, true) => true,
            Expected::Json(scanner) => scanner.in_text(),
            _ => false,
        }
    }

    /// Adds the beginning of a value to the arguments of a tool call that is cut.
    pub(super) fn cut(&mut self, piece: &mut PartialToolCall) {
        match &mut self.expected {
            Expected::Literal(word) => piece.arguments.push_str(word),
            Expected::Json(scanner) => scanner.cut(&mut piece.arguments),
            _ => {}
        }
    }

    /// The tag around texts.
    pub(super) fn quote(&mut self, piece: &mut PartialToolCall) -> Result<(), BrokenToolCall> {
        self.expected = match std::mem::replace(&mut self.expected, Expected::Nothing) {
            Expected::Value | Expected::ValueOrEnd => {
                piece.arguments.push('"');
                Expected::Text
            }
            Expected::Text => {
                piece.arguments.push('"');
                Expected::CommaOrEnd
            }
            Expected::KeyOrEnd | Expected::NextKey => Expected::Key(String::new(), true),
            Expected::Key(key, true) => {
                write_key(&key, piece);
                Expected::Colon
            }
            _ => return Err(BrokenToolCall::other("a key or a value", "the tag of a text")),
        };
        Ok(())
    }

    pub(super) fn push(
        &mut self,
        character: char,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        match &mut self.expected {
            Expected::Call(word) => {
                if word.push(character, &[CALL], "call:")?.is_some() {
                    self.expected = Expected::Name(String::new());
                }
            }
            Expected::Name(name) if character == '{' => {
                piece.set_name(name.trim().to_owned())?;
                self.open(Frame::Object, piece)?;
            }
            Expected::Key(key, false) if character == ':' => {
                let key = key.trim().trim_matches('"').to_owned();
                write_key(&key, piece);
                piece.arguments.push(':');
                self.expected = Expected::Value;
            }
            Expected::Literal(_) if matches!(character, ',' | '}' | ']') => {
                self.end_literal(piece)?;
                self.push_outside(character, piece)?;
            }
            Expected::Name(word) | Expected::Key(word, _) | Expected::Literal(word) => {
                if word.len() >= MAX_WORD_BYTES {
                    return Err(BrokenToolCall::other(
                        "a key or a value",
                        "a long text without quotes",
                    ));
                }
                word.push(character);
            }
            Expected::Text => escape(character, &mut piece.arguments),
            Expected::Json(scanner) => {
                scanner.push(character, &mut piece.arguments)?;
                if scanner.is_done() {
                    self.expected = Expected::CommaOrEnd;
                }
            }
            _ if character.is_whitespace() => {}
            _ => self.push_outside(character, piece)?,
        }
        Ok(())
    }

    fn push_outside(
        &mut self,
        character: char,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        use Expected::{Colon, CommaOrEnd, KeyOrEnd, Value, ValueOrEnd};
        let top = self.stack.last().copied();
        match (&self.expected, character) {
            (KeyOrEnd | CommaOrEnd, '}') if top == Some(Frame::Object) => {
                self.close(character, piece);
            }
            (ValueOrEnd | CommaOrEnd, ']') if top == Some(Frame::Array) => {
                self.close(character, piece);
            }
            (CommaOrEnd, ',') => {
                piece.arguments.push(',');
                self.expected = match top {
                    Some(Frame::Array) => Value,
                    _ => Expected::NextKey,
                };
            }
            (KeyOrEnd | Expected::NextKey, character) => {
                self.expected = Expected::Key(character.to_string(), false)
            }
            (Colon, ':') => {
                piece.arguments.push(':');
                self.expected = Value;
            }
            (Value | ValueOrEnd, '{') => self.open(Frame::Object, piece)?,
            (Value | ValueOrEnd, '[') => self.open(Frame::Array, piece)?,
            (Value | ValueOrEnd, '"') => {
                let mut scanner = Box::new(JsonScanner::new());
                scanner.push(character, &mut piece.arguments)?;
                self.expected = Expected::Json(scanner);
            }
            (Value | ValueOrEnd, character) if character.is_alphanumeric() || character == '-' => {
                self.expected = Expected::Literal(character.to_string());
            }
            (Expected::Nothing, _) => {
                return Err(BrokenToolCall::other("the end of the tool call", "other text"));
            }
            _ => return Err(BrokenToolCall::other("a key or a value", "other text")),
        }
        Ok(())
    }

    fn open(&mut self, frame: Frame, piece: &mut PartialToolCall) -> Result<(), BrokenToolCall> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(BrokenToolCall::other("at most 64 levels of arguments", "more"));
        }
        self.stack.push(frame);
        let (sign, expected) = match frame {
            Frame::Object => ('{', Expected::KeyOrEnd),
            Frame::Array => ('[', Expected::ValueOrEnd),
        };
        piece.arguments.push(sign);
        self.expected = expected;
        Ok(())
    }

    fn close(&mut self, sign: char, piece: &mut PartialToolCall) {
        piece.arguments.push(sign);
        self.stack.pop();
        self.expected =
            if self.stack.is_empty() { Expected::Nothing } else { Expected::CommaOrEnd };
    }

    fn end_literal(&mut self, piece: &mut PartialToolCall) -> Result<(), BrokenToolCall> {
        let Expected::Literal(word) = &self.expected else { return Ok(()) };
        let word = word_of_json(word);
        if serde_json::from_str::<Value>(word).is_err() {
            return Err(BrokenToolCall::other(
                "a number, true, false, null or a text in quotes",
                "a word",
            ));
        }
        piece.arguments.push_str(word);
        self.expected = Expected::CommaOrEnd;
        Ok(())
    }
}

fn write_key(key: &str, piece: &mut PartialToolCall) {
    piece.arguments.push('"');
    key.chars().for_each(|character| escape(character, &mut piece.arguments));
    piece.arguments.push('"');
}
