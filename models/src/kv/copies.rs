//! Rows that are copied out of slots, into slots and between slots: one node each, which copies the
//! rows of a head as a whole.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::transforms::eval;
use mlx_sys::HostOutput;

use super::{CopiedRows, KvRows, KvStore, SlotAddress};
use crate::error::Result;
use crate::layers::host_nodes;

/// Keys or values of a layer.
#[derive(Clone, Copy, Debug)]
struct Part {
    heads: usize,
    dim: usize,
    /// Positions that a slot keeps.
    kept: usize,
    /// Whether these are all positions.
    is_whole: bool,
}

impl Part {
    /// Numbers of some places of a head of a slot in the class's array.
    fn of_head(self, slot: SlotAddress, head: usize, rows: Range<usize>) -> Range<usize> {
        let first = (slot.index * self.heads + head) * self.kept;
        (first + rows.start) * self.dim..(first + rows.end) * self.dim
    }
}

impl KvStore {
    /// Keys and values of some layers, in the order of a class's arrays.
    fn parts(&self, class: usize, layers: Range<usize>) -> Vec<Part> {
        let of_layer = |at: usize| {
            let layer = &self.layers.growing[at];
            let [heads, key_dim, value_dim] =
                [layer.n_kv, layer.key_dim, layer.value_dim].map(|size| size as usize);
            let (kept, is_whole) =
                (self.classes[class].places(at) as usize, self.layers.rings[at].is_none());
            [key_dim, value_dim].map(|dim| Part { heads, dim, kept, is_whole })
        };
        layers.flat_map(of_layer).collect()
    }

    /// `count` pieces of `rows` rows each of a slot, from row `start` on: layer by layer keys
    /// `[heads, rows, dim]`, then values. Computed when this returns.
    pub(super) fn cut_pieces(
        &self,
        slot: SlotAddress,
        start: usize,
        rows: usize,
        count: usize,
    ) -> Result<Vec<Array>> {
        let class = &self.classes[slot.class];
        let parts = self.parts(slot.class, 0..self.layers.growing.len());
        let whole = parts.iter().filter(|part| part.is_whole);
        let numbers: usize = whole.map(|part| part.heads * rows * part.dim).sum();
        let shape = [1, numbers as i32];
        let inputs: Vec<&Array> = class.arrays().collect();
        let shapes = vec![&shape[..]; count];
        let made = host_nodes(&inputs, &shapes, HostOutput::Fresh, move |inputs, outputs| {
            for (piece, out) in outputs.iter_mut().enumerate() {
                let (first, mut to) = (start + piece * rows, 0);
                let whole = parts.iter().zip(inputs).filter(|(part, _)| part.is_whole);
                for (part, stored) in whole {
                    for head in 0..part.heads {
                        let from = part.of_head(slot, head, first..first + rows);
                        let length = from.len();
                        out[to..to + length].copy_from_slice(&stored.numbers()[from]);
                        to += length;
                    }
                }
            }
        })?;
        eval(&made)?;
        Ok(made)
    }

    /// Writes the first `length` rows of pieces of `rows` rows each into a slot. Computed when this
    /// returns.
    pub(super) fn place_pieces(
        &mut self,
        slot: SlotAddress,
        pieces: &[&KvRows],
        rows: usize,
        length: usize,
    ) -> Result<()> {
        let layers = 0..self.layers.growing.len();
        let parts = self.parts(slot.class, layers.clone());
        let sources: Vec<&Array> = pieces.iter().map(|piece| &piece.numbers).collect();
        self.write_slots(slot.class, layers, &sources, move |sources, stored| {
            for (piece, source) in sources.iter().enumerate() {
                let (first, mut from) = (piece * rows, 0);
                let count = length.saturating_sub(first).min(rows);
                let whole = parts.iter().zip(stored.iter_mut()).filter(|(part, _)| part.is_whole);
                for (part, stored) in whole {
                    for head in 0..part.heads {
                        let to = part.of_head(slot, head, first..first + count);
                        let numbers = &source[from..from + to.len()];
                        stored[to].copy_from_slice(numbers);
                        from += rows * part.dim;
                    }
                }
            }
        })
    }

    /// Copies rows of some layers of a slot to another. Computed when this returns.
    pub(super) fn move_rows(
        &mut self,
        from: SlotAddress,
        to: SlotAddress,
        rows: CopiedRows,
        layers: Range<usize>,
    ) -> Result<()> {
        let [source, target] = [from, to].map(|slot| self.parts(slot.class, layers.clone()));
        let places = move |part: &Part| {
            let Range { start, end } = rows.places(part.kept as i32);
            start as usize..end as usize
        };
        let is_same = from.class == to.class;
        let arrays: Vec<Array> = match is_same {
            // The arrays that are written.
            true => vec![],
            false => self.classes[from.class].arrays_of(layers.clone()).cloned().collect(),
        };
        let sources: Vec<&Array> = arrays.iter().collect();
        self.write_slots(to.class, layers, &sources, move |sources, stored| {
            let parts = source.iter().zip(&target).zip(stored.iter_mut()).enumerate();
            for (at, ((source, target), stored)) in parts {
                for head in 0..source.heads {
                    let numbers = source.of_head(from, head, places(source));
                    let place = target.of_head(to, head, places(source));
                    match sources.get(at) {
                        Some(source) => stored[place].copy_from_slice(&source[numbers]),
                        None => stored.copy_within(numbers, place.start),
                    }
                }
            }
        })
    }

    /// Lets `write` change the arrays of some layers of a class in place. It gets the numbers of
    /// `sources` as well.
    fn write_slots(
        &mut self,
        class: usize,
        layers: Range<usize>,
        sources: &[&Array],
        write: impl Fn(&[&[f32]], &mut [&mut [f32]]) + Send + Sync + 'static,
    ) -> Result<()> {
        let arrays: Vec<Array> = self.classes[class].arrays_of(layers.clone()).cloned().collect();
        let inputs: Vec<&Array> = arrays.iter().chain(sources.iter().copied()).collect();
        let shapes: Vec<&[i32]> = arrays.iter().map(Array::shape).collect();
        let output = HostOutput::InPlace(arrays.len());
        let made = host_nodes(&inputs, &shapes, output, move |inputs, outputs| {
            let sources: Vec<&[f32]> = inputs.iter().map(|rows| rows.numbers()).collect();
            write(&sources, outputs);
        })?;
        drop(arrays);
        // As elsewhere, the old handles are dropped before anything is evaluated.
        self.classes[class].replace_of(layers.clone(), &mut made.into_iter());
        Ok(eval(self.classes[class].arrays_of(layers))?)
    }
}
