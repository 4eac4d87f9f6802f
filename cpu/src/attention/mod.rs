//! Scaled dot-product attention over grouped heads (arXiv 2305.13245) of rows that each have their
//! own keys: softmax(scale · q · Kᵀ) · V, float32. A row's result has the same bits whatever other
//! rows there are and however many threads (I1): its scores, its softmax and its sums are those of
//! [`crate::kernel`], each in an order that the row's own keys settle.
//!
//! The work is cut into pieces: a KV head and some neighbouring rows of one slot. The heads of its
//! group are rows of one product, so its keys are read once. Positions are taken in chunks of 256,
//! with a softmax over each alone; then the chunks' sums are added in their order, each by its share
//! (arXiv 1805.02867). So the scores of a piece stay in the cache, and where pieces are few, threads
//! take chunks. Keys that a row does not attend to have a share of 0 and add nothing to its sums.

use std::cell::RefCell;
use std::mem;
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

/// Positions of a chunk. Chunks begin at multiples of it, whatever rows attend to them.
const CHUNK: usize = 256;

/// Numbers of all chunks' sums, at most, if chunks are given out to threads: 16 MiB.
const PARTS: usize = 4 << 20;

/// Neighbouring query rows of one slot.
struct Block {
    slot: usize,
    rows: Range<usize>,
    /// The positions that any of the rows attends to.
    positions: Range<usize>,
}

impl Block {
    /// The chunks in which its positions lie.
    fn chunks(&self) -> Range<usize> {
        let Range { start, end } = self.positions;
        if start == end { 0..0 } else { start / CHUNK..end.div_ceil(CHUNK) }
    }

    /// Its positions of a chunk.
    fn of_chunk(&self, chunk: usize) -> Range<usize> {
        let Range { start, end } = self.positions;
        start.max(chunk * CHUNK)..end.min((chunk + 1) * CHUNK)
    }
}

/// Buffers of a thread, kept from piece to piece.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
    of_chunk: Vec<f32>,
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
    // Few pieces of many positions: threads get chunks of them.
    let chunks: usize = blocks.iter().map(|block| block.chunks().len()).sum();
    let numbers = |block: &Block| all.numbers(block) * block.chunks().len() * kv_heads;
    let numbers = blocks.iter().map(numbers).sum();
    let few = threads > 1 && blocks.len() * kv_heads < 4 * threads;
    if few && chunks > blocks.len() && numbers <= PARTS {
        return all.by_chunks(&blocks, numbers, threads);
    }
    if let Some(most) = balanced(&blocks, kv_heads, threads) {
        blocks = self::blocks(rows, group, most * group);
    }
    let piece = |piece: usize| {
        SCRATCH.with_borrow_mut(|scratch| {
            all.whole(&blocks[piece / kv_heads], piece % kv_heads, scratch);
        });
    };
    run_pieces(blocks.len() * kv_heads, threads, &piece);
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

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

