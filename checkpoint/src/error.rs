//! Why a file cannot be used.

/// Most characters of a file's own words that an error shows.
const MAX_WORD_CHARS: usize = 80;

/// A file that is not what its reader expects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, found {found}")]
pub struct FormatError {
    /// The part of the file.
    what: String,
    /// Contents that the reader can use.
    expected: String,
    /// Contents of the file.
    found: String,
}

impl FormatError {
    /// An error about a part of a file.
    pub fn new(
        what: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self { what: what.into(), expected: expected.into(), found: found.into() }
    }
}

/// A text of the file in an error: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_WORD_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
