//! Log-probabilities of the tokens of a message. Those of thoughts and of tool calls are not part
//! of this protocol.

use paceline_text::stream::{AnswerEvent, AnswerPart};
use paceline_vocabulary::generation::TokenLogprobs;
use serde_json::json;

use crate::openai::logprobs::{ChatTokenLogprob, LogprobWriter, TokenList, tokens};
use crate::pieces::LongList;
use crate::protocol::TokenTexts;

/// Finds the log-probabilities that belong to each piece of text. Finds none if the request did not
/// ask for them.
#[derive(Debug, Default)]
pub(super) struct MessageLogprobs {
    writer: Option<LogprobWriter>,
    /// Tokens whose text has not come yet.
    waiting: TokenList,
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
        if self.writer.is_none() {
            return;
        }
        let ids = std::mem::take(&mut event.token_ids);
        self.waiting.extend(tokens(ids, std::mem::take(&mut event.logprobs)));
        if !event.parts.is_empty() {
            self.beside = !event.parts.iter().any(|part| matches!(part, AnswerPart::Text(_)));
        }
        if self.beside {
            self.waiting.clear();
        }
    }

    /// Takes the tokens of the text that comes now.
    pub(super) fn take(&mut self) -> TokenList {
        std::mem::take(&mut self.waiting)
    }

    /// The log-probabilities of these tokens.
    pub(super) fn written(&self, tokens: &TokenList) -> Vec<ChatTokenLogprob> {
        let writer = self.writer.iter();
        writer.flat_map(|writer| tokens.iter().map(|token| one(writer, token))).collect()
    }

    /// The log-probabilities of these tokens as a long list at this JSON pointer.
    pub(super) fn list(&self, pointer: String, tokens: TokenList) -> Option<LongList> {
        let writer = self.writer.clone()?;
        let length = tokens.len();
        Some(LongList::new(pointer, length, move |at| json!(one(&writer, &tokens[at]))))
    }
}

/// The log-probabilities at one token. This protocol has a list of bytes in any case, and a special
/// token has none.
fn one(writer: &LogprobWriter, token: &(u32, TokenLogprobs)) -> ChatTokenLogprob {
    let mut made = writer.chat_token(token);
    made.bytes.get_or_insert_default();
    made.top_logprobs.iter_mut().for_each(|top| {
        top.bytes.get_or_insert_default();
    });
    made
}
