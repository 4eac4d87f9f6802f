//! Why a file cannot be used.

use std::fmt::Display;

/// Most characters of a file's own words that an error shows.
const MAX_WORD_CHARS: usize = 80;

/// A file that is not what its reader expects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(String);

impl FormatError {
    /// An error about a part of a file.
    pub fn new(what: impl Display, expected: impl Display, found: impl Display) -> Self {
        Self(format!("{what}: expected {expected}, found {found}"))
    }
}

/// A text of the file in an error: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_WORD_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
