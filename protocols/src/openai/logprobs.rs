//! Log-probabilities in the two forms of the protocol, with the text and the bytes of each token.

use std::sync::Arc;

use paceline_vocabulary::generation::{TokenLogprobs, TopLogprob};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::pieces::LongList;
use crate::protocol::{TokenText, TokenTexts};

/// Log-probabilities of a part of an answer of `/v1/chat/completions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry for each token.
    pub content: Vec<ChatTokenLogprob>,
    /// Always `null`: the service has no refusals.
    pub refusal: Option<Vec<ChatTokenLogprob>>,
}

/// Log-probabilities at one token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// Text of the token.
    pub token: String,
    /// Bytes of the token; `null` for a token that adds nothing to the text.
    pub bytes: Option<Vec<u8>>,
    /// Log-probability of the token.
    pub logprob: f32,
    /// The most probable tokens there, most probable first.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// One of the most probable tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatTopLogprob {
    /// Text of the token.
    pub token: String,
    /// Bytes of the token; `null` for a token that adds nothing to the text.
    pub bytes: Option<Vec<u8>>,
    /// Log-probability of the token.
    pub logprob: f32,
}

/// Log-probabilities of a part of an answer of `/v1/completions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextLogprobs {
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Log-probability of each token.
    pub token_logprobs: Vec<f32>,
    /// The most probable tokens there, by their texts.
    #[schema(value_type = Vec<Object>)]
    pub top_logprobs: Vec<Map<String, Value>>,
    /// Where each token begins in the answer, in characters.
    pub text_offset: Vec<u64>,
}

/// A token as this protocol has it.
struct Token {
    /// Text of the token. A part of a character is written byte by byte.
    text: String,
    /// Bytes that the token adds to an answer's text; `None` for special tokens.
    bytes: Option<Vec<u8>>,
}

/// Tokens with their log-probabilities.
pub(crate) type TokenList = Vec<(u32, TokenLogprobs)>;

/// The tokens of an event that has log-probabilities.
pub(crate) fn tokens(ids: Vec<u32>, logprobs: Vec<TokenLogprobs>) -> TokenList {
    ids.into_iter().zip(logprobs).collect()
}

/// Makes log-probabilities of one answer.
#[derive(Clone, Debug)]
pub(crate) struct LogprobWriter {
    texts: TokenTexts,
    /// Characters of the answer so far.
    characters: u64,
}

impl LogprobWriter {
    /// For an answer of the model whose tokens have these texts.
    pub(crate) fn new(texts: TokenTexts) -> Self {
        Self { texts, characters: 0 }
    }

    /// Those of these tokens, for a conversation.
    pub(crate) fn chat(&self, tokens: &TokenList) -> ChatLogprobs {
        let content = tokens.iter().map(|token| self.chat_token(token)).collect();
        ChatLogprobs { content, refusal: None }
    }

    /// Those at one token, for a conversation.
    pub(crate) fn chat_token(&self, (id, at): &(u32, TokenLogprobs)) -> ChatTokenLogprob {
        let Token { text, bytes } = self.token(*id);
        let top = at.top.iter().map(|TopLogprob { token_id, logprob }| {
            let Token { text, bytes } = self.token(*token_id);
            ChatTopLogprob { token: text, bytes, logprob: finite(*logprob) }
        });
        let top_logprobs = top.collect();
        ChatTokenLogprob { token: text, bytes, logprob: finite(at.logprob), top_logprobs }
    }

    /// Those of these tokens, for a text.
    pub(crate) fn text(&mut self, tokens: &TokenList) -> TextLogprobs {
        let mut made = TextLogprobs::default();
        for token in tokens {
            let (id, at) = token;
            made.tokens.push(self.token(*id).text);
            made.token_logprobs.push(finite(at.logprob));
            made.text_offset.push(self.offset_of(*id));
            made.top_logprobs.push(self.text_top(token));
        }
        made
    }

