//! Log-probabilities of the tokens of a message. Those of thoughts and of calls are not part of this
//! protocol.

use paceline_text::stream::{AnswerEvent, AnswerPart};

use crate::front::http::openai::logprobs::{ChatTokenLogprob, LogprobWriter};
use crate::front::http::protocol::TokenTexts;

/// Finds the log-probabilities that belong to each piece of text. Finds none if the request did not
/// ask for them.
#[derive(Debug, Default)]
pub(super) struct MessageLogprobs {
    writer: Option<LogprobWriter>,
    /// Of tokens whose text has not come yet.
    waiting: Vec<ChatTokenLogprob>,
    /// Whether the last event with parts had none of a message.
    beside: bool,
}

impl MessageLogprobs {
    /// `texts`: those of the model's tokens, if the request asked for log-probabilities.
    pub(super) fn new(texts: Option<TokenTexts>) -> Self {
        Self { writer: texts.map(LogprobWriter::new), ..Self::default() }
    }

    /// Takes those of an event's tokens. They belong to the event's text. Tokens without any part
    /// belong to what came before, and wait for the rest of it.
    pub(super) fn add(&mut self, event: &mut AnswerEvent) {
        let Some(writer) = &self.writer else { return };
        let logprobs = std::mem::take(&mut event.logprobs);
        let tokens = writer.chat(&event.token_ids, logprobs).content;
        self.waiting.extend(tokens.into_iter().map(|mut token| {
            // This protocol has a list in any case; a special token has no bytes.
            token.bytes.get_or_insert_default();
            token.top_logprobs.iter_mut().for_each(|top| {
                top.bytes.get_or_insert_default();
            });
            token
        }));
        if !event.parts.is_empty() {
            self.beside = !event.parts.iter().any(|part| matches!(part, AnswerPart::Text(_)));
        }
        if self.beside {
            self.waiting.clear();
        }
    }

    /// Those of the text that comes now.
    pub(super) fn take(&mut self) -> Vec<ChatTokenLogprob> {
        std::mem::take(&mut self.waiting)
    }
}
