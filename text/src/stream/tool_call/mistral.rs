//! Tool calls of Mistral, after `[TOOL_CALLS]`: a list of JSON objects with `name`, `arguments` and
//! perhaps `id`, or `name[ARGS]{…}`, with `[CALL_ID]` and an id before the arguments or without.
//!
//! A reader reads one call. The splitter makes the next reader at the next object of a list.

use super::super::json::JsonScanner;
use super::json::JsonToolCall;
use super::{BrokenToolCall, PartialToolCall, Word};

const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";
/// Bytes of a name or an id, at most: one more than the longest name of a tool.
const MAX_WORD_BYTES: usize = 129;

#[derive(Clone, Debug)]
enum Expected {
    /// A list, an object or a name.
    Begin,
    Object(Box<JsonToolCall>),
    /// The tool's name, up to a marker or the arguments.
    Name(String),
    /// A marker; whether an id may follow.
    Marker(Word, bool),
    /// More of an id, of which this many bytes came.
    Id(usize),
    /// The brace of the arguments.
    Arguments,
    /// More of the arguments.
    Running(JsonScanner),
}

/// Reads one tool call.
#[derive(Clone, Debug)]
pub(in super::super) struct MistralToolCall {
    expected: Expected,
    is_in_list: bool,
}

impl MistralToolCall {
    /// The first call after the marker.
    pub(super) fn new() -> Self {
        Self { expected: Expected::Begin, is_in_list: false }
    }

    /// The next object of a list.
    pub(super) fn next_of_list() -> Self {
        Self { expected: Expected::Object(Box::new(JsonToolCall::with_id())), is_in_list: true }
    }

    /// Whether an object of a list may follow.
    pub(super) fn is_in_list(&self) -> bool {
        self.is_in_list
    }

    pub(super) fn is_done(&self) -> bool {
        match &self.expected {
            Expected::Object(reader) => reader.is_done(),
            Expected::Running(scanner) => scanner.is_done(),
            _ => false,
        }
    }

    pub(super) fn in_text(&self) -> bool {
        match &self.expected {
            Expected::Object(reader) => reader.in_text(),
            Expected::Running(scanner) => scanner.in_text(),
            _ => false,
        }
    }

    /// Adds the beginning of a value to the arguments of a tool call that is cut.
    pub(super) fn cut(&mut self, piece: &mut PartialToolCall) {
        match &mut self.expected {
            Expected::Object(reader) => reader.cut(piece),
            Expected::Running(scanner) => scanner.cut(&mut piece.arguments),
            _ => {}
        }
    }

    pub(super) fn push(
        &mut self,
        character: char,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        match &mut self.expected {
            Expected::Object(reader) => reader.push(character, piece)?,
            Expected::Running(scanner) => scanner.push(character, &mut piece.arguments)?,
            Expected::Begin | Expected::Arguments if character.is_whitespace() => {}
            Expected::Begin if character == '[' => *self = Self::next_of_list(),
            Expected::Begin if character == '{' => {
                let mut reader = JsonToolCall::with_id();
                reader.push(character, piece)?;
                self.expected = Expected::Object(Box::new(reader));
            }
            Expected::Begin => self.expected = Expected::Name(character.to_string()),
            Expected::Name(name) if matches!(character, '[' | '{') => {
                piece.set_name(name.trim().to_owned())?;
                self.expected = match character {
                    '[' => Expected::Marker(Word::default(), true),
                    _ => Expected::Arguments,
                };
                self.push(character, piece)?;
            }
            Expected::Marker(word, may_be_id) => {
                let words = if *may_be_id { &[ARGUMENTS, CALL_ID][..] } else { &[ARGUMENTS][..] };
                match word.push(character, words, "[ARGS]")? {
                    Some(ARGUMENTS) => self.expected = Expected::Arguments,
                    Some(_) => self.expected = Expected::Id(0),
                    None => {}
                }
            }
            Expected::Id(_) if character == '[' => {
                self.expected = Expected::Marker(Word::default(), false);
                self.push(character, piece)?;
            }
            Expected::Name(name) if name.len() < MAX_WORD_BYTES => name.push(character),
            Expected::Id(bytes) if *bytes < MAX_WORD_BYTES => *bytes += character.len_utf8(),
            Expected::Name(_) | Expected::Id(_) => {
                return Err(BrokenToolCall::other("[ARGS] after a name or an id", "a long text"));
            }
            Expected::Arguments if character == '{' => {
                let mut scanner = JsonScanner::new();
                scanner.push(character, &mut piece.arguments)?;
                self.expected = Expected::Running(scanner);
            }
            Expected::Arguments => {
                return Err(BrokenToolCall::other(
                    "arguments that are a JSON object",
                    "other text",
                ));
            }
        }
        Ok(())
    }
}
