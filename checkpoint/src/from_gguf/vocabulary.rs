//! The tokens of a GGUF file: their texts, their kinds, and those with a purpose.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::error::{FormatError, shown};
use crate::gguf::{self, Metadata};

const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
/// Most tokens of a vocabulary: the largest published ones have some 260,000.
const MAX_TOKENS: usize = 1 << 20;

/// Tokens that end an answer by their texts, whatever their kind. llama.cpp's list also has `</s>`,
/// which is an ordinary token of Qwen and a mark of HTML of Gemma: where it ends an answer the file names
/// its id.
const ENDS: [&str; 13] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
    "<eos>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<reponame>",
];

/// What a token is for, by `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Normal,
    /// It stands for what no other token is.
    Unknown,
    /// It is no text.
    Control,
    /// It is text that is found before the text is cut.
    UserDefined,
    /// No text becomes it.
    Unused,
    /// It is a byte.
    Byte,
}

impl TokenKind {
    fn of(number: u64) -> Option<Self> {
        Some(match number {
            // 0 is of writers that do not know.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokens of a model, by their ids.
#[derive(Debug)]
pub(super) struct GgufVocabulary<'a> {
    pub(super) tokens: Vec<Cow<'a, str>>,
    pub(super) kinds: Vec<TokenKind>,
    metadata: &'a Metadata<'a>,
}

impl<'a> GgufVocabulary<'a> {
    /// Reads the tokens. `space` is the character that stands for a space in pieces.
    pub(super) fn read(
        metadata: &'a Metadata<'a>,
        space: Option<&str>,
    ) -> Result<Self, FormatError> {
        let texts = metadata.texts(TOKENS)?;
        if !(1..=MAX_TOKENS).contains(&texts.len()) {
            return Err(gguf::error(TOKENS, format!("1 to {MAX_TOKENS} tokens"), texts.len()));
        }
        let all_normal = || vec![1; texts.len()];
        let kinds = metadata.optional(KINDS, Metadata::counts)?.unwrap_or_else(all_normal);
        if kinds.len() != texts.len() {
            let expected = format!("a kind for each of {} tokens", texts.len());
            return Err(gguf::error(KINDS, expected, kinds.len()));
        }
        let kind = |number: u64| {
            TokenKind::of(number).ok_or_else(|| gguf::error(KINDS, "kinds from 0 to 6", number))
        };
        let kinds = kinds.into_iter().map(kind).collect::<Result<Vec<_>, _>>()?;
        // The converter writes the space of a user-defined token as itself.
        let text = |(text, kind): (&'a str, &TokenKind)| match space {
            Some(space) if *kind == TokenKind::UserDefined && text.contains(' ') => {
                Cow::Owned(text.replace(' ', space))
            }
            _ => Cow::Borrowed(text),
        };
        let tokens = texts.into_iter().zip(&kinds).map(text).collect();
        Ok(Self { tokens, kinds, metadata })
    }

    /// The id, the text and the kind of each token.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &str, TokenKind)> {
        let both = self.tokens.iter().zip(&self.kinds);
        both.enumerate().map(|(id, (text, kind))| (id, text.as_ref(), *kind))
    }

    /// The ids by the texts.
    ///
    /// # Errors
    /// Two tokens have the same text.
    pub(super) fn ids(&self) -> Result<HashMap<&str, usize>, FormatError> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, text, _) in self.iter() {
            if let Some(other) = ids.insert(text, id) {
                let found = format!("the text {} at {other} and {id}", shown(text));
                return Err(gguf::error(TOKENS, "another text for each token", found));
            }
        }
        Ok(ids)
    }

    /// The token whose id the file has under `tokenizer.ggml.NAME_token_id`.
    pub(super) fn named(&self, name: &str) -> Result<Option<NamedToken<'_>>, FormatError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.metadata.optional(&key, Metadata::count)? else { return Ok(None) };
        let token = usize::try_from(id).ok().and_then(|id| self.token(id));
        let expected = || format!("one of {} tokens", self.tokens.len());
        token.map(Some).ok_or_else(|| gguf::error(&key, expected(), id))
    }

    /// The token with this id.
    pub(super) fn token(&self, id: usize) -> Option<NamedToken<'_>> {
        self.tokens.get(id).map(|text| NamedToken { id, text })
    }

    /// Ids of the tokens that end an answer, in ascending order.
    pub(super) fn ends(&self, end: Option<NamedToken<'_>>) -> Result<Vec<usize>, FormatError> {
        let mut ids: Vec<usize> = end.into_iter().map(|token| token.id).collect();
        for name in ["eot", "eom"] {
            ids.extend(self.named(name)?.map(|token| token.id));
        }
        ids.extend(self.iter().filter(|(_, text, _)| ENDS.contains(text)).map(|(id, ..)| id));
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

/// A token with a purpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedToken<'a> {
    pub(super) id: usize,
    pub(super) text: &'a str,
}
