//! Scaled dot-product attention over grouped heads (arXiv 2305.13245) of rows that each have their
//! own keys: softmax(scale · q · Kᵀ) · V, float32. A row's result has the same bits whatever other
//! rows there are and however many threads (I1): its scores, its softmax and its sums are those of
//! [`crate::kernel`], each in an order that the row's own keys settle.
//!
//! The work is cut into pieces: a KV head and some neighbouring rows of one slot. The heads of its
//! group are rows of one product, so its keys are read once; unless threads would have no work,
//! which then get a part of the heads each. The scores of a piece stay in the cache. Keys that a
//! row does not attend to have a share of 0 and add nothing to its sums.

use std::cell::RefCell;
use std::ops::Range;

use crate::RowKeys;
use crate::kernel::{Kernels, PackBuffer, Product};
use crate::pool::{ROWS_PER_READ, run_pieces, threads_for};
use crate::quantized::FloatRows;
use crate::sgemm::kernels;

/// Keys and values of some slots. The row of (slot, KV head, position) is
/// (slot · KV heads + head) · capacity + position mod capacity: a slot may keep the last positions
/// alone.
#[derive(Clone, Copy, Debug)]
pub struct KeyValues<'a> {
    /// Rows of `key_dim`.
    pub keys: &'a [f32],
    /// Rows of `value_dim`.
    pub values: &'a [f32],
    /// KV heads of a slot.
    pub kv_heads: usize,
    /// Positions that a slot keeps.
    pub capacity: usize,
    /// Numbers of a key.
    pub key_dim: usize,
    /// Numbers of a value.
    pub value_dim: usize,
}

impl<'a> KeyValues<'a> {
    /// The keys and values of one head at neighbouring places.
    fn of_head(&self, slot: usize, head: usize, places: &Range<usize>) -> (&'a [f32], &'a [f32]) {
        let row = (slot * self.kv_heads + head) * self.capacity;
        let part = |numbers: &'a [f32], dim: usize| {
            &numbers[(row + places.start) * dim..(row + places.end) * dim]
        };
        (part(self.keys, self.key_dim), part(self.values, self.value_dim))
    }

    /// The places of positions in their order: all before the last place of the slot, and those
    /// that begin again at its first one. The cut is at the same position for every row.
    ///
    /// # Panics
    /// They are more than the slot keeps.
    fn places(&self, positions: &Range<usize>) -> [Range<usize>; 2] {
        let (count, capacity) = (positions.len(), self.capacity);
        assert!(count <= capacity, "expected at most {capacity} positions, found {positions:?}");
        let first = if count == 0 { 0 } else { positions.start % capacity };
        let end = (first + count).min(capacity);
        [first..end, 0..count - (end - first)]
    }
}

/// Rows of scores of a piece, at most: as many as a product takes without tiles.
const SCORE_ROWS: usize = 48;

/// Scores of a piece, at most, if it has more than one row: 512 KiB, of the second-level caches of
/// today's cores half.
const SCORES: usize = 128 * 1024;

/// Neighbouring query rows of one slot.
struct Block {
    slot: usize,
    rows: Range<usize>,
    /// The positions that any of the rows attends to.
    positions: Range<usize>,
}

/// Buffers of a thread, kept from piece to piece.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
    packed: PackBuffer,
}

/// Inputs and outputs that all pieces share.
struct Attention<'a> {
    kernels: &'a Kernels,
    queries: FloatRows<'a>,
    rows: &'a [RowKeys],
    stored: KeyValues<'a>,
    scale: f32,
    /// Query heads of a KV head.
    group: usize,
    out: *mut f32,
}

// SAFETY: pieces write different rows or columns of `out`, which is the caller's alone.
unsafe impl Sync for Attention<'_> {}

