//! The gated delta rule for many rows of a sequence by matrix products, in chunks of 64 rows (arXiv
//! 2412.06464, section 3.3, with the WY form of arXiv 2406.06484).
//!
//! S is the state before a chunk; K, Q, V its rows' keys, queries and values; γᵢⱼ the decay from
//! after row j until after row i, γᵢ that from the chunk's begin. Δ is what the rows learn:
//!
//! ```text
//!  (I + L) Δ = β (V − γ K S)       Lᵢⱼ = βᵢ γᵢⱼ kᵢ·kⱼ for j < i
//!  Y = γ Q S + A Δ                 Aᵢⱼ = γᵢⱼ qᵢ·kⱼ for j ≤ i
//!  S' = γ₆₄ S + Σⱼ γ₆₄ⱼ kⱼ δⱼᵀ
//! ```
//!
//! Only Δ and S' of a chunk need the chunk before. All else is computed for all chunks of all slots
//! at once.
//!
//! Chunks end where a row's position in its sequence is a multiple of 64. A chunk of which a pass
//! has a part is filled with rows that change nothing (β = 0, no decay, key 0), so each chunk is
//! computed by products of the same shapes. Passes that end at such borders leave the bits of one
//! pass over all rows, if MLX's products do not depend on the number of chunks. A pass that ends
//! within a chunk leaves the state of its last row; numbers then differ by roundings alone.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{addmm, concatenate, exp, pad};
use paceline_checkpoint::RecurrentSizes;

use super::rows::SlotState;
use super::triangle::{CHUNK, Triangle};
use super::{DeltaRule, Gates, silu, unit};
use crate::error::Result;

/// Rows of one slot that are computed by chunks.
pub(super) struct Span<'a> {
    /// Rows of the pass.
    rows: Range<i32>,
    /// Place of the first row in its chunk.
    offset: i32,
    state: &'a mut SlotState,
}

impl<'a> Span<'a> {
    /// `rows` of a pass, of which the first has a position in its sequence.
    pub(super) fn new(rows: Range<usize>, position: i32, state: &'a mut SlotState) -> Self {
        Self { rows: rows.start as i32..rows.end as i32, offset: position % CHUNK, state }
    }

    fn count(&self) -> i32 {
        self.rows.len() as i32
    }

    /// Chunks of which the span has rows.
    fn chunks(&self) -> i32 {
        (self.offset + self.count() + CHUNK - 1) / CHUNK
    }

    /// `x` `[rows, width]` filled with zeros to whole chunks.
    fn filled(&self, x: Array) -> Result<Array> {
        let after = CHUNK * self.chunks() - self.offset - self.count();
        if self.offset == 0 && after == 0 {
            return Ok(x);
        }
        Ok(pad(x, &[(self.offset, after), (0, 0)], None, None)?)
    }
}

