//! Prompts: the model's tokenizer and chat template.
//!
//! A conversation is rendered by the template ([`template`]) and becomes token ids ([`tokens`]).

mod arguments;
mod chat_vocabulary;
pub mod conversation;
mod delimiters;
pub mod format;
mod ids;
mod infill;
mod jinja;
mod json;
mod length;
mod literals;
pub mod markup;
mod python;
mod resent;
mod template;
mod tokens;
mod tool_call_text;
mod variables;

use std::path::Path;
use std::sync::Arc;

use conversation::Conversation;
use format::{AnswerFormat, AnswerTags, ToolCallFormat};
use markup::{Added, Rendered};
use paceline_vocabulary::Reason;
use paceline_vocabulary::sampling::SamplingRule;

use crate::checkpoint::{Checkpoint, LoadError, TemplateFile, TokenizerFile};
use crate::images::{EncodedImage, ImageProcessor};

pub use ids::{PromptIds, TokenizerError};
pub use infill::Infill;
use template::SpecialTokens;
pub use template::{CompileError, RenderError, Template};
pub use tokens::Tokens;
pub use variables::OWN_NAMES;

/// The text side of a model, ready for use.
#[derive(Debug)]
pub struct Language {
    /// The tokenizer.
    pub tokens: Tokens,
    /// The chat template, if the model has one.
    pub template: Option<Template>,
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// The model's own sampling, for fields a request leaves out.
    pub sampling: SamplingRule,
    /// How its images are prepared, if it reads images.
    pub images: Option<Arc<ImageProcessor>>,
    /// The tags of its answers to conversations.
    pub answer_tags: Arc<AnswerTags>,
}

impl Language {
    /// Reads a model directory.
    ///
    /// # Errors
    /// The first file that is missing or cannot be used, by name.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        Self::new(Checkpoint::read(dir)?)
    }

    /// The text side of a model with these files.
    ///
    /// # Errors
    /// The first file with something that cannot be used, by name.
    pub fn new(checkpoint: Checkpoint) -> Result<Self, LoadError> {
        let Checkpoint { tokenizer, template, bos_token, eos_token, stop_ids, sampling, vision } =
            checkpoint;
        let TokenizerFile { path: tokenizer_path, tokenizer } = tokenizer;
        let unusable =
            |cause| LoadError::broken(&tokenizer_path, "the tokenizer cannot be used", cause);
        let mut tokens = Tokens::new(tokenizer).map_err(unusable)?;
        let images = match vision {
            None => None,
            Some(settings) => ImageProcessor::new(&settings, |id| tokens.text(id))?.map(Arc::new),
        };
        let mut added = tokens.added();
        if let Some(processor) = &images {
            tokens.spell_out(processor.token).map_err(unusable)?;
            // Only the template may write it, whether or not the tokenizer calls it special.
            let is_placeholder = |token: &&mut Added| token.id == processor.token;
            added.iter_mut().filter(is_placeholder).for_each(|token| token.special = true);
        }
        let template = match template {
            None => None,
            Some(TemplateFile { path, source, with_tools }) => {
                let texts = SpecialTokens { bos: bos_token, eos: eos_token };
                let template =
                    Template::compile_both(&source, with_tools.as_deref(), texts, &added)
                        .map_err(|cause| LoadError::broken(&path, "the chat template", cause))?;
                let lacks = template.lacks();
                if !lacks.is_empty() {
                    tracing::warn!(
                        path = %path.display(),
                        ?lacks,
                        "the chat template calls what its engine lacks; conversations that reach it are refused"
                    );
                }
                tokens.protect(template.markup()).map_err(unusable)?;
                Some(template)
            }
        };
        let format = template.as_ref().map(Template::answer_format).unwrap_or_default();
        let answer_tags = Arc::new(AnswerTags::new(format, &tokens));
        Ok(Self { tokens, template, stop_ids, sampling, images, answer_tags })
    }

    /// Replaces the template's format of tool calls by the format that the operator names.
    #[must_use]
    pub fn with_tool_call_format(mut self, calls: ToolCallFormat) -> Self {
        let format: AnswerFormat = self.answer_tags.format().with_calls(calls);
        self.answer_tags = Arc::new(AnswerTags::new(format, &self.tokens));
        self
    }

    /// Whether the template knows tools and the format of the model's tool calls is not read.
    pub fn leaves_tool_calls_unread(&self) -> bool {
        let knows_tools = self.template.as_ref().is_some_and(Template::knows_tools);
        knows_tools && self.answer_tags.format().calls == ToolCallFormat::None
    }

    /// Refuses a text that has more than `most_tokens` in any case, without tokenizing it.
    ///
    /// # Errors
    /// [`PromptError::TooLong`].
    pub fn check_length(&self, text: &str, most_tokens: u32) -> Result<(), PromptError> {
        let at_least = self.tokens.least_tokens(text);
        if at_least > most_tokens as usize {
            Err(PromptError::TooLong { at_least })
        } else {
            Ok(())
        }
    }

    /// The ids of a prompt. A rendered conversation that certainly has more than `most_tokens` is
    /// refused before it is tokenized. Ids that are returned may still be more than that.
    ///
    /// # Errors
    /// See [`PromptError`].
    pub fn prompt_ids(&self, source: Source, most_tokens: u32) -> Result<PromptIds, PromptError> {
        match source {
            Source::Ids(ids) | Source::IdsWithImages { ids, .. } => Ok(ids.into()),
            Source::Text(text) => Ok(self.tokens.encode_prompt(&text)?.into()),
            Source::Chat(conversation) => {
                let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
                let rendered = template.render(&conversation)?;
                // A template may leave text out, so the length of the rendering counts.
                self.check_length(&rendered.text, most_tokens)?;
                let ids = self.tokens.encode_rendered(&rendered)?;
                ids.ok_or_else(|| RenderError::Conversation(unwritable(template, &rendered)).into())
            }
        }
    }
}

