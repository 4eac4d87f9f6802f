//! What is asked: the demo's prompts, which are conversations and so make sense to any instruct model. Models other than the
//! demo pair answer them in their own words; what is compared is a model with itself.

use paceline_proto::v1::Message;
use serde::Deserialize;

use crate::messages;

/// Six kinds of work, from what is easy to guess (records) to what is not (prose).
const EMBEDDED: &str = include_str!("../../../demo/prompts.jsonl");

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Kind of work.
    pub kind: String,
    /// Its number among those of its kind, from 0.
    pub index: usize,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Most tokens its answer needs.
    pub max_tokens: u32,
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    messages: Vec<Turn>,
    max_tokens: u32,
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: String,
}

/// The first `per_kind` prompts of each kind, one of each kind in turn: what slows the machine down for a while hits all kinds.
pub fn embedded(per_kind: usize) -> Vec<Prompt> {
    let mut prompts: Vec<Prompt> = Vec::new();
    for line in EMBEDDED.lines() {
        let line: Line = serde_json::from_str(line).expect("the embedded prompts are checked by a test");
        let index = prompts.iter().filter(|prompt| prompt.kind == line.kind).count();
        if index < per_kind {
            let messages = line.messages.into_iter().map(|turn| messages::text(&turn.role, turn.content)).collect();
            prompts.push(Prompt { kind: line.kind, index, messages, max_tokens: line.max_tokens });
        }
    }
    prompts.sort_by_key(|prompt| prompt.index);
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
}
