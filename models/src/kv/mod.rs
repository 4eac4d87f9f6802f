//! The KV store: keys and values of every sequence, whatever their layout. Belongs to the model's
//! owner, not to sequences.
//!
//! Layout: a sequence has a slot in a capacity class (256·2ᵏ positions); a class has one array per
//! layer for its keys and one for its values. A step writes all rows of a class by one scatter and
//! attends once per run of neighbouring slots with the same number of asking rows. Committing is a
//! host integer: rows behind a sequence's length are dead and will be overwritten.

mod ahead;
mod class;
mod plan;
mod rows;

use std::collections::HashMap;
use std::marker::PhantomData;

use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use crate::batch::Segment;
use crate::error::{ModelError, Result};
use crate::layers::{Sees, attention, computes};
use ahead::Ahead;
use class::Class;
pub(crate) use plan::Seen;
use plan::{Looks, Plan, Sight};

pub use ahead::Graph;
pub use rows::Rows;

/// A sequence's name in the store, given by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// What a layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerKv {
    /// A key and a value a position.
    Growing {
        /// KV heads.
        n_kv: i32,
        /// Size of a key.
        key_dim: i32,
        /// Size of a value.
        value_dim: i32,
        /// Positions a row sees, itself and those before it (0 ≤ q − k < window); `None` means all.
        /// A mask only: a slot keeps all positions, because a window's rows are a small part of
        /// what a sequence holds in the models built so far, and one commit rule then serves every
        /// layer.
        window: Option<i32>,
    },
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attend<'a> {
    /// Factor on q·k.
    pub scale: f32,
    /// An extra logit per head; no model here has it yet.
    pub sinks: Option<&'a Array>,
    /// Rows that see one another both ways; no model here has them yet.
    pub spans: &'a [(i32, i32)],
    /// How many of each segment's last rows ask; the rest only write their keys and values. `None`
    /// means all rows, in the segments' order. `Some`: keys and values hold all segments' silent
    /// rows first and their asking rows behind them, the queries hold the asking rows, each in the
    /// segments' order. The same for every layer of a forward.
    pub queries: Option<&'a [i32]>,
    /// Asking rows see their sequence up to its last new row, not only up to themselves.
    pub both_ways: bool,
}

/// Positions of the smallest class.
const FIRST_CLASS: i32 = 256;
/// Positions of a page, the unit in which capacities are counted.
pub const PAGE: i32 = 64;

/// Whether rows that are given back are filled with NaN, so that whatever reads them shows it: in
/// debug builds.
pub const POISONS: bool = cfg!(debug_assertions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    class: usize,
    slot: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Option<Place>,
    length: i32,
}

/// Keys and values of all sequences of one model. Not `Send` (I8).
#[derive(Debug)]
pub struct KvStore {
    layers: Vec<LayerKv>,
    classes: Vec<Class>,
    sequences: HashMap<SequenceId, Entry>,
    /// Bytes that all arrays may take.
    limit: u64,
    plan: Option<Plan>,
    /// A step's graph that was made before its time. Whatever changes the store drops it.
    ahead: Option<Ahead>,
    one_thread: PhantomData<*const ()>,
}

impl KvStore {
    /// An empty store for a model's layers, for sequences of up to `max_positions`.
    ///
    /// # Errors
    /// A window of no positions.
    pub fn new(layers: &[LayerKv], dtype: Dtype, max_positions: i32) -> Result<Self> {
        if layers
            .iter()
            .any(|LayerKv::Growing { window, .. }| window.is_some_and(|window| window < 1))
        {
            return Err(ModelError::Batch("expected windows of at least one position".into()));
        }
        let last = (max_positions.max(1) + PAGE - 1) / PAGE * PAGE;
        let doubling = std::iter::successors(Some(FIRST_CLASS), |capacity| Some(capacity * 2));
        let capacities = doubling.take_while(|capacity| *capacity < last).chain([last]);
        let classes = capacities.map(|capacity| Class::new(capacity, layers, dtype)).collect();
        Ok(Self {
            layers: layers.to_vec(),
            classes,
            sequences: HashMap::new(),
            limit: u64::MAX,
            plan: None,
            ahead: None,
            one_thread: PhantomData,
        })
    }

