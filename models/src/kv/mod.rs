//! The KV store: keys and values of every sequence, whatever their layout. Belongs to the model's
//! owner, not to sequences.
//!
//! Layout: a sequence has a slot in a capacity class; a class has one array per layer for its keys
//! and one for its values. Of a layer with a window it keeps as many positions as the window and a
//! pass need (class). Classes are 256·2ᵏ positions up to 4,096, and quarters of 2ᵏ above.
//! Committing is a host integer: rows after a sequence's length are dead and will be overwritten.
//! Recurrent layers keep one array a sequence ([`states`]).
//!
//! ```text
//!  a target on the CPU, float32   a pass over all layers is one node of our own (pass)
//!  other models there             a layer writes the rows of a class by one node of our own and attends by another (by_row)
//!  else                           one scatter of MLX a class; attention by MLX for neighbouring slots with as many query rows (by_class)
//! ```

mod access;
mod by_class;
mod by_row;
mod class;
#[cfg(target_os = "linux")]
mod copies;
mod growth;
mod kept_states;
mod layer;
#[cfg(target_os = "linux")]
mod pass;
mod reads;
mod rows;
mod sequence;
mod staged;
mod states;
mod step_rows;

use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use paceline_checkpoint::kv_sizes::capacities;

use crate::error::{ModelError, Result};
use crate::layers::{HeadRows, computes};
use crate::segment::{Segment, SequenceId};
use access::{AccessPlan, BatchRows};
use by_class::CallForm;
use class::CapacityClass;
use layer::{LayerKinds, LayerPlace};
use sequence::{CopiedRows, SequenceEntry};
use staged::Staged;
use states::States;

pub use kept_states::KeptStates;
pub use layer::{GrowingKv, LayerKv};
pub use paceline_checkpoint::kv_sizes::{MOST_ROWS, PAGE};
#[cfg(target_os = "linux")]
pub(crate) use pass::{PassArrays, PassMemory};
pub use rows::KvRows;

/// How a layer attends.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionParams<'a> {
    /// Factor on q·k.
    pub scale: f32,
    /// For each segment, how many of its last rows are queries. The other rows only write their
    /// keys and values. `None` means that all rows are queries, in the segments' order. With
    /// `Some`, keys and values hold first all rows that are not queries and then the query rows;
    /// `q` holds the query rows; each in the segments' order. The same for every layer of a
    /// forward.
    pub queries: Option<&'a [i32]>,
    /// Query rows attend to all rows of their sequence, also to the new ones after them.
    pub both_ways: bool,
    /// Rows of the batch that belong to one image each, ascending. In a layer with a window a row
    /// of an image also attends to the rows of the image after it. The same for every layer of a
    /// forward. Without `queries` only.
    pub images: &'a [Range<i32>],
}

/// Whether freed rows are filled with NaN, so that a result that depends on them shows it: in debug
/// builds.
pub const POISONS: bool = cfg!(debug_assertions);

/// Where a sequence lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotAddress {
    /// Index of the capacity class.
    class: usize,
    /// Index in the class.
    index: usize,
}

/// Keys and values of all sequences of one model. Not `Send` (I8).
#[derive(Debug)]
pub struct KvStore {
    layers: LayerKinds,
    /// Whether nodes of our own may write, attend and advance states.
    by_row: bool,
    /// Whether a pass over all layers may be one node of our own.
    #[cfg(target_os = "linux")]
    by_pass: bool,
    /// How MLX reads.
    calls: CallForm,
    classes: Vec<CapacityClass>,
    /// States of the recurrent layers.
    states: States,
    sequences: HashMap<SequenceId, SequenceEntry>,
    /// Most rows that a pass adds to a sequence, if layers have windows.
    most_rows: Option<i32>,
    /// Most bytes of all arrays together.
    limit: u64,
    /// The writes and reads of the current batch.
    access: Option<AccessPlan>,
    /// Rows written in advance. Whatever changes the store drops them.
    staged: Option<Staged>,
    one_thread: PhantomData<*const ()>,
}