/// `queries`: the heads of each row one after another; `rows`: which keys each attends to → `out`,
/// for each row as many heads of `value_dim`.
///
/// # Panics
/// Queries are not whole groups of heads, `out` has another size, a row attends to positions that
/// its slot has not, or a slot is not stored.
pub fn attention(
    queries: FloatRows<'_>,
    rows: &[RowKeys],
    stored: &KeyValues<'_>,
    scale: f32,
    out: &mut [f32],
) {
    queries.check();
    let KeyValues { kv_heads, key_dim, value_dim, .. } = *stored;
    let group = queries.length / (kv_heads * key_dim);
    assert!(
        queries.length == group * kv_heads * key_dim
            && rows.len() == queries.count
            && out.len() == rows.len() * group * kv_heads * value_dim,
        "expected whole groups of {kv_heads} heads of {key_dim} and room for as many values of \
         {value_dim}, found {} rows of {}, keys of {} rows and room for {}",
        queries.count,
        queries.length,
        rows.len(),
        out.len()
    );
    let mut blocks = blocks(rows, group, SCORE_ROWS);
    let cost = |block: &Block| {
        let rows = (block.rows.len() * group).max(ROWS_PER_READ) / ROWS_PER_READ;
        block.positions.len() * (key_dim + value_dim) * rows
    };
    let work: usize = blocks.iter().map(cost).sum::<usize>() * kv_heads;
    let all = Attention {
        kernels: kernels(),
        queries,
        rows,
        stored: *stored,
        scale,
        group,
        out: out.as_mut_ptr(),
    };
    let threads = threads_for(work);
    if let Some(most) = balanced(&blocks, kv_heads, threads) {
        blocks = self::blocks(rows, group, most * group);
    }
    // One long row over few heads: its query heads are given out as well. Each part reads the keys.
    let parts = threads.div_ceil((blocks.len() * kv_heads).max(1)).clamp(1, group.max(1));
    let piece = |piece: usize| {
        thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());
        let (whole, part) = (piece / parts, piece % parts);
        let heads = group * part / parts..group * (part + 1) / parts;
        SCRATCH.with_borrow_mut(|scratch| {
            all.piece(&blocks[whole / kv_heads], whole % kv_heads, heads, scratch);
        });
    };
    run_pieces(blocks.len() * kv_heads * parts, threads, &piece);
}

/// Most rows of a block with which threads have about equally many pieces; `None` if they have so
/// already, or every block is a row. Else one of two threads takes two of three pieces while the
/// other waits.
fn balanced(blocks: &[Block], kv_heads: usize, threads: usize) -> Option<usize> {
    let largest = blocks.iter().map(|block| block.rows.len()).max().unwrap_or(0);
    let pieces = |most: usize| {
        let cut = |block: &Block| block.rows.len().div_ceil(most);
        blocks.iter().map(cut).sum::<usize>() * kv_heads
    };
    // Pieces that would have fitted while the last thread works, for each that there is.
    let waste = |pieces: usize| (pieces.next_multiple_of(threads) - pieces) * 8 / pieces.max(1);
    let mut sizes = (1..=4.min(largest)).map(|parts| largest.div_ceil(parts));
    sizes.find(|most| waste(pieces(*most)) == 0).filter(|most| *most < largest)
}

/// Neighbouring rows of one slot, as many in a block as its scores have room for, and at most as many
/// as make `most` rows of scores.
fn blocks(rows: &[RowKeys], group: usize, most: usize) -> Vec<Block> {
    let mut blocks = Vec::<Block>::new();
    for (row, RowKeys { slot, positions }) in rows.iter().enumerate() {
        let grown = blocks.last_mut().filter(|last| last.slot == *slot).and_then(|last| {
            let Range { start, end } = last.positions;
            let all = start.min(positions.start)..end.max(positions.end);
            let score_rows = (last.rows.len() + 1) * group;
            let fits = score_rows <= most && score_rows * all.len() <= SCORES;
            fits.then_some((last, all))
        });
        match grown {
            Some((last, all)) => (last.rows.end, last.positions) = (row + 1, all),
            None => {
                blocks.push(Block { slot: *slot, rows: row..row + 1, positions: positions.clone() })
            }
        }
    }
    blocks
}

