//! A model directory as text needs it: tokenizer, chat template, stop tokens, sampling and
//! image settings. Every file is read once, here.
//!
//! Must not know: prompts, images, requests. What the values mean is decided by the modules that
//! use them.

mod error;
mod files;
mod vision;

use std::path::{Path, PathBuf};

use paceline_checkpoint::files::TOKENIZER_CONFIG;
use paceline_vocabulary::sampling::SamplingRule;
use tokenizers::Tokenizer;

pub use error::LoadError;
pub use vision::{ProcessorSettings, VisionSettings};

/// The content of a model directory.
#[derive(Debug)]
pub struct Checkpoint {
    /// `tokenizer.json`.
    pub tokenizer: TokenizerFile,
    /// The chat template, if the model has one.
    pub template: Option<TemplateFile>,
    /// Text of the beginning-of-sequence token, if the model has one.
    pub bos_token: Option<String>,
    /// Text of the end-of-sequence token, if the model has one.
    pub eos_token: Option<String>,
    /// Ids that end an answer, in ascending order.
    pub stop_ids: Vec<u32>,
    /// The model's own sampling.
    pub sampling: SamplingRule,
    /// The settings for images, if the model has a vision part.
    pub vision: Option<VisionSettings>,
}

/// A tokenizer and the path of its file.
#[derive(Debug)]
pub struct TokenizerFile {
    /// The file, for messages.
    pub path: PathBuf,
    /// The tokenizer as the file has it.
    pub tokenizer: Tokenizer,
}

/// A chat template and the path of its file.
#[derive(Debug)]
pub struct TemplateFile {
    /// The file, for messages.
    pub path: PathBuf,
    /// The template in Jinja.
    pub source: String,
    /// The template for conversations with tools, if the model has another one for them.
    pub with_tools: Option<String>,
}

impl Checkpoint {
    /// Reads a model directory. `generation_config.json`, the chat template and the files about
    /// images may be absent.
    ///
    /// # Errors
    /// The first file that is missing, is not as expected or has a value that cannot be served.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        let config = files::ModelConfig::read(dir)?;
        let generation = files::GenerationConfig::read(dir)?;
        let texts = files::TokenizerConfig::read(dir)?;
        let sampling = generation.sampling(dir)?;
        let mut stop_ids = generation.eos_ids().or(config.eos_ids()).unwrap_or_default();
        let template = files::template(dir, texts.chat_template)?;
        let tokenizer = files::tokenizer(dir)?;
        if let Some(eos) = &texts.eos_token {
            let id = tokenizer.tokenizer.token_to_id(eos).ok_or_else(|| {
                let what = format!("eos_token: expected a token of tokenizer.json, found {eos:?}");
                LoadError::content(&dir.join(TOKENIZER_CONFIG), what)
            })?;
            stop_ids.push(id);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let vision = VisionSettings::of(dir, config);
        let files::TokenizerConfig { bos_token, eos_token, .. } = texts;
        Ok(Self { tokenizer, template, bos_token, eos_token, stop_ids, sampling, vision })
    }

    /// This content for a model that is served as text alone: no file about images is read.
    #[must_use]
    pub fn without_vision(self) -> Self {
        Self { vision: None, ..self }
    }
}

#[cfg(test)]
mod tests;
