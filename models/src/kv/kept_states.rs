//! Copies of the states of recurrent layers, all layers of one sequence after one of its rows.
//! Their owner keeps them. They outlive their sequence.
//!
//! A copy is one array, as a piece of rows is ([`super::rows`]). Keys and values of the same rows
//! are copied apart: a sequence continues from both together.

use mlx_rs::Array;

use super::KvStore;
use crate::error::{ModelError, Result};
use crate::segment::SequenceId;

/// The states of a sequence after its first rows. Nothing in it refers to the store.
#[derive(Debug)]
pub struct KeptStates {
    /// `[1, numbers]`, float32, layer by layer.
    pub(super) numbers: Array,
    rows: i32,
}

impl KeptStates {
    /// Rows that a sequence with these states has.
    pub fn rows(&self) -> i32 {
        self.rows
    }

    /// Bytes they take.
    pub fn bytes(&self) -> u64 {
        self.numbers.nbytes() as u64
    }
}

impl KvStore {
    /// Copies the states of a sequence after its first `rows` rows. Computed when this returns. The
    /// states are those of the sequence's last row, or of a row before it that was drafted in the
    /// last pass. Changes nothing in the store.
    ///
    /// # Errors
    /// The store has no states of that row; MLX's own.
    pub fn keep_states(&self, sequence: SequenceId, rows: i32) -> Result<KeptStates> {
        if self.states.slot_bytes() == 0 {
            let what = "expected a model with recurrent layers to copy states, found none";
            return Err(ModelError::Batch(what.into()));
        }
        let numbers = self.states.read(sequence, rows, self.by_row)?;
        numbers.eval()?;
        Ok(KeptStates { numbers, rows })
    }

    /// Checks that states continue a sequence of `rows` rows, and that a model has them if it needs
    /// them.
    pub(super) fn check_states(&self, states: Option<&KeptStates>, rows: i32) -> Result<()> {
        let expected = self.states.slot_bytes();
        let found = states.map_or((0, rows), |states| (states.bytes(), states.rows));
        if found == (expected, rows) {
            return Ok(());
        }
        let (bytes, of) = found;
        Err(ModelError::Batch(format!(
            "expected {expected} bytes of states after {rows} rows, found {bytes} after {of}"
        )))
    }

    /// Writes kept states into a sequence without rows, which gets its slot of states.
    pub(super) fn restore_states(
        &mut self,
        sequence: SequenceId,
        states: &KeptStates,
    ) -> Result<()> {
        self.take_states(sequence)?;
        self.states.write(sequence, &states.numbers, states.rows)
    }
}
