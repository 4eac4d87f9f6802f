//! Runs a program for the rows of one pass.

use std::mem;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use mlx_sys::HostRows;
use paceline_cpu::attention::{KeyValues, attention};
use paceline_cpu::delta::{self, NewRows, PassOutput, RuleWeights};
use paceline_cpu::quantized::FloatRows;
use paceline_cpu::routing;
use paceline_cpu::rows::{self, Heads, Rotation};

use super::held::ExpertWeights;
use super::{AttentionHeads, Experts, Function, Norm, PassPlaces, Place, Program, Rule, Step};
use crate::device::SCRATCH_BYTES;
use crate::layers::{RotatedHeads, RowWrite};

/// Rows whose buffers are kept after a pass. Buffers of longer passes, which are prompts, are given
/// back.
const KEPT_ROWS: usize = 32;

/// Buffers of a program, kept from pass to pass.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    rows: Vec<Vec<f32>>,
    /// Normed rows for the head.
    normed: Vec<f32>,
    experts: ExpertScratch,
    /// Bytes that are counted in [`SCRATCH_BYTES`].
    counted: u64,
}

/// Buffers of a layer of experts.
#[derive(Debug, Default)]
struct ExpertScratch {
    ids: Vec<u32>,
    shares: Vec<f32>,
    logits: Vec<f32>,
    both: Vec<f32>,
    inner: Vec<f32>,
    outer: Vec<f32>,
    part: Vec<f32>,
}

impl Scratch {
    /// Bytes that [`SCRATCH_BYTES`] has of it.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// Gives back what a pass of `rows` rows took beyond [`KEPT_ROWS`], and counts what is kept.
    fn settle(&mut self, rows: usize) {
        if rows > KEPT_ROWS {
            *self = Self { counted: self.counted, ..Self::default() };
        }
        let Self { rows: buffers, normed, experts, counted } = self;
        let ExpertScratch { ids, shares, logits, both, inner, outer, part } = experts;
        let floats = [normed, shares, logits, both, inner, outer, part];
        let numbers = floats.iter().map(|buffer| buffer.capacity()).sum::<usize>();
        let held = buffers.iter().map(Vec::capacity).sum::<usize>() + numbers + ids.capacity();
        let held = size_of::<f32>() as u64 * held as u64;
        SCRATCH_BYTES.fetch_add(held, Ordering::Relaxed);
        SCRATCH_BYTES.fetch_sub(mem::replace(counted, held), Ordering::Relaxed);
    }
}

/// Tables of the rows' rotations by one rope, as many numbers of each row as it rotates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassRotation<'a> {
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
}

/// Inputs of a run, beside the memory.
#[derive(Debug)]
pub(crate) struct PassInputs<'a> {
    /// Number of rows.
    pub(crate) rows: usize,
    /// Ids of the rows.
    pub(crate) ids: &'a [u32],
    /// Embeddings of the rows, if some do not come from ids.
    pub(crate) embedded: Option<HostRows<'a>>,
    /// Numbers that are given for each row, if the program reads some.
    pub(crate) given: Option<HostRows<'a>>,
    /// For each rope of the model.
    pub(crate) rotations: Vec<PassRotation<'a>>,
    pub(crate) places: &'a PassPlaces,
    /// The tape of the pass before, for each recurrent layer.
    pub(crate) before: Vec<&'a [f32]>,
    /// What images add to the rows after a layer.
    pub(crate) additions: Vec<(usize, HostRows<'a>)>,
    /// Layers whose hidden states are wanted.
    pub(crate) features: &'a [usize],
    /// Rows whose logits are wanted.
    pub(crate) logit_rows: &'a [i32],
    /// Rows whose final hidden states are wanted.
    pub(crate) final_rows: &'a [i32],
}

/// Outputs of a run, one after another in the list that a node gets.
struct Outputs<'a, 'b> {
    /// As [`PassPlaces`] says.
    memory: &'a mut [&'b mut [f32]],
    /// For each recurrent layer.
    tapes: &'a mut [&'b mut [f32]],
    /// For each wanted layer.
    features: &'a mut [&'b mut [f32]],
    /// Logits, then final hidden states; each only if a row of it is wanted.
    rest: &'a mut [&'b mut [f32]],
}

