//! The output head of a checkpoint whose config.json ties it to the embedding. A head in the files
//! that differs from the embedding counts, as in transformers 5.23: such heads were trained alone and
//! merged into a tied base. One that holds the embedding's numbers is left unread.

use super::arrays::{floats, is_float};
use super::files::TensorEntry;
use super::{Layout, TensorFiles};

/// Numbers that are compared at a time.
const CHUNK: usize = 1 << 12;

impl TensorFiles {
    /// Forgets a head with the numbers of the embedding, and notes one that differs. Nothing happens
    /// unless the config ties them.
    pub fn settle_head(&mut self, tied: bool) {
        let [vision, mlx] = Layout::WITH_VISION;
        for Layout { text, head, .. } in [Layout::TEXT, vision, mlx] {
            let embedding = format!("{text}.embed_tokens");
            let has = |module: &str| self.has(&format!("{module}.weight"));
            if !tied || !has(&embedding) || !has(head) {
                continue;
            }
            if self.are_same(&embedding, head) {
                for part in ["weight", "scales", "biases", "bias"] {
                    self.entries.remove(&format!("{head}.{part}"));
                }
            } else {
                self.notes.push(format!(
                    "tie_word_embeddings is true and {head}.weight differs from the embedding: the \
                     head of the files counts"
                ));
            }
        }
    }

    /// Whether two modules hold the same numbers in one form.
    fn are_same(&self, one: &str, other: &str) -> bool {
        ["weight", "scales", "biases", "bias"].iter().all(|part| {
            let [one, other] =
                [one, other].map(|module| self.entries.get(&format!("{module}.{part}")));
            match (one, other) {
                (None, None) => true,
                (Some(one), Some(other)) => self.are_equal(one, other),
                _ => false,
            }
        })
    }

    fn are_equal(&self, one: &TensorEntry, other: &TensorEntry) -> bool {
        let [own, others] = [one, other].map(|entry| self.bytes(entry));
        let (own, others) = (own.as_slice(), others.as_slice());
        if one.shape != other.shape {
            return false;
        }
        if one.dtype == other.dtype {
            return own == others;
        }
        let sizes = [one, other].map(|entry| CHUNK * entry.dtype.bitsize() / 8);
        let (mut wide, mut wide_others) = (vec![0.0; CHUNK], vec![0.0; CHUNK]);
        is_float(one.dtype)
            && is_float(other.dtype)
            && own.chunks(sizes[0]).zip(others.chunks(sizes[1])).all(|(own, others)| {
                floats(own, one.dtype, &mut wide);
                floats(others, other.dtype, &mut wide_others);
                wide == wide_others
            })
    }
}
