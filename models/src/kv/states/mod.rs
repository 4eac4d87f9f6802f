//! States of recurrent layers: for each sequence a slot of fixed size, in one array a layer.
//!
//! The rows of a pass are of two kinds. Certain rows advance a slot in place. Rows that may be
//! rejected are written on the layer's tape: what each does to the states. A commit is a host
//! integer, the number of tape rows that were accepted; the next pass begins with these. So nothing
//! is copied for a rejected row, and a step makes one node a layer.
//!
//! ```text
//!  free ─take─▶ committed ─begin─▶ passed ─commit─▶ committed, with accepted rows on the tape
//!                   ▲                                        │
//!                   └──────────── begin or settle ───────────┘
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::ops::{concatenate, zeros_dtype};
use mlx_rs::{Array, Dtype};
use paceline_blas::{RecurrentSizes, SlotRows};

use super::{KvStore, LayerPlace};
use crate::error::{ModelError, Result};
use crate::layers::{DeltaRule, StatePass, fold_accepted};
use crate::segment::{Segment, SequenceId};

/// The states of one layer.
#[derive(Clone, Debug)]
struct LayerStates {
    sizes: RecurrentSizes,
    /// `[slots, numbers of a slot]`, float32; `None` without slots.
    slots: Option<Array>,
    /// Output of the last pass: `[rows, numbers of a tape row]`, float32.
    tape: Option<Array>,
}

/// How far the states of a sequence are.
#[derive(Clone, Debug)]
struct Progress {
    slot: usize,
    /// Rows that the slot holds.
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
    slots: Arc<[SlotRows]>,
    /// Rows that the pass writes on a tape.
    tape_rows: usize,
    /// Which layers it has advanced.
    advanced: Vec<bool>,
}

/// The states of all sequences. Handles and integers: a clone copies no state.
#[derive(Clone, Debug)]
pub(super) struct States {
    layers: Vec<LayerStates>,
    owners: Vec<Option<SequenceId>>,
    progress: HashMap<SequenceId, Progress>,
    /// The pass that is being built, until a commit.
    plan: Option<PassPlan>,
}

impl States {
    /// No sequence yet.
    pub(super) fn new(layers: &[RecurrentSizes]) -> Self {
        let layer = |sizes: &RecurrentSizes| LayerStates { sizes: *sizes, slots: None, tape: None };
        Self {
            layers: layers.iter().map(layer).collect(),
            owners: vec![],
            progress: HashMap::new(),
            plan: None,
        }
    }