impl<'a, 'b> Outputs<'a, 'b> {
    fn split(inputs: &PassInputs<'_>, recurrent: usize, all: &'a mut [&'b mut [f32]]) -> Self {
        let memory = inputs.places.states(recurrent).start;
        let (memory, all) = all.split_at_mut(memory);
        let tapes = if inputs.places.tape_rows > 0 { recurrent } else { 0 };
        let (tapes, all) = all.split_at_mut(tapes);
        let (features, rest) = all.split_at_mut(inputs.features.len());
        Self { memory, tapes, features, rest }
    }
}

/// Rows that lie one after another.
fn dense(numbers: &[f32], width: usize) -> FloatRows<'_> {
    let count = numbers.len().checked_div(width).unwrap_or(0);
    FloatRows { numbers, count, stride: width, length: width }
}

/// The first numbers of a buffer that grows if needed. Their content is of no account.
fn room(buffer: &mut Vec<f32>, count: usize) -> &mut [f32] {
    if buffer.len() < count {
        buffer.resize(count, 0.0);
    }
    &mut buffer[..count]
}

impl Program {
    /// Computes all rows. `outputs`: the memory, tapes, hidden states of the wanted layers `[rows,
    /// hidden]`, logits and final hidden states.
    pub(crate) fn run(&self, inputs: &PassInputs<'_>, outputs: &mut [&mut [f32]]) {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        scratch.rows.resize_with(self.buffers, Vec::new);
        let mut outputs = Outputs::split(inputs, self.recurrent, outputs);
        let hidden = self.hidden();
        let first = room(&mut scratch.rows[self.first.buffer], inputs.rows * hidden);
        match &inputs.embedded {
            None => {
                self.table.rows(inputs.ids, hidden, first);
                if self.embedding_factor != 1.0 {
                    first.iter_mut().for_each(|x| *x *= self.embedding_factor);
                }
            }
            Some(rows) => {
                let to = first.chunks_exact_mut(hidden).enumerate();
                to.for_each(|(at, to)| to.copy_from_slice(rows.row(at)));
            }
        }
        for step in &self.steps {
            let mut buffer = mem::take(&mut scratch.rows[step.output.buffer]);
            let out = room(&mut buffer, inputs.rows * step.output.width);
            let Scratch { rows, experts, .. } = &mut *scratch;
            compute(step, &ProgramInputs { step, rows, pass: inputs }, experts, out, &mut outputs);
            scratch.rows[step.output.buffer] = buffer;
        }
        self.finish(inputs, &mut scratch, outputs.rest);
        scratch.settle(inputs.rows);
    }

    /// Logits and final hidden states of the rows that are wanted: the norm is per row, so only
    /// these are normed.
    fn finish(&self, inputs: &PassInputs<'_>, scratch: &mut Scratch, rest: &mut [&mut [f32]]) {
        let Scratch { rows, normed, .. } = scratch;
        let (hidden, x) = (self.hidden(), &rows[self.last.buffer]);
        let norm = |wanted: &[i32], out: &mut [f32]| {
            let row = |at: usize| &x[wanted[at] as usize * hidden..][..hidden];
            rows::norm(row, self.norm.weight.numbers(), self.norm.eps, out);
        };
        let mut rest = rest.iter_mut();
        if !inputs.logit_rows.is_empty()
            && let Some(logits) = rest.next()
        {
            let normed = room(normed, inputs.logit_rows.len() * hidden);
            norm(inputs.logit_rows, normed);
            self.head.compute(dense(normed, hidden), logits);
            if let Some(cap) = self.softcap {
                rows::softcap(logits, cap);
            }
        }
        if !inputs.final_rows.is_empty()
            && let Some(out) = rest.next()
        {
            match self.is_final_normed {
                true => norm(inputs.final_rows, out),
                false => {
                    for (row, out) in inputs.final_rows.iter().zip(out.chunks_exact_mut(hidden)) {
                        out.copy_from_slice(&x[*row as usize * hidden..][..hidden]);
                    }
                }
            }
        }
    }
}

