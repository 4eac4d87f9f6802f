//! States of recurrent layers: for each sequence and layer one array of fixed size.
//!
//! The rows of a pass are of two kinds. Certain rows advance an array in place. Rows that may be
//! rejected are written on the layer's tape: what each does to the states. A commit is a host
//! integer, the number of tape rows that were accepted; the next pass begins with these. So nothing
//! is copied for a rejected row, and a sequence that is copied shares its arrays until one of both
//! goes on.
//!
//! ```text
//!  free ─take─▶ committed ─begin─▶ passed ─commit─▶ committed, with accepted rows on the tape
//!                   ▲                                        │
//!                   └──────────── begin or settle ───────────┘
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, zeros_dtype};
use mlx_rs::{Array, Dtype};
use paceline_checkpoint::RecurrentSizes;
use paceline_cpu::SlotRows;

use super::{KvStore, LayerPlace};
use crate::error::{ModelError, Result};
use crate::layers::{DeltaRule, StatePass, fold_accepted};
use crate::segment::{Segment, SequenceId};

/// One recurrent layer.
#[derive(Clone, Debug)]
struct LayerTape {
    sizes: RecurrentSizes,
    /// Output of the last pass: `[rows, numbers of a tape row]`, float32.
    tape: Option<Array>,
}

/// The states of a sequence, and how far they are.
#[derive(Clone, Debug)]
struct Progress {
    /// `[1, numbers of a slot]`, float32, for each layer.
    states: Vec<Array>,
    /// Rows that the states hold.
    rows: i32,
    /// Rows of the layers' tapes that come after them. Once committed, all of them were accepted.
    tape: Range<usize>,
    /// Whether the last pass was committed.
    is_committed: bool,
}

/// Plan of a pass, the same for every layer.
#[derive(Clone, Debug)]
struct PassPlan {
    segments: Vec<Segment>,
    /// In the order of the segments, which is that of the states.
    slots: Arc<[SlotRows]>,
    /// Rows that the pass writes on a tape.
    tape_rows: usize,
    /// Whether it has advanced each layer.
    advanced: Vec<bool>,
}

/// The states of all sequences. Handles and integers: a clone copies no state.
#[derive(Clone, Debug)]
pub(super) struct States {
    layers: Vec<LayerTape>,
    progress: HashMap<SequenceId, Progress>,
    /// The pass that is being built, until a commit.
    plan: Option<PassPlan>,
}

impl States {
    /// No sequence yet.
    pub(super) fn new(layers: &[RecurrentSizes]) -> Self {
        let layer = |sizes: &RecurrentSizes| LayerTape { sizes: *sizes, tape: None };
        Self { layers: layers.iter().map(layer).collect(), progress: HashMap::new(), plan: None }
    }