/// The source of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A text. The tokenizer adds the special tokens that it puts around every text.
    Text(String),
    /// Token ids, which are the prompt.
    Ids(Vec<u32>),
    /// Token ids with one placeholder for each image.
    IdsWithImages {
        /// Token ids of the whole prompt.
        ids: Vec<u32>,
        /// The images, in the order of their placeholders.
        images: Vec<EncodedImage>,
    },
    /// A conversation. The template writes the special tokens.
    Chat(Conversation),
}

impl Source {
    /// Takes the images out of the source.
    pub fn take_images(&mut self) -> Vec<EncodedImage> {
        match self {
            Source::Chat(conversation) => std::mem::take(&mut conversation.images),
            Source::IdsWithImages { images, .. } => std::mem::take(images),
            Source::Text(_) | Source::Ids(_) => Vec::new(),
        }
    }

    /// Bytes of the text in the source, roughly.
    pub fn bytes(&self) -> usize {
        match self {
            Source::Ids(_) | Source::IdsWithImages { .. } => 0,
            Source::Text(text) => text.len(),
            Source::Chat(conversation) => conversation.bytes(),
        }
    }
}

/// Why a prompt could not be made. The text is the message for the client, except for
/// [`PromptError::Tokenizer`] and [`PromptError::Bug`], whose texts are for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The model has no chat template.
    #[error(
        "this model has no chat template; use Generate with a prompt in the model's own format"
    )]
    NoTemplate,
    /// The template refused the conversation, or would leave something out.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The prompt is longer than allowed. It was not tokenized.
    #[error("the prompt has at least {at_least} tokens, more than it may")]
    TooLong {
        /// The least number of tokens that the prompt has.
        at_least: usize,
    },
    /// The tokenizer failed.
    #[error("the tokenizer failed")]
    Tokenizer(#[from] TokenizerError),
    /// Our own mistake.
    #[error("{0}")]
    Bug(&'static str),
}

impl PromptError {
    /// The reason that the client gets.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoTemplate => Reason::NoChatTemplate,
            Self::Render(RenderError::Conversation(_)) => Reason::Template,
            Self::Render(RenderError::NoTools { .. }) => Reason::NoTools,
            Self::TooLong { .. } => Reason::PromptTooLong,
            Self::Tokenizer(_) | Self::Bug(_) => Reason::Bug,
        }
    }

    /// The request's field that the error is about.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::NoTemplate | Self::Render(RenderError::Conversation(_)) => Some("messages"),
            Self::Render(RenderError::NoTools { field, .. }) => Some(field),
            Self::TooLong { .. } => Some("prompt"),
            Self::Tokenizer(_) | Self::Bug(_) => None,
        }
    }
}

/// The refusal of a text that the tokenizer can write only with a special token: the model's
/// vocabulary has the token as a word.
fn unwritable(template: &Template, rendered: &Rendered) -> String {
    let forged = rendered
        .forged
        .iter()
        .filter_map(|at| template.markup().get(at.item))
        .map(|item| format!("{:?}", item.text));
    let mut forged: Vec<String> = forged.collect();
    forged.sort_unstable();
    forged.dedup();
    let found = forged.join(", ");
    format!(
        "expected text that this model's tokenizer can write without special tokens, found {found}; leave it out"
    )
}

#[cfg(test)]
mod tests;
