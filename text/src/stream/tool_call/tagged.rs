//! A tool call as tags (Qwen3-Coder, Qwen3.5): `<function=name>`, then `<parameter=key>` with a
//! line break, the value, a line break and `</parameter>` for each argument, then `</function>`.
//!
//! Values are characters without escapes. The tool's schema tells which of them are texts: their
//! characters are sent as they come. Another value is sent when it is complete.

use serde_json::Value;

use super::super::json::escape;
use super::super::stop::longest_beginning;
use super::super::tools::{ArgumentType, OfferedTools};
use super::{BrokenToolCall, PartialToolCall, Word, word_of_json};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// The end of a value as templates write it.
const LINE_END: &str = "\n</parameter>";
/// Bytes of an argument's name, at most.
const MAX_KEY_BYTES: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Function(Word),
    /// The tool's name, up to `>`.
    Name(String),
    Parameter(Word),
    /// An argument's name, up to `>`.
    Key(String),
    Value(RunningValue),
    Nothing,
}

/// A value that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunningValue {
    kind: ArgumentType,
    /// The value so far, if it is not sent as it comes.
    whole: String,
    /// Characters that may become its end.
    tail: String,
    begun: bool,
}

/// Reads one function.
#[derive(Clone, Debug)]
pub(in super::super) struct TaggedToolCall {
    expected: Expected,
    name: String,
    keys: Vec<String>,
}

impl Default for TaggedToolCall {
    fn default() -> Self {
        let expected = Expected::Function(Word::default());
        Self { expected, name: String::new(), keys: vec![] }
    }
}

impl TaggedToolCall {
    pub(super) fn is_done(&self) -> bool {
        self.expected == Expected::Nothing
    }

    pub(super) fn in_text(&self) -> bool {
        matches!(self.expected, Expected::Value(_))
    }

    /// Adds the beginning of a value to the arguments of a tool call that is cut.
    pub(super) fn cut(&mut self, piece: &mut PartialToolCall) {
        if let Expected::Value(value) = &self.expected {
            value.cut(&mut piece.arguments);
        }
    }

    pub(super) fn push(
        &mut self,
        character: char,
        tools: &OfferedTools,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        match &mut self.expected {
            Expected::Function(word) => {
                if word.push(character, &[FUNCTION], "<function=")?.is_some() {
                    self.expected = Expected::Name(String::new());
                }
            }
            Expected::Name(name) if character == '>' => {
                self.name = name.trim().to_owned();
                piece.set_name(self.name.clone())?;
                piece.arguments.push('{');
                self.expected = Expected::Parameter(Word::default());
            }
            Expected::Key(key) if character == '>' => {
                let key = std::mem::take(key);
                self.begin_value(key, tools, piece)?;
            }
            Expected::Name(name) | Expected::Key(name) => {
                if name.len() >= MAX_KEY_BYTES || character == '\n' {
                    return Err(BrokenToolCall::other("> after a name", "other text"));
                }
                name.push(character);
            }
            Expected::Parameter(word) => {
                let words = [PARAMETER, FUNCTION_END];
                match word.push(character, &words, "<parameter= or </function>")? {
                    Some(PARAMETER) => self.expected = Expected::Key(String::new()),
                    Some(_) => {
                        piece.arguments.push('}');
                        self.expected = Expected::Nothing;
                    }
                    None => {}
                }
            }
            Expected::Value(value) => {
                if value.push(character, &mut piece.arguments) {
                    self.expected = Expected::Parameter(Word::default());
                }
            }
            Expected::Nothing if character.is_whitespace() => {}
            Expected::Nothing => {
                return Err(BrokenToolCall::other("the end of the tool call", "other text"));
            }
        }
        Ok(())
    }

    fn begin_value(
        &mut self,
        key: String,
        tools: &OfferedTools,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        if self.keys.contains(&key) {
            return Err(BrokenToolCall::other("each parameter once", "one twice"));
        }
        let separator = if self.keys.is_empty() { "\"" } else { ", \"" };
        piece.arguments.push_str(separator);
        key.chars().for_each(|character| escape(character, &mut piece.arguments));
        piece.arguments.push_str("\": ");
        let kind = tools.argument(&self.name, &key);
        if kind == ArgumentType::Text {
            piece.arguments.push('"');
        }
        self.keys.push(key);
        let (whole, tail) = (String::new(), String::new());
        self.expected = Expected::Value(RunningValue { kind, whole, tail, begun: false });
        Ok(())
    }
}

impl RunningValue {
    /// Takes a character. Returns true if the value is complete.
    fn push(&mut self, character: char, out: &mut String) -> bool {
        if !std::mem::replace(&mut self.begun, true) && character == '\n' {
            return false;
        }
        self.tail.push(character);
        if let Some(rest) = self.tail.strip_suffix(PARAMETER_END) {
            let rest = rest.strip_suffix('\n').unwrap_or(rest).to_owned();
            self.take(&rest, out);
            match self.kind {
                ArgumentType::Text => out.push('"'),
                kind => out.push_str(&json_value(&self.whole, kind)),
            }
            return true;
        }
        let ends = [PARAMETER_END, LINE_END];
        let keep = ends.into_iter().map(|end| longest_beginning(&self.tail, end)).max();
        let rest = self.tail.split_off(self.tail.len() - keep.unwrap_or(0));
        let out_of_tail = std::mem::replace(&mut self.tail, rest);
        self.take(&out_of_tail, out);
        false
    }

    /// Writes what is not out yet. Characters that may become the end of the value are left out.
    fn cut(&self, out: &mut String) {
        match self.kind {
            ArgumentType::Text => {}
            // A text, because null would be shorter than most beginnings.
            ArgumentType::TextOrNull => {
                out.push('"');
                self.whole.chars().for_each(|character| escape(character, out));
            }
            ArgumentType::Json => out.push_str(&self.whole),
        }
    }

    fn take(&mut self, text: &str, out: &mut String) {
        match self.kind {
            ArgumentType::Text => text.chars().for_each(|character| escape(character, out)),
            ArgumentType::TextOrNull | ArgumentType::Json => self.whole.push_str(text),
        }
    }
}

/// A value by its characters. What is not of its type is a text, so that nothing is lost.
fn json_value(text: &str, kind: ArgumentType) -> String {
    let word = word_of_json(text);
    let parsed = serde_json::from_str::<Value>(word).ok();
    let is_value = match kind {
        ArgumentType::Json => parsed.is_some(),
        ArgumentType::TextOrNull => parsed == Some(Value::Null),
        ArgumentType::Text => false,
    };
    if is_value { word.to_owned() } else { Value::from(text).to_string() }
}
