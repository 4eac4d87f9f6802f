//! Readers of one tool call: the characters between a family's tags become the tool's name and
//! arguments as JSON, character by character.

mod gemma;
mod json;
mod mistral;
mod python;
mod tagged;

use super::json::{BrokenJson, JsonScanner};
use super::tools::OfferedTools;
use crate::prompt::format::{ToolCallFormat, is_tool_name};

use gemma::GemmaToolCall;
use json::JsonToolCall;
use mistral::MistralToolCall;
use tagged::{GLM, MINICPM, QWEN, TaggedToolCall};

/// Why the characters are no tool call, in a sentence for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BrokenToolCall {
    #[error(transparent)]
    Json(#[from] BrokenJson),
    #[error("expected {expected}, found {found}")]
    Other { expected: &'static str, found: &'static str },
}

impl BrokenToolCall {
    pub(super) fn other(expected: &'static str, found: &'static str) -> Self {
        Self::Other { expected, found }
    }
}

/// A tool call as far as it has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PartialToolCall {
    /// The tool's name, once it is known.
    pub(super) name: Option<String>,
    /// Arguments that are not sent yet.
    pub(super) arguments: String,
}

impl PartialToolCall {
    /// Sets the name.
    fn set_name(&mut self, name: String) -> Result<(), BrokenToolCall> {
        if !is_tool_name(&name) {
            let expected = "a name of at most 128 letters, digits, \"_\", \"-\" or \".\"";
            return Err(BrokenToolCall::other(expected, "another name"));
        }
        self.name = Some(name);
        Ok(())
    }
}

/// Reads one tool call.
#[derive(Clone, Debug)]
pub(super) enum ToolCallReader {
    Json(JsonToolCall),
    Tagged(TaggedToolCall),
    Gemma(GemmaToolCall),
    Mistral(MistralToolCall),
    /// Arguments alone: the name is known from elsewhere.
    Arguments(JsonScanner),
}

impl ToolCallReader {
    /// The reader of a format's tool calls.
    pub(super) fn new(format: ToolCallFormat) -> Self {
        match format {
            ToolCallFormat::QwenXml => Self::Tagged(TaggedToolCall::new(&QWEN)),
            ToolCallFormat::MiniCpm => Self::Tagged(TaggedToolCall::new(&MINICPM)),
            ToolCallFormat::Glm => Self::Tagged(TaggedToolCall::new(&GLM)),
            ToolCallFormat::MistralList | ToolCallFormat::MistralArgs => {
                Self::Mistral(MistralToolCall::new())
            }
            ToolCallFormat::Gemma4 => Self::Gemma(GemmaToolCall::default()),
            ToolCallFormat::Harmony => Self::Arguments(JsonScanner::new()),
            ToolCallFormat::Hermes | ToolCallFormat::Llama3 | ToolCallFormat::None => {
                Self::Json(JsonToolCall::default())
            }
        }
    }

    /// The reader of the next object of a list.
    pub(super) fn next_of_list() -> Self {
        Self::Mistral(MistralToolCall::next_of_list())
    }

    /// Whether an object of the same list may follow the tool call.
    pub(super) fn is_in_list(&self) -> bool {
        matches!(self, Self::Mistral(reader) if reader.is_in_list())
    }

    /// Takes the next character.
    ///
    /// # Errors
    /// It cannot stand there.
    pub(super) fn push(
        &mut self,
        character: char,
        tools: &OfferedTools,
        piece: &mut PartialToolCall,
    ) -> Result<(), BrokenToolCall> {
        match self {
            Self::Json(reader) => reader.push(character, piece),
            Self::Tagged(reader) => reader.push(character, tools, piece),
            Self::Gemma(reader) => reader.push(character, piece),
            Self::Mistral(reader) => reader.push(character, piece),
            Self::Arguments(scanner) if scanner.is_done() && character.is_whitespace() => Ok(()),
            Self::Arguments(scanner) => Ok(scanner.push(character, &mut piece.arguments)?),
        }
    }

    /// Takes the tag around texts. Returns false if it is not a tag there.
    ///
    /// # Errors
    /// It cannot stand there.
    pub(super) fn quote(&mut self, piece: &mut PartialToolCall) -> Result<bool, BrokenToolCall> {
        match self {
            Self::Gemma(reader) => reader.quote(piece).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Adds what the reader holds back of a value to the arguments of a tool call that is cut.
    pub(super) fn cut(&mut self, piece: &mut PartialToolCall) {
        match self {
            Self::Json(reader) => reader.cut(piece),
            Self::Tagged(reader) => reader.cut(piece),
            Self::Gemma(reader) => reader.cut(piece),
            Self::Mistral(reader) => reader.cut(piece),
            Self::Arguments(scanner) => scanner.cut(&mut piece.arguments),
        }
    }

    /// Whether characters without a tag may still become a tool call of one of these tools. Of a
    /// call that a tag began nothing else can come.
    pub(super) fn may_become_tool_call(&self, tools: &OfferedTools) -> bool {
        match self {
            Self::Json(reader) => reader.may_become_tool_call(tools),
            Self::Tagged(_) | Self::Gemma(_) | Self::Mistral(_) | Self::Arguments(_) => true,
        }
    }

    /// Whether the next character belongs to a text, in which tags are characters.
    pub(super) fn in_text(&self) -> bool {
        match self {
            Self::Json(reader) => reader.in_text(),
            Self::Tagged(reader) => reader.in_text(),
            Self::Gemma(reader) => reader.in_text(),
            Self::Mistral(reader) => reader.in_text(),
            Self::Arguments(scanner) => scanner.in_text(),
        }
    }

    /// Whether the tool call is complete.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Json(reader) => reader.is_done(),
            Self::Tagged(reader) => reader.is_done(),
            Self::Gemma(reader) => reader.is_done(),
            Self::Mistral(reader) => reader.is_done(),
            Self::Arguments(scanner) => scanner.is_done(),
        }
    }
}

/// JSON's word for a value without quotes, which templates may print as Python does.
fn word_of_json(word: &str) -> &str {
    match word.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    }
}

/// A word that is expected, as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word(String);

impl Word {
    /// Takes a character. Returns the word that is complete, of those that may come.
    pub(super) fn push<'a>(
        &mut self,
        character: char,
        words: &[&'a str],
        expected: &'static str,
    ) -> Result<Option<&'a str>, BrokenToolCall> {
        if self.0.is_empty() && character.is_whitespace() {
            return Ok(None);
        }
        self.0.push(character);
        let Some(word) = words.iter().find(|word| word.starts_with(&self.0)) else {
            return Err(BrokenToolCall::other(expected, "other text"));
        };
        if *word != self.0 {
            return Ok(None);
        }
        self.0.clear();
        Ok(Some(word))
    }
}
