//! A whole pass over the store as one node: its memory goes into the node and comes out of it, in
//! place.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::Array;

use super::KvStore;
use super::access::{AccessPlan, BatchRows};
use super::by_row::RowReads;
use super::step_rows::{Causality, Reach};
use crate::error::Result;
use crate::layers::{PassPlaces, PassReads, PassWrites};
use crate::segment::Segment;

/// Inputs of a pass.
pub(crate) struct PassMemory {
    pub(crate) places: PassPlaces,
    /// The memory, as [`PassPlaces`] lists it.
    pub(crate) arrays: Vec<Array>,
    /// The tape of the pass before of each recurrent layer, if there is one.
    pub(crate) tapes: Vec<Array>,
    /// Numbers of a row of this pass's tape in each recurrent layer.
    pub(crate) tape_widths: Vec<usize>,
}

/// Arrays that a pass gives.
pub(crate) struct PassArrays {
    /// What the arrays of [`PassMemory`] become, in the same order.
    pub(crate) memory: Vec<Array>,
    /// The tape of each recurrent layer; none without rows on it.
    pub(crate) tapes: Vec<Array>,
}

impl KvStore {
    /// Whether passes may be nodes of our own: the store is of float32 and on the CPU.
    pub(crate) fn takes_passes(&self) -> bool {
        self.by_pass && self.by_row
    }

    /// Lets every layer write and read by nodes of its own, to compare both ways.
    #[cfg(test)]
    pub(crate) fn refuse_passes(&mut self) {
        self.by_pass = false;
    }

    /// Lets `make` build the node that writes and reads all rows of `segments`. Lazy. `make` returns
    /// what the store holds from now on, and a result. `images` as in [`super::AttentionParams`].
    ///
    /// # Errors
    /// A segment does not start at its sequence's length, or the pass before was not committed;
    /// those of `make`.
    pub(crate) fn pass<T>(
        &mut self,
        segments: &[Segment],
        images: &[Range<i32>],
        make: impl FnOnce(PassMemory) -> Result<(PassArrays, T)>,
    ) -> Result<T> {
        self.changes();
        self.make_room(segments)?;
        let batch = BatchRows { segments, queries: None, images };
        let mut access = AccessPlan::new(batch, &self.sequences)?;
        let writes = access.row_writes();
        let classes: Vec<usize> = writes.iter().map(|write| write.class).collect();
        let reads = self.pass_reads(&mut access, &classes, images);
        let (slots, tape_rows) = self.states.begin_pass(segments, self.by_row)?;
        let of_layer = |layer: &super::GrowingKv| {
            [layer.n_kv, layer.key_dim, layer.value_dim].map(|size| size as usize)
        };
        let places = PassPlaces {
            writes: writes
                .iter()
                .map(|write| PassWrites {
                    kept: self.classes[write.class].places_of_layers(),
                    places: write.places.clone(),
                })
                .collect(),
            reads,
            heads: self.layers.growing.iter().map(of_layer).collect(),
            slots,
            tape_rows,
        };
        let mut arrays: Vec<Array> =
            classes.iter().flat_map(|class| self.classes[*class].arrays()).cloned().collect();
        arrays.extend(self.states.pass_states());
        let memory = PassMemory {
            places,
            arrays,
            tapes: self.states.tapes().cloned().collect(),
            tape_widths: self.states.tape_widths(),
        };
        let (PassArrays { memory, tapes }, result) = make(memory)?;
        // The old handles are dropped before anything is evaluated, so that memory is written in
        // place.
        let mut memory = memory.into_iter();
        for class in classes {
            self.classes[class].replace(&mut memory);
        }
        self.states.end_pass(memory, tapes);
        Ok(result)
    }

    /// As [`KvStore::pass`], of layers with keys and values alone and now: `compute` is called with the
    /// memory itself.
    ///
    /// # Errors
    /// Those of [`KvStore::pass`], and memory that is not float32 in order.
    #[cfg(target_os = "linux")]
    pub(crate) fn pass_on_host<T>(
        &mut self,
        segments: &[Segment],
        compute: impl FnOnce(PassPlaces, &mut [&mut [f32]]) -> T,
    ) -> Result<T> {
        self.pass(segments, &[], |memory| {
            let PassMemory { places, arrays, .. } = memory;
            // Nothing that reads or writes them is pending after this.
            mlx_rs::transforms::eval(&arrays)?;
            let numbers = |array: &Array| {
                let count = array.try_as_slice::<f32>()?.len();
                // SAFETY: the array is evaluated, of this type and in order. The store is its owner
                // and is borrowed, and each array has memory of its own. MLX writes an array's
                // memory in place too where nothing else owns it.
                Ok(unsafe {
                    let place = mlx_sys::mlx_array_data_float32(array.as_ptr()).cast_mut();
                    std::slice::from_raw_parts_mut(place, count)
                })
            };
            let mut slices = arrays.iter().map(numbers).collect::<Result<Vec<_>>>()?;
            let result = compute(places, &mut slices);
            Ok((PassArrays { memory: arrays, tapes: vec![] }, result))
        })
    }

    /// For each layer with keys and values its reads, the same list for layers of one window.
    fn pass_reads(
        &self,
        access: &mut AccessPlan,
        classes: &[usize],
        images: &[Range<i32>],
    ) -> Vec<Arc<[PassReads]>> {
        let mut lists: Vec<(Causality, Arc<[PassReads]>)> = vec![];
        let mut of_window = |window: Option<i32>| {
            let causality = Causality { window, reach: Reach::in_image(window, images) };
            if let Some((_, list)) = lists.iter().find(|(of, _)| *of == causality) {
                return list.clone();
            }
            let read = |read: &RowReads| PassReads {
                class: classes.iter().position(|class| *class == read.class).unwrap_or_default(),
                rows: read.rows.start as usize..read.rows.end as usize,
                keys: read.keys.clone(),
            };
            let list: Arc<[PassReads]> = access.row_reads(causality).iter().map(read).collect();
            lists.push((causality, list.clone()));
            list
        };
        self.layers.growing.iter().map(|layer| of_window(layer.window)).collect()
    }
}
