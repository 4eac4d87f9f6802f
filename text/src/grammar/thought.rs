//! The bound of a thought in each family's format: which ids begin a thought, and which end it.

use paceline_vocabulary::generation::ThoughtBudget;

use super::{ModelAnswers, ThoughtRule};
use crate::prompt::Tokens;
use crate::prompt::format::Tag;

impl ModelAnswers<'_> {
    /// The bound of the answer's thought at this many tokens; `None` if the answer has no thought, or
    /// if its end is no token: the target counts tokens and reads no text.
    pub fn thought_budget(&self, max_tokens: u32, tokens: &Tokens) -> Option<ThoughtBudget> {
        let Self { tags, thought, .. } = *self;
        let (tag, is_thoughtless) = (|tag| tags.token(tag), thought == ThoughtRule::None);
        if is_thoughtless {
            return None;
        }
        if tags.has_channels() {
            let ids = |word: &str| tokens.encode(word, false).ok();
            let first = |word: &str| ids(word)?.first().copied();
            let mut end = vec![vec![tag(Tag::End)?], vec![tag(Tag::Start)?]];
            end.extend(ids("assistant")?.into_iter().map(|id| vec![id]));
            // The next message is an answer or a tool call, and no other thought. The model writes
            // the rest of its channel's name.
            end.push(vec![tag(Tag::Channel)?]);
            end.push(vec![first("final")?, first("commentary")?]);
            return Some(ThoughtBudget { max_tokens, open_id: tag(Tag::Channel), end, marks: 2 });
        }
        let end = vec![vec![tag(Tag::ThoughtClose)?]];
        let open_id = match thought {
            ThoughtRule::Open => None,
            ThoughtRule::Free | ThoughtRule::None => Some(tag(Tag::ThoughtOpen)?),
        };
        tags.format().thoughts.then_some(ThoughtBudget { max_tokens, open_id, end, marks: 1 })
    }
}