/// Advances the states of `spans` by their rows of `inputs` `[rows, width]`. Returns the values of
/// each span's rows `[rows, values]`.
pub(super) fn advance(
    rule: &DeltaRule,
    inputs: &Array,
    spans: &mut [Span<'_>],
) -> Result<Vec<Array>> {
    if spans.is_empty() {
        return Ok(vec![]);
    }
    let rows = ChunkRows::new(rule, inputs, spans)?;
    let products = Products::new(&rows)?;
    let values = products.advance(rule.sizes, spans)?;
    let mut first = 0;
    let mut outputs = Vec::with_capacity(spans.len());
    for span in spans {
        let from = first + span.offset;
        outputs.push(values.try_index((from..from + span.count(), ..))?);
        first += CHUNK * span.chunks();
    }
    Ok(outputs)
}

/// Rows after the convolution, in whole chunks. C chunks, H key heads, G value heads of each.
struct ChunkRows {
    /// Of unit length, divided by the root of their size `[C, H, 1, 64, key_dim]`.
    queries: Array,
    /// Of unit length `[C, H, 1, 64, key_dim]`.
    keys: Array,
    /// `[C, H, G, 64, value_dim]`.
    values: Array,
    /// Each `[C, H, G, 64]`.
    gates: Gates,
}

impl ChunkRows {
    /// Reads the rows of all spans. The convolution's inputs of the spans' states move on.
    fn new(rule: &DeltaRule, inputs: &Array, spans: &mut [Span<'_>]) -> Result<Self> {
        let all = rule.gates(inputs)?;
        let (mut mixed, mut betas, mut log_decays) = (vec![], vec![], vec![]);
        for span in spans.iter_mut() {
            let rows = |x: &Array| x.try_index((span.rows.clone(), ..));
            let (beta, log_decay) = (rows(&all.betas)?, rows(&all.log_decays)?);
            let channels = rule.sizes.channels() as i32;
            let own = inputs.try_index((span.rows.clone(), ..channels))?;
            let convolved = convolve(rule, &own, span.state)?;
            mixed.push(span.filled(convolved)?);
            betas.push(span.filled(beta)?);
            log_decays.push(span.filled(log_decay)?);
        }
        let RecurrentSizes { key_heads, value_heads, key_dim, value_dim, .. } = rule.sizes;
        let group = value_heads / key_heads;
        let [key_heads, group, key_dim, value_dim] =
            [key_heads, group, key_dim, value_dim].map(|size| size as i32);
        let gate = |parts: &[Array]| -> Result<Array> {
            let rows = joined(parts)?.reshape(&[-1, CHUNK, key_heads, group])?;
            Ok(rows.transpose_axes(&[0, 2, 3, 1])?)
        };
        let mixed = joined(&mixed)?;
        let keys = key_heads * key_dim;
        let heads = mixed.try_index((.., ..2 * keys))?;
        let heads = unit(&heads.reshape(&[-1, CHUNK, 2 * key_heads, 1, key_dim])?)?;
        let heads = heads.transpose_axes(&[0, 2, 3, 1, 4])?;
        let queries = heads.try_index((.., ..key_heads))?;
        let values = mixed.try_index((.., 2 * keys..))?;
        let values = values.reshape(&[-1, CHUNK, key_heads, group, value_dim])?;
        Ok(Self {
            queries: queries.multiply(Array::from_f32((key_dim as f32).sqrt().recip()))?,
            keys: heads.try_index((.., key_heads..))?,
            values: values.transpose_axes(&[0, 2, 3, 1, 4])?,
            gates: Gates { betas: gate(&betas)?, log_decays: gate(&log_decays)? },
        })
    }
}

/// silu of the weighted sum of each row of `rows` `[rows, channels]` and the rows before it.
fn convolve(rule: &DeltaRule, rows: &Array, state: &mut SlotState) -> Result<Array> {
    let window = concatenate(&[&state.tail, rows], 0)?;
    let count = rows.dim(0);
    let tap = |tap: i32| -> Result<Array> {
        let weight = rule.convolution.try_index((tap..tap + 1, ..))?;
        Ok(window.try_index((tap..tap + count, ..))?.multiply(weight)?)
    };
    let mut sum = tap(0)?;
    for at in 1..rule.sizes.taps as i32 {
        sum = sum.add(tap(at)?)?;
    }
    state.tail = window.try_index((count.., ..))?;
    silu(&sum)
}

/// All that chunks compute without a state. C chunks, H key heads, G value heads of each.
struct Products {
    /// What rows learn after a state of zeros, (I + L)⁻¹ β V: `[C, H, G, 64, value_dim]`.
    fresh: Array,
    /// The part of the state that the keys already explain, (I + L)⁻¹ β γ K:
    /// `[C, H, G, 64, key_dim]`.
    known: Array,
    /// Keys as they are after the chunk, as columns: `[C, H, G, key_dim, 64]`.
    learned_keys: Array,
    /// Decay by the whole chunk: `[C, H, G, 1, 1]`.
    decays: Array,
    /// γ Q: `[C, H, G, 64, key_dim]`.
    queries: Array,
    /// A: `[C, H, G, 64, 64]`.
    scores: Array,
}

impl Products {
    fn new(rows: &ChunkRows) -> Result<Self> {
        let ChunkRows { queries, keys, values, gates: Gates { betas, log_decays } } = rows;
        let triangle = Triangle::new()?;
        // Sums from row to row, not differences of sums from the chunk's begin: those lose the
        // small decays of rows that come after large ones.
        let steps = log_decays.expand_dims(4)?.multiply(&triangle.below)?;
        let between = exp(steps.cumsum(3, None, None)?)?;
        let from_begin = exp(log_decays.cumsum(3, None, None)?)?;
        let to_end = between.try_index((.., .., .., CHUNK - 1.., ..))?.swap_axes(3, 4)?;
        let as_columns = keys.swap_axes(3, 4)?;
        let alike = keys.matmul(&as_columns)?.multiply(&between)?;
        let scores = queries.matmul(&as_columns)?.multiply(&between)?;
        let inverse = triangle.inverse(&alike.multiply(betas.expand_dims(4)?)?)?;
        let learning = inverse.multiply(betas.expand_dims(3)?)?;
        let known = learning.multiply(from_begin.expand_dims(3)?)?.matmul(keys)?;
        let from_begin = from_begin.expand_dims(4)?;
        Ok(Self {
            fresh: learning.matmul(values)?,
            known,
            learned_keys: keys.multiply(to_end)?.swap_axes(3, 4)?,
            decays: from_begin.try_index((.., .., .., CHUNK - 1.., ..))?,
            queries: queries.multiply(from_begin)?,
            scores: scores.multiply(&triangle.lower)?,
        })
    }

    /// Passes the states of `spans` from chunk to chunk. Returns the values of all rows, filling
    /// ones included: `[64 · C, values]`.
    fn advance(&self, sizes: RecurrentSizes, spans: &mut [Span<'_>]) -> Result<Array> {
        let chunks: i32 = spans.iter().map(Span::chunks).sum();
        let by_chunk = |x: &Array| x.split_equal(chunks, 0);
        let (fresh, known) = (by_chunk(&self.fresh)?, by_chunk(&self.known)?);
        let (keys, decays) = (by_chunk(&self.learned_keys)?, by_chunk(&self.decays)?);
        let group = (sizes.value_heads / sizes.key_heads) as i32;
        let [heads, key_dim, value_dim] =
            [sizes.key_heads, sizes.key_dim, sizes.value_dim].map(|size| size as i32);
        let (mut before, mut differences, mut at) = (vec![], vec![], 0);
        for span in spans.iter_mut() {
            let shape = [1, heads, group, key_dim, value_dim];
            let mut state = span.state.matrices.reshape(&shape)?;
            for chunk in at..at + span.chunks() as usize {
                let learned = addmm(&fresh[chunk], &known[chunk], &state, -1.0, 1.0)?;
                let decayed = state.multiply(&decays[chunk])?;
                before.push(state);
                state = addmm(decayed, &keys[chunk], &learned, 1.0, 1.0)?;
                differences.push(learned);
            }
            at += span.chunks() as usize;
            span.state.matrices = state.reshape(&[-1, key_dim, value_dim])?;
        }
        let learned = self.scores.matmul(joined(&differences)?)?;
        let values = addmm(learned, &self.queries, joined(&before)?, 1.0, 1.0)?;
        Ok(values.transpose_axes(&[0, 3, 1, 2, 4])?.reshape(&[-1, sizes.values() as i32])?)
    }
}

/// One array of several, along the first axis.
fn joined(parts: &[Array]) -> Result<Array> {
    match parts {
        [one] => Ok(one.clone()),
        _ => Ok(concatenate(parts, 0)?),
    }
}