    /// The log-probabilities of these tokens as long lists of the object at this JSON pointer.
    pub(crate) fn text_lists(mut self, pointer: &str, tokens: TokenList) -> Vec<LongList> {
        type Column = fn(&LogprobWriter, &(u32, TokenLogprobs)) -> Value;
        let columns: [(&str, Column); 3] = [
            ("tokens", |writer, (id, _)| writer.token(*id).text.into()),
            ("token_logprobs", |_, (_, at)| finite(at.logprob).into()),
            ("top_logprobs", |writer, token| writer.text_top(token).into()),
        ];
        let offsets: Vec<u64> = tokens.iter().map(|(id, _)| self.offset_of(*id)).collect();
        let (tokens, length) = (Arc::new(tokens), offsets.len());
        let column = |(name, value): (&str, Column)| {
            let (writer, tokens) = (self.clone(), Arc::clone(&tokens));
            let entry = move |at: usize| value(&writer, &tokens[at]);
            LongList::new(format!("{pointer}/{name}"), length, entry)
        };
        let mut lists: Vec<LongList> = columns.into_iter().map(column).collect();
        let offset = move |at: usize| offsets[at].into();
        lists.push(LongList::new(format!("{pointer}/text_offset"), length, offset));
        lists
    }

    /// Where the next token, which is this one, begins in the answer.
    fn offset_of(&mut self, id: u32) -> u64 {
        let offset = self.characters;
        self.characters += self.token(id).bytes.map_or(0, |bytes| characters(&bytes));
        offset
    }

    /// The most probable tokens at one token, by their texts.
    fn text_top(&self, (_, at): &(u32, TokenLogprobs)) -> Map<String, Value> {
        let one = |top: &TopLogprob| (self.token(top.token_id).text, finite(top.logprob).into());
        at.top.iter().map(one).collect()
    }

    fn token(&self, id: u32) -> Token {
        let TokenText { text, bytes, is_special } = self.texts.of(id);
        if is_special {
            return Token { text, bytes: None };
        }
        // The bytes of an incomplete character are no text, and tokens must differ in theirs.
        let text = match std::str::from_utf8(&bytes) {
            Ok(_) => text,
            Err(_) => bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect(),
        };
        Token { text, bytes: Some(bytes) }
    }
}

/// Characters that begin in these bytes.
fn characters(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count() as u64
}

/// JSON has no infinity. A token that cannot come has the lowest number that clients read.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

#[cfg(test)]
mod tests {
    use paceline_text::prompt::Language;

    use super::*;

    fn writer(language: &Arc<Language>) -> LogprobWriter {
        LogprobWriter::new(TokenTexts::new(Arc::clone(language)))
    }

    fn language() -> Arc<Language> {
        Arc::new(paceline_text::samples::language())
    }

    fn at(logprob: f32, top: &[(u32, f32)]) -> TokenLogprobs {
        let top = top
            .iter()
            .map(|(token_id, logprob)| TopLogprob { token_id: *token_id, logprob: *logprob });
        TokenLogprobs { logprob, top: top.collect() }
    }

    #[test]
    fn the_tokens_bytes_together_are_the_text() {
        let language = language();
        let text = "Grüße, 世界 🌍!";
        let ids = language.tokens.encode(text, false).expect("encodes");
        assert!(ids.len() > 4);
        let tokens: TokenList = ids.iter().map(|id| (*id, at(-0.5, &[(*id, -0.5)]))).collect();
        let made = writer(&language).chat(&tokens);
        let bytes = made.content.iter().flat_map(|one| one.bytes.clone().expect("ordinary"));
        assert_eq!(String::from_utf8(bytes.collect()).expect("whole"), text);
        let split = made.content.iter().find(|one| one.token.starts_with("\\x"));
        let split = split.expect("a token that is a part of a character");
        assert!(split.bytes.as_ref().expect("ordinary").iter().any(|byte| *byte >= 0x80));
        for one in &made.content {
            assert_eq!(one.top_logprobs[0].token, one.token);
        }
    }

    #[test]
    fn a_special_token_has_its_name_and_no_bytes() {
        let made = writer(&language()).chat(&vec![(2, at(f32::NEG_INFINITY, &[]))]);
        assert_eq!(made.content[0].token, "<|im_end|>");
        assert_eq!((made.content[0].bytes.as_ref(), made.content[0].logprob), (None, -9999.0));
    }

    #[test]
    fn offsets_count_characters_over_all_parts() {
        let language = language();
        let ids = language.tokens.encode("é, b", false).expect("encodes");
        let mut writer = writer(&language);
        let mut offsets = Vec::new();
        for id in &ids {
            offsets.extend(writer.text(&vec![(*id, at(-1.0, &[(*id, -1.0)]))]).text_offset);
        }
        let mut expected = Vec::new();
        for end in 0..ids.len() {
            let before = ids[..end].iter().filter_map(|id| language.tokens.bytes(*id));
            expected.push(characters(&before.collect::<Vec<_>>().concat()));
        }
        assert_eq!(offsets, expected);
        assert_eq!(offsets[0], 0);
    }
}
