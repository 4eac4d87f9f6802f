//! The bytes of every token, read from the model's `tokenizer.json`, and the trie that masks are
//! computed on.
//!
//! Two kinds of tokenizers are read. Byte-level ones write a byte as a character. Those with pieces
//! write text, with a character for the space, and `<0x41>` for a byte. Added tokens that are tags
//! have no bytes: no text of a grammar contains them, and a grammar names them by their ids.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use paceline_checkpoint::files::{self, MAX_TOKENIZER_BYTES};
use serde::Deserialize;

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VocabularyError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("cannot parse {}", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error(
        "expected a byte-level decoder, or one of pieces with a space character, found {found}"
    )]
    Decoder { found: String },
    #[error("expected token ids below the model's {vocab}, found {id}")]
    Id { id: u32, vocab: usize },
    #[error("expected tokens of at most {MAX_TOKEN_BYTES} bytes, found one of {found}")]
    Long { found: usize },
    #[error("expected characters of bytes in the token {id}, found another character")]
    Character { id: u32 },
}

/// Bytes of one token, at most. Published tokenizers have up to 256.
const MAX_TOKEN_BYTES: usize = 4096;

/// The part of `tokenizer.json` that has the bytes of tokens.
#[derive(Debug, Deserialize)]
struct TokenizerPart {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: ModelPart,
    decoder: Option<TokenDecoder>,
}

#[derive(Debug, Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
}

#[derive(Debug, Deserialize)]
struct ModelPart {
    vocab: Vocab,
}

/// Pieces with their ids, or in the order of their ids with scores.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Vocab {
    ById(HashMap<String, u32>),
    InOrder(Vec<(String, f64)>),
}

#[derive(Debug, Deserialize)]
struct TokenDecoder {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    decoders: Vec<TokenDecoder>,
    pattern: Option<Pattern>,
    content: Option<String>,
    replacement: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pattern {
    #[serde(rename = "String")]
    text: Option<String>,
}

/// How the pieces of a vocabulary write bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Spelling {
    /// Every character is a byte.
    ByteLevel,
    /// Text, in which this character is the space.
    Pieces { space: String },
}

impl TokenDecoder {
    fn all(&self) -> Vec<&TokenDecoder> {
        let inner = self.decoders.iter().flat_map(TokenDecoder::all);
        std::iter::once(self).chain(inner).collect()
    }

    fn spelling(&self) -> Result<Spelling, VocabularyError> {
        let all = self.all();
        let has = |kind: &str| all.iter().any(|decoder| decoder.kind == kind);
        if has("ByteLevel") {
            return Ok(Spelling::ByteLevel);
        }
        let space = all.iter().find_map(|decoder| match decoder.kind.as_str() {
            "Metaspace" => Some(decoder.replacement.clone().unwrap_or_else(|| "▁".into())),
            "Replace" if decoder.content.as_deref() == Some(" ") => {
                decoder.pattern.as_ref().and_then(|pattern| pattern.text.clone())
            }
            _ => None,
        });
        match space {
            Some(space) => Ok(Spelling::Pieces { space }),
            None => Err(VocabularyError::Decoder { found: self.kind.clone() }),
        }
    }
}

impl Spelling {
    /// The bytes of a piece; `None` if a character is no byte.
    fn bytes(&self, piece: &str, of_character: &HashMap<char, u8>) -> Option<Vec<u8>> {
        match self {
            Self::ByteLevel => {
                piece.chars().map(|character| of_character.get(&character).copied()).collect()
            }
            Self::Pieces { space } => {
                let byte = piece.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                let byte = byte.filter(|hex| hex.len() == 2);
                Some(match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => piece.replace(space.as_str(), " ").into_bytes(),
                })
            }
        }
    }
}

/// The byte that each character of a byte-level tokenizer stands for: printable bytes are their own
/// characters, the others follow from U+0100 on. Source: openai/gpt-2, encoder.py.
fn byte_characters() -> HashMap<char, u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100_u32;
    let mut characters = HashMap::new();
    for byte in 0..=u8::MAX {
        let character = if is_printable(byte) {
            Some(char::from(byte))
        } else {
            next += 1;
            char::from_u32(next - 1)
        };
        characters.extend(character.map(|character| (character, byte)));
    }
    characters
}

/// Whether an added token is a tag and no text: white space, for instance, is text.
fn is_tag(token: &AddedToken) -> bool {
    let between = |open, close| token.content.starts_with(open) && token.content.ends_with(close);
    token.special || between('<', '>') || between('[', ']')
}

/// The tokens of a model as grammars see them.
pub(crate) struct Vocabulary {
    pub(super) env: TokEnv,
    /// The id that stands for the end of an answer. It is one past the model's ids: which ids end an
    /// answer is the request's own.
    pub(super) end: u32,
    /// Bytes that it holds, estimated.
    pub(super) bytes: u64,
}

impl Vocabulary {
    /// The vocabulary of a model with `vocab` ids, from its `tokenizer.json`. Takes up to a second.
    ///
    /// # Errors
    /// The file cannot be read, or its tokens have no bytes.
    pub(crate) fn read(path: &Path, vocab: usize) -> Result<Self, VocabularyError> {
        let read = |cause| VocabularyError::Read { path: path.to_owned(), cause };
        let parse = |cause| VocabularyError::Parse { path: path.to_owned(), cause };
        let text = files::read(path, MAX_TOKENIZER_BYTES).map_err(read)?;
        let file: TokenizerPart = serde_json::from_slice(&text).map_err(parse)?;
        Ok(Self::of_words(words(file, vocab)?))
    }

