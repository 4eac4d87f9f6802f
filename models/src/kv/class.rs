//! Slots of one capacity: per layer one flat array of keys and one of values. Of a layer with a
//! window a slot keeps the last positions alone, position p at place p modulo their number.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp, scatter_single};
use mlx_rs::ops::{concatenate, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::{GrowingKv, layer::LayerKinds};
use crate::error::Result;
use crate::layers::{HeadRows, RowPlaces, StoredHeads, write_rows};
use crate::segment::SequenceId;

/// Keys and values of one layer: `[slots · n_kv · kept positions, dim]`, so that a row is one
/// index.
#[derive(Clone, Debug)]
pub(super) struct LayerArrays {
    keys: Array,
    values: Array,
}

#[derive(Debug)]
pub(super) struct CapacityClass {
    /// Positions of a slot.
    pub(super) capacity: i32,
    layers: Vec<GrowingKv>,
    /// Positions that a slot keeps of each layer.
    places: Arc<[usize]>,
    dtype: Dtype,
    /// Whether nodes of our own read the rows: they read none that was not written.
    pub(super) by_nodes: bool,
    owners: Vec<Option<SequenceId>>,
    /// Slots that had an owner before.
    used: Vec<bool>,
    pub(super) arrays: Vec<LayerArrays>,
}

impl CapacityClass {
    pub(super) fn new(capacity: i32, kinds: &LayerKinds, dtype: Dtype, by_nodes: bool) -> Self {
        let places = |ring: &Option<i32>| ring.unwrap_or(capacity).min(capacity) as usize;
        Self {
            capacity,
            layers: kinds.growing.clone(),
            places: kinds.rings.iter().map(places).collect(),
            dtype,
            by_nodes,
            owners: vec![],
            used: vec![],
            arrays: vec![],
        }
    }

    /// Bytes of one slot over all layers.
    pub(super) fn slot_bytes(&self) -> u64 {
        let numbers = |(layer, places): (&GrowingKv, &usize)| layer.row_numbers() * *places as u64;
        self.layers.iter().zip(&*self.places).map(numbers).sum::<u64>() * self.number_bytes()
    }

    /// Positions that a slot keeps of a layer.
    pub(super) fn places(&self, layer: usize) -> i32 {
        self.places[layer] as i32
    }

    /// Positions that a slot keeps of each layer.
    #[cfg(target_os = "linux")]
    pub(super) fn places_of_layers(&self) -> Arc<[usize]> {
        self.places.clone()
    }

    /// Bytes of a number of keys and values.
    pub(super) fn number_bytes(&self) -> u64 {
        if self.dtype == Dtype::Float32 { 4 } else { 2 }
    }

    /// How many slots there are, with an owner or without.
    pub(super) fn slots(&self) -> usize {
        self.owners.len()
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.owners.len() as u64 * self.slot_bytes()
    }

    /// Bytes of slots without an owner.
    pub(super) fn idle_bytes(&self) -> u64 {
        self.owners.iter().filter(|owner| owner.is_none()).count() as u64 * self.slot_bytes()
    }

    /// A free slot, the lowest; the arrays double where there is none, if that takes no more than
    /// `spare` bytes.
    pub(super) fn take_slot(&mut self, owner: SequenceId, spare: u64) -> Result<usize> {
        if let Some(free) = self.take_free_slot(owner)? {
            return Ok(free);
        }
        let more = self.slots_to_add(spare);
        // Layer by layer, so that old and new arrays are never there together for all of them.
        for layer in 0..self.layers.len() {
            self.extend_layer(layer, more)?;
        }
        Ok(self.take_added_slot(owner, more))
    }

    /// A slot without an owner, the lowest.
    pub(super) fn take_free_slot(&mut self, owner: SequenceId) -> Result<Option<usize>> {
        let Some(free) = self.owners.iter().position(Option::is_none) else { return Ok(None) };
        if self.used[free] && !self.by_nodes {
            // As in `new_rows`: another sequence may have left any number.
            self.fill(free, 0.0)?;
        }
        (self.owners[free], self.used[free]) = (Some(owner), true);
        Ok(Some(free))
    }

    /// How many slots a class without a free one gets: as many as it has, if `spare` bytes hold
    /// them, and at least one.
    pub(super) fn slots_to_add(&self, spare: u64) -> usize {
        let fit = spare.checked_div(self.slot_bytes()).unwrap_or(0);
        (self.owners.len() as u64).min(fit).max(1) as usize
    }

    /// Adds the rows of `more` slots to one layer. Layers are extended in their order.
    pub(super) fn extend_layer(&mut self, layer: usize, more: usize) -> Result<()> {
        let GrowingKv { n_kv, key_dim, value_dim, .. } = self.layers[layer];
        let rows = more as i32 * n_kv * self.places(layer);
        let (keys, values) = (self.new_rows(&[rows, key_dim])?, self.new_rows(&[rows, value_dim])?);
        match self.arrays.get_mut(layer) {
            None => self.arrays.push(LayerArrays { keys, values }),
            Some(old) => {
                old.keys = concatenate(&[&old.keys, &keys], 0)?;
                old.values = concatenate(&[&old.values, &values], 0)?;
            }
        }
        Ok(mlx_rs::transforms::eval(self.arrays_of(layer..layer + 1))?)
    }

    /// The first of `more` slots by which every layer was extended.
    pub(super) fn take_added_slot(&mut self, owner: SequenceId, more: usize) -> usize {
        let slot = self.owners.len();
        self.owners.resize(slot + more, None);
        self.used.resize(slot + more, false);
        (self.owners[slot], self.used[slot]) = (Some(owner), true);
        slot
    }

    /// Memory for rows that are not written yet. For MLX zeros and not garbage: rows after a length
    /// are masked, and a masked NaN would still be a NaN. For nodes of our own whatever lies there,
    /// so that a long slot takes memory as it fills; see [`super::POISONS`].
    fn new_rows(&self, shape: &[i32]) -> Result<Array> {
        #[cfg(target_os = "linux")]
        if self.by_nodes {
            let output = mlx_sys::HostOutput::Fresh;
            let made = crate::layers::host_nodes(&[], &[shape], output, |_, outputs| {
                if super::POISONS {
                    outputs.iter_mut().for_each(|rows| rows.fill(f32::NAN));
                }
            })?;
            return made.into_iter().next().ok_or_else(|| {
                crate::error::ModelError::Batch("expected the array of a node, found none".into())
            });
        }
        Ok(zeros_dtype(shape, self.dtype)?)
    }

    /// Frees a slot. A class whose slots are all free gives its memory back. Otherwise see
    /// [`super::POISONS`].
    pub(super) fn give_back(&mut self, slot: usize) {
        self.owners[slot] = None;
        if self.owners.iter().all(Option::is_none) {
            self.owners.clear();
            self.used.clear();
            self.arrays.clear();
        } else if super::POISONS {
            // Only MLX itself can fail here, and it then fails at the next step.
            let _ = self.fill(slot, f32::NAN);
        }
    }

    /// Gives the memory of slots without an owner back. Returns where the others are now.
    pub(super) fn compact(&mut self) -> Result<Vec<(SequenceId, usize)>> {
        let kept = self.owned_slots(None);
        // Layer by layer, as above.
        for layer in 0..self.arrays.len() {
            self.cut_layer(layer, &kept)?;
        }
        Ok(self.keep_slots(&kept))
    }

    /// Slots that have an owner, without the one of `leaving`.
    pub(super) fn owned_slots(&self, leaving: Option<usize>) -> Vec<i32> {
        let owned = |(slot, owner): &(usize, &Option<SequenceId>)| {
            owner.is_some() && Some(*slot) != leaving
        };
        self.owners.iter().enumerate().filter(owned).map(|(slot, _)| slot as i32).collect()
    }

    /// Gives the memory of all slots of a layer but the `kept` ones back.
    pub(super) fn cut_layer(&mut self, layer: usize, kept: &[i32]) -> Result<()> {
        if kept.is_empty() {
            let none = Array::from_f32(0.0);
            self.arrays[layer] = LayerArrays { keys: none.clone(), values: none };
            return Ok(());
        }
        let GrowingKv { n_kv, key_dim, value_dim, .. } = self.layers[layer];
        let (all, count) = (self.owners.len() as i32, kept.len() as i32);
        let (kept, rows) = (Array::from_slice(kept, &[count]), n_kv * self.places(layer));
        let cut = |array: &Array, dim: i32| -> Result<Array> {
            let slots = array.reshape(&[all, rows * dim])?;
            Ok(slots.take_axis(&kept, 0)?.reshape(&[count * rows, dim])?)
        };
        let arrays = &mut self.arrays[layer];
        (arrays.keys, arrays.values) =
            (cut(&arrays.keys, key_dim)?, cut(&arrays.values, value_dim)?);
        Ok(mlx_rs::transforms::eval([&arrays.keys, &arrays.values])?)
    }

    /// Forgets all slots but the `kept` ones, to which every layer was cut. Returns where these are
    /// now.
    pub(super) fn keep_slots(&mut self, kept: &[i32]) -> Vec<(SequenceId, usize)> {
        self.owners = kept.iter().map(|slot| self.owners[*slot as usize]).collect();
        self.used = vec![true; kept.len()];
        if kept.is_empty() {
            self.arrays.clear();
        }
        self.owners.iter().flatten().copied().zip(0..).collect()
    }

    /// Writes one value all over a slot. Lazy.
    fn fill(&mut self, slot: usize, value: f32) -> Result<()> {
        let value = Array::from_f32(value).as_dtype(self.dtype)?;
        for (at, GrowingKv { n_kv, .. }) in self.layers.iter().enumerate() {
            let rows = n_kv * self.places(at);
            let rows = slot as i32 * rows..(slot as i32 + 1) * rows;
            let arrays = &mut self.arrays[at];
            arrays.keys.try_index_mut((rows.clone(), ..), &value)?;
            arrays.values.try_index_mut((rows, ..), &value)?;
        }
        Ok(())
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.arrays_of(0..self.arrays.len())
    }

    /// Keys and values of some layers, layer by layer.
    pub(super) fn arrays_of(&self, layers: Range<usize>) -> impl Iterator<Item = &Array> {
        self.arrays[layers].iter().flat_map(|layer| [&layer.keys, &layer.values])
    }

    /// Rows of a position of a slot in the flat arrays of a layer, KV head by KV head.
    pub(super) fn rows(
        &self,
        layer: usize,
        slot: usize,
        position: i32,
    ) -> impl Iterator<Item = i32> + use<> {
        let (n_kv, places) = (self.layers[layer].n_kv, self.places(layer));
        (0..n_kv).map(move |head| (slot as i32 * n_kv + head) * places + position % places)
    }

    /// Writes rows `[rows, n_kv, dim]` at flat `indices` `[rows · n_kv]`.
    pub(super) fn write(
        &mut self,
        layer: usize,
        indices: &Array,
        keys: &Array,
        values: &Array,
    ) -> Result<()> {
        let arrays = &mut self.arrays[layer];
        let flat = |new: &Array| new.reshape(&[new.dim(0) * new.dim(1), 1, new.dim(2)]);
        // The old handle is dropped before anything is evaluated, so MLX writes in place.
        arrays.keys = scatter_single(&arrays.keys, indices, flat(keys)?, 0)?;
        arrays.values = scatter_single(&arrays.values, indices, flat(values)?, 0)?;
        Ok(())
    }

    /// Writes heads of new rows at their places, by nodes of our own.
    pub(super) fn write_rows(
        &mut self,
        layer: usize,
        keys: &HeadRows<'_>,
        values: &HeadRows<'_>,
        places: &RowPlaces,
    ) -> Result<()> {
        let capacity = self.places(layer);
        let arrays = &mut self.arrays[layer];
        // As above, the old handles are dropped before anything is evaluated.
        arrays.keys = write_rows(&arrays.keys, keys, places, capacity)?;
        arrays.values = write_rows(&arrays.values, values, places, capacity)?;
        Ok(())
    }

    /// Takes other arrays for those of [`CapacityClass::arrays`], in their order.
    #[cfg(target_os = "linux")]
    pub(super) fn replace(&mut self, arrays: &mut impl Iterator<Item = Array>) {
        self.replace_of(0..self.arrays.len(), arrays);
    }

    /// Takes other arrays for those of [`CapacityClass::arrays_of`], in their order.
    #[cfg(target_os = "linux")]
    pub(super) fn replace_of(
        &mut self,
        layers: Range<usize>,
        arrays: &mut impl Iterator<Item = Array>,
    ) {
        for layer in &mut self.arrays[layers] {
            if let (Some(keys), Some(values)) = (arrays.next(), arrays.next()) {
                *layer = LayerArrays { keys, values };
            }
        }
    }

    /// The keys and values of a layer, slot after slot, for nodes of our own.
    pub(super) fn stored(&self, layer: usize) -> StoredHeads<'_> {
        let LayerArrays { keys, values } = &self.arrays[layer];
        let kv_heads = self.layers[layer].n_kv;
        StoredHeads { keys, values, kv_heads, capacity: self.places(layer) }
    }

    /// Views `[slots, n_kv, places, dim]` of keys and values.
    pub(super) fn view(
        &self,
        layer: usize,
        slots: Range<usize>,
        places: Range<i32>,
    ) -> Result<(Array, Array)> {
        let GrowingKv { n_kv, key_dim, value_dim, .. } = self.layers[layer];
        let all = self.owners.len() as i32;
        let slots = slots.start as i32..slots.end as i32;
        let cut = |array: &Array, dim: i32| -> Result<Array> {
            let spread = array.reshape(&[all, n_kv, self.places(layer), dim])?;
            Ok(spread.try_index((slots.clone(), .., places.clone(), ..))?)
        };
        Ok((cut(&self.arrays[layer].keys, key_dim)?, cut(&self.arrays[layer].values, value_dim)?))
    }

    /// Writes positions of a slot from `first` on: `keys` and `values` `[1, n_kv, length, dim]`.
    pub(super) fn overwrite(
        &mut self,
        layer: usize,
        slot: usize,
        first: i32,
        keys: &Array,
        values: &Array,
    ) -> Result<()> {
        let positions = first..first + keys.dim(2);
        let rows: Vec<i32> = positions.flat_map(|at| self.rows(layer, slot, at)).collect();
        let indices = Array::from_slice(&rows, &[rows.len() as i32]);
        let by_row = |array: &Array| array.try_index((0, .., .., ..))?.transpose_axes(&[1, 0, 2]);
        let (keys, values) = (by_row(keys)?, by_row(values)?);
        self.write(layer, &indices, &keys, &values)?;
        mlx_rs::transforms::eval([&self.arrays[layer].keys, &self.arrays[layer].values])?;
        Ok(())
    }
}
