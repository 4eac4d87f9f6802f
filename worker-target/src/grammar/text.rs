//! Bounds of texts before they are parsed: their size and the nesting of their brackets. A text in an
//! error is cut.

use paceline_vocabulary::grammar::{MAX_LEVELS, bracket_levels};

use super::GrammarError;

/// Checks a text's size.
///
/// # Errors
/// It is larger than `most`.
pub(super) fn check_size(text: &str, most: usize) -> Result<(), GrammarError> {
    if text.len() <= most {
        return Ok(());
    }
    Err(GrammarError::new(format!("at most {most} bytes"), text.len()))
}

/// Checks the nesting of a text's brackets.
///
/// # Errors
/// There are more than [`MAX_LEVELS`] levels.
pub(super) fn check_brackets(text: &str) -> Result<(), GrammarError> {
    if bracket_levels(text) <= MAX_LEVELS {
        return Ok(());
    }
    Err(GrammarError::new(format!("at most {MAX_LEVELS} levels of brackets"), "more"))
}

/// A text of a client for an error: its beginning, if it is long.
pub(super) fn brief(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
