//! Copies of what a sequence continues from after one of its rows and what no row has: the states
//! of recurrent layers, and the windows of layers that keep their last positions alone. Their owner
//! keeps them. They outlive their sequence.
//!
//! A copy is one array, as a piece of rows is ([`super::rows`]). Keys and values of the same rows
//! are copied apart: a sequence continues from both together.

use std::ops::Range;

use mlx_rs::Array;

use super::{GrowingKv, KvStore, SlotAddress};
use crate::error::{ModelError, Result};
use crate::segment::SequenceId;

/// States and windows of a sequence after its first rows. Nothing in it refers to the store.
#[derive(Debug)]
pub struct KeptStates {
    /// `[1, numbers]`, float32, layer by layer; `None` without recurrent layers.
    states: Option<Array>,
    /// For each layer that keeps its last positions alone, its keys and its values
    /// `[1, n_kv, positions, dim]`.
    windows: Vec<Array>,
    rows: i32,
}

impl KeptStates {
    /// Rows that a sequence with these states has.
    pub fn rows(&self) -> i32 {
        self.rows
    }

    /// Bytes they take.
    pub fn bytes(&self) -> u64 {
        self.states.iter().chain(&self.windows).map(|array| array.nbytes() as u64).sum()
    }
}

impl KvStore {
    /// Bytes of the states and windows of a sequence of many rows; 0 if its rows are all that it
    /// continues from.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes_of(i32::MAX)
    }

    /// Bytes of states and windows after `rows` rows.
    fn kept_bytes_of(&self, rows: i32) -> u64 {
        let width = self.classes.first().map_or(0, |class| class.number_bytes());
        let bytes = |(_, layer): (usize, &GrowingKv)| {
            layer.row_numbers() * width * window_before(layer, rows).len() as u64
        };
        self.states.slot_bytes() + self.windowed().map(bytes).sum::<u64>()
    }

    /// Layers that keep their last positions alone.
    fn windowed(&self) -> impl Iterator<Item = (usize, &GrowingKv)> {
        let layers = self.layers.growing.iter().zip(&self.layers.rings).enumerate();
        layers.filter_map(|(at, (layer, ring))| ring.map(|_| (at, layer)))
    }

    /// Copies the states and windows of a sequence after its first `rows` rows. Computed when this
    /// returns. They are those of the sequence's last row, or of a row before it that was drafted
    /// in the last pass. Changes nothing in the store.
    ///
    /// # Errors
    /// The store has none of that row; MLX's own.
    pub fn keep_states(&self, sequence: SequenceId, rows: i32) -> Result<KeptStates> {
        if self.kept_bytes() == 0 {
            let what =
                "expected a model with recurrent layers or windows to copy states, found none";
            return Err(ModelError::Batch(what.into()));
        }
        let states = match self.states.slot_bytes() {
            0 => None,
            _ => Some(self.states.read(sequence, rows, self.by_row)?),
        };
        let entry = self.sequences.get(&sequence).filter(|entry| rows <= entry.length);
        let slot = entry.and_then(|entry| entry.slot);
        let (Some(entry), Some(slot)) = (entry, slot) else {
            let what = format!("sequence {}: expected {rows} rows, found fewer", sequence.0);
            return Err(ModelError::Batch(what));
        };
        self.check_windows(sequence, entry, rows)?;
        let class = &self.classes[slot.class];
        let mut windows = vec![];
        for (at, layer) in self.windowed() {
            let kept = class.places(at);
            let places: Vec<i32> = window_before(layer, rows).map(|place| place % kept).collect();
            let places = Array::from_slice(&places, &[places.len() as i32]);
            let (keys, values) = class.view(at, slot.index..slot.index + 1, 0..kept)?;
            windows.extend([keys.take_axis(&places, 2)?, values.take_axis(&places, 2)?]);
        }
        mlx_rs::transforms::eval(states.iter().chain(&windows))?;
        Ok(KeptStates { states, windows, rows })
    }

    /// Checks that states continue a sequence of `rows` rows, and that a model has them if it needs
    /// them.
    pub(super) fn check_states(&self, states: Option<&KeptStates>, rows: i32) -> Result<()> {
        let expected = self.kept_bytes_of(rows);
        let found = states.map_or((0, rows), |states| (states.bytes(), states.rows));
        if found == (expected, rows) {
            return Ok(());
        }
        let (bytes, of) = found;
        Err(ModelError::Batch(format!(
            "expected {expected} bytes of states and windows after {rows} rows, found {bytes} after {of}"
        )))
    }

    /// Writes kept states and windows into a sequence without rows, which gets its slot of states.
    pub(super) fn restore_states(
        &mut self,
        sequence: SequenceId,
        slot: SlotAddress,
        kept: &KeptStates,
    ) -> Result<()> {
        if let Some(states) = &kept.states {
            self.take_states(sequence)?;
            self.states.write(sequence, states, kept.rows)?;
        }
        let layers: Vec<(usize, Range<i32>)> =
            self.windowed().map(|(at, layer)| (at, window_before(layer, kept.rows))).collect();
        for ((at, positions), arrays) in layers.into_iter().zip(kept.windows.chunks_exact(2)) {
            let class = &mut self.classes[slot.class];
            class.overwrite(at, slot.index, positions.start, &arrays[0], &arrays[1])?;
        }
        if let Some(entry) = self.sequences.get_mut(&sequence) {
            entry.restored = kept.rows;
        }
        Ok(())
    }
}

/// The positions before row `rows` to which that row attends.
fn window_before(layer: &GrowingKv, rows: i32) -> Range<i32> {
    let window = layer.window.unwrap_or(rows);
    (rows - (window - 1)).max(0)..rows
}
