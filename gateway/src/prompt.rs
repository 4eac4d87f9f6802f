//! Text to token ids: the model's tokenizer and chat template, and the threads that work with them.
//!
//! Owns what of a model directory concerns text. Must not know: requests, services, the network.

mod files;
mod json;
mod template;
mod tokens;

use std::path::Path;
use std::sync::Arc;

use paceline_proto::internal::v1::SamplingRule;
use tokio::sync::Semaphore;

pub use files::{GREEDY, LoadError};
pub use template::{Template, Turn};
pub use tokens::Tokens;

/// What a model directory says about text.
#[derive(Debug)]
pub struct Language {
    /// Text to ids and back.
    pub tokens: Tokens,
    /// How a conversation becomes a prompt; `None` if the model has no way to say it.
    pub template: Option<Template>,
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// The model's own sampling, for fields a request leaves out.
    pub sampling: SamplingRule,
}

impl Language {
    /// Reads a model directory.
    ///
    /// # Errors
    /// The first file that is missing or cannot be used, by name.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        let files = files::ModelFiles::read(dir)?;
        let tokens = Tokens::read(dir)?;
        let mut stop_ids = files.eos_ids;
        if let Some(eos) = &files.eos_token {
            let id = tokens.id(eos).ok_or_else(|| {
                let what = format!("eos_token: expected a token of tokenizer.json, found {eos:?}");
                LoadError::content(&dir.join("tokenizer_config.json"), what)
            })?;
            stop_ids.push(id);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let template = match files.template {
            None => None,
            Some(file) => {
                let compiled = Template::compile(&file.source, files.bos_token, files.eos_token);
                Some(compiled.map_err(|cause| LoadError::content(&file.path, format!("the chat template: {cause}")))?)
            }
        };
        Ok(Self { tokens, template, stop_ids, sampling: files.sampling })
    }
}

/// What a prompt is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Text as it is, with the special tokens the tokenizer puts around every text.
    Text(String),
    /// Ids as they are.
    Ids(Vec<u32>),
    /// A conversation; the template writes the special tokens.
    Chat(Vec<Turn>),
}

/// Why a prompt could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptError {
    /// The model has no chat template.
    NoTemplate,
    /// The template refused the conversation, in words for the client.
    Template(String),
    /// Our bug, in words for the log.
    Bug(String),
}

/// Makes prompts on threads of their own: a long text takes seconds, which no stream may wait for.
#[derive(Clone, Debug)]
pub struct Prompter {
    language: Arc<Language>,
    seats: Arc<Semaphore>,
}

impl Prompter {
    /// A prompter that works on at most `seats` prompts at once; others wait.
    pub fn new(language: Arc<Language>, seats: usize) -> Self {
        Self { language, seats: Arc::new(Semaphore::new(seats)) }
    }

    /// The model's text side.
    pub fn language(&self) -> &Arc<Language> {
        &self.language
    }

    /// The ids of a prompt. Whoever stops waiting gives up the place in the row; work already begun ends unseen.
    ///
    /// # Errors
    /// See [`PromptError`].
    pub async fn ids(&self, source: Source) -> Result<Vec<u32>, PromptError> {
        if let Source::Ids(ids) = source {
            return Ok(ids);
        }
        let bug = |what: &str| PromptError::Bug(what.to_owned());
        let seat = Arc::clone(&self.seats).acquire_owned().await.map_err(|_| bug("the prompter is closed"))?;
        let language = Arc::clone(&self.language);
        let work = tokio::task::spawn_blocking(move || {
            let _seat = seat; // given back when the work is done, not when its client is gone
            make(&language, source)
        });
        work.await.unwrap_or_else(|_| Err(bug("a panic while making a prompt")))
    }
}

/// The ids of a prompt, on this thread.
fn make(language: &Language, source: Source) -> Result<Vec<u32>, PromptError> {
    match source {
        Source::Ids(ids) => Ok(ids),
        Source::Text(text) => language.tokens.encode(&text, true).map_err(PromptError::Bug),
        Source::Chat(turns) => {
            let template = language.template.as_ref().ok_or(PromptError::NoTemplate)?;
            let rendered = template.render(&turns).map_err(PromptError::Template)?;
            language.tokens.encode(&rendered, false).map_err(PromptError::Bug)
        }
    }
}

#[cfg(test)]
mod tests;