/// What a step reads.
struct ProgramInputs<'a, 'b> {
    step: &'a Step,
    rows: &'a [Vec<f32>],
    pass: &'a PassInputs<'b>,
}

impl<'a> ProgramInputs<'a, '_> {
    /// The rows of an input.
    fn rows(&self, input: usize) -> FloatRows<'a> {
        let Place { buffer, width } = self.step.inputs[input];
        dense(&self.rows[buffer][..self.pass.rows * width], width)
    }

    /// All numbers of an input.
    fn numbers(&self, input: usize) -> &'a [f32] {
        self.rows(input).numbers
    }
}

/// A row of dense rows.
fn row<'a>(rows: &FloatRows<'a>, at: usize) -> &'a [f32] {
    &rows.numbers[at * rows.stride..][..rows.length]
}

/// Computes a step's output. Before, `out` holds what the buffer held. Longer than 60 lines: an arm
/// for each function.
fn compute(
    step: &Step,
    inputs: &ProgramInputs<'_, '_>,
    scratch: &mut ExpertScratch,
    out: &mut [f32],
    outputs: &mut Outputs<'_, '_>,
) {
    let (pass, width) = (inputs.pass, step.output.width);
    match &step.function {
        Function::Norm(norm) => {
            let x = inputs.rows(0);
            rows::norm(|at| row(&x, at), norm.weight.numbers(), norm.eps, out);
        }
        Function::Embedded(table) => table.rows(pass.ids, width, out),
        Function::Given(column) => {
            let given = pass.given.iter().flat_map(|given| (0..pass.rows).map(|at| given.row(at)));
            for (out, given) in out.chunks_exact_mut(width).zip(given) {
                out.copy_from_slice(&given[*column..][..width]);
            }
        }
        Function::Beside => {
            let mut first = 0;
            for part in (0..step.inputs.len()).map(|input| inputs.rows(input)) {
                for (at, out) in out.chunks_exact_mut(width).enumerate() {
                    out[first..][..part.length].copy_from_slice(row(&part, at));
                }
                first += part.length;
            }
        }
        Function::Product(product) => product.compute(inputs.rows(0), out),
        Function::Add => rows::add(inputs.numbers(0), inputs.numbers(1), width, out),
        Function::Scale(factor) => {
            out.iter_mut().zip(inputs.numbers(0)).for_each(|(out, x)| *out = x * factor);
        }
        Function::Gated(gate) => {
            let both = inputs.rows(0);
            rows::gated(|at| row(&both, at), gate.activation(), width, out);
        }
        Function::GatedBy { gate, column } => {
            let (x, all) = (inputs.rows(0), inputs.rows(1));
            rows::gated_by(
                |at| row(&x, at),
                gate.activation(),
                |at| &row(&all, at)[*column..][..width],
                width,
                out,
            );
        }
        Function::Rotate { heads, norm, dim, rope } => {
            let rotations = RowRotations { rotation: pass.rotations[*rope], rows: pass.rows };
            rotate(&inputs.rows(0), heads, norm.as_ref(), *dim, rotations, out);
        }
        Function::NormRotated { norm, dim } => {
            let (x, heads) = (inputs.rows(0), Heads { count: width / dim, dim: *dim });
            rows::norm_heads(|at| row(&x, at), norm.weight.numbers(), norm.eps, heads, out);
        }
        Function::NormHeads { norm, first } => {
            let (x, weight) = (inputs.rows(0), norm.weight.numbers());
            let (dim, heads) = (weight.len(), width / weight.len());
            let head = |at: usize| &row(&x, at / heads)[(first + at % heads) * dim..][..dim];
            rows::norm(head, weight, norm.eps, out);
        }
        Function::Attend { layer, heads } => {
            let rotated = inputs.rows(0);
            if step.inputs.len() > 1 {
                let rows = [rotated, inputs.rows(1)];
                write(*layer, heads, &rows, pass.places, outputs.memory);
            }
            attend(*layer, heads, &rotated, pass.places, outputs.memory, out);
        }
        Function::GateHeads { dim } => {
            let (x, gates) = (inputs.rows(0), inputs.rows(1));
            let heads = Heads { count: width / dim, dim: *dim };
            rows::gated_by_heads(
                |at| row(&x, at),
                |at| row(&gates, at),
                |head| 2 * head + 1,
                heads,
                out,
            );
        }
        Function::Recur { layer, rule } => recur(*layer, rule, inputs.rows(0), pass, outputs, out),
        Function::NormGated { norm, column } => {
            let (x, gates) = (inputs.rows(0), inputs.rows(1));
            let gates = |at| &row(&gates, at)[*column..];
            rows::norm_gated(|at| row(&x, at), gates, norm.weight.numbers(), norm.eps, width, out);
        }
        Function::Experts(experts) => {
            experts.compute(inputs.rows(0), inputs.rows(1), scratch, out);
        }
        Function::AddShared => {
            out.copy_from_slice(inputs.numbers(0));
            routing::add_gated(inputs.numbers(1), inputs.numbers(2), width, out);
        }
        Function::EndLayer(layer) => end_layer(*layer, pass, width, out, outputs.features),
    }
}

