//! What is measured: lengths, forms of a conversation and its requests. Pure.

use std::fmt;

use paceline_client::{Failure, message};
use paceline_proto::v1::Message;
use serde::Serialize;

/// Tokens of the long prompt, if no others are named and the context has room for twice as many.
const LENGTH: usize = 2_048;
/// Positions around the text of a long prompt: the template's, and those of the second turn.
const AROUND_TEXT: usize = 256;

/// Whether the second turn finds its conversation in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Each prompt is new to the cache.
    Clean,
    /// The second turn comes after the first one of the same conversation.
    Session,
}

impl Form {
    /// Name of the form in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Session => "session",
        }
    }
}

/// A request of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// A long prompt.
    First,
    /// The same with an answer and a short question after it.
    Next,
    /// A short new prompt after that.
    ShortAfter,
    /// A short new prompt after a short one.
    ShortAlone,
}

impl Turn {
    /// All requests, in the order of a run: each one's cache is what the ones before it left.
    pub const ALL: [Self; 4] = [Self::First, Self::Next, Self::ShortAfter, Self::ShortAlone];

    /// Name of the request in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::First => "first turn",
            Self::Next => "next turn",
            Self::ShortAfter => "short after long",
            Self::ShortAlone => "short alone",
        }
    }

    /// The request of the same form whose time to the first token it is compared with.
    pub fn compared_with(self) -> Option<Self> {
        match self {
            Self::Next => Some(Self::First),
            Self::ShortAfter => Some(Self::ShortAlone),
            Self::First | Self::ShortAlone => None,
        }
    }

    /// The messages of the request, about this report or, of a short one, with this number.
    pub fn messages(self, report: &str, number: u64) -> Vec<Message> {
        let first = || message::text("user", format!("{report}\nSummarize this report."));
        match self {
            Self::First => vec![first()],
            // The real answer of the model may be text that its template refuses.
            Self::Next => vec![
                first(),
                message::text("assistant", "Many goods were moved, and some were lost."),
                message::text("user", "Which entry needs a reply first?"),
            ],
            Self::ShortAfter | Self::ShortAlone => {
                vec![message::text("user", format!("{number}: name three things that float."))]
            }
        }
    }
}

/// A conversation about a text of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConversationCell {
    /// Tokens of the long prompt's text.
    pub text_tokens: usize,
    /// Whether the conversation is in the prefix cache.
    pub form: Form,
}

impl fmt::Display for ConversationCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens, {}", self.text_tokens, self.form.word())
    }
}

/// Tokens of the long prompts' texts in a context of this number of positions: the named ones, or
/// one that has room.
///
/// # Errors
/// A named length does not fit, or the context has no room for any.
pub fn lengths(named: &[usize], max_tokens: u32, context: usize) -> Result<Vec<usize>, Failure> {
    let most = context.saturating_sub(max_tokens as usize + AROUND_TEXT);
    if let Some(length) = named.iter().find(|length| **length > most) {
        return Err(Failure::usage(format!(
            "--lengths: expected at most {most} tokens, which with template, questions and answer fill the context, found {length}"
        )));
    }
    match (named, LENGTH.min(most / 2)) {
        ([], 0) => Err(Failure::usage(format!(
            "--clean, --session: expected room for a conversation, found a context of {context} positions"
        ))),
        ([], length) => Ok(vec![length]),
        (named, _) => Ok(named.to_vec()),
    }
}

/// Places of the cells in the order of this run, if each length has one for each form: each form is
/// first in every second run.
pub fn order(forms: usize, run: usize, cells: usize) -> Vec<usize> {
    let of_length = |first| {
        let mut places: Vec<usize> = (first..first + forms).collect();
        if run % 2 == 1 {
            places.reverse();
        }
        places
    };
    (0..cells).step_by(forms.max(1)).flat_map(of_length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_fits_into_the_context() {
        assert_eq!(lengths(&[], 64, 32_768), Ok(vec![2_048]));
        assert_eq!(lengths(&[], 64, 2_048), Ok(vec![864]));
        assert_eq!(lengths(&[100, 1_728], 64, 2_048), Ok(vec![100, 1_728]));
        let failure = lengths(&[1_729], 64, 2_048).expect_err("too long");
        assert!(
            failure.message.contains("at most 1728") && failure.message.contains("found 1729"),
            "{failure}"
        );
        assert!(lengths(&[], 64, 300).is_err());
    }

    #[test]
    fn each_form_is_first_in_every_second_run() {
        assert_eq!(order(2, 0, 4), [0, 1, 2, 3]);
        assert_eq!(order(2, 1, 4), [1, 0, 3, 2]);
        assert_eq!(order(1, 1, 2), [0, 1]);
    }

    #[test]
    fn the_next_turn_begins_with_the_first_one() {
        let (first, next) = (Turn::First.messages("report", 1), Turn::Next.messages("report", 2));
        assert_eq!((first.len(), next.len()), (1, 3));
        assert_eq!(first[0], next[0]);
        assert_ne!(Turn::ShortAfter.messages("", 1), Turn::ShortAlone.messages("", 2));
    }
}
