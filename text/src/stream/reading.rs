//! From token ids to the pieces of an answer: the detokenizer, and the splitter of the model's
//! family.

use std::sync::Arc;

use super::harmony::HarmonySplitter;
use super::open_tool_call::ToolCallContext;
use super::parts::Parts;
use super::splitter::Splitter;
use super::tools::ConversationReading;
use super::{AnswerPart, Detokenizer, Ending, SpecialTokens};
use crate::prompt::Language;
use crate::prompt::format::{AnswerTags, Tag, ToolCallFormat};

#[derive(Debug)]
enum AnySplitter {
    /// All is text.
    Raw,
    Tagged(Box<Splitter>),
    Harmony(Box<HarmonySplitter>),
}

/// Reads the tokens of one answer.
#[derive(Debug)]
pub(super) struct AnswerReader {
    text: Detokenizer,
    tags: Arc<AnswerTags>,
    splitter: AnySplitter,
    /// The first part of the answer.
    warning: Option<&'static str>,
}

/// Warning of an answer whose tool calls are not read.
const UNREAD: &str = "the format of this model's tool calls is not known, so that a tool call is text; docs/clients.md lists the formats that are read";

impl AnswerReader {
    /// Before the first token. Without `reading` all of the answer is text.
    pub(super) fn new(language: Arc<Language>, reading: Option<ConversationReading>) -> Self {
        let tags = Arc::clone(&language.answer_tags);
        Self::with_tags(language, tags, reading)
    }

    pub(super) fn with_tags(
        language: Arc<Language>,
        tags: Arc<AnswerTags>,
        reading: Option<ConversationReading>,
    ) -> Self {
        let has_tools = reading.as_ref().is_some_and(|reading| reading.tools.is_some());
        let is_read = tags.format().calls != ToolCallFormat::None;
        let warning = (has_tools && !is_read).then_some(UNREAD);
        let splitter = match reading {
            None => AnySplitter::Raw,
            Some(reading) => {
                let (tags, context) = (Arc::clone(&tags), ToolCallContext { reading, count: 0 });
                match tags.format().calls {
                    ToolCallFormat::Harmony => {
                        AnySplitter::Harmony(Box::new(HarmonySplitter::new(tags, context)))
                    }
                    _ => AnySplitter::Tagged(Box::new(Splitter::new(tags, context))),
                }
            }
        };
        Self { text: Detokenizer::new(language), tags, splitter, warning }
    }

    /// With special tokens in the text, or without.
    pub(super) fn with_special(self, special: SpecialTokens) -> Self {
        Self { text: self.text.with_special(special), ..self }
    }

    /// Takes the next token, and adds what it completes to `parts`.
    pub(super) fn push(&mut self, id: u32, parts: &mut Parts) {
        self.warn(parts);
        let tag = self.tags.of_token(id);
        match tag.filter(|_| !matches!(self.splitter, AnySplitter::Raw)) {
            None => {
                let text = self.text.push(id);
                self.splitter.push(&text, parts);
            }
            Some(tag) => {
                let text = self.text.finish();
                self.splitter.push(&text, parts);
                self.splitter.tag(tag, parts);
            }
        }
    }

    fn warn(&mut self, parts: &mut Parts) {
        if let Some(warning) = self.warning.take() {
            parts.push(AnswerPart::Warning(warning.to_owned()));
        }
    }

    /// Whether the next token belongs to a thought.
    pub(super) fn is_thinking(&self) -> bool {
        match &self.splitter {
            AnySplitter::Raw => false,
            AnySplitter::Tagged(splitter) => splitter.is_thinking(),
            AnySplitter::Harmony(splitter) => splitter.is_thinking(),
        }
    }

    /// The end of the answer.
    pub(super) fn finish(&mut self, ending: Ending, parts: &mut Parts) {
        self.warn(parts);
        let text = self.text.finish();
        self.splitter.push(&text, parts);
        self.splitter.finish(ending, parts);
    }
}

impl AnySplitter {
    fn push(&mut self, text: &str, parts: &mut Parts) {
        match self {
            Self::Raw => parts.text(text),
            Self::Tagged(splitter) => splitter.push(text, parts),
            Self::Harmony(splitter) => splitter.push(text, parts),
        }
    }

    fn tag(&mut self, tag: Tag, parts: &mut Parts) {
        match self {
            Self::Raw => {}
            Self::Tagged(splitter) => splitter.tag(tag, parts),
            Self::Harmony(splitter) => splitter.tag(tag, parts),
        }
    }

    fn finish(&mut self, ending: Ending, parts: &mut Parts) {
        match self {
            Self::Raw => {}
            Self::Tagged(splitter) => splitter.finish(ending, parts),
            Self::Harmony(splitter) => splitter.finish(ending, parts),
        }
    }
}