/// Rotations of all rows.
#[derive(Clone, Copy)]
struct RowRotations<'a> {
    rotation: PassRotation<'a>,
    rows: usize,
}

fn rotate(
    x: &FloatRows<'_>,
    heads: &RotatedHeads,
    norm: Option<&Norm>,
    dim: usize,
    RowRotations { rotation, rows }: RowRotations<'_>,
    out: &mut [f32],
) {
    let rotary_dim = rotation.cos.len() / rows.max(1);
    let rotation = |at: usize| Rotation {
        cos: &rotation.cos[at * rotary_dim..][..rotary_dim],
        sin: &rotation.sin[at * rotary_dim..][..rotary_dim],
    };
    let sizes = Heads { count: heads.count() as usize, dim };
    match norm {
        Some(norm) => {
            let (weight, place) = (norm.weight.numbers(), |head| heads.place(head));
            rows::norm_rotate(|at| row(x, at), place, weight, norm.eps, sizes, rotation, out);
        }
        None => rows::rotate(|at| row(x, at), sizes, rotation, out),
    }
}

/// Writes the keys and values of all rows. `rows`: rotated and projected ones.
fn write(
    layer: usize,
    heads: &AttentionHeads,
    [rotated, projected]: &[FloatRows<'_>; 2],
    places: &PassPlaces,
    memory: &mut [&mut [f32]],
) {
    let [count, key_dim, value_dim] = places.heads[layer];
    for (class, writes) in places.writes.iter().enumerate() {
        let (at, kept) = (places.keys(class, layer), writes.kept[layer]);
        let [keys, values] = &mut memory[at..at + 2] else { unreachable!("two were cut") };
        let copy = |from: &FloatRows<'_>, first: i32, dim: usize, to: &mut [f32]| {
            for RowWrite { row: at, slot, position } in writes.places.iter().copied() {
                let heads = &row(from, at)[first as usize * dim..][..count * dim];
                for (head, numbers) in heads.chunks_exact(dim).enumerate() {
                    let place = ((slot * count + head) * kept + position % kept) * dim;
                    to[place..][..dim].copy_from_slice(numbers);
                }
            }
        };
        copy(rotated, heads.keys.start, key_dim, keys);
        copy(projected, heads.values.start, value_dim, values);
    }
}

/// Attention of all rows, each over its own keys.
fn attend(
    layer: usize,
    heads: &AttentionHeads,
    rotated: &FloatRows<'_>,
    places: &PassPlaces,
    memory: &[&mut [f32]],
    out: &mut [f32],
) {
    let [kv_heads, key_dim, value_dim] = places.heads[layer];
    let count = heads.queries.len();
    let first = heads.queries.start as usize * key_dim;
    for reads in places.reads[layer].iter() {
        let at = places.keys(reads.class, layer);
        let queries = FloatRows {
            numbers: &rotated.numbers[reads.rows.start * rotated.stride + first..],
            count: reads.rows.len(),
            stride: rotated.stride,
            length: count * key_dim,
        };
        let stored = KeyValues {
            keys: &*memory[at],
            values: &*memory[at + 1],
            kv_heads,
            capacity: places.writes[reads.class].kept[layer],
            key_dim,
            value_dim,
        };
        let width = count * value_dim;
        let out = &mut out[reads.rows.start * width..reads.rows.end * width];
        attention(queries, &reads.keys, &stored, heads.scale, out);
    }
}