/// Neighbouring rows of one slot, as many in a block as make `most` rows of scores.
fn blocks(rows: &[RowKeys], group: usize, most: usize) -> Vec<Block> {
    let mut blocks = Vec::<Block>::new();
    for (row, RowKeys { slot, positions }) in rows.iter().enumerate() {
        let grown = blocks.last_mut().filter(|last| last.slot == *slot).and_then(|last| {
            let Range { start, end } = last.positions;
            let all = start.min(positions.start)..end.max(positions.end);
            ((last.rows.len() + 1) * group <= most).then_some((last, all))
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

/// The sums of some rows over some positions: for each row its sums of values, then for each the
/// largest score and the sum of the powers.
struct Sums<'a> {
    values: &'a mut [f32],
    most: &'a mut [f32],
    total: &'a mut [f32],
}

impl<'a> Sums<'a> {
    fn new(numbers: &'a mut [f32], value_dim: usize) -> Self {
        let rows = numbers.len() / (value_dim + 2);
        let (values, rest) = numbers.split_at_mut(rows * value_dim);
        let (most, total) = rest.split_at_mut(rows);
        Self { values, most, total }
    }

    /// Adds the sums over the positions that follow. Powers of both are taken to the larger of the
    /// largest scores.
    fn add(&mut self, next: &Sums<'_>, scale: f32) {
        let dim = self.values.len() / self.most.len().max(1);
        for (row, values) in self.values.chunks_exact_mut(dim.max(1)).enumerate() {
            let next_values = &next.values[row * dim..][..dim];
            if next.total[row] == 0.0 {
                continue;
            }
            if self.total[row] == 0.0 {
                values.copy_from_slice(next_values);
                (self.most[row], self.total[row]) = (next.most[row], next.total[row]);
                continue;
            }
            let most = self.most[row].max(next.most[row]);
            let [own, other] =
                [self.most[row], next.most[row]].map(|of| (scale * (of - most)).exp());
            for (value, next) in values.iter_mut().zip(next_values) {
                *value = *value * own + *next * other;
            }
            self.total[row] = self.total[row] * own + next.total[row] * other;
            self.most[row] = most;
        }
    }
}

impl Attention<'_> {
    /// Numbers of the [`Sums`] of a block and one KV head.
    fn numbers(&self, block: &Block) -> usize {
        block.rows.len() * self.group * (self.stored.value_dim + 2)
    }

    /// The rows of a block and the query heads of one KV head, chunk after chunk.
    fn whole(&self, block: &Block, head: usize, scratch: &mut Scratch) {
        let (numbers, dim) = (self.numbers(block), self.stored.value_dim);
        let (mut sums, mut next) = (mem::take(&mut scratch.sums), mem::take(&mut scratch.of_chunk));
        sums.clear();
        sums.resize(numbers, 0.0);
        next.resize(numbers, 0.0);
        let mut all = Sums::new(&mut sums, dim);
        let queries = self.queries(block, head, scratch);
        for chunk in block.chunks() {
            let mut next = Sums::new(&mut next, dim);
            self.chunk(block, head, (&queries, chunk), &mut scratch.scores, &mut next);
            all.add(&next, self.scale);
        }
        self.write(block, head, &all);
        (scratch.sums, scratch.of_chunk) = (sums, next);
    }

    /// All blocks and heads, their chunks given out to threads. The chunks' sums are added in their
    /// order afterwards, as [`Attention::whole`] does, so the bits are the same.
    fn by_chunks(&self, blocks: &[Block], numbers: usize, threads: usize) {
        thread_local!(static PARTS: RefCell<Vec<f32>> = const { RefCell::new(vec![]) });
        struct Place(*mut f32);
        // SAFETY: pieces write numbers of their own.
        unsafe impl Sync for Place {}
        let heads = 0..self.stored.kv_heads;
        let (mut pieces, mut first) = (vec![], 0);
        for (block, head) in blocks.iter().flat_map(|block| heads.clone().map(move |h| (block, h)))
        {
            for chunk in block.chunks() {
                pieces.push((block, head, chunk, first));
                first += self.numbers(block);
            }
        }
        let dim = self.stored.value_dim;
        PARTS.with_borrow_mut(|parts| {
            parts.resize(numbers.max(parts.len()), 0.0);
            let place = Place(parts.as_mut_ptr());
            let place = &place;
            run_pieces(pieces.len(), threads, &|piece: usize| {
                let (block, head, chunk, first) = pieces[piece];
                // SAFETY: there are as many numbers, and they are this piece's alone.
                let sums = unsafe {
                    std::slice::from_raw_parts_mut(place.0.add(first), self.numbers(block))
                };
                SCRATCH.with_borrow_mut(|scratch| {
                    let queries = self.queries(block, head, scratch);
                    let sums = &mut Sums::new(sums, dim);
                    self.chunk(block, head, (&queries, chunk), &mut scratch.scores, sums);
                });
            });
            let mut rest = parts.as_mut_slice();
            for (block, head) in
                blocks.iter().flat_map(|block| heads.clone().map(move |h| (block, h)))
            {
                let numbers = self.numbers(block);
                let (own, other) = rest.split_at_mut(numbers * block.chunks().len());
                rest = other;
                let mut chunks = own.chunks_exact_mut(numbers.max(1));
                let Some(first) = chunks.next() else {
                    self.write(block, head, &Sums::new(&mut vec![0.0; numbers], dim));
                    continue;
                };
                let mut sums = Sums::new(first, dim);
                chunks.for_each(|next| sums.add(&Sums::new(next, dim), self.scale));
                self.write(block, head, &sums);
            }
        });
    }

    /// The query heads of a KV head of all rows, ready for products by keys. They lie in `scratch`.
    fn queries(&self, block: &Block, head: usize, scratch: &mut Scratch) -> Product {
        let (group, dim) = (self.group, self.stored.key_dim);
        let Scratch { queries, packed, .. } = scratch;
        queries.clear();
        for row in block.rows.clone() {
            let row = &self.queries.numbers[row * self.queries.stride..];
            queries.extend_from_slice(&row[head * group * dim..][..group * dim]);
        }
        let product = by_keys(queries, block.rows.len() * group, dim);
        // SAFETY: the queries are as many as the product says.
        unsafe { self.kernels.prepare(&product, product.m, packed) }
    }

    /// The sums of a block and the query heads of one KV head over one chunk.
    fn chunk(
        &self,
        block: &Block,
        head: usize,
        (queries, chunk): (&Product, usize),
        scores: &mut Vec<f32>,
        sums: &mut Sums<'_>,
    ) {
        let (positions, m) = (block.of_chunk(chunk), queries.m);
        let (count, places) = (positions.len(), self.stored.places(&positions));
        scores.resize(m * count, 0.0);
        let parts = || places.iter().filter(|places| !places.is_empty());
        let mut column = 0;
        for places in parts() {
            let (keys, _) = self.stored.of_head(block.slot, head, places);
            let (b, c) = (keys.as_ptr(), scores[column..].as_mut_ptr());
            let product = Product { n: places.len(), b, c, ldc: count, ..*queries };
            // SAFETY: keys and scores were cut to the sizes that the product says, and the queries
            // are prepared; `kernels` are of this processor.
            unsafe { self.kernels.columns(&product, 0, product.n) };
            column += places.len();
        }
        for (at, scores) in scores.chunks_exact_mut(count).enumerate() {
            let Range { start, end } = self.rows[block.rows.start + at / self.group].positions;
            let [from, to] = [start, end.max(start)]
                .map(|at| at.clamp(positions.start, positions.end) - positions.start);
            // SAFETY: `kernels` are of this processor.
            [sums.most[at], sums.total[at]] =
                unsafe { (self.kernels.functions.powers)(scores, self.scale, from, to) };
        }
        let mut column = 0;
        for places in parts() {
            let (_, values) = self.stored.of_head(block.slot, head, places);
            let columns = Columns { all: count, first: column, count: places.len() };
            let values = (values, self.stored.value_dim);
            let product = by_values((scores, m, columns), values, sums.values);
            // SAFETY: the parts were cut to the sizes that the product says, which needs no
            // preparation: B is not transposed.
            unsafe { self.kernels.columns(&product, 0, product.n) };
            column += places.len();
        }
    }

    /// Writes the sums of a block and the query heads of one KV head, each over its sum of powers. A
    /// row without positions gives zeros.
    fn write(&self, block: &Block, head: usize, sums: &Sums<'_>) {
        let KeyValues { kv_heads, value_dim, .. } = self.stored;
        for (at, values) in sums.values.chunks_exact(value_dim.max(1)).enumerate() {
            let (row, query) = (block.rows.start + at / self.group, at % self.group);
            let place = ((row * kv_heads + head) * self.group + query) * value_dim;
            let total = sums.total[at];
            let share = if total == 0.0 { 0.0 } else { 1.0 / total };
            // SAFETY: this head of the row is `out`'s, and this piece's alone.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.add(place), value_dim) };
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value * share);
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

/// Scores of `m` rows of queries and keys, both of `dim` numbers: A · Bᵀ, without keys and scores.
fn by_keys(queries: &[f32], m: usize, dim: usize) -> Product {
    Product {
        transposed: true,
        m,
        n: 0,
        k: dim,
        alpha: 1.0,
        a: queries.as_ptr(),
        a_row: dim,
        a_step: 1,
        packed: std::ptr::null(),
        b: std::ptr::null(),
        ldb: dim,
        weight: std::ptr::null(),
        beta: 0.0,
        c: std::ptr::null_mut(),
        ldc: 0,
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