    /// The vocabulary of these tokens, by their ids. Ids without bytes are never allowed.
    pub(super) fn of_words(mut words: Vec<Vec<u8>>) -> Self {
        let end = words.len() as u32;
        words.push(b"\xff<|end of the answer|>".to_vec());
        let text_bytes: usize = words.iter().map(Vec::len).sum();
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
        // A node of the trie takes 8 bytes, and there are at most as many nodes as bytes of the
        // words.
        let bytes = (text_bytes * 9 + words.len() * 12) as u64;
        Self { env: Arc::new(ApproximateTokEnv::new(trie)), end, bytes }
    }
}

/// The bytes of every token, by its id.
fn words(file: TokenizerPart, vocab: usize) -> Result<Vec<Vec<u8>>, VocabularyError> {
    let TokenizerPart { added_tokens, model, decoder } = file;
    let none = || VocabularyError::Decoder { found: "none".into() };
    let spelling = decoder.ok_or_else(none)?.spelling()?;
    let of_character = byte_characters();
    let mut words = vec![vec![]; vocab];
    let mut set = |id: u32, bytes: Vec<u8>| {
        if bytes.len() > MAX_TOKEN_BYTES {
            return Err(VocabularyError::Long { found: bytes.len() });
        }
        let place = words.get_mut(id as usize).ok_or(VocabularyError::Id { id, vocab })?;
        *place = bytes;
        Ok(())
    };
    let pieces: Vec<(String, u32)> = match model.vocab {
        Vocab::ById(pieces) => pieces.into_iter().collect(),
        Vocab::InOrder(pieces) => pieces.into_iter().map(|(piece, _)| piece).zip(0..).collect(),
    };
    let is_added = |id: u32| added_tokens.iter().any(|token| token.id == id);
    for (piece, id) in pieces {
        match spelling.bytes(&piece, &of_character) {
            Some(bytes) => set(id, bytes)?,
            // Tags are written as they are.
            None if is_added(id) => {}
            None => return Err(VocabularyError::Character { id }),
        }
    }
    for token in &added_tokens {
        let mut bytes = token.content.as_bytes().to_vec();
        if is_tag(token) {
            bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
        set(token.id, bytes)?;
    }
    Ok(words)
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn words_of(file: Value, vocab: usize) -> Result<Vec<Vec<u8>>, VocabularyError> {
        words(serde_json::from_value(file).expect("a tokenizer"), vocab)
    }

    #[test]
    fn characters_of_a_byte_level_tokenizer_are_bytes() {
        let file = json!({
            "added_tokens": [
                {"id": 3, "content": "<tool_call>", "special": false},
                {"id": 4, "content": "\n\n", "special": false},
            ],
            "model": {"vocab": {"a": 0, "Ġ{\"": 1, "Ã©Ċ": 2}},
            "decoder": {"type": "ByteLevel"},
        });
        let words = words_of(file, 6).expect("read");
        let expected: [&[u8]; 6] =
            [b"a", b" {\"", "é\n".as_bytes(), b"\xff<tool_call>", b"\n\n", b""];
        assert_eq!(words, expected);
    }

    #[test]
    fn pieces_have_a_character_for_the_space_and_bytes_by_number() {
        let sequence = |decoders: Value| json!({"type": "Sequence", "decoders": decoders});
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let decoder = sequence(json!([replace, {"type": "ByteFallback"}, {"type": "Fuse"}]));
        let vocab = json!({"▁{": 0, "<0x0A>": 1, "é▁▁": 2, "<0xZZ>": 3});
        let file = json!({"model": {"vocab": vocab}, "decoder": decoder});
        let expected: [&[u8]; 4] = [b" {", b"\n", "é  ".as_bytes(), b"<0xZZ>"];
        assert_eq!(words_of(file, 4).expect("read"), expected);
        let unigram = json!({
            "model": {"vocab": [["▁a", -1.5], ["b", -2.0]]},
            "decoder": {"type": "Metaspace", "replacement": "▁"},
        });
        assert_eq!(words_of(unigram, 2).expect("read"), [b" a".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn what_has_no_bytes_is_refused() {
        let file =
            |vocab: Value, decoder: Value| json!({"model": {"vocab": vocab}, "decoder": decoder});
        let level = json!({"type": "ByteLevel"});
        let says = |file: Value| words_of(file, 2).expect_err("refused").to_string();
        assert!(says(file(json!({"a": 0}), json!({"type": "WordPiece"}))).contains("WordPiece"));
        assert!(says(file(json!({"a": 0}), Value::Null)).contains("found none"));
        assert!(says(file(json!({"a": 2}), level.clone())).contains("found 2"));
        assert!(says(file(json!({"漢": 1}), level.clone())).contains("token 1"));
        assert!(says(file(json!({ "a".repeat(5000): 1 }), level)).contains("5000"));
    }

    #[test]
    fn every_byte_has_one_character() {
        let characters = byte_characters();
        assert_eq!(characters.len(), 256);
        assert_eq!((characters[&'Ġ'], characters[&'Ċ'], characters[&'~']), (b' ', b'\n', b'~'));
    }
}
