//! Cost of a decode step's attention in four layouts of the KV store: primitives of a layer, and
//! time over all layers, one query row a sequence. `kv_layout [LAYERS] [HEADS] [KV_HEADS] [DIM]`,
//! by default as in the demo target.
//!
//! - classes: the store as it is; one scatter, and one masked attention for each run of slots
//! - one array: the same with every sequence in a place of the longest
//! - calls: an array a sequence; two writes and an attention for each of them
//! - pages: pages of 64 positions anywhere; one gather lays them side by side, then one masked
//!   attention
//!
//! Outputs of all layouts are compared. Times are medians of interleaved rounds.

#![expect(clippy::print_stdout, reason = "it is what this program is for")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::error::Error;
use std::time::Instant;

use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp, scatter_single};
use mlx_rs::ops::{concatenate, softmax_axis};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};
use paceline_models::kv::{AttentionParams, PAGE};
use paceline_models::{DeviceChoice, GrowingKv, KvStore, Segment, SequenceId, device};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LONGEST: i32 = 4096;
const PAGES: i32 = LONGEST / PAGE;
const ROUNDS: usize = 11;

#[derive(Clone, Copy)]
struct Shape {
    layers: usize,
    heads: i32,
    n_kv: i32,
    dim: i32,
}

/// Numbers that differ from one another; what they are does not matter.
fn wave(shape: &[i32], seed: i32) -> Array {
    let count: i32 = shape.iter().product();
    let values: Vec<f32> =
        (0..count).map(|at| ((at % 7919 + seed * 31) as f32 * 0.37).sin()).collect();
    Array::from_slice(&values, shape)
}

/// As the model does it on the CPU: a group's heads folded into the rows. `q` `[N, Hq, D]`, `k`,
/// `v` `[N, Hkv, L, D]`.
fn attention(q: &Array, k: &Array, v: &Array, mask: Option<&Array>, shape: Shape) -> Result<Array> {
    let Shape { heads, n_kv, dim, .. } = shape;
    let n = q.dim(0);
    let q = q.multiply(Array::from_f32((dim as f32).powf(-0.5)))?.reshape(&[
        n,
        n_kv,
        heads / n_kv,
        dim,
    ])?;
    let mut scores = q.matmul(k.transpose_axes(&[0, 1, 3, 2])?)?;
    if let Some(mask) = mask {
        scores = scores.add(mask)?;
    }
    Ok(softmax_axis(&scores, -1, true)?.matmul(v)?.reshape(&[n, heads * dim])?)
}

/// A layout with its sequences in it.
enum Layout {
    Store(Box<KvStore>, Vec<Segment>),
    /// Keys and values of each layer and sequence, `[1, Hkv, LONGEST, D]`.
    Calls(Vec<Vec<[Array; 2]>>),
    /// Keys and values of each layer, `[sequences · Hkv · PAGES, 64, D]`: a page of one head lies
    /// at one index.
    Pages(Vec<[Array; 2]>),
}

impl Layout {
    fn store(shape: Shape, lengths: &[i32], reserved: Option<i32>) -> Result<Self> {
        let layer =
            GrowingKv { n_kv: shape.n_kv, key_dim: shape.dim, value_dim: shape.dim, window: None };
        let mut kv = KvStore::new(&vec![layer.into(); shape.layers], Dtype::Float32, LONGEST)?;
        let mut steps = vec![];
        for (at, length) in lengths.iter().enumerate() {
            let sequence = SequenceId(at as u64);
            let prompt = Segment { sequence, start: 0, length: *length, drafted: 0 };
            kv.open(sequence)?;
            kv.reserve(sequence, reserved.unwrap_or(length + 1))?;
            let rows = wave(&[*length, shape.n_kv, shape.dim], at as i32);
            for layer in 0..shape.layers {
                kv.write(layer, &rows, &rows, None, std::slice::from_ref(&prompt))?;
            }
            kv.evaluate()?;
            kv.commit(sequence, *length)?;
            steps.push(Segment { start: *length, length: 1, ..prompt });
        }
        Ok(Self::Store(Box::new(kv), steps))
    }

