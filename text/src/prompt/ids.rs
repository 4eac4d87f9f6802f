//! Token ids of a prompt, and the error of making them.

/// An error of a tokenizer, in its library's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenizerError(String);

impl TokenizerError {
    /// An error with these words.
    pub(super) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl From<tokenizers::Error> for TokenizerError {
    fn from(error: tokenizers::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for TokenizerError {
    fn from(words: &str) -> Self {
        Self(words.to_owned())
    }
}

/// A prompt as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptIds {
    /// Ids of the rendered prompt.
    pub ids: Vec<u32>,
    /// Index at which the last turn of a conversation begins, if that is known: a token of the
    /// template in front of the last message of the user.
    pub last_turn: Option<usize>,
}

impl From<Vec<u32>> for PromptIds {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, last_turn: None }
    }
}
