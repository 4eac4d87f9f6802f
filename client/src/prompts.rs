//! The prompts: those of the demo, conversations that any instruct model can answer. A model is
//! only compared with itself.

use paceline_proto::v1::Message;
use serde::Deserialize;

use crate::message;

/// Six kinds of work, from easy to draft (records) to hard to draft (prose).
const EMBEDDED: &str = include_str!("../../demo/prompts.jsonl");

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Kind of work.
    pub kind: String,
    /// Number of the prompt among those of its kind, from 0.
    pub index: usize,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Most tokens its answer needs.
    pub max_tokens: u32,
}

#[derive(Deserialize)]
struct PromptLine {
    kind: String,
    messages: Vec<PromptTurn>,
    max_tokens: u32,
    /// The answer that it was made with, if it has only one.
    #[serde(default)]
    expected: String,
}

#[derive(Deserialize)]
struct PromptTurn {
    role: String,
    content: String,
}

/// The first `per_kind` prompts of each kind, one of each kind in turn, so that a slow period of
/// the machine affects all kinds.
pub fn embedded(per_kind: usize) -> Vec<Prompt> {
    in_turn(all().into_iter().map(|(prompt, _)| prompt), per_kind)
}

/// The first `per_kind` of these prompts of each kind, one of each kind in turn.
pub fn in_turn(prompts: impl Iterator<Item = Prompt>, per_kind: usize) -> Vec<Prompt> {
    let mut prompts: Vec<Prompt> = prompts.filter(|prompt| prompt.index < per_kind).collect();
    prompts.sort_by_key(|prompt| prompt.index);
    prompts
}

/// The kinds, in the order of the file.
pub fn kinds() -> Vec<String> {
    embedded(1).into_iter().map(|prompt| prompt.kind).collect()
}

/// `count` prompts of a kind, longest expected answers first. The measured text is then of that
/// kind for as long as possible, and not the text that a model generates after the end of its
/// answer.
pub fn longest(kind: &str, count: usize) -> Vec<Prompt> {
    let mut prompts: Vec<_> = all().into_iter().filter(|(prompt, _)| prompt.kind == kind).collect();
    prompts.sort_by_key(|(_, expected)| std::cmp::Reverse(*expected));
    prompts.into_iter().map(|(prompt, _)| prompt).take(count).collect()
}

/// All prompts, each with the length of its expected answer in bytes.
fn all() -> Vec<(Prompt, usize)> {
    let mut prompts: Vec<(Prompt, usize)> = Vec::new();
    for line in EMBEDDED.lines() {
        let line: PromptLine =
            serde_json::from_str(line).expect("the embedded prompts are checked by a test");
        let index = prompts.iter().filter(|(prompt, _)| prompt.kind == line.kind).count();
        let messages =
            line.messages.into_iter().map(|turn| message::text(&turn.role, turn.content)).collect();
        let prompt = Prompt { kind: line.kind, index, messages, max_tokens: line.max_tokens };
        prompts.push((prompt, line.expected.len()));
    }
    prompts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_take_turns() {
        let prompts = embedded(2);
        let kinds: Vec<_> = prompts.iter().map(|prompt| prompt.kind.as_str()).collect();
        let once = ["json", "arithmetic", "code", "table", "facts", "prose"];
        assert_eq!(kinds, [once, once].concat());
        assert!(prompts.iter().all(|prompt| !prompt.messages.is_empty() && prompt.max_tokens > 0));
        assert_eq!(embedded(usize::MAX).len(), 240);
    }
    #[test]
    fn long_answers_come_first_and_each_prompt_once() {
        let prompts = longest("code", 16);
        assert_eq!(prompts.len(), 16);
        let lengths: Vec<_> = all()
            .into_iter()
            .filter(|(prompt, _)| prompts.contains(prompt))
            .map(|(_, length)| length)
            .collect();
        assert!(lengths.iter().all(|length| *length > 150), "{lengths:?}");
        assert!((0..16).all(|at| !prompts[..at].contains(&prompts[at])));
        assert_eq!(kinds(), ["json", "arithmetic", "code", "table", "facts", "prose"]);
    }
}