fn recur(
    layer: usize,
    rule: &Rule,
    rows: FloatRows<'_>,
    pass: &PassInputs<'_>,
    outputs: &mut Outputs<'_, '_>,
    out: &mut [f32],
) {
    let weights = RuleWeights {
        convolution: rule.convolution.numbers(),
        rates: rule.rates.numbers(),
        dt_bias: rule.dt_bias.numbers(),
    };
    let new = NewRows { rows, beta: rule.beta, decay: rule.decay };
    let states = &mut outputs.memory[pass.places.states(layer)];
    let tape = outputs.tapes.get_mut(layer).map_or(&mut [][..], |tape| &mut **tape);
    let before = pass.before.get(layer).copied().unwrap_or_default();
    let output = PassOutput { states, out, tape };
    delta::advance(rule.sizes, weights, new, before, &pass.places.slots, output);
}

/// Hidden states are taken before the additions: see the operations of the graph.
fn end_layer(
    layer: usize,
    pass: &PassInputs<'_>,
    width: usize,
    x: &mut [f32],
    features: &mut [&mut [f32]],
) {
    for (wanted, feature) in pass.features.iter().zip(features.iter_mut()) {
        if *wanted == layer {
            feature.copy_from_slice(x);
        }
    }
    for (_, addition) in pass.additions.iter().filter(|(of, _)| *of == layer) {
        for (at, x) in x.chunks_exact_mut(width).enumerate() {
            x.iter_mut().zip(addition.row(at)).for_each(|(x, more)| *x += more);
        }
    }
}

impl Experts {
    /// Each row of `x` by the experts that the router chooses by the row of `routed`, into `out`,
    /// rows as long as those of `x`.
    fn compute(
        &self,
        routed: FloatRows<'_>,
        x: FloatRows<'_>,
        scratch: &mut ExpertScratch,
        out: &mut [f32],
    ) {
        let ExpertScratch { ids, shares, logits, both, inner, outer, part } = scratch;
        let (pairs, hidden) = (x.count * self.chosen, x.length);
        let logits = room(logits, x.count * self.experts);
        self.router.compute(routed, logits);
        ids.resize(ids.len().max(pairs), 0);
        let (ids, shares) = (&mut ids[..pairs], room(shares, pairs));
        routing::route(logits, self.experts, self.chosen, self.renormalized, ids, shares);
        if let Some(factors) = &self.factors {
            let factor = |id: &u32| factors.numbers()[*id as usize];
            shares.iter_mut().zip(ids.iter()).for_each(|(share, id)| *share *= factor(id));
        }
        let both = room(both, pairs * 2 * self.intermediate);
        side_by_side(&self.gate_up, x, ids, part, both);
        let inner = room(inner, pairs * self.intermediate);
        let both = dense(both, 2 * self.intermediate);
        rows::gated(|at| row(&both, at), self.gate.activation(), self.intermediate, inner);
        let outer = room(outer, pairs * hidden);
        // A row of its own for each expert: one expert a row.
        side_by_side(&self.down, dense(inner, self.intermediate), ids, part, outer);
        routing::weighted_sum(outer, shares, hidden, out);
    }
}

/// The products of all parts, whose outputs lie side by side in each row of `out`.
fn side_by_side(
    parts: &[ExpertWeights],
    x: FloatRows<'_>,
    ids: &[u32],
    part_rows: &mut Vec<f32>,
    out: &mut [f32],
) {
    if let [one] = parts {
        return one.compute(x, ids, out);
    }
    let (wide, mut first) = (parts.iter().map(ExpertWeights::outputs).sum::<usize>(), 0);
    for part in parts {
        let outputs = part.outputs();
        let narrow = room(part_rows, ids.len() * outputs);
        part.compute(x, ids, narrow);
        for (wide, narrow) in out.chunks_exact_mut(wide).zip(narrow.chunks_exact(outputs)) {
            wide[first..first + outputs].copy_from_slice(narrow);
        }
        first += outputs;
    }
}
