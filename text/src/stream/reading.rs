//! From token ids to the pieces of an answer: the detokenizer, and the splitter of the model's
//! family.

use std::sync::Arc;

use super::harmony::HarmonySplitter;
use super::open_tool_call::ToolCallContext;
use super::parts::Parts;
use super::splitter::TagSplitter;
use super::tools::ConversationReading;
use super::{AnswerPart, Detokenizer, Ending, SpecialTokens, Splitter};
use crate::prompt::Language;
use crate::prompt::format::{AnswerTags, Tag, ToolCallFormat};

/// Reads the tokens of one answer.
#[derive(Debug)]
pub(super) struct AnswerReader {
    text: Detokenizer,
    tags: Arc<AnswerTags>,
    /// `None`: all is text.
    splitter: Option<Box<dyn Splitter>>,
    /// Characters that may become a tag.
    spelled: String,
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
        let splitter = reading.map(|reading| -> Box<dyn Splitter> {
            let (tags, context) = (Arc::clone(&tags), ToolCallContext { reading, count: 0 });
            match tags.format().calls {
                ToolCallFormat::Harmony => Box::new(HarmonySplitter::new(tags, context)),
                _ => Box::new(TagSplitter::new(tags, context)),
            }
        });
        let text = Detokenizer::new(language);
        Self { text, tags, splitter, spelled: String::new(), warning }
    }

    /// With special tokens in the text, or without.
    pub(super) fn with_special(self, special: SpecialTokens) -> Self {
        Self { text: self.text.with_special(special), ..self }
    }

    /// Takes the next token, and adds what it completes to `parts`.
    pub(super) fn push(&mut self, id: u32, parts: &mut Parts) {
        self.warn(parts);
        match self.tags.of_token(id).filter(|_| self.splitter.is_some()) {
            None => {
                let text = self.text.push(id);
                self.split(&text, parts);
            }
            Some(tag) => {
                let text = self.text.finish();
                self.split(&text, parts);
                self.release_characters(parts);
                if let Some(splitter) = &mut self.splitter {
                    splitter.take_tag(tag, parts);
                }
            }
        }
    }

    /// Splits more text of the answer. Characters are held back as long as they may become a tag.
    fn split(&mut self, text: &str, parts: &mut Parts) {
        let Self { tags, splitter: Some(splitter), spelled, .. } = self else {
            return parts.text(text);
        };
        for character in text.chars() {
            spelled.push(character);
            while !spelled.is_empty() {
                let wanted = tags.spelled().filter(|(tag, _)| splitter.wants(*tag));
                let begun = wanted.filter(|(_, characters)| characters.starts_with(&**spelled));
                let begun: Vec<(Tag, &str)> = begun.collect();
                match begun.iter().rfind(|(_, characters)| characters == spelled) {
                    Some((tag, _)) => {
                        spelled.clear();
                        splitter.take_tag(*tag, parts);
                    }
                    None if begun.is_empty() => splitter.take_character(spelled.remove(0), parts),
                    None => break,
                }
            }
        }
    }

    fn release_characters(&mut self, parts: &mut Parts) {
        let Some(splitter) = &mut self.splitter else { return };
        let spelled = std::mem::take(&mut self.spelled);
        spelled.chars().for_each(|character| splitter.take_character(character, parts));
    }

    fn warn(&mut self, parts: &mut Parts) {
        if let Some(warning) = self.warning.take() {
            parts.push(AnswerPart::Warning(warning.to_owned()));
        }
    }

    /// Whether the next token belongs to a thought.
    pub(super) fn is_thinking(&self) -> bool {
        self.splitter.as_ref().is_some_and(|splitter| splitter.is_thinking())
    }

    /// The end of the answer.
    pub(super) fn finish(&mut self, ending: Ending, parts: &mut Parts) {
        self.warn(parts);
        let text = self.text.finish();
        self.split(&text, parts);
        // Half a tag of an answer that was cut is dropped.
        if ending == Ending::Own {
            self.release_characters(parts);
        }
        if let Some(splitter) = &mut self.splitter {
            splitter.finish(ending, parts);
        }
    }
}
