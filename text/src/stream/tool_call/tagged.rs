//! A tool call as tags, of three families:
//!
//! - Qwen3-Coder, Qwen3.5: `<function=name>`, then `<parameter=key>` with a line break, the value, a
//!   line break and `</parameter>` for each argument, then `</function>`.
//! - MiniCPM5: `<function name="…">`, then `<param name="…">`, the value and `</param>`, then
//!   `</function>`. A value may stand in CDATA.
//! - GLM: the name, then `<arg_key>`, `</arg_key>`, `<arg_value>`, `</arg_value>`, then
//!   `</tool_call>`. Line breaks may stand between them.
//!
//! Values are characters without escapes. The tool's schema tells which of them are texts: their
//! characters are sent as they come. Another value is sent when it is complete.

use serde_json::Value;

use super::super::json::escape;
use super::super::stop::longest_beginning;
use super::super::tools::{ArgumentType, OfferedTools};
use super::{BrokenToolCall, PartialToolCall, Word, python, word_of_json};

/// The tags of a family.
#[derive(Debug)]
pub(super) struct Syntax {
    /// What may stand before the tool's name.
    function: &'static [&'static str],
    /// Characters that end the tool's name.
    name_ends: &'static [char],
    /// What follows the tool's name.
    after_name: &'static [&'static str],
    /// What may stand before an argument's name.
    parameter: &'static [&'static str],
    /// Characters that end an argument's name.
    key_ends: &'static [char],
    /// What follows an argument's name, in this order.
    after_key: &'static [&'static str],
    /// Whether the character that ends a name belongs to what follows.
    keeps_end: bool,
    /// The end of a value.
    value_end: &'static str,
    /// The end of a value after a line break that is not part of it; empty for a family without.
    line_end: &'static str,
    /// Whether a value may stand in CDATA, and a text outside of it has entities.
    is_xml: bool,
    /// The end of the tool call.
    end: &'static str,
    /// The words for what may follow a name or a value.
    next: &'static str,
}

/// Qwen3-Coder and Qwen3.5.
pub(super) const QWEN: Syntax = Syntax {
    function: &["<function="],
    name_ends: &['>'],
    after_name: &[],
    parameter: &["<parameter="],
    key_ends: &['>'],
    after_key: &[],
    keeps_end: false,
    value_end: "</parameter>",
    line_end: "\n</parameter>",
    is_xml: false,
    end: "</function>",
    next: "<parameter= or </function>",
};

/// MiniCPM5. The splitter has taken `<function`.
pub(super) const MINICPM: Syntax = Syntax {
    function: &["name=\"", "name='"],
    name_ends: &['"', '\''],
    after_name: &[">"],
    parameter: &["<param name=\"", "<param name='"],
    key_ends: &['"', '\''],
    after_key: &[">"],
    keeps_end: false,
    value_end: "</param>",
    line_end: "",
    is_xml: true,
    end: "</function>",
    next: "<param name= or </function>",
};

/// GLM-4.5 and later.
pub(super) const GLM: Syntax = Syntax {
    function: &[],
    name_ends: &['<', '\n'],
    after_name: &[],
    parameter: &["<arg_key>"],
    key_ends: &['<'],
    after_key: &["</arg_key>", "<arg_value>"],
    keeps_end: true,
    value_end: "</arg_value>",
    line_end: "",
    is_xml: false,
    end: "</tool_call>",
    next: "<arg_key> or </tool_call>",
};

const CDATA: &str = "<![CDATA[";
const CDATA_END: &str = "]]>";
/// Entities of XML, and the characters that they stand for. The last one is that of the sign that
/// begins an entity.
const ENTITIES: [(&str, &str); 5] =
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
/// Bytes of the longest entity.
const MAX_ENTITY_BYTES: usize = 6;
/// Bytes of an argument's name, at most.
const MAX_KEY_BYTES: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Function(Word),
    Name(String),
    AfterName(Word),
    Parameter(Word),
    Key(String),
    /// What follows an argument's name, and how much of it came.
    AfterKey(Word, usize),
    Value(RunningValue),
    Nothing,
}