    fn calls(shape: Shape, lengths: &[i32]) -> Result<Self> {
        let slot = |at: usize| -> Result<Array> {
            let rows = wave(&[lengths[at], shape.n_kv, shape.dim], at as i32)
                .transpose_axes(&[1, 0, 2])?;
            let mut slot = Array::zeros::<f32>(&[1, shape.n_kv, LONGEST, shape.dim])?;
            slot.try_index_mut((0, .., ..lengths[at], ..), &rows)?;
            eval([&slot])?;
            Ok(slot)
        };
        let layer =
            || (0..lengths.len()).map(|at| Ok([slot(at)?, slot(at)?])).collect::<Result<Vec<_>>>();
        Ok(Self::Calls((0..shape.layers).map(|_| layer()).collect::<Result<_>>()?))
    }

    fn pages(shape: Shape, lengths: &[i32]) -> Result<Self> {
        let Self::Calls(layers) = Self::calls(shape, lengths)? else {
            return Err("made above".into());
        };
        let pool = |slots: &[[Array; 2]], which: usize| -> Result<Array> {
            let all: Vec<&Array> = slots.iter().map(|slot| &slot[which]).collect();
            let pool = concatenate(&all, 0)?.reshape(&[-1, PAGE, shape.dim])?;
            eval([&pool])?;
            Ok(pool)
        };
        Ok(Self::Pages(
            layers
                .iter()
                .map(|slots| Ok([pool(slots, 0)?, pool(slots, 1)?]))
                .collect::<Result<_>>()?,
        ))
    }

    /// The step's graph: writes `kv` `[N, Hkv, D]` behind each sequence in every layer, and attends
    /// with `q` `[N, Hq, D]`.
    fn step(
        &mut self,
        q: &Array,
        kv: &Array,
        lengths: &[i32],
        shape: Shape,
        layers: usize,
    ) -> Result<Vec<Array>> {
        let longest = lengths.iter().max().map_or(0, |length| length + 1);
        let positions = Array::from_slice(&(0..longest).collect::<Vec<_>>(), &[1, 1, 1, longest]);
        let ends = Array::from_slice(lengths, &[lengths.len() as i32, 1, 1, 1]);
        let closed = mlx_rs::ops::select(
            ends.ge(&positions)?,
            Array::from_f32(0.0),
            Array::from_f32(f32::NEG_INFINITY),
        )?;
        let mask = lengths.iter().any(|length| length + 1 < longest).then_some(closed);
        (0..layers).map(|layer| self.layer(layer, q, kv, lengths, mask.as_ref(), shape)).collect()
    }

    // More than 60 lines: one layout an arm.
    fn layer(
        &mut self,
        layer: usize,
        q: &Array,
        new: &Array,
        lengths: &[i32],
        mask: Option<&Array>,
        shape: Shape,
    ) -> Result<Array> {
        let Shape { n_kv, dim, .. } = shape;
        match self {
            Self::Store(kv, steps) => {
                let params = AttentionParams {
                    scale: (dim as f32).powf(-0.5),
                    ..AttentionParams::default()
                };
                Ok(kv.attend(layer, q, new, new, params, steps)?)
            }
            Self::Calls(layers) => {
                let mut outputs = vec![];
                for (at, slot) in layers[layer].iter_mut().enumerate() {
                    let (row, length) = (at as i32..at as i32 + 1, lengths[at]);
                    let rows = new.try_index((row.clone(), .., ..))?.reshape(&[1, n_kv, 1, dim])?;
                    for array in slot.iter_mut() {
                        array.try_index_mut((.., .., length..length + 1, ..), &rows)?;
                    }
                    let [k, v] = [&slot[0], &slot[1]]
                        .map(|array| array.try_index((.., .., ..length + 1, ..)));
                    outputs.push(attention(&q.try_index((row, .., ..))?, &k?, &v?, None, shape)?);
                }
                Ok(if let [one] = outputs.as_slice() {
                    one.clone()
                } else {
                    concatenate(&outputs, 0)?
                })
            }
            Self::Pages(layers) => {
                let n = lengths.len() as i32;
                let used = lengths.iter().max().map_or(0, |length| length / PAGE + 1);
                let index =
                    |sequence: i32, head: i32, page: i32| (sequence * n_kv + head) * PAGES + page;
                let heads =
                    || (0..n).flat_map(|sequence| (0..n_kv).map(move |head| (sequence, head)));
                let table: Vec<i32> = heads()
                    .flat_map(|(s, h)| (0..used).map(move |page| index(s, h, page)))
                    .collect();
                let table = Array::from_slice(&table, &[n * n_kv * used]);
                let places = heads()
                    .map(|(s, h)| index(s, h, 0) * PAGE + lengths[s as usize])
                    .collect::<Vec<_>>();
                let places = Array::from_slice(&places, &[n * n_kv]);
                let rows = new.reshape(&[n * n_kv, 1, dim])?;
                let longest = lengths.iter().max().map_or(0, |length| length + 1);
                let mut views = vec![];
                for pool in &mut layers[layer] {
                    *pool = scatter_single(pool.reshape(&[-1, dim])?, &places, &rows, 0)?
                        .reshape(&[-1, PAGE, dim])?;
                    let side_by_side =
                        pool.take_axis(&table, 0)?.reshape(&[n, n_kv, used * PAGE, dim])?;
                    views.push(side_by_side.try_index((.., .., ..longest, ..))?);
                }
                attention(q, &views[0], &views[1], mask, shape)
            }
        }
    }

