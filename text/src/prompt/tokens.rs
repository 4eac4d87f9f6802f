//! The tokenizer: text to ids, and what each id adds to the output.

use std::collections::HashSet;

use tokenizers::{DecoderWrapper, Tokenizer};

use super::chat_vocabulary::ChatVocabulary;
use super::ids::{PromptIds, TokenizerError};
use super::length::{LengthBound, byte_of};
use super::markup::{Added, Item, Rendered};

/// A model's tokenizer, with what detokenizing needs beside it.
#[derive(Debug)]
pub struct Tokens {
    tokenizer: Tokenizer,
    vocabulary_size: u32,
    skipped: Vec<bool>,
    bytes: Option<ByteTable>,
    length: Option<LengthBound>,
    /// For rendered conversations, if the model has a chat template.
    chat: Option<ChatVocabulary>,
    uncut: Vec<String>,
    /// The token that no text becomes, if there is one.
    spelled_out: Option<SpelledOut>,
}

/// A token whose characters are ordinary text in every prompt that is a text.
#[derive(Debug)]
struct SpelledOut {
    token: u32,
    /// The ids of its characters as ordinary text.
    ids: Vec<u32>,
}

/// The bytes of every id, concatenated: for tokenizers whose output is the concatenation of their
/// tokens' bytes.
#[derive(Debug)]
struct ByteTable {
    bytes: Vec<u8>,
    /// Where each id's bytes end.
    ends: Vec<usize>,
}

impl Tokens {
    /// Takes a tokenizer over. Truncation and padding that its file may ask for are off: a prompt
    /// is read whole (I5).
    ///
    /// # Errors
    /// The vocabulary of the tokenizer is empty.
    pub fn new(mut tokenizer: Tokenizer) -> Result<Self, TokenizerError> {
        tokenizer.with_truncation(None).map_err(|cause| {
            TokenizerError::new(format!("truncation cannot be switched off: {cause}"))
        })?;
        tokenizer.with_padding(None);
        let highest = tokenizer
            .get_vocab(true)
            .into_values()
            .max()
            .ok_or(TokenizerError::from("expected a vocabulary, found none"))?;
        let vocabulary_size =
            highest.checked_add(1).ok_or("a token id is over the range of 32 bits")?;
        // 16 times the largest published vocabulary: a broken id must not make us reserve
        // gigabytes.
        if vocabulary_size > 1 << 22 {
            let what = format!("expected token ids below {}, found {highest}", 1 << 22);
            return Err(TokenizerError::new(what));
        }
        let added = tokenizer.get_added_tokens_decoder();
        let special: HashSet<&str> = added
            .values()
            .filter(|token| token.special)
            .map(|token| token.content.as_str())
            .collect();
        let text_of: Vec<Option<String>> =
            (0..vocabulary_size).map(|id| tokenizer.id_to_token(id)).collect();
        let skipped = text_of
            .iter()
            .map(|text| text.as_deref().is_none_or(|text| special.contains(text)))
            .collect();
        let bytes = is_byte_level(tokenizer.get_decoder()).then(|| ByteTable::new(&text_of));
        let length = LengthBound::of(&tokenizer);
        let (chat, uncut, spelled_out) = (None, Vec::new(), None);
        Ok(Self { tokenizer, vocabulary_size, skipped, bytes, length, chat, uncut, spelled_out })
    }

    /// The fewest tokens that `text` can become, without tokenizing it: 0 where this tokenizer
    /// allows no such bound.
    pub fn least_tokens(&self, text: &str) -> usize {
        self.length.map_or(0, |length| length.least_tokens(text))
    }

    /// The ids of `text`. Special tokens written in it are recognized; `with_special` adds those
    /// the tokenizer puts around every text.
    ///
    /// # Errors
    /// The tokenizer's own; published ones have none.
    pub fn encode(&self, text: &str, with_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.tokenizer.encode_fast(text, with_special)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Has the characters of this token be ordinary text for [`Tokens::encode_prompt`].
    ///
    /// # Errors
    /// The tokenizer's own; published ones have none.
    pub fn spell_out(&mut self, token: u32) -> Result<(), TokenizerError> {
        let text = self.text(token).unwrap_or_default();
        // In two pieces, so that the tokenizer does not find the token.
        let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
        let ids = [self.encode(first, false)?, self.encode(rest, false)?].concat();
        self.spelled_out = Some(SpelledOut { token, ids });
        Ok(())
    }

    /// The ids of a prompt that is a text, with the tokens that the tokenizer puts around every text.
    ///
    /// # Errors
    /// The tokenizer's own; published ones have none.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode(text, true)?;
        match &self.spelled_out {
            Some(SpelledOut { token, ids: spelled }) if ids.contains(token) => {
                let one = |id: &u32| if id == token { spelled.clone() } else { vec![*id] };
                Ok(ids.iter().flat_map(one).collect())
            }
            _ => Ok(ids),
        }
    }