    /// Bytes of one sequence over all layers.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| 4 * layer.sizes.slot() as u64).sum()
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.progress.len() as u64 * self.slot_bytes()
    }

    /// Bytes of one drafted row on the tapes of all layers.
    pub(super) fn tape_row_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| 4 * layer.sizes.tape() as u64).sum()
    }

    /// Whether a sequence has its states.
    pub(super) fn has(&self, sequence: SequenceId) -> bool {
        self.progress.contains_key(&sequence)
    }

    /// Gives a sequence its arrays. What they hold is of no account: a first row starts from zeros.
    fn take(&mut self, sequence: SequenceId) -> Result<()> {
        let array =
            |layer: &LayerTape| zeros_dtype(&[1, layer.sizes.slot() as i32], Dtype::Float32);
        let states = self.layers.iter().map(array).collect::<Result<Vec<_>, _>>()?;
        mlx_rs::transforms::eval(&states)?;
        let progress = Progress { states, rows: 0, tape: 0..0, is_committed: true };
        self.progress.insert(sequence, progress);
        Ok(())
    }

    /// Frees the states of a sequence, if it has some.
    pub(super) fn give_back(&mut self, sequence: SequenceId) {
        self.plan = None;
        self.progress.remove(&sequence);
        if self.progress.is_empty() {
            self.layers.iter_mut().for_each(|layer| layer.tape = None);
        }
    }

    /// Whether a pass over these segments is being built that has not advanced this layer yet.
    fn plans(&self, layer: usize, segments: &[Segment]) -> bool {
        let is_of = |plan: &PassPlan| plan.segments == segments && !plan.advanced[layer];
        self.plan.as_ref().is_some_and(is_of)
    }

    /// Begins a pass. `segments` start at their sequences' committed lengths.
    ///
    /// # Errors
    /// The pass before was not committed for a sequence whose rows lie on the tape.
    fn begin(&mut self, segments: &[Segment], by_host: bool) -> Result<()> {
        let is_in_pass =
            |sequence: SequenceId| segments.iter().any(|segment| segment.sequence == sequence);
        for segment in segments {
            self.check_committed(segment.sequence)?;
        }
        // The tapes are about to be replaced.
        self.settle(|sequence| !is_in_pass(sequence), by_host)?;
        let (mut slots, mut row, mut tape_rows) = (Vec::with_capacity(segments.len()), 0, 0);
        for (slot, segment) in segments.iter().enumerate() {
            let progress = self.progress.get_mut(&segment.sequence).expect("it was checked");
            let (length, uncertain) = (segment.length as usize, segment.drafted as usize);
            slots.push(SlotRows {
                slot,
                begins: segment.start == 0,
                accepted: progress.tape.clone(),
                rows: row..row + length,
                uncertain,
                tape: tape_rows,
            });
            progress.rows = segment.end() - segment.drafted;
            progress.tape = tape_rows..tape_rows + uncertain;
            progress.is_committed = false;
            (row, tape_rows) = (row + length, tape_rows + uncertain);
        }
        let advanced = vec![false; self.layers.len()];
        let (segments, slots) = (segments.to_vec(), slots.into());
        self.plan = Some(PassPlan { segments, slots, tape_rows, advanced });
        Ok(())
    }

    /// Handles of a layer's states of the segments' sequences.
    fn of_segments(&self, layer: usize, segments: &[Segment]) -> Vec<Array> {
        let sequences = segments.iter().map(|segment| segment.sequence);
        self.of_sequences(layer, sequences)
    }

    fn of_sequences(
        &self,
        layer: usize,
        sequences: impl Iterator<Item = SequenceId>,
    ) -> Vec<Array> {
        sequences
            .filter_map(|sequence| self.progress.get(&sequence))
            .filter_map(|progress| progress.states.get(layer).cloned())
            .collect()
    }

    /// Takes what a layer's states became. The old handles are dropped before anything is
    /// evaluated, so that states are written in place.
    fn set(
        &mut self,
        layer: usize,
        sequences: impl Iterator<Item = SequenceId>,
        states: impl Iterator<Item = Array>,
    ) {
        for (sequence, states) in sequences.zip(states) {
            let progress = self.progress.get_mut(&sequence);
            if let Some(place) = progress.and_then(|progress| progress.states.get_mut(layer)) {
                *place = states;
            }
        }
    }

    /// Advances the states of a layer by the rows of the pass: `rows` `[rows, width]` → `[rows,
    /// values]`.
    fn advance(
        &mut self,
        layer: usize,
        rows: &Array,
        rule: &DeltaRule,
        by_host: bool,
    ) -> Result<Array> {
        let Some(plan) = &mut self.plan else {
            return Err(ModelError::Batch(format!("recurrent layer {layer} has no pass")));
        };
        plan.advanced[layer] = true;
        let (segments, slots, tape_rows) =
            (plan.segments.clone(), plan.slots.clone(), plan.tape_rows);
        let states = self.of_segments(layer, &segments);
        let starts: Vec<i32> = segments.iter().map(|segment| segment.start).collect();
        let before = self.layers[layer].tape.as_ref();
        let pass = StatePass { states: &states, before, slots: &slots, starts: &starts, tape_rows };
        let advanced = rule.advance(&pass, rows, by_host)?;
        drop(states);
        let sequences = segments.iter().map(|segment| segment.sequence);
        self.set(layer, sequences, advanced.states.into_iter());
        self.layers[layer].tape = advanced.tape;
        Ok(advanced.out)
    }

    /// After a pass: the sequence has `length` rows.
    ///
    /// # Errors
    /// The states of the sequence cannot go back to that row.
    pub(super) fn commit(&mut self, sequence: SequenceId, length: i32) -> Result<()> {
        let Some(progress) = self.progress.get_mut(&sequence) else { return Ok(()) };
        self.plan = None;
        if length == 0 {
            (progress.rows, progress.tape, progress.is_committed) = (0, 0..0, true);
            return Ok(());
        }
        let end = progress.rows + progress.tape.len() as i32;
        if !(progress.rows..=end).contains(&length) {
            return Err(ModelError::Batch(format!(
                "sequence {}: expected {} to {end} rows, or none, because recurrent layers drop \
                 drafted rows only; found {length}",
                sequence.0, progress.rows
            )));
        }
        progress.tape.end = progress.tape.start + (length - progress.rows) as usize;
        progress.is_committed = true;
        Ok(())
    }

    /// Gives a sequence the settled states of another, which has `length` rows. Both share their
    /// arrays until one of them goes on.
    pub(super) fn copy(&mut self, from: SequenceId, to: SequenceId, length: i32) -> Result<()> {
        if self.layers.is_empty() {
            return Ok(());
        }
        self.plan = None;
        let states = self.progress.get(&from).map(|progress| progress.states.clone());
        let (Some(states), Some(progress)) = (states, self.progress.get_mut(&to)) else {
            return Err(ModelError::Batch(format!("sequence {} has no states to copy", from.0)));
        };
        (progress.states, progress.rows) = (states, length);
        Ok(())
    }

    /// A copy of the states of a sequence after its first `rows` rows: `[1, numbers]`, all layers
    /// one after another. Accepted rows up to there are folded into the copy alone. Lazy.
    ///
    /// # Errors
    /// The sequence has no states of that row; its last pass was not committed.
    pub(super) fn read(&self, sequence: SequenceId, rows: i32, by_host: bool) -> Result<Array> {
        let missing = |found: String| {
            let name = sequence.0;
            let expected = format!("sequence {name}: expected states of the first {rows} rows");
            ModelError::Batch(format!("{expected}, found {found}"))
        };
        let progress = self.progress.get(&sequence).ok_or_else(|| missing("none".into()))?;
        self.check_committed(sequence)?;
        let end = progress.rows + progress.tape.len() as i32;
        if rows < 1 || !(progress.rows..=end).contains(&rows) {
            return Err(missing(format!("those of {} to {end}", progress.rows)));
        }
        let first = progress.tape.start;
        let accepted = first..first + (rows - progress.rows) as usize;
        let folded: Arc<[SlotRows]> =
            Arc::new([SlotRows { accepted: accepted.clone(), ..SlotRows::default() }]);
        let of_layer = |(layer, states): (&LayerTape, &Array)| -> Result<Array> {
            if accepted.is_empty() {
                return Ok(states.clone());
            }
            let (states, before) = (std::slice::from_ref(states), layer.tape.as_ref());
            let pass = StatePass { states, before, slots: &folded, starts: &[], tape_rows: 0 };
            fold_accepted(layer.sizes, &pass, by_host)?.pop().ok_or_else(|| missing("none".into()))
        };
        let layers = self.layers.iter().zip(&progress.states).map(of_layer);
        // Of one layer it may be the sequence's own array: then its next pass writes into another.
        Ok(concatenate(&layers.collect::<Result<Vec<_>>>()?, 1)?)
    }

    /// Gives a sequence that has its slot and no rows the states `numbers`, as
    /// [`States::read`] makes them, of its first `rows` rows. Computed when this returns.
    pub(super) fn write(&mut self, sequence: SequenceId, numbers: &Array, rows: i32) -> Result<()> {
        self.plan = None;
        let Some(progress) = self.progress.get_mut(&sequence) else {
            return Err(ModelError::Batch(format!("sequence {} has no states", sequence.0)));
        };
        let mut from = 0;
        for (layer, states) in self.layers.iter().zip(&mut progress.states) {
            let columns = from..from + layer.sizes.slot() as i32;
            from = columns.end;
            *states = numbers.try_index((.., columns))?.contiguous()?;
        }
        mlx_rs::transforms::eval(&progress.states)?;
        (progress.rows, progress.tape, progress.is_committed) = (rows, 0..0, true);
        Ok(())
    }

    /// Folds the accepted rows of some sequences into their slots.
    ///
    /// # Errors
    /// The last pass of one of them was not committed.
    pub(super) fn settle(
        &mut self,
        wanted: impl Fn(SequenceId) -> bool,
        by_host: bool,
    ) -> Result<()> {
        let is_due = |(sequence, progress): (&SequenceId, &Progress)| {
            (!progress.tape.is_empty() && wanted(*sequence)).then_some(*sequence)
        };
        let due: Vec<SequenceId> = self.progress.iter().filter_map(is_due).collect();
        for sequence in &due {
            self.check_committed(*sequence)?;
        }
        let mut slots = Vec::with_capacity(due.len());
        for (slot, sequence) in due.iter().enumerate() {
            let progress = self.progress.get_mut(sequence).expect("it was found");
            progress.rows += progress.tape.len() as i32;
            let accepted = std::mem::take(&mut progress.tape);
            slots.push(SlotRows { slot, accepted, ..SlotRows::default() });
        }
        if slots.is_empty() {
            return Ok(());
        }
        let slots: Arc<[SlotRows]> = slots.into();
        for layer in 0..self.layers.len() {
            let states = self.of_sequences(layer, due.iter().copied());
            let LayerTape { sizes, tape } = &self.layers[layer];
            let (states, before) = (&states, tape.as_ref());
            let pass = StatePass { states, before, slots: &slots, starts: &[], tape_rows: 0 };
            let folded = fold_accepted(*sizes, &pass, by_host)?;
            self.set(layer, due.iter().copied(), folded.into_iter());
        }
        Ok(())
    }

    fn check_committed(&self, sequence: SequenceId) -> Result<()> {
        if self.progress.get(&sequence).is_some_and(|progress| progress.is_committed) {
            return Ok(());
        }
        Err(ModelError::Batch(format!(
            "sequence {}: expected a commit after its last pass, because recurrent layers hold its \
             rows",
            sequence.0
        )))
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.progress.values().flat_map(|progress| &progress.states)
    }
}

