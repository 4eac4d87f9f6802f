//! What is measured: lengths, forms of a conversation and its requests. Pure.

use paceline_client::own_service::settings::Settings;
use paceline_client::{Failure, message};
use paceline_proto::v1::Message;
use serde::Serialize;

use crate::args::{ANSWER_TOKENS, BenchArgs, ascending};

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

/// Plan of a measurement of conversations.
#[derive(Clone, Debug)]
pub struct ConversationPlan {
    /// Settings of the service.
    pub settings: Settings,
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer.
    pub max_tokens: usize,
    /// The forms that are compared.
    pub forms: Vec<Form>,
    lengths: Vec<usize>,
}

impl ConversationPlan {
    /// The plan of the arguments.
    ///
    /// # Errors
    /// The configuration cannot be used, or a named directory does not exist.
    pub fn from_args(args: &BenchArgs) -> Result<Self, Failure> {
        let mut settings = args.settings(args.drafter.as_deref())?;
        // A clean prompt is one that the cache cannot know, so both forms run on one service.
        settings.config.kv.prefix_cache = true;
        let forms = [(args.clean, Form::Clean), (args.session, Form::Session)];
        Ok(Self {
            settings,
            runs: args.runs(3),
            max_tokens: args.max_tokens.unwrap_or(ANSWER_TOKENS) as usize,
            forms: forms.into_iter().filter(|(wanted, _)| *wanted).map(|(_, form)| form).collect(),
            lengths: ascending(&args.lengths),
        })
    }

    /// Tokens of the long prompts' texts in a context of this number of positions.
    ///
    /// # Errors
    /// A named length does not fit, or the context has no room for any.
    pub fn lengths(&self, context: usize) -> Result<Vec<usize>, Failure> {
        let most = context.saturating_sub(self.max_tokens + AROUND_TEXT);
        if let Some(length) = self.lengths.iter().find(|length| **length > most) {
            return Err(Failure::usage(format!(
                "--lengths: expected at most {most} tokens, which with template, questions and answer fill the context, found {length}"
            )));
        }
        match (self.lengths.is_empty(), LENGTH.min(most / 2)) {
            (false, _) => Ok(self.lengths.clone()),
            (true, 0) => Err(Failure::usage(format!(
                "--clean, --session: expected room for a conversation, found a context of {context} positions"
            ))),
            (true, length) => Ok(vec![length]),
        }
    }

    /// The forms in the order of this run: each is first in every second one.
    pub fn order(&self, run: usize) -> Vec<Form> {
        let mut forms = self.forms.clone();
        if run % 2 == 1 {
            forms.reverse();
        }
        forms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(lengths: &[usize]) -> ConversationPlan {
        ConversationPlan {
            settings: Settings::default(),
            runs: 3,
            max_tokens: 64,
            forms: vec![Form::Clean, Form::Session],
            lengths: lengths.to_vec(),
        }
    }

    #[test]
    fn a_conversation_fits_into_the_context() {
        assert_eq!(plan(&[]).lengths(32_768), Ok(vec![2_048]));
        assert_eq!(plan(&[]).lengths(2_048), Ok(vec![864]));
        assert_eq!(plan(&[100, 1_728]).lengths(2_048), Ok(vec![100, 1_728]));
        let failure = plan(&[1_729]).lengths(2_048).expect_err("too long");
        assert!(
            failure.message.contains("at most 1728") && failure.message.contains("found 1729"),
            "{failure}"
        );
        assert!(plan(&[]).lengths(300).is_err());
    }

    #[test]
    fn each_form_is_first_in_every_second_run() {
        assert_eq!(plan(&[]).order(0), [Form::Clean, Form::Session]);
        assert_eq!(plan(&[]).order(1), [Form::Session, Form::Clean]);
    }

    #[test]
    fn the_next_turn_begins_with_the_first_one() {
        let (first, next) = (Turn::First.messages("report", 1), Turn::Next.messages("report", 2));
        assert_eq!((first.len(), next.len()), (1, 3));
        assert_eq!(first[0], next[0]);
        assert_ne!(Turn::ShortAfter.messages("", 1), Turn::ShortAlone.messages("", 2));
    }
}