    /// Bytes of one sequence over all layers.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| 4 * layer.sizes.slot() as u64).sum()
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.owners.len() as u64 * self.slot_bytes()
    }

    /// Bytes of slots without an owner.
    pub(super) fn idle_bytes(&self) -> u64 {
        self.owners.iter().filter(|owner| owner.is_none()).count() as u64 * self.slot_bytes()
    }

    /// Bytes of one drafted row on the tapes of all layers.
    pub(super) fn tape_row_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| 4 * layer.sizes.tape() as u64).sum()
    }

    /// Whether a sequence has its slot.
    pub(super) fn has(&self, sequence: SequenceId) -> bool {
        self.progress.contains_key(&sequence)
    }

    /// Gives a sequence the lowest free slot; the arrays double where there is none, if that takes
    /// no more than `spare` bytes. What the slot holds is of no account: a first row starts from
    /// zeros.
    fn take(&mut self, sequence: SequenceId, spare: u64) -> Result<()> {
        let free = self.owners.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.owners.len());
        if free.is_none() {
            let affordable = spare.checked_div(self.slot_bytes()).unwrap_or(0);
            let more = (slot as u64).min(affordable).max(1) as usize;
            for layer in &mut self.layers {
                let new = zeros_dtype(&[more as i32, layer.sizes.slot() as i32], Dtype::Float32)?;
                let all = match layer.slots.take() {
                    None => new,
                    Some(old) => concatenate(&[old, new], 0)?,
                };
                // Layer by layer, so that old and new arrays are never there together for all.
                all.eval()?;
                layer.slots = Some(all);
            }
            self.owners.resize(slot + more, None);
        }
        self.owners[slot] = Some(sequence);
        let progress = Progress { slot, rows: 0, tape: 0..0, is_committed: true };
        self.progress.insert(sequence, progress);
        Ok(())
    }

    /// Frees the slot of a sequence, if it has one. If all slots are free, their memory is given
    /// back. Otherwise see [`super::POISONS`].
    pub(super) fn give_back(&mut self, sequence: SequenceId) {
        self.plan = None;
        let Some(Progress { slot, .. }) = self.progress.remove(&sequence) else { return };
        self.owners[slot] = None;
        if self.progress.is_empty() {
            self.owners.clear();
            self.layers.iter_mut().for_each(|layer| (layer.slots, layer.tape) = (None, None));
        } else if super::POISONS {
            for slots in self.layers.iter_mut().filter_map(|layer| layer.slots.as_mut()) {
                let row = slot as i32..slot as i32 + 1;
                // Only MLX itself can fail here, and it then fails at the next step.
                let _ = slots.try_index_mut((row, ..), Array::from_f32(f32::NAN));
            }
        }
    }

    /// Gives the memory of slots without an owner back.
    pub(super) fn compact(&mut self) -> Result<()> {
        self.plan = None;
        let kept: Vec<i32> = (0..)
            .zip(&self.owners)
            .filter(|(_, owner)| owner.is_some())
            .map(|(slot, _)| slot)
            .collect();
        self.owners.retain(Option::is_some);
        for (slot, owner) in self.owners.iter().enumerate() {
            if let Some(progress) = owner.and_then(|owner| self.progress.get_mut(&owner)) {
                progress.slot = slot;
            }
        }
        let places = Array::from_slice(&kept, &[kept.len() as i32]);
        for layer in &mut self.layers {
            layer.slots = match layer.slots.take() {
                Some(old) if !kept.is_empty() => Some(old.take_axis(&places, 0)?),
                _ => None,
            };
            if let Some(slots) = &layer.slots {
                slots.eval()?;
            }
        }
        Ok(())
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
        for segment in segments {
            let progress = self.progress.get_mut(&segment.sequence).expect("it was checked");
            let (length, uncertain) = (segment.length as usize, segment.drafted as usize);
            slots.push(SlotRows {
                slot: progress.slot,
                begins: segment.start == 0,
                accepted: progress.tape.clone(),
                rows: row..row + length,
                uncertain,
                tape: tape_rows,
            });
            *progress = Progress {
                rows: segment.end() - segment.drafted,
                tape: tape_rows..tape_rows + uncertain,
                is_committed: false,
                ..*progress
            };
            (row, tape_rows) = (row + length, tape_rows + uncertain);
        }
        let advanced = vec![false; self.layers.len()];
        let (segments, slots) = (segments.to_vec(), slots.into());
        self.plan = Some(PassPlan { segments, slots, tape_rows, advanced });
        Ok(())
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
        let LayerStates { slots, tape, .. } = &mut self.layers[layer];
        let (Some(plan), Some(states)) = (&mut self.plan, slots.as_ref()) else {
            return Err(ModelError::Batch(format!("recurrent layer {layer} has no pass")));
        };
        let PassPlan { slots: passes, tape_rows, advanced: done, .. } = plan;
        done[layer] = true;
        let before = tape.as_ref();
        let pass = StatePass { states, before, slots: passes, tape_rows: *tape_rows };
        let advanced = rule.advance(&pass, rows, by_host)?;
        // The old handle is dropped before anything is evaluated, so that states are written in
        // place.
        (*slots, *tape) = (Some(advanced.states), advanced.tape);
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

    /// Copies the settled states of a sequence that has `length` rows.
    pub(super) fn copy(&mut self, from: SequenceId, to: SequenceId, length: i32) -> Result<()> {
        if self.layers.is_empty() {
            return Ok(());
        }
        self.plan = None;
        let slot = |sequence: &SequenceId| self.progress.get(sequence).map(|one| one.slot as i32);
        let (Some(source), Some(copy)) = (slot(&from), slot(&to)) else {
            return Err(ModelError::Batch(format!("sequence {} has no states to copy", from.0)));
        };
        for slots in self.layers.iter_mut().filter_map(|layer| layer.slots.as_mut()) {
            let numbers = slots.try_index((source..source + 1, ..))?;
            slots.try_index_mut((copy..copy + 1, ..), numbers)?;
        }
        if let Some(progress) = self.progress.get_mut(&to) {
            progress.rows = length;
        }
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
        let slot = progress.slot as i32;
        let of_layer = |layer: &LayerStates| -> Result<Array> {
            let slots = layer.slots.as_ref().ok_or_else(|| missing("no slots".into()))?;
            let states = &slots.try_index((slot..slot + 1, ..))?;
            if accepted.is_empty() {
                return Ok(states.clone());
            }
            let before = layer.tape.as_ref();
            let pass = StatePass { states, before, slots: &folded, tape_rows: 0 };
            fold_accepted(layer.sizes, &pass, by_host)
        };
        let layers = self.layers.iter().map(of_layer).collect::<Result<Vec<_>>>()?;
        match layers.as_slice() {
            // A slice of the slots would keep all of them alive.
            [one] => Ok(one.contiguous()?),
            _ => Ok(concatenate(&layers, 1)?),
        }
    }

    /// Gives a sequence that has its slot and no rows the states `numbers`, as
    /// [`States::read`] makes them, of its first `rows` rows. Computed when this returns.
    pub(super) fn write(&mut self, sequence: SequenceId, numbers: &Array, rows: i32) -> Result<()> {
        self.plan = None;
        let Some(progress) = self.progress.get_mut(&sequence) else {
            return Err(ModelError::Batch(format!("sequence {} has no states", sequence.0)));
        };
        let (slot, mut from) = (progress.slot as i32, 0);
        for layer in &mut self.layers {
            let columns = from..from + layer.sizes.slot() as i32;
            from = columns.end;
            if let Some(slots) = &mut layer.slots {
                slots.try_index_mut((slot..slot + 1, ..), numbers.try_index((.., columns))?)?;
                slots.eval()?;
            }
        }
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
        for sequence in due {
            let progress = self.progress.get_mut(&sequence).expect("it was found");
            progress.rows += progress.tape.len() as i32;
            let accepted = std::mem::take(&mut progress.tape);
            slots.push(SlotRows { slot: progress.slot, accepted, ..SlotRows::default() });
        }
        if slots.is_empty() {
            return Ok(());
        }
        let slots: Arc<[SlotRows]> = slots.into();
        for layer in &mut self.layers {
            if let Some(states) = &layer.slots {
                let before = layer.tape.as_ref();
                let pass = StatePass { states, before, slots: &slots, tape_rows: 0 };
                layer.slots = Some(fold_accepted(layer.sizes, &pass, by_host)?);
            }
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
        self.layers.iter().filter_map(|layer| layer.slots.as_ref())
    }
}

impl KvStore {
    /// Gives a sequence its states, if the model has recurrent layers and it has none.
    pub(super) fn take_states(&mut self, sequence: SequenceId) -> Result<()> {
        if self.states.slot_bytes() == 0 || self.states.has(sequence) {
            return Ok(());
        }
        self.changes();
        if self.states.idle_bytes() == 0 {
            self.fit(self.states.slot_bytes())?;
        }
        let spare = self.limit.saturating_sub(self.allocated_bytes());
        self.states.take(sequence, spare)
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