/// Where a value of a family with CDATA is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At its beginning, which may be that of CDATA.
    Begin,
    /// In a text with entities.
    Xml,
    Cdata,
    /// In a value whose characters all stand for themselves.
    Plain,
}

/// A value that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunningValue {
    kind: ArgumentType,
    place: Place,
    /// The value so far, if it is not sent as it comes.
    whole: String,
    /// Characters that may become its end.
    tail: String,
    begun: bool,
}

/// Reads one function.
#[derive(Clone, Debug)]
pub(in super::super) struct TaggedToolCall {
    syntax: &'static Syntax,
    expected: Expected,
    name: String,
    key: String,
    keys: Vec<String>,
}

impl TaggedToolCall {
    pub(super) fn new(syntax: &'static Syntax) -> Self {
        let expected = match syntax.function {
            [] => Expected::Name(String::new()),
            _ => Expected::Function(Word::default()),
        };
        Self { syntax, expected, name: String::new(), key: String::new(), keys: vec![] }
    }

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

    // Longer than 60 lines: one arm for each state.
    pub(super) fn push(
        &mut self,
        character: char,
        tools: &OfferedTools,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        let syntax = self.syntax;
        match &mut self.expected {
            Expected::Function(word) => {
                if word.push(character, syntax.function, "the name of a function")?.is_some() {
                    self.expected = Expected::Name(String::new());
                }
            }
            Expected::Name(name) if syntax.keeps_end && name.is_empty() && character == '\n' => {}
            Expected::Name(name) if syntax.name_ends.contains(&character) => {
                self.name = name.trim().to_owned();
                piece.set_name(self.name.clone())?;
                piece.arguments.push('{');
                self.expected = match syntax.after_name {
                    [] => Expected::Parameter(Word::default()),
                    _ => Expected::AfterName(Word::default()),
                };
                if syntax.keeps_end {
                    self.push(character, tools, piece)?;
                }
            }
            Expected::Key(key) if syntax.key_ends.contains(&character) => {
                self.key = std::mem::take(key);
                match syntax.after_key {
                    [] => self.begin_value(tools, piece)?,
                    _ => self.expected = Expected::AfterKey(Word::default(), 0),
                }
                if syntax.keeps_end {
                    self.push(character, tools, piece)?;
                }
            }
            Expected::Name(name) | Expected::Key(name) => {
                if name.len() >= MAX_KEY_BYTES || character == '\n' {
                    return Err(BrokenToolCall::other("the end of a name", "other text"));
                }
                name.push(character);
            }
            Expected::AfterName(word) => {
                if word.push(character, syntax.after_name, "> after a name")?.is_some() {
                    self.expected = Expected::Parameter(Word::default());
                }
            }
            Expected::AfterKey(word, at) => {
                let words = &syntax.after_key[*at..=*at];
                if word.push(character, words, "a value after a name")?.is_some() {
                    *at += 1;
                    if *at == syntax.after_key.len() {
                        self.begin_value(tools, piece)?;
                    }
                }
            }
            Expected::Parameter(word) => {
                let words = [syntax.parameter, &[syntax.end][..]].concat();
                match word.push(character, &words, syntax.next)? {
                    Some(end) if end == syntax.end => {
                        piece.arguments.push('}');
                        self.expected = Expected::Nothing;
                    }
                    Some(_) => self.expected = Expected::Key(String::new()),
                    None => {}
                }
            }
            Expected::Value(value) => {
                if value.push(character, syntax, &mut piece.arguments) {
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
        tools: &OfferedTools,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        let key = std::mem::take(&mut self.key);
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
        let place = if self.syntax.is_xml { Place::Begin } else { Place::Plain };
        let (whole, tail) = (String::new(), String::new());
        self.expected = Expected::Value(RunningValue { kind, place, whole, tail, begun: false });
        Ok(())
    }
}

impl RunningValue {
    /// Takes a character. Returns true if the value is complete.
    fn push(&mut self, character: char, syntax: &Syntax, out: &mut String) -> bool {
        let is_first = !std::mem::replace(&mut self.begun, true);
        if is_first && character == '\n' && !syntax.line_end.is_empty() {
            return false;
        }
        self.tail.push(character);
        if self.place == Place::Begin {
            let begun = self.tail.trim_start();
            if let Some(rest) = begun.strip_prefix(CDATA) {
                (self.place, self.tail) = (Place::Cdata, rest.to_owned());
            } else if CDATA.starts_with(begun) {
                return false;
            } else {
                let is_json = self.kind == ArgumentType::Json;
                self.place = if is_json { Place::Plain } else { Place::Xml };
            }
        }
        if let Some(rest) = self.ended(syntax) {
            self.take(&rest, out);
            match self.kind {
                ArgumentType::Text => out.push('"'),
                kind => out.push_str(&json_value(&self.whole, kind)),
            }
            return true;
        }
        let rest = self.tail.split_off(self.tail.len() - self.kept(syntax));
        let out_of_tail = std::mem::replace(&mut self.tail, rest);
        self.take(&out_of_tail, out);
        false
    }

    /// The rest of the value, if its end came.
    fn ended(&self, syntax: &Syntax) -> Option<String> {
        let rest = self.tail.strip_suffix(syntax.value_end)?;
        let rest = match self.place {
            Place::Cdata => rest.trim_end().strip_suffix(CDATA_END)?,
            _ if syntax.line_end.is_empty() => rest,
            _ => rest.strip_suffix('\n').unwrap_or(rest),
        };
        Some(rest.to_owned())
    }

    /// Bytes at the end of the tail that may belong to the end of the value, or to an entity.
    fn kept(&self, syntax: &Syntax) -> usize {
        let tail = self.tail.as_str();
        if self.place == Place::Cdata {
            let end = tail.rfind(CDATA_END);
            let end = end.filter(|at| {
                syntax.value_end.starts_with(tail[at + CDATA_END.len()..].trim_start())
            });
            return end.map_or_else(|| longest_beginning(tail, CDATA_END), |at| tail.len() - at);
        }
        let ends = [syntax.value_end, syntax.line_end].into_iter().filter(|end| !end.is_empty());
        let end = ends.map(|end| longest_beginning(tail, end)).max().unwrap_or(0);
        let entity = tail.rfind('&').map(|at| &tail[at..]);
        let open = |entity: &&str| entity.len() < MAX_ENTITY_BYTES && !entity.contains(';');
        let entity = entity.filter(|_| self.place == Place::Xml).filter(open).map_or(0, str::len);
        end.max(entity)
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
        let text = match self.place {
            Place::Xml => unescaped(text),
            Place::Begin | Place::Cdata | Place::Plain => text.to_owned(),
        };
        match self.kind {
            ArgumentType::Text => text.chars().for_each(|character| escape(character, out)),
            ArgumentType::TextOrNull | ArgumentType::Json => self.whole.push_str(&text),
        }
    }
}

/// A text with characters in the place of entities.
fn unescaped(text: &str) -> String {
    let replace = |text: String, (entity, character): (&str, &str)| text.replace(entity, character);
    ENTITIES.into_iter().fold(text.to_owned(), replace)
}

/// A value by its characters. What is not of its type is a text, so that nothing is lost.
fn json_value(text: &str, kind: ArgumentType) -> String {
    let word = word_of_json(text);
    let parsed = serde_json::from_str::<Value>(word).ok();
    if kind == ArgumentType::Json
        && parsed.is_none()
        && let Some(printed) = python::json_of(word)
    {
        return printed;
    }
    let is_value = match kind {
        ArgumentType::Json => parsed.is_some(),
        ArgumentType::TextOrNull => parsed == Some(Value::Null),
        ArgumentType::Text => false,
    };
    if is_value { word.to_owned() } else { Value::from(text).to_string() }
}