impl KvStore {
    /// An empty store for a model's layers, for sequences of up to `max_positions`, to which a pass
    /// adds at most [`MOST_ROWS`] rows each if layers have windows.
    ///
    /// # Errors
    /// A window of no positions, or a layer that shares keys and values with none.
    pub fn new(layers: &[LayerKv], dtype: Dtype, max_positions: i32) -> Result<Self> {
        Self::with_most_rows(layers, dtype, max_positions, MOST_ROWS)
    }

    /// As [`KvStore::new`], for passes of `most_rows` rows of a sequence.
    ///
    /// # Errors
    /// As [`KvStore::new`].
    pub fn with_most_rows(
        layers: &[LayerKv],
        dtype: Dtype,
        max_positions: i32,
        most_rows: i32,
    ) -> Result<Self> {
        let layers = LayerKinds::of(layers, max_positions, most_rows)?;
        #[cfg(target_os = "linux")]
        let by_nodes = dtype == Dtype::Float32 && crate::device::allows_nodes();
        #[cfg(not(target_os = "linux"))]
        let by_nodes = false;
        let class = |capacity| CapacityClass::new(capacity, &layers, dtype, by_nodes);
        let classes = capacities(max_positions).into_iter().map(class).collect();
        Ok(Self {
            states: States::new(&layers.recurrent),
            most_rows: layers.rings.iter().any(Option::is_some).then_some(most_rows),
            layers,
            by_row: dtype == Dtype::Float32,
            #[cfg(target_os = "linux")]
            by_pass: by_nodes,
            calls: CallForm::here(dtype),
            classes,
            sequences: HashMap::new(),
            limit: u64::MAX,
            access: None,
            staged: None,
            one_thread: PhantomData,
        })
    }

    /// Most positions of a sequence in each class, and the bytes it then holds, states included:
    /// (positions, bytes), ascending.
    pub fn class_bytes(&self) -> Vec<(i32, u64)> {
        let states = self.states.slot_bytes();
        self.classes.iter().map(|class| (class.capacity, class.slot_bytes() + states)).collect()
    }

    /// Most rows that a pass may add to a sequence; `None` is any number.
    pub fn most_rows(&self) -> Option<i32> {
        self.most_rows
    }

    /// Bytes of the states of a sequence, however long it is; 0 without recurrent layers.
    pub fn state_bytes(&self) -> u64 {
        self.states.slot_bytes()
    }

    /// Most bytes of the layers of which a sequence keeps the last positions alone; 0 without such.
    pub fn window_bytes(&self) -> u64 {
        let rings = self.layers.growing.iter().zip(&self.layers.rings);
        let numbers = rings.filter_map(|(layer, ring)| Some(layer.row_numbers() * (*ring)? as u64));
        let width = self.classes.first().map_or(0, |class| class.number_bytes());
        numbers.sum::<u64>() * width
    }

    /// Bytes that a drafted row takes on the tapes of recurrent layers, from its pass to the next.
    pub fn tape_row_bytes(&self) -> u64 {
        self.states.tape_row_bytes()
    }

    /// Sets the most bytes that all arrays together may take. While they take less, the slots of
    /// freed sequences stay for the next ones; more than that is given back. The caller must bound
    /// what sequences hold, which may be more.
    ///
    /// # Errors
    /// MLX's own.
    pub fn set_limit(&mut self, bytes: u64) -> Result<()> {
        self.limit = bytes;
        self.fit(0)
    }

    /// Gives slots without an owner back until `more` more bytes fit.
    fn fit(&mut self, more: u64) -> Result<()> {
        while self.allocated_bytes().saturating_add(more) > self.limit {
            let class = self.classes.iter_mut().max_by_key(|class| class.idle_bytes());
            let class = class.filter(|class| class.idle_bytes() > 0);
            let Some(class) = class else { break };
            self.access = None;
            self.staged = None;
            let moved = class.compact()?;
            self.note_moved(moved);
        }
        Ok(())
    }

    fn take_slot(&mut self, class: usize, sequence: SequenceId) -> Result<usize> {
        self.changes();
        if self.classes[class].idle_bytes() == 0 {
            self.fit(self.classes[class].slot_bytes())?;
        }
        let spare = self.limit.saturating_sub(self.allocated_bytes());
        self.classes[class].take_slot(sequence, spare)
    }