    /// Forgets the step: always the same lengths.
    fn undo(&mut self, lengths: &[i32]) -> Result<()> {
        if let Self::Store(kv, _) = self {
            for (at, length) in lengths.iter().enumerate() {
                kv.commit(SequenceId(at as u64), *length)?;
            }
        }
        Ok(())
    }
}

mod graph;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn compare(what: &str, lengths: &[i32], shape: Shape) -> Result<()> {
    let n = lengths.len() as i32;
    let (q, new) = (wave(&[n, shape.heads, shape.dim], 5), wave(&[n, shape.n_kv, shape.dim], 6));
    eval([&q, &new])?;
    let mut layouts = [
        Layout::store(shape, lengths, None)?,
        Layout::store(shape, lengths, Some(LONGEST))?,
        Layout::calls(shape, lengths)?,
        Layout::pages(shape, lengths)?,
    ];
    let (mut counts, mut first) = (vec![], None);
    for layout in &mut layouts {
        // Of a layer alone, what is made once a step left out.
        let two = layout.step(&q, &new, lengths, shape, 2)?;
        let (one, both) = (graph::primitives(&two[..1])?, graph::primitives(&two)?);
        counts.push(both - one);
        eval(&two)?;
        layout.undo(lengths)?;
        let expected = first.get_or_insert_with(|| two[0].clone());
        if !two[0].all_close(&*expected, 1e-4, 1e-5, false)? {
            return Err("layouts give different outputs".into());
        }
    }
    let mut took = vec![vec![]; layouts.len()];
    for round in 0..ROUNDS + 2 {
        for (layout, took) in layouts.iter_mut().zip(&mut took) {
            let clock = Instant::now();
            eval(&layout.step(&q, &new, lengths, shape, shape.layers)?)?;
            if round >= 2 {
                took.push(clock.elapsed().as_secs_f64() * 1e3);
            }
            layout.undo(lengths)?;
        }
    }
    let cells: Vec<String> = took
        .into_iter()
        .zip(counts)
        .map(|(took, count)| format!(" {:.2} ({count}) ", median(took)))
        .collect();
    println!("| {what} |{}|", cells.join("|"));
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: i32| args.next().map_or(Ok(default), |word| word.parse());
    let shape = Shape {
        layers: number(8)? as usize,
        heads: number(4)?,
        n_kv: number(2)?,
        dim: number(64)?,
    };
    device::choose(DeviceChoice::Auto)?;
    println!(
        "| sequences, positions | classes, ms (primitives a layer) | one array | calls | pages |\n|---|---|---|---|---|"
    );
    for positions in [100, 1000, 4000] {
        for n in [1, 4, 16] {
            // Not all the same: a batch is ragged.
            let lengths: Vec<i32> = (0..n).map(|at| positions - at * 5 % 40).collect();
            compare(&format!("{n}, {positions}"), &lengths, shape)?;
        }
    }
    let mixed: Vec<i32> = (0..16).map(|at| if at == 7 { 4000 } else { 100 + at }).collect();
    compare("15 of 100 beside 1 of 4000", &mixed, shape)?;
    Ok(())
}
