//! Token ids to text as they come. The pieces together are the decoding of all ids at once, special
//! tokens left out unless they are shown, and a piece never ends inside a character.
//!
//! Byte-level tokenizers (Qwen, Llama 3, GPT): the text is the tokens' bytes in a row, so only the
//! bytes of an incomplete character, at most three, are held back, and each token costs its own
//! bytes. Others (SentencePiece): a short window of tokens is decoded with and without the newest
//! ones, because their decoders look at neighbours.

use std::sync::Arc;

use crate::prompt::Language;

/// Stands for bytes that are no character.
const REPLACEMENT: char = '\u{FFFD}';
/// Tokens held back while their text ends in an incomplete character: as many as a character has
/// bytes.
const MAX_HELD: usize = 4;
/// Most tokens of a window whose text is still empty. At this number the window moves on.
const MAX_SILENT: usize = 32;

/// Treatment of special tokens in the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are left out of the text.
    #[default]
    LeftOut,
    /// They are part of the text.
    Shown {
        /// But for these, which end the stream.
        but: Vec<u32>,
    },
}

/// Text of one stream.
#[derive(Debug)]
pub struct Detokenizer {
    language: Arc<Language>,
    special: SpecialTokens,
    /// Byte-level: the beginning of a character.
    bytes: Vec<u8>,
    /// Others: tokens; the text of the first `shown` is out.
    window: Vec<u32>,
    shown: usize,
}

impl Detokenizer {
    /// For a new stream.
    pub fn new(language: Arc<Language>) -> Self {
        let special = SpecialTokens::LeftOut;
        Self { language, special, bytes: Vec::new(), window: Vec::new(), shown: 0 }
    }

    /// With special tokens in the text, or without.
    pub fn with_special(self, special: SpecialTokens) -> Self {
        Self { special, ..self }
    }

    /// The text that is complete with the next token; may be empty.
    pub fn push(&mut self, id: u32) -> String {
        if self.language.tokens.is_skipped(id) {
            return self.push_special(id);
        }
        match self.language.tokens.bytes(id) {
            Some(bytes) => {
                self.bytes.extend_from_slice(bytes);
                take_complete(&mut self.bytes)
            }
            None => {
                self.window.push(id);
                self.advance(false)
            }
        }
    }

    /// The text before a special token, and the token's own if it is shown.
    fn push_special(&mut self, id: u32) -> String {
        let SpecialTokens::Shown { but } = &self.special else { return String::new() };
        let shown = Some(id).filter(|id| !but.contains(id));
        let Some(own) = shown.and_then(|id| self.language.tokens.text(id)) else {
            return String::new();
        };
        self.finish() + &own
    }

    /// Text that is left at the end.
    pub fn finish(&mut self) -> String {
        if self.window.is_empty() {
            String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned()
        } else {
            self.advance(true)
        }
    }

    fn advance(&mut self, at_end: bool) -> String {
        let decode = |ids: &[u32]| self.language.tokens.decode(ids).unwrap_or_default();
        let (out, held) = self.window.split_at(self.shown);
        let wait_no_longer = at_end || held.len() >= MAX_HELD;
        let (before, whole) = (decode(out), decode(&self.window));
        let piece = match whole.strip_prefix(before.as_str()) {
            Some(piece) if wait_no_longer || !piece.ends_with(REPLACEMENT) => piece.to_owned(),
            // The newest tokens change the text of the older ones, which is out already. So the
            // newest are decoded alone.
            None if wait_no_longer => decode(held),
            _ => return String::new(),
        };
        // The newest tokens stay as the neighbours of the next ones, once they have text to be told
        // apart by.
        if !piece.is_empty() || self.window.len() > MAX_SILENT {
            self.window.drain(..self.shown);
        }
        self.shown = self.window.len();
        piece
    }
}

/// Takes the complete characters off the front; what is no beginning of a character becomes U+FFFD,
/// as `String::from_utf8_lossy` of the whole would have it.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let broken = chunk.invalid();
        if broken.is_empty() {
            break;
        }
        if taken + broken.len() == bytes.len() && is_beginning(broken) {
            break;
        }
        text.push(REPLACEMENT);
        taken += broken.len();
    }
    bytes.drain(..taken);
    text
}

/// Whether more bytes could make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests;
