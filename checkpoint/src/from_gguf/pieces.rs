//! Merges of a vocabulary of pieces with scores, as SentencePiece has them. A pair of pieces is merged
//! if the whole is a piece, the one with the highest score first. tokenizer.json wants the pairs in this
//! order.

use std::collections::HashMap;

use super::vocabulary::{GgufVocabulary, TokenKind};
use crate::error::FormatError;
use crate::gguf;

/// Most bytes of a piece that merges make. Published pieces have up to 100, and the pairs of a piece
/// cost the square of its length.
const MAX_PIECE_BYTES: usize = 512;
/// Most pairs: Gemma 3 has 515,000. A byte of a hostile file could become one.
const MAX_PAIRS: usize = 800_000;

/// A pair, in the order of the merges: by the score of the whole, the highest first, then by the ids of
/// the whole and of both parts.
struct MergedPair {
    score: f64,
    whole: u32,
    left: u32,
    right: u32,
}

/// The pairs of pieces that are merged, the first one first, each as `LEFT RIGHT`.
pub(super) fn merges(
    vocabulary: &GgufVocabulary<'_>,
    scores: &[f64],
) -> Result<Vec<String>, FormatError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    if scores.len() != vocabulary.tokens.len() {
        let expected = format!("a score for each of {} tokens", vocabulary.tokens.len());
        return Err(gguf::error(SCORES, expected, scores.len()));
    }
    let merged = || vocabulary.iter().filter(|(_, text, kind)| is_merged(text, *kind));
    // Ids fit: vocabularies are smaller.
    let pieces: HashMap<&str, u32> = merged().map(|(id, text, _)| (text, id as u32)).collect();
    let mut found = vec![];
    for (id, text, kind) in merged() {
        // A run has no score of use.
        let score = if kind == TokenKind::UserDefined { f64::INFINITY } else { scores[id] };
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if let (Some(left), Some(right)) = (pieces.get(left), pieces.get(right)) {
                found.push(MergedPair { score, whole: id as u32, left: *left, right: *right });
            }
        }
        if found.len() > MAX_PAIRS {
            let expected = format!("at most {MAX_PAIRS} pairs of tokens that are tokens");
            return Err(gguf::error("tokenizer.ggml.tokens", expected, "more"));
        }
    }
    found.sort_unstable_by(|one, other| {
        let ids = |pair: &MergedPair| (pair.whole, pair.left, pair.right);
        other.score.total_cmp(&one.score).then_with(|| ids(one).cmp(&ids(other)))
    });
    let text = |id: u32| &vocabulary.tokens[id as usize];
    Ok(found.iter().map(|pair| format!("{} {}", text(pair.left), text(pair.right))).collect())
}

/// Whether merges make a token: a piece of text, or a run of one character. No piece has a space, for
/// which it has another character.
fn is_merged(text: &str, kind: TokenKind) -> bool {
    let is_run = || text.chars().next().is_some_and(|first| text.chars().all(|one| one == first));
    text.len() <= MAX_PIECE_BYTES
        && !text.contains(' ')
        && match kind {
            TokenKind::Normal => true,
            TokenKind::UserDefined => is_run(),
            _ => false,
        }
}