/// A pass that advances all layers at once.
#[cfg(target_os = "linux")]
impl States {
    /// Begins such a pass. Returns its slots, and how many rows it writes on each tape.
    ///
    /// # Errors
    /// Those of [`States::begin`].
    pub(super) fn begin_pass(
        &mut self,
        segments: &[Segment],
        by_host: bool,
    ) -> Result<(Arc<[SlotRows]>, usize)> {
        if self.layers.is_empty() {
            return Ok((Arc::default(), 0));
        }
        self.begin(segments, by_host)?;
        let plan = self.plan.as_ref();
        Ok(plan.map_or_else(Default::default, |plan| (plan.slots.clone(), plan.tape_rows)))
    }

    /// The states of the pass: for each layer those of each segment's sequence.
    pub(super) fn pass_states(&self) -> Vec<Array> {
        let segments = self.plan.as_ref().map_or(&[][..], |plan| &plan.segments);
        (0..self.layers.len()).flat_map(|layer| self.of_segments(layer, segments)).collect()
    }

    /// The tapes of the pass before: one a layer, or none.
    pub(super) fn tapes(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().filter_map(|layer| layer.tape.as_ref())
    }

    /// Numbers of a row of each layer's tape.
    pub(super) fn tape_widths(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| layer.sizes.tape()).collect()
    }

    /// Takes what the pass made: states as [`States::pass_states`] lists them, and the tapes of all
    /// layers.
    pub(super) fn end_pass(&mut self, mut states: impl Iterator<Item = Array>, tapes: Vec<Array>) {
        let Some(plan) = &mut self.plan else { return };
        plan.advanced.fill(true);
        let sequences: Vec<SequenceId> =
            plan.segments.iter().map(|segment| segment.sequence).collect();
        let mut tapes = tapes.into_iter();
        for layer in 0..self.layers.len() {
            self.set(layer, sequences.iter().copied(), states.by_ref());
            self.layers[layer].tape = tapes.next();
        }
    }
}