    /// What a sequence of up to so many positions comes to hold, by class: (positions, bytes),
    /// ascending.
    pub fn class_bytes(&self) -> Vec<(i32, u64)> {
        self.classes.iter().map(|class| (class.capacity, class.slot_bytes())).collect()
    }

    /// All arrays together may take so many bytes from now on. As long as they take less, slots
    /// that sequences leave stay for the next ones; what would be more is given back. (What
    /// sequences hold may be more all the same: that is for the caller to see to.)
    ///
    /// # Errors
    /// MLX's own.
    pub fn set_limit(&mut self, bytes: u64) -> Result<()> {
        self.limit = bytes;
        self.fit(0)
    }

    /// Gives slots back that nobody uses until so many more bytes fit.
    fn fit(&mut self, more: u64) -> Result<()> {
        while self.allocated_bytes().saturating_add(more) > self.limit {
            let Some(class) = self
                .classes
                .iter_mut()
                .max_by_key(|class| class.idle_bytes())
                .filter(|class| class.idle_bytes() > 0)
            else {
                break;
            };
            (self.plan, self.ahead) = (None, None);
            for (sequence, slot) in class.compact()? {
                if let Some(place) =
                    self.sequences.get_mut(&sequence).and_then(|entry| entry.place.as_mut())
                {
                    place.slot = slot;
                }
            }
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
        match self.sequences.insert(sequence, Entry { place: None, length: 0 }) {
            None => Ok(()),
            Some(old) => {
                self.sequences.insert(sequence, old);
                Err(ModelError::Batch(format!("sequence {} is in the store already", sequence.0)))
            }
        }
    }

    /// Gives a sequence without rows its place: in the class of so many positions, so that it does
    /// not move as it grows up to them.
    ///
    /// # Errors
    /// It is unknown, or no sequence is that long.
    pub fn reserve(&mut self, sequence: SequenceId, positions: i32) -> Result<()> {
        let class = self.class_for(positions)?;
        match self.sequences.get(&sequence) {
            Some(Entry { place: None, .. }) => {
                let slot = self.take_slot(class, sequence)?;
                self.sequences
                    .insert(sequence, Entry { place: Some(Place { class, slot }), length: 0 });
                Ok(())
            }
            Some(_) => {
                Err(ModelError::Batch(format!("sequence {} has its place already", sequence.0)))
            }
            None => Err(ModelError::Batch(format!(
                "expected a sequence of the store, found none of the name {}",
                sequence.0
            ))),
        }
    }

    /// Committed rows of a sequence.
    pub fn length(&self, sequence: SequenceId) -> Option<i32> {
        self.sequences.get(&sequence).map(|entry| entry.length)
    }

    /// Bytes a sequence holds now.
    pub fn bytes(&self, sequence: SequenceId) -> u64 {
        let place = self.sequences.get(&sequence).and_then(|entry| entry.place);
        place.map_or(0, |place| self.classes[place.class].slot_bytes())
    }

    /// Bytes of slots that are kept for the next sequences.
    pub fn idle_bytes(&self) -> u64 {
        self.classes.iter().map(Class::idle_bytes).sum()
    }

    /// Bytes of all arrays: what sequences hold, and slots kept for the next ones.
    pub fn allocated_bytes(&self) -> u64 {
        self.classes.iter().map(Class::allocated_bytes).sum()
    }

    /// Where a sequence lies. Batches whose segments are in this order need the fewest products.
    pub fn order(&self, sequence: SequenceId) -> (usize, usize) {
        let place = self.sequences.get(&sequence).and_then(|entry| entry.place);
        place.map_or((usize::MAX, usize::MAX), |place| (place.class, place.slot))
    }

    /// Writes `kv`, the new rows of `segments`, and attends over each sequence's rows up to its
    /// own.
    ///
    /// `q` `[rows, heads, key_dim]`; `kv` `([rows, n_kv, key_dim], [rows, n_kv, value_dim])` →
    /// `[rows, heads · value_dim]`. Which rows these are, and what they see: [`Attend`]. Lazy.
    /// Segments are the same for every layer of a forward.
    ///
    /// # Errors
    /// A segment does not start at its sequence's length, no row asks, or something is asked for
    /// that is not built.
    pub fn attend(
        &mut self,
        layer: usize,
        q: &Array,
        kv: Option<(&Array, &Array)>,
        how: Attend<'_>,
        segments: &[Segment],
    ) -> Result<Array> {
        let (Some((keys, values)), None, true) = (kv, how.sinks, how.spans.is_empty()) else {
            return Err(ModelError::Batch(
                "shared layers, sinks and picture spans are not built yet".into(),
            ));
        };
        self.write(layer, keys, values, how.queries, segments)?;
        let LayerKv::Growing { window, .. } = self.layers[layer];
        let sight = Sight { window, both_ways: how.both_ways };
        let plan = self.plan.as_mut().expect("made by write");
        let mut outputs = Vec::with_capacity(plan.reads.len());
        let ranges = computes(&[q, keys, values]);
        for read in &mut plan.reads {
            let view = read.view(sight, ranges)?;
            let (k, v) = self.classes[read.class].view(layer, read.slots.clone(), view.keys)?;
            let part = cut_rows(q, &read.rows)?;
            let mask = match &view.looks {
                Looks::Mask(Some(mask)) => Some(mask.as_dtype(q.dtype())?),
                _ => None,
            };
            let sees = match &view.looks {
                Looks::Ranges(seen) => Sees::Ranges(seen),
                Looks::Mask(_) => Sees::Mask(mask.as_ref()),
            };
            outputs.push(attention(&part, &k, &v, how.scale, sees)?);
        }
        match outputs.len() {
            0 => Err(ModelError::Batch("expected a row that asks".into())),
            1 => Ok(outputs.swap_remove(0)),
            _ => Ok(concatenate(&outputs, 0)?),
        }
    }

    /// The first half of [`KvStore::attend`]: only writes, for a forward in which no row asks.
    /// `queries` as in [`Attend`].
    ///
    /// # Errors
    /// A segment does not start at its sequence's length.
    pub fn write(
        &mut self,
        layer: usize,
        keys: &Array,
        values: &Array,
        queries: Option<&[i32]>,
        segments: &[Segment],
    ) -> Result<()> {
        if self.plan.as_ref().is_none_or(|plan| !plan.is_of(segments, queries)) {
            self.changes();
            self.make_room(segments)?;
            self.plan = Some(Plan::new(segments, queries, &self.sequences, &self.classes)?);
        }
        let LayerKv::Growing { n_kv, .. } = self.layers[layer];
        let plan = self.plan.as_mut().expect("made above");
        for written in &mut plan.writes {
            let rows = written.rows.clone();
            let indices = written.indices(n_kv, &self.classes[written.class])?;
            let part = |new: &Array| cut_rows(new, &rows);
            self.classes[written.class].write(layer, &indices, &part(keys)?, &part(values)?)?;
        }
        Ok(())
    }

    /// After a step: the sequence has `length` rows, what lies behind is dropped.
    ///
    /// # Errors
    /// An unknown sequence, or more rows than it has room for.
    pub fn commit(&mut self, sequence: SequenceId, length: i32) -> Result<()> {
        self.changes();
        let capacity =
            |place: Option<Place>| place.map_or(0, |place| self.classes[place.class].capacity);
        match self.sequences.get_mut(&sequence) {
            Some(entry) if (0..=capacity(entry.place)).contains(&length) => {
                entry.length = length;
                Ok(())
            }
            _ => Err(ModelError::Batch(format!(
                "sequence {} cannot commit {length} rows",
                sequence.0
            ))),
        }
    }

    /// Gives `to`, a new sequence, a copy of the first `length` rows of `from`.
    ///
    /// # Errors
    /// `from` has fewer rows, or `to` is known already.
    pub fn fork(&mut self, from: SequenceId, to: SequenceId, length: i32) -> Result<()> {
        if self.sequences.get(&from).is_none_or(|entry| !(0..=entry.length).contains(&length)) {
            return Err(ModelError::Batch(format!(
                "sequence {} has no {length} rows to copy",
                from.0
            )));
        }
        self.open(to)?;
        if length > 0 {
            self.reserve(to, length)?;
            // Where it is now: a new place may have moved the old ones.
            let place =
                |sequence| self.sequences.get(&sequence).and_then(|entry: &Entry| entry.place);
            if let (Some(source), Some(copy)) = (place(from), place(to)) {
                self.copy_rows(source, copy, length)?;
                self.sequences.insert(to, Entry { place: Some(copy), length });
            }
        }
        Ok(())
    }

    /// Forgets a sequence and gives its slot back. Unknown ones are none.
    pub fn free(&mut self, sequence: SequenceId) {
        self.changes();
        if let Some(place) = self.sequences.remove(&sequence).and_then(|entry| entry.place) {
            self.classes[place.class].give_back(place.slot);
        }
    }

    /// Computes what was written, for a step in which nothing else is evaluated.
    ///
    /// # Errors
    /// MLX's own.
    pub fn evaluate(&self) -> Result<()> {
        Ok(mlx_rs::transforms::eval(self.classes.iter().flat_map(Class::arrays))?)
    }

    /// What was made for the store as it was is of no use any more.
    fn changes(&mut self) {
        (self.plan, self.ahead) = (None, None);
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

    /// Gives every sequence of a batch a slot that holds its new rows, moving it to a larger class
    /// where needed.
    fn make_room(&mut self, segments: &[Segment]) -> Result<()> {
        for segment in segments {
            let end = segment.start + segment.length;
            let entry = self.sequences.get(&segment.sequence).copied();
            let Some(entry) = entry.filter(|entry| entry.length == segment.start) else {
                let found = entry.map_or("none of that name".to_owned(), |entry| {
                    format!("{} rows", entry.length)
                });
                let what = format!(
                    "sequence {}: expected {} committed rows, found {found}",
                    segment.sequence.0, segment.start
                );
                return Err(ModelError::Batch(what));
            };
            let roomy = entry.place.filter(|place| self.classes[place.class].capacity >= end);
            if roomy.is_some() {
                continue;
            }
            let class = self.class_for(end)?;
            let slot = self.take_slot(class, segment.sequence)?;
            let place = Place { class, slot };
            // Where it is now: a new place may have moved the old ones.
            if let Some(old) = self.sequences.get(&segment.sequence).and_then(|entry| entry.place) {
                self.copy_rows(old, place, entry.length)?;
                self.classes[old.class].give_back(old.slot);
            }
            self.sequences.insert(segment.sequence, Entry { place: Some(place), ..entry });
        }
        Ok(())
    }

    fn copy_rows(&mut self, from: Place, to: Place, length: i32) -> Result<()> {
        for layer in 0..self.layers.len() {
            let (keys, values) =
                self.classes[from.class].view(layer, from.slot..from.slot + 1, 0..length)?;
            self.classes[to.class].overwrite(layer, to.slot, &keys, &values)?;
        }
        Ok(())
    }
}

/// Neighbouring rows of `x` `[R, heads, dim]`; all of them without a primitive.
fn cut_rows(x: &Array, rows: &std::ops::Range<i32>) -> Result<Array> {
    Ok(if rows.len() as i32 == x.dim(0) { x.clone() } else { x.try_index((rows.clone(), .., ..))? })
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod rows_tests;
#[cfg(test)]
mod sight_tests;
#[cfg(test)]
mod tests;