impl Attention<'_> {
    /// The rows of a block and some query heads of one KV head.
    fn piece(&self, block: &Block, head: usize, heads: Range<usize>, scratch: &mut Scratch) {
        let KeyValues { kv_heads, key_dim, value_dim, .. } = self.stored;
        let places = self.stored.places(&block.positions);
        let (group, count) = (heads.len(), block.positions.len());
        let first_head = head * self.group + heads.start;
        let Scratch { queries, scores, sums, packed } = scratch;
        queries.clear();
        for row in block.rows.clone() {
            let row = &self.queries.numbers[row * self.queries.stride..];
            queries.extend_from_slice(&row[first_head * key_dim..][..group * key_dim]);
        }
        let m = block.rows.len() * group;
        scores.resize(m * count, 0.0);
        sums.resize(m * value_dim, 0.0);
        if count == 0 {
            sums.fill(0.0);
        } else {
            let mut column = 0;
            for places in places.iter().filter(|places| !places.is_empty()) {
                let (keys, _) = self.stored.of_head(block.slot, head, places);
                let columns = Columns { all: count, first: column, count: places.len() };
                let by_keys = by_keys((queries, m, key_dim), keys, scores, columns);
                // SAFETY: the parts were cut to the sizes that the product says.
                unsafe { self.multiply(&by_keys, packed) };
                column += places.len();
            }
            for (at, scores) in scores.chunks_exact_mut(count).enumerate() {
                let Range { start, end } = self.rows[block.rows.start + at / group].positions;
                let first = block.positions.start;
                // SAFETY: `kernels` are of this processor.
                unsafe {
                    (self.kernels.functions.softmax)(
                        scores,
                        self.scale,
                        start - first,
                        end.max(start) - first,
                    );
                }
            }
            let mut column = 0;
            for places in places.iter().filter(|places| !places.is_empty()) {
                let (_, values) = self.stored.of_head(block.slot, head, places);
                let columns = Columns { all: count, first: column, count: places.len() };
                let by_values = by_values((scores, m, columns), (values, value_dim), sums);
                // SAFETY: as above.
                unsafe { self.multiply(&by_values, packed) };
                column += places.len();
            }
        }
        for (row, sums) in block.rows.clone().zip(sums.chunks_exact(group * value_dim)) {
            let place = (row * kv_heads * self.group + first_head) * value_dim;
            // SAFETY: these heads of the row are `out`'s, and this piece's alone.
            unsafe {
                std::ptr::copy_nonoverlapping(sums.as_ptr(), self.out.add(place), sums.len());
            }
        }
    }

    /// # Safety
    /// The matrices are as large as the product says.
    unsafe fn multiply(&self, product: &Product, packed: &mut PackBuffer) {
        // SAFETY: the caller's; `kernels` are of this processor.
        unsafe {
            let product = self.kernels.prepare(product, product.m, packed);
            self.kernels.columns(&product, 0, product.n);
        }
    }
}

/// Neighbouring columns of a piece's scores.
#[derive(Clone, Copy)]
struct Columns {
    /// Columns of the scores.
    all: usize,
    first: usize,
    count: usize,
}

/// Scores of `m` rows of queries and some keys, both of `dim` numbers: A · Bᵀ.
fn by_keys(
    (queries, m, dim): (&[f32], usize, usize),
    keys: &[f32],
    scores: &mut [f32],
    columns: Columns,
) -> Product {
    Product {
        transposed: true,
        m,
        n: columns.count,
        k: dim,
        alpha: 1.0,
        a: queries.as_ptr(),
        a_row: dim,
        a_step: 1,
        packed: std::ptr::null(),
        b: keys.as_ptr(),
        ldb: dim,
        weight: std::ptr::null(),
        beta: 0.0,
        c: scores[columns.first..].as_mut_ptr(),
        ldc: columns.all,
    }
}

/// Sums of some values by their shares, `m` rows of `dim`: A · B, added to what is there after the
/// first columns.
fn by_values(
    (shares, m, columns): (&[f32], usize, Columns),
    (values, dim): (&[f32], usize),
    sums: &mut [f32],
) -> Product {
    Product {
        transposed: false,
        m,
        n: dim,
        k: columns.count,
        alpha: 1.0,
        a: shares[columns.first..].as_ptr(),
        a_row: columns.all,
        a_step: 1,
        packed: std::ptr::null(),
        b: values.as_ptr(),
        ldb: dim,
        weight: std::ptr::null(),
        beta: if columns.first == 0 { 0.0 } else { 1.0 },
        c: sums.as_mut_ptr(),
        ldc: dim,
    }
}

#[cfg(test)]
mod tests;
