//! The fewest tokens that a text can become, from its bytes alone: one that cannot fit the context
//! is refused before it is tokenized, which takes seconds for a text of megabytes.
//!
//! A token stands for at most as many bytes as the longest of the vocabulary has, so a text of `n`
//! bytes becomes at least `n / longest` tokens. That holds only where the tokenizer passes every
//! byte on to its tokens. It does where [`LengthBound::of`] returns a bound: a byte-level BPE
//! vocabulary with a token for each byte, after steps that only split. Steps that drop text
//! (stripped blanks, removed delimiters), unknown words that become one token, and added tokens
//! that take the blanks beside them with them leave no bound: such texts are tokenized and counted,
//! as short ones are.
//!
//! One step that changes text is taken into account: NFC, Unicode's composed form, the first step
//! of published byte-level tokenizers. It replaces `e` and a combining accent by the shorter `é`.

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{NormalizedString, Normalizer as _, SplitDelimiterBehavior, Tokenizer};

/// Bytes of a text over bytes of its NFC form, at most. The worst case is ΐ, two bytes that may
/// have been seven; a test computes it from all characters.
const MOST_COMPOSED: usize = 4;

/// A lower bound of a text's tokens, by its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthBound {
    /// Bytes of the longest token, added ones included; at least 1.
    longest: usize,
    /// Texts are put into NFC first.
    composes: bool,
}

impl LengthBound {
    /// The bound of this tokenizer; `None` if a text may become fewer tokens than its bytes say.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let composes = match tokenizer.get_normalizer() {
            None => false,
            Some(normalizer) => composes_only(normalizer).then_some(true)?,
        };
        let steps = tokenizer.get_pre_tokenizer()?;
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        if !splits_only(steps)
            || !is_byte_level(steps)
            || affixes.into_iter().flatten().any(|affix| !affix.is_empty())
        {
            return None;
        }
        let vocabulary = model.get_vocab();
        // A byte without a token of its own would be left out of the ids.
        let single = vocabulary
            .keys()
            .filter_map(|token| single_character(token))
            .filter(|character| byte_of(*character).is_some());
        if single.count() < 256 {
            return None;
        }
        // A character of the byte alphabet is a byte.
        let mut longest = vocabulary.keys().map(|token| token.chars().count()).max()?;
        for added in tokenizer.get_added_tokens_decoder().into_values() {
            if added.lstrip || added.rstrip {
                return None;
            }
            longest = longest.max(added.content.len());
            if let Some(normalizer) = tokenizer.get_normalizer() {
                // The tokenizer may search for its normalized form.
                let mut text = NormalizedString::from(added.content);
                normalizer.normalize(&mut text).ok()?;
                longest = longest.max(text.get().len());
            }
        }
        Some(Self { longest: longest.max(1), composes })
    }

    /// The fewest tokens that `text` can become.
    pub fn least_tokens(&self, text: &str) -> usize {
        let bytes = match self.composes {
            false => text.len(),
            true => stable_bytes(text).max(text.len().div_ceil(MOST_COMPOSED)),
        };
        bytes.div_ceil(self.longest)
    }
}

/// The character of a text of one.
fn single_character(text: &str) -> Option<char> {
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

/// Whether this does nothing but NFC.
fn composes_only(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::NFC(_) => true,
        NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().all(composes_only),
        _ => false,
    }
}

/// Whether this splits texts and drops nothing of them.
fn splits_only(step: &PreTokenizerWrapper) -> bool {
    match step {
        PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Digits(_) => true,
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().all(splits_only),
        _ => false,
    }
}

/// Whether this makes characters of the byte alphabet of a text.
fn is_byte_level(step: &PreTokenizerWrapper) -> bool {
    match step {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().any(is_byte_level),
        _ => false,
    }
}

/// Bytes of those characters that NFC never makes shorter.
fn stable_bytes(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.chars().filter(|character| is_stable(*character)).map(char::len_utf8).sum()
}

/// Whether a character stays as it is in NFC, or becomes part of one that is as long at least. True
/// of Latin, Cyrillic and most Chinese characters; all others count as not stable. A test checks
/// each stable character.
fn is_stable(character: char) -> bool {
    matches!(character, '\0'..='\u{2FF}' | '\u{400}'..='\u{482}' | '\u{4E00}'..='\u{9FFF}')
}

/// The byte a character of the byte-level alphabet stands for (GPT-2's `bytes_to_unicode`):
/// printable Latin-1 characters stand for themselves, the other bytes, in order, for the characters
/// from U+0100 on.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(character) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|byte| plain(*byte)),
        code @ 0x100..=0x143 => {
            (0..=u8::MAX).filter(|byte| !plain(*byte)).nth((code - 0x100) as usize)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