    /// The added tokens, in the order of their ids.
    pub fn added(&self) -> Vec<Added> {
        let tokens = self.tokenizer.get_added_tokens_decoder();
        let added = tokens.into_iter().map(|(id, token)| Added {
            id,
            text: token.content,
            special: token.special,
        });
        let mut added: Vec<Added> = added.collect();
        added.sort_unstable_by_key(|token| token.id);
        added
    }

    /// Makes [`Tokens::encode_rendered`] ready for the chat template with this markup. Warns of
    /// delimiters that a client can write with the template's ids.
    ///
    /// # Errors
    /// The tokenizer's own; published ones have none.
    pub fn protect(&mut self, markup: &[Item]) -> Result<(), TokenizerError> {
        let chat = ChatVocabulary::new(&self.tokenizer, markup)?;
        self.uncut = chat
            .uncut()
            .iter()
            .filter_map(|at| markup.get(*at))
            .map(|item| item.text.clone())
            .collect();
        if !self.uncut.is_empty() {
            tracing::warn!(
                delimiters = ?self.uncut,
                "this tokenizer has turn delimiters of the chat template as single characters only: a client's text can have \
                 the same tokens"
            );
        }
        self.chat = Some(chat);
        Ok(())
    }

    /// Turn delimiters of the chat template that this tokenizer writes with one token for each
    /// character. In a client's text they have the same ids.
    pub fn uncut(&self) -> &[String] {
        &self.uncut
    }

    /// The ids of a rendered conversation. Markup of the template becomes its tokens; the same
    /// characters from a client become ordinary tokens. `None` if a client's text cannot be written
    /// without a token that is the template's alone.
    ///
    /// # Errors
    /// [`Tokens::protect`] was not called; the tokenizer's own.
    pub fn encode_rendered(
        &self,
        rendered: &Rendered,
    ) -> Result<Option<PromptIds>, TokenizerError> {
        let chat =
            self.chat.as_ref().ok_or("the tokenizer does not know the chat template's markup")?;
        chat.encode(&self.tokenizer, rendered)
    }

    /// The id of a token by its text.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// The text of a token by its id.
    pub fn text(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// One above the highest id, added tokens included.
    pub fn vocabulary_size(&self) -> u32 {
        self.vocabulary_size
    }

    /// Whether an id adds nothing to the text: special tokens, and ids without a token.
    pub fn is_skipped(&self, id: u32) -> bool {
        self.skipped.get(id as usize).copied().unwrap_or(true)
    }

    /// The bytes an id adds to the text, special tokens included; `None` if this tokenizer's text
    /// is not made of its tokens' bytes.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.as_ref().map(|table| table.get(id))
    }

    /// The text of ids as a whole, without special tokens.
    ///
    /// # Errors
    /// The tokenizer's own; published ones have none.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        Ok(self.tokenizer.decode(ids, true)?)
    }
}

fn is_byte_level(decoder: Option<&DecoderWrapper>) -> bool {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(DecoderWrapper::Sequence(sequence)) => {
            matches!(sequence.get_decoders(), [DecoderWrapper::ByteLevel(_)])
        }
        _ => false,
    }
}

impl ByteTable {
    fn new(text_of: &[Option<String>]) -> Self {
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(text_of.len()) };
        for text in text_of {
            let text = text.as_deref().unwrap_or_default();
            let start = table.bytes.len();
            for character in text.chars() {
                match byte_of(character) {
                    Some(byte) => table.bytes.push(byte),
                    None => {
                        // An added token with a character outside the alphabet stands for itself.
                        table.bytes.truncate(start);
                        table.bytes.extend_from_slice(text.as_bytes());
                        break;
                    }
                }
            }
            table.ends.push(table.bytes.len());
        }
        table
    }

    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_demo_tokenizer_is_read() {
        let tokens = crate::samples::language().tokens;
        assert_eq!(tokens.vocabulary_size(), 4096);
        assert_eq!(tokens.id("<|im_end|>"), Some(2));
        assert!(tokens.is_skipped(2) && tokens.is_skipped(9999) && !tokens.is_skipped(100));
        let ids = tokens.encode("<|im_start|>Hi\n", false).expect("encodes");
        assert_eq!(ids[0], 1);
        assert_eq!(tokens.decode(&ids).expect("decodes"), "Hi\n");
    }
}