    /// Makes a sequence known, with no rows.
    ///
    /// # Errors
    /// It is known already.
    pub fn open(&mut self, sequence: SequenceId) -> Result<()> {
        match self.sequences.insert(sequence, SequenceEntry::default()) {
            None => Ok(()),
            Some(old) => {
                self.sequences.insert(sequence, old);
                Err(ModelError::Batch(format!("sequence {} is in the store already", sequence.0)))
            }
        }
    }

    /// Gives a sequence without rows its slot, in the class of `positions` positions, so that it
    /// does not move while it grows up to them.
    ///
    /// # Errors
    /// It is unknown, or no sequence is that long.
    pub fn reserve(&mut self, sequence: SequenceId, positions: i32) -> Result<()> {
        let class = self.class_for(positions)?;
        match self.sequences.get(&sequence) {
            Some(SequenceEntry { slot: None, .. }) => {
                self.take_states(sequence)?;
                let index = self.take_slot(class, sequence)?;
                self.place_sequence(sequence, SlotAddress { class, index });
                Ok(())
            }
            Some(_) => {
                Err(ModelError::Batch(format!("sequence {} has its slot already", sequence.0)))
            }
            None => Err(ModelError::Batch(format!(
                "expected a sequence of the store, found none of the name {}",
                sequence.0
            ))),
        }
    }

    /// Notes the slot of a sequence without rows.
    fn place_sequence(&mut self, sequence: SequenceId, slot: SlotAddress) {
        let entry = SequenceEntry { slot: Some(slot), ..SequenceEntry::default() };
        self.sequences.insert(sequence, entry);
    }

    /// Committed rows of a sequence.
    pub fn length(&self, sequence: SequenceId) -> Option<i32> {
        self.sequences.get(&sequence).map(|entry| entry.length)
    }

    /// Bytes a sequence holds now.
    pub fn bytes(&self, sequence: SequenceId) -> u64 {
        let slot = self.sequences.get(&sequence).and_then(|entry| entry.slot);
        let states = if self.states.has(sequence) { self.states.slot_bytes() } else { 0 };
        states + slot.map_or(0, |slot| self.classes[slot.class].slot_bytes())
    }

    /// Bytes of slots that are kept for the next sequences.
    pub fn idle_bytes(&self) -> u64 {
        self.classes.iter().map(CapacityClass::idle_bytes).sum()
    }

    /// Bytes of all arrays: what sequences hold, and slots kept for the next ones.
    pub fn allocated_bytes(&self) -> u64 {
        let classes = self.classes.iter().map(CapacityClass::allocated_bytes);
        classes.sum::<u64>() + self.states.allocated_bytes()
    }

    /// Where a sequence lies. Batches whose segments are in this order need the fewest products.
    pub fn order(&self, sequence: SequenceId) -> (usize, usize) {
        let slot = self.sequences.get(&sequence).and_then(|entry| entry.slot);
        slot.map_or((usize::MAX, usize::MAX), |slot| (slot.class, slot.index))
    }

