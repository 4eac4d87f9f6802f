//! A field of a request that cannot be served.

use std::fmt::Display;

/// Characters of a client's own words that a message repeats: errors travel in bounded headers.
const MAX_QUOTED_CHARS: usize = 60;

/// A field of a request with a value that cannot be served. The text is the message for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}, found {found}")]
pub struct FieldError {
    /// The field, by its path in the request.
    pub field: String,
    /// The values that are served.
    pub expected: String,
    /// The value of the request.
    pub found: String,
}

impl FieldError {
    /// The refusal of a field.
    pub fn new(field: &str, expected: impl Display, found: impl Display) -> Self {
        let (expected, found) = (expected.to_string(), found.to_string());
        Self { field: field.to_owned(), expected, found }
    }
}

/// A client's own word for a message, in quotes, cut if it is long.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        None => format!("{text:?}"),
        Some((cut, _)) => format!("{:?}... ({} bytes)", &text[..cut], text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_of_clients_are_cut() {
        assert_eq!(quoted("a\"b"), r#""a\"b""#);
        assert!(quoted(&"é".repeat(1 << 20)).len() < 160);
    }
}
