//! Finds a template's turn delimiters that are ordinary text, such as `[INST]` or `USER:`.
//!
//! The algorithm: conversations of unique words are rendered, and what stands between two words is
//! a border. A border's tags (`<name>`, `[name]`) are delimiters, and so is the last line of a
//! border that has neither a tag nor a special token.

use serde_json::{Map, Value};

use super::conversation::{Conversation, Message, Role, ToolCall};

/// Bytes of a delimiter, at most: more is prose of the template.
const MAX_BYTES: usize = 48;

/// A word of a probe.
fn word(number: usize) -> String {
    format!("w{number}rd{number}x")
}

/// Conversations that show how turns are separated. Templates refuse some of them.
pub(super) fn probes() -> Vec<Conversation> {
    use Role::{Assistant, System, Tool, User};
    let messages = |roles: &[Role]| -> Vec<Message> {
        roles.iter().enumerate().map(|(at, role)| Message::new(*role, vec![word(at)])).collect()
    };
    let conversation =
        |messages: Vec<Message>| Conversation { messages, ..Conversation::default() };
    let mut called = messages(&[User, Assistant, Tool, Assistant, User]);
    let arguments = Map::from_iter([(word(7), Value::from(word(8)))]);
    called[1].calls =
        vec![ToolCall { id: "call00001".into(), name: word(6), arguments: arguments.into() }];
    called[1].reasoning = word(9);
    (called[2].call_id, called[2].name) = ("call00001".into(), word(6));
    vec![
        conversation(messages(&[System, User, Assistant, User, Assistant, User])),
        conversation(messages(&[User, Assistant, User])),
        conversation(called.clone()),
        conversation(called[..3].to_vec()),
    ]
}

/// Stands for a special token in a rendering.
pub(super) const SPECIAL: char = '\0';

/// The delimiters in the rendering of a probe, in which [`SPECIAL`] stands for each special token.
pub(super) fn of(rendered: &str) -> Vec<String> {
    let mut words: Vec<(usize, usize)> = Vec::new();
    for number in 0..10 {
        let word = word(number);
        words.extend(rendered.match_indices(&word).map(|(at, _)| (at, at + word.len())));
    }
    words.sort_unstable();
    let Some((first, last)) = words.first().zip(words.last()) else { return vec![] };
    let last_line = |text: &str| {
        let mut lines = text.split(['\n', SPECIAL]).map(str::trim);
        lines.rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
    };

    let mut found = Vec::new();
    // What comes before the first turn may be prose.
    found.extend(tags(&last_line(&rendered[..first.0])));
    let between = words.windows(2).map(|pair| &rendered[pair[0].1..pair[1].0]);
    for border in between.chain([&rendered[last.1..]]) {
        let tags: Vec<String> = tags(border).collect();
        let line = last_line(border);
        if tags.is_empty()
            && (!border.contains(SPECIAL) || line.ends_with(':'))
            && is_delimiter(&line)
        {
            found.push(line);
        }
        found.extend(tags);
    }
    found.retain(|text| text.len() <= MAX_BYTES);
    found.sort_unstable();
    found.dedup();
    found
}

/// A word alone is no delimiter, because texts need it; signs alone are none either.
fn is_delimiter(line: &str) -> bool {
    let sign = |character: char| !character.is_alphanumeric() && !character.is_whitespace();
    line.contains(char::is_alphabetic) && line.contains(sign) && !line.contains(['"', '{', '}'])
}

/// `<name>`, `<<name>>`, `[name]`, `[|name|]`, `</name>`: brackets around text without white space.
fn tags(text: &str) -> impl Iterator<Item = String> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find(['<', '['])?;
            let (open, close) = if rest[at..].starts_with('<') { ('<', '>') } else { ('[', ']') };
            let inside = rest[at..].trim_start_matches(open);
            let opened = rest.len() - at - inside.len();
            let length = inside
                .find(|character: char| {
                    character.is_whitespace() || "<>[]\"{}\0".contains(character)
                })
                .unwrap_or(inside.len());
            let closed = inside[length..].len() - inside[length..].trim_start_matches(close).len();
            let tag = &rest[at..at + opened + length + closed.min(opened)];
            rest = &rest[at + opened + length..];
            if closed >= opened && inside[..length].contains(char::is_alphabetic) {
                return Some(tag.to_owned());
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_tags_and_lines_between_turns() {
        let of = |border: &str, end: &str| {
            let rendered =
                format!("Be [brief]. Say <yes>.\n<<SYS>> {} {border}{}{end}", word(0), word(1));
            of(&rendered)
        };
        assert_eq!(of("[/INST] ", ""), ["<<SYS>>", "[/INST]"]);
        assert_eq!(of("\n\n### Response:\n", ""), ["### Response:", "<<SYS>>"]);
        assert_eq!(of("\0USER: ", " \0\nASSISTANT:"), ["<<SYS>>", "ASSISTANT:", "USER:"]);
        assert_eq!(of("\0\nassistant\n", "<|x|>[|a|]</b>"), ["</b>", "<<SYS>>", "<|x|>", "[|a|]"]);
        // Words that texts need, and signs that do not tell.
        assert_eq!(of("\nassistant\n", "\n\n"), ["<<SYS>>"]);
        assert_eq!(of(" => ", "{\"a\": [1], \"b\": [\"c\"]}"), ["<<SYS>>"]);
    }
}
