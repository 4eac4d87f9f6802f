//! The characters of Lark rules: tags, texts and regular expressions.

use serde_json::Value;

use crate::prompt::format::{AnswerTags, Tag};

/// A tag in a rule: its token, or its characters.
pub(super) fn symbol(tags: &AnswerTags, tag: Tag) -> String {
    match tags.token(tag) {
        Some(id) => format!("<[{id}]>"),
        None => quoted(tags.characters(tag)),
    }
}

/// The rule `calls`, of the rule `call`. White space may end it, because models end their lines before
/// their answers.
pub(super) fn several_calls(only_one: bool) -> &'static str {
    match only_one {
        true => "calls: call\n",
        false => "calls: call (GAP? call)* GAP?\n",
    }
}

/// Characters as a rule has them.
pub(super) fn quoted(characters: &str) -> String {
    Value::from(characters).to_string()
}

/// Characters as a regular expression between slashes has them.
pub(super) fn escaped(characters: &str) -> String {
    const SIGNS: &str = "\\/.+*?()|[]{}^$";
    let mut text = String::new();
    for character in characters.chars() {
        if SIGNS.contains(character) {
            text.push('\\');
        }
        text.push(character);
    }
    text
}