impl KvStore {
    /// Gives a sequence its states, if the model has recurrent layers and it has none.
    pub(super) fn take_states(&mut self, sequence: SequenceId) -> Result<()> {
        if self.states.slot_bytes() == 0 || self.states.has(sequence) {
            return Ok(());
        }
        self.changes();
        self.fit(self.states.slot_bytes())?;
        self.states.take(sequence)
    }

    /// Advances the states of a recurrent layer by the new rows of `segments`: `rows` `[rows,
    /// width]`, the columns as [`DeltaRule`] names them → `[rows, values]`. Lazy. Once for each
    /// recurrent layer of a forward, with the same segments; a commit must follow.
    ///
    /// # Errors
    /// A segment does not start at its sequence's length, or the pass before was not committed.
    pub(crate) fn recur(
        &mut self,
        layer: usize,
        rows: &Array,
        rule: &DeltaRule,
        segments: &[Segment],
    ) -> Result<Array> {
        let LayerPlace::Recurrent(layer) = self.layers.places[layer] else {
            return Err(ModelError::Batch(format!("layer {layer} has no states")));
        };
        if !self.states.plans(layer, segments) {
            self.staged = None;
            self.make_room(segments)?;
            self.states.begin(segments, self.by_row)?;
        }
        self.states.advance(layer, rows, rule, self.by_row)
    }
}

#[cfg(test)]
mod tests;
