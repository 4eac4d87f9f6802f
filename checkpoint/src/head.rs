//! The output head of a checkpoint whose config.json ties it to the embedding. A head in the files
//! that differs from the embedding counts, as in transformers 5.23: such heads were trained alone and
//! merged into a tied base. One that holds the embedding's numbers is left unread.

use crate::numbers::{floats, is_float};
use crate::tensors::PIECE;
use crate::{CheckpointError, Layout, TensorEntry, Tensors};

impl Tensors {
    /// Forgets a head with the numbers of the embedding, and notes one that differs. Nothing happens
    /// unless the config ties them. Reads both if the files have both. Where the files are not here, the
    /// head stays.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn settle_head(&mut self, tied: bool) -> Result<(), CheckpointError> {
        let [vision, mlx] = Layout::WITH_VISION;
        for Layout { text, head, .. } in [Layout::TEXT, vision, mlx] {
            let embedding = format!("{text}.embed_tokens");
            let has = |module: &str| self.has(&format!("{module}.weight"));
            if !tied || !has(&embedding) || !has(head) || !self.are_here() {
                continue;
            }
            if self.are_same(&embedding, head)? {
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
        Ok(())
    }

    /// Whether two modules hold the same numbers in one form.
    fn are_same(&self, one: &str, other: &str) -> Result<bool, CheckpointError> {
        for part in ["weight", "scales", "biases", "bias"] {
            let [one, other] =
                [one, other].map(|module| self.entries.get(&format!("{module}.{part}")));
            let same = match (one, other) {
                (None, None) => true,
                (Some(one), Some(other)) => self.are_equal(one, other)?,
                _ => false,
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn are_equal(&self, one: &TensorEntry, other: &TensorEntry) -> Result<bool, CheckpointError> {
        if one.shape != other.shape {
            return Ok(false);
        }
        let is_alike = one.dtype == other.dtype;
        let are_floats = is_float(one.dtype) && is_float(other.dtype);
        if !(is_alike || are_floats) {
            return Ok(false);
        }
        let widths = [one, other].map(|entry| entry.dtype.bitsize() / 8);
        let mut stored = widths.map(|width| vec![0; PIECE * width]);
        let mut wide = [vec![0.0; PIECE], vec![0.0; PIECE]];
        let all = one.elements() as usize;
        for begin in (0..all).step_by(PIECE) {
            let length = PIECE.min(all - begin);
            for (at, entry) in [one, other].into_iter().enumerate() {
                let bytes = &mut stored[at][..length * widths[at]];
                self.read_at(entry, begin * widths[at], bytes)?;
                if !is_alike {
                    floats(bytes, entry.dtype, &mut wide[at][..length]);
                }
            }
            let same = match is_alike {
                true => stored[0][..length * widths[0]] == stored[1][..length * widths[1]],
                false => wide[0][..length] == wide[1][..length],
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
