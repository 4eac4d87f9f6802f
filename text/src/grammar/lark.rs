//! The letters of Lark rules: tags, texts and regular expressions.

use serde_json::Value;

use crate::prompt::format::{AnswerTags, Tag};

/// A tag in a rule: its token, or its letters.
pub(super) fn symbol(tags: &AnswerTags, tag: Tag) -> String {
    match tags.token(tag) {
        Some(id) => format!("<[{id}]>"),
        None => quoted(tags.letters(tag)),
    }
}

/// Letters as a rule has them.
pub(super) fn quoted(letters: &str) -> String {
    Value::from(letters).to_string()
}

/// Letters as a regular expression between slashes has them.
pub(super) fn escaped(letters: &str) -> String {
    const SIGNS: &str = "\\/.+*?()|[]{}^$";
    let mut text = String::new();
    for letter in letters.chars() {
        if SIGNS.contains(letter) {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}