    /// Writes the new rows of `segments`, and attends over each sequence's rows up to its last.
    ///
    /// `q` `[queries, heads, key_dim]`, `keys` `[rows, n_kv, key_dim]`, `values`
    /// `[rows, n_kv, value_dim]` → `[queries, heads · value_dim]`. Which rows these are, and what
    /// they attend to: [`AttentionParams`]. Lazy. Segments are the same for every layer of a
    /// forward.
    ///
    /// # Errors
    /// A segment does not start at its sequence's length, or no row is a query.
    pub fn attend<'a>(
        &mut self,
        layer: usize,
        q: impl Into<HeadRows<'a>>,
        keys: impl Into<HeadRows<'a>>,
        values: impl Into<HeadRows<'a>>,
        params: AttentionParams<'_>,
        segments: &[Segment],
    ) -> Result<Array> {
        let q = q.into();
        let batch = BatchRows { segments, queries: params.queries, images: params.images };
        self.write_batch(layer, &keys.into(), &values.into(), batch)?;
        self.read(layer, &q, params)
    }

    /// The second half of [`KvStore::attend`], for a layer that shares the keys and values of an
    /// earlier one: these are written in this forward already.
    ///
    /// # Errors
    /// No layer of this forward has written, or no row is a query.
    pub fn attend_shared<'a>(
        &mut self,
        layer: usize,
        q: impl Into<HeadRows<'a>>,
        params: AttentionParams<'_>,
        segments: &[Segment],
    ) -> Result<Array> {
        let batch = BatchRows { segments, queries: params.queries, images: params.images };
        if self.access.as_ref().is_none_or(|access| !access.is_of(batch)) {
            return Err(ModelError::Batch(format!(
                "layer {layer}: expected keys and values of an earlier layer in this forward, found \
                 none"
            )));
        }
        self.read(layer, &q.into(), params)
    }

    /// The number of a layer among those with keys and values.
    fn growing(&self, layer: usize) -> Result<usize> {
        match self.layers.places[layer] {
            LayerPlace::Growing(at) => Ok(at),
            LayerPlace::Recurrent(_) => {
                Err(ModelError::Batch(format!("layer {layer} has no keys and values")))
            }
        }
    }

    /// Whether new rows of these arrays go through nodes of our own.
    fn goes_by_row(&self, arrays: &[&Array]) -> bool {
        self.by_row && computes(arrays)
    }

    /// Whether all rows go through nodes of our own.
    #[cfg(target_os = "linux")]
    fn by_nodes(&self) -> bool {
        self.by_row && crate::device::allows_nodes()
    }

    /// The first half of [`KvStore::attend`]: only writes, for a forward in which no row is a
    /// query. `queries` as in [`AttentionParams`].
    ///
    /// # Errors
    /// A segment does not start at its sequence's length.
    pub fn write<'a>(
        &mut self,
        layer: usize,
        keys: impl Into<HeadRows<'a>>,
        values: impl Into<HeadRows<'a>>,
        queries: Option<&[i32]>,
        segments: &[Segment],
    ) -> Result<()> {
        let batch = BatchRows { segments, queries, images: &[] };
        self.write_batch(layer, &keys.into(), &values.into(), batch)
    }

    fn write_batch(
        &mut self,
        layer: usize,
        keys: &HeadRows<'_>,
        values: &HeadRows<'_>,
        batch: BatchRows<'_>,
    ) -> Result<()> {
        let layer = self.growing(layer)?;
        if self.access.as_ref().is_none_or(|access| !access.is_of(batch)) {
            self.changes();
            self.make_room(batch.segments)?;
            self.access = Some(AccessPlan::new(batch, &self.sequences)?);
        }
        let GrowingKv { n_kv, .. } = self.layers.growing[layer];
        let goes_by_row = self.goes_by_row(&[keys.rows, values.rows]);
        let access = self.access.as_mut().expect("made above");
        if goes_by_row {
            for writes in access.row_writes().iter() {
                let class = &mut self.classes[writes.class];
                class.write_rows(layer, keys, values, &writes.places)?;
            }
            return Ok(());
        }
        let (keys, values) = (keys.array()?, values.array()?);
        for written in &mut access.writes {
            let rows = written.rows.clone();
            let indices = written.indices(layer, n_kv, &self.classes[written.class])?;
            let part = |new: &Array| cut_rows(new, &rows);
            self.classes[written.class].write(layer, &indices, &part(&keys)?, &part(&values)?)?;
        }
        Ok(())
    }

    /// After a step: the sequence has `length` rows, all rows after them are dropped. A model with
    /// recurrent layers can drop only rows that the step's segment named as drafted, or all rows
    /// that the sequence has; one with windows only as many as leave the windows complete.
    ///
    /// # Errors
    /// An unknown sequence, more rows than it has room for, or rows that cannot be dropped.
    pub fn commit(&mut self, sequence: SequenceId, length: i32) -> Result<()> {
        self.changes();
        let capacity =
            |slot: Option<SlotAddress>| slot.map_or(0, |slot| self.classes[slot.class].capacity);
        match self.sequences.get(&sequence).copied() {
            Some(entry) if (0..=capacity(entry.slot)).contains(&length) => {
                self.check_windows(sequence, &entry, length)?;
                self.states.commit(sequence, length)?;
                let entry = match length {
                    0 => SequenceEntry { slot: entry.slot, ..SequenceEntry::default() },
                    _ => SequenceEntry { length, written: entry.written.max(length), ..entry },
                };
                self.sequences.insert(sequence, entry);
                Ok(())
            }
            _ => Err(ModelError::Batch(format!(
                "sequence {} cannot commit {length} rows",
                sequence.0
            ))),
        }
    }

    /// Gives `to`, a new sequence, a copy of the first `length` rows of `from`. With recurrent
    /// layers only of all its rows, because a state is that of the last row. No request needs a
    /// copy: this is for tests and examples.
    ///
    /// # Errors
    /// `from` has fewer rows, or `to` is known already; recurrent layers have no such state, or
    /// layers with windows not these rows.
    pub fn fork(&mut self, from: SequenceId, to: SequenceId, length: i32) -> Result<()> {
        let entry = self.sequences.get(&from).copied();
        let Some(entry) = entry.filter(|entry| (0..=entry.length).contains(&length)) else {
            return Err(ModelError::Batch(format!(
                "sequence {} has no {length} rows to copy",
                from.0
            )));
        };
        self.check_windows(from, &entry, length)?;
        if self.states.slot_bytes() > 0 && length > 0 && self.length(from) != Some(length) {
            return Err(ModelError::Batch(format!(
                "sequence {}: expected all its rows to copy, because recurrent layers have no \
                 state of the first {length}",
                from.0
            )));
        }
        self.changes();
        self.states.settle(|sequence| sequence == from, self.by_row)?;
        self.open(to)?;
        if length > 0 {
            // Places of windows are copied as they are, so the copy's slot keeps as many.
            let written = if self.most_rows.is_some() { entry.written } else { 0 };
            self.reserve(to, length.max(written))?;
            self.states.copy(from, to, length)?;
            // Where it is now: taking a slot may have moved the others.
            let slot = |sequence| {
                self.sequences.get(&sequence).and_then(|entry: &SequenceEntry| entry.slot)
            };
            if let (Some(source), Some(copy)) = (slot(from), slot(to)) {
                let rows = CopiedRows { length, written: entry.written };
                self.copy_rows(source, copy, rows, 0..self.layers.growing.len())?;
                let copied = SequenceEntry { slot: Some(copy), length, ..entry };
                self.sequences.insert(to, copied);
            }
        }
        Ok(())
    }

    /// Forgets a sequence and gives its slot back. Unknown ones are none.
    pub fn free(&mut self, sequence: SequenceId) {
        self.changes();
        if let Some(slot) = self.sequences.remove(&sequence).and_then(|entry| entry.slot) {
            self.classes[slot.class].give_back(slot.index);
        }
        self.states.give_back(sequence);
    }

    /// Computes what was written, for a step in which nothing else is evaluated.
    ///
    /// # Errors
    /// MLX's own.
    pub fn evaluate(&self) -> Result<()> {
        Ok(mlx_rs::transforms::eval(self.arrays())?)
    }

    /// Keys, values and states as they are after the last pass. Lazy.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.classes.iter().flat_map(CapacityClass::arrays).chain(self.states.arrays())
    }

    /// Drops what was computed for the store as it was, because it is about to change.
    fn changes(&mut self) {
        self.access = None;
        self.staged = None;
    }

    fn class_for(&self, positions: i32) -> Result<usize> {
        let fits = self.classes.iter().position(|class| class.capacity >= positions);
        fits.ok_or_else(|| {
            let longest = self.classes.last().map_or(0, |class| class.capacity);
            ModelError::Batch(format!(
                "a sequence of {positions} positions is longer than the store's longest, {longest}"
            ))
        })
    }
}

/// Neighbouring rows of `x` `[R, heads, dim]`; all of them without a primitive.
fn cut_rows(x: &Array, rows: &Range<i32>) -> Result<Array> {
    Ok(if rows.len() as i32 == x.dim(0) { x.clone() } else { x.try_index((rows.clone(), .., ..))? })
}

#[cfg(test)]
pub(crate) mod tests;
