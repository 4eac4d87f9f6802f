//! The gated delta rule (arXiv 2412.06464) for rows of sequences that each have states of their
//! own, float32: one row after another, never in chunks. A row's result and the states after it
//! have the same bits whatever other rows there are, however a sequence's rows are cut into passes,
//! and however many threads (I1).
//!
//! The work is cut into pieces: a slot and a key head with the value heads that share it. A piece
//! computes all of the slot's rows: its channels of the convolution, norms, gates and states. A
//! state of 128 keys and 128 values takes 64 KiB and stays in the second-level cache.
//!
//! Rows that may be rejected advance a copy of the states and are written on a tape. The next pass
//! begins with those that were accepted, by the arithmetic of the pass that wrote them. So a slot is
//! never copied or restored, whatever is rejected.

use std::cell::RefCell;
use std::ops::Range;

use crate::kernel::{DeltaRow, Kernels};
use crate::pool::{run_pieces, threads_for};
use crate::quantized::FloatRows;
use crate::sgemm::kernels;
use paceline_checkpoint::RecurrentSizes;
use paceline_checkpoint::layers::MOST_TAPS;

use crate::SlotRows;

/// Added to the sum of squares before its root is taken. Source: Qwen3.5 in transformers, `l2norm`.
const NORM_EPS: f32 = 1e-6;

/// Above it softplus(x) is x in float32. Source: PyTorch's `softplus`.
const LINEAR_ABOVE: f32 = 20.0;

/// Weights of a layer.
#[derive(Clone, Copy, Debug)]
pub struct RuleWeights<'a> {
    /// `[taps, channels]`; the last tap is the row's own.
    pub convolution: &'a [f32],
    /// −e^A_log, one for each value head.
    pub rates: &'a [f32],
    /// One for each value head.
    pub dt_bias: &'a [f32],
}

/// The new rows of a pass. A row begins with the convolution's input.
#[derive(Clone, Copy, Debug)]
pub struct NewRows<'a> {
    /// Projections of the layer's input.
    pub rows: FloatRows<'a>,
    /// Column of the numbers that become β, one for each value head.
    pub beta: usize,
    /// Column of the numbers that become decays, one for each value head.
    pub decay: usize,
}

impl NewRows<'_> {
    /// For a pass of accepted rows alone.
    pub const NONE: Self = Self {
        rows: FloatRows { numbers: &[], count: 0, stride: 0, length: 0 },
        beta: 0,
        decay: 0,
    };
}

/// States and outputs that a pass writes.
#[derive(Debug)]
pub struct PassOutput<'a, 'b> {
    /// The states of each slot, [`RecurrentSizes::slot`] numbers.
    pub states: &'a mut [&'b mut [f32]],
    /// For each new row its values, of all value heads.
    pub out: &'a mut [f32],
    /// Rows of [`RecurrentSizes::tape`] numbers.
    pub tape: &'a mut [f32],
}

/// Inputs and outputs that all pieces share.
struct DeltaPass<'a> {
    kernels: &'a Kernels,
    sizes: RecurrentSizes,
    weights: RuleWeights<'a>,
    new: NewRows<'a>,
    /// The tape of the pass before.
    before: &'a [f32],
    /// Factors of normed queries and keys.
    scales: [Vec<f32>; 2],
    /// Of each slot.
    states: Vec<*mut f32>,
    out: *mut f32,
    tape: *mut f32,
}

// SAFETY: pieces write different slots, heads or channels, which are the caller's alone.
unsafe impl Sync for DeltaPass<'_> {}

/// Buffers of a thread, kept from piece to piece.
#[derive(Default)]
struct Scratch {
    /// Query, key and values of a row after the convolution.
    mixed: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    delta: Vec<f32>,
    /// States that advance by rows which may be rejected.
    copy: Vec<f32>,
}

/// Advances the states of `slots` by accepted rows of the tape `before`, then by new rows.
///
/// # Panics
/// Sizes contradict each other, or a slot appears twice.
pub fn advance(
    sizes: RecurrentSizes,
    weights: RuleWeights<'_>,
    new: NewRows<'_>,
    before: &[f32],
    slots: &[SlotRows],
    output: PassOutput<'_, '_>,
) {
    new.rows.check();
    check(sizes, &new, before, slots, &output);
    let dim = sizes.key_dim as f32;
    let rows = |one: &SlotRows| one.rows.len() + one.accepted.len();
    let pass = DeltaPass {
        kernels: kernels(),
        sizes,
        weights,
        new,
        before,
        // x / sqrt(Σx² + ε) is rms-normed x by 1 / sqrt(dim), with ε / dim. Queries are divided by
        // sqrt(dim) once more.
        scales: [1.0 / dim, dim.sqrt().recip()].map(|scale| vec![scale; sizes.key_dim]),
        states: output.states.iter_mut().map(|states| states.as_mut_ptr()).collect(),
        out: output.out.as_mut_ptr(),
        tape: output.tape.as_mut_ptr(),
    };
    let work = slots.iter().map(rows).sum::<usize>() * sizes.matrices();
    let piece = |piece: usize| {
        thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());
        let slot = &slots[piece / sizes.key_heads];
        SCRATCH.with_borrow_mut(|scratch| pass.piece(slot, piece % sizes.key_heads, scratch));
    };
    run_pieces(slots.len() * sizes.key_heads, threads_for(work), &piece);
}

/// Compares all sizes, because pieces write through pointers.
fn check(
    sizes: RecurrentSizes,
    new: &NewRows<'_>,
    before: &[f32],
    slots: &[SlotRows],
    output: &PassOutput<'_, '_>,
) {
    let heads = sizes.value_heads;
    assert!(
        heads.is_multiple_of(sizes.key_heads) && (2..=MOST_TAPS).contains(&sizes.taps),
        "expected whole groups of value heads and 2 to {MOST_TAPS} taps, found {sizes:?}"
    );
    let width = sizes.channels().max(new.beta + heads).max(new.decay + heads);
    assert!(
        new.rows.count == 0 || new.rows.length >= width,
        "expected rows of {width} numbers, found {}",
        new.rows.length
    );
    let tape_rows = output.tape.len() / sizes.tape();
    assert!(
        output.states.iter().all(|states| states.len() == sizes.slot()),
        "expected slots of {} numbers",
        sizes.slot()
    );
    let mut seen = vec![false; output.states.len()];
    for one in slots {
        let is_first = seen.get_mut(one.slot).is_some_and(|seen| !std::mem::replace(seen, true));
        assert!(
            is_first
                && (one.accepted.is_empty() || one.accepted.end <= before.len() / sizes.tape())
                && one.rows.end <= new.rows.count
                && one.uncertain <= one.rows.len()
                && one.tape + one.uncertain <= tape_rows
                && output.out.len() >= one.rows.end * sizes.values(),
            "expected each of {} slots once, rows of {} and room for the tape, found {one:?}",
            seen.len(),
            new.rows.count
        );
    }
}

impl DeltaPass<'_> {
    /// All rows of a slot, of a key head and the value heads that share it.
    fn piece(&self, slot: &SlotRows, head: usize, scratch: &mut Scratch) {
        let (states, length) = self.states_of(slot.slot, head);
        // SAFETY: the sizes were compared; these numbers are this piece's alone.
        let states = unsafe { std::slice::from_raw_parts_mut(states, length) };
        if slot.begins {
            states.fill(0.0);
            self.clear_tail(slot.slot, head);
        }
        for row in slot.accepted.clone() {
            self.fold(row, head, states);
        }
        let width = self.sizes.tape();
        self.advance_tail(slot.slot, head, slot.accepted.len(), |row| {
            &self.before[(slot.accepted.start + row + 1) * width - self.sizes.channels()..]
        });
        let certain = slot.rows.end - slot.uncertain;
        for row in slot.rows.start..certain {
            self.step(slot, row, head, states, scratch, None);
        }
        if slot.uncertain > 0 {
            let mut copy = std::mem::take(&mut scratch.copy);
            copy.clear();
            copy.extend_from_slice(states);
            for row in certain..slot.rows.end {
                let tape = slot.tape + row - certain;
                self.step(slot, row, head, &mut copy, scratch, Some(tape));
            }
            scratch.copy = copy;
        }
        self.advance_tail(slot.slot, head, certain - slot.rows.start, |row| {
            self.new_row(slot.rows.start + row)
        });
    }

    /// One new row: its output, and on the tape what it does to the states.
    fn step(
        &self,
        slot: &SlotRows,
        row: usize,
        head: usize,
        states: &mut [f32],
        scratch: &mut Scratch,
        tape: Option<usize>,
    ) {
        let RecurrentSizes { key_dim, value_dim, .. } = self.sizes;
        self.mix(slot, row, head, scratch);
        let Scratch { mixed, query, key, delta, .. } = scratch;
        let norm = self.kernels.functions.norm;
        for (at, normed) in [query, key].into_iter().enumerate() {
            normed.resize(key_dim, 0.0);
            let x = &mixed[at * key_dim..][..key_dim];
            // SAFETY: `kernels` are of this processor.
            unsafe { norm(x, &self.scales[at], NORM_EPS / key_dim as f32, normed) };
        }
        delta.resize(value_dim, 0.0);
        let (query, key) = (&scratch.query[..key_dim], &scratch.key[..key_dim]);
        let group = self.sizes.value_heads / self.sizes.key_heads;
        for (at, state) in states.chunks_exact_mut(key_dim * value_dim).enumerate() {
            let value_head = head * group + at;
            let value = &scratch.mixed[2 * key_dim + at * value_dim..][..value_dim];
            let (decay, beta) = self.gates(row, value_head);
            let place = row * self.sizes.values() + value_head * value_dim;
            // SAFETY: the sizes were compared; the head of the row is this piece's alone.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.add(place), value_dim) };
            let one = DeltaRow { query, key, value, decay, beta };
            // SAFETY: `kernels` are of this processor.
            unsafe { (self.kernels.delta.step)(state, one, out, &mut scratch.delta) };
            if let Some(tape) = tape {
                self.write_tape(tape, self.sizes.keys() + value_head * value_dim, &scratch.delta);
                let place = self.sizes.keys() + self.sizes.values() + value_head;
                self.write_tape(tape, place, &[decay]);
            }
        }
        if let Some(tape) = tape {
            self.write_tape(tape, head * key_dim, key);
            let row = self.new_row(row);
            for part in self.channels(head) {
                let place = self.sizes.tape() - self.sizes.channels() + part.start;
                self.write_tape(tape, place, &row[part]);
            }
        }
    }

    /// Decay and β of a row and a value head.
    fn gates(&self, row: usize, head: usize) -> (f32, f32) {
        let numbers = self.new_row(row);
        let x = numbers[self.new.decay + head] + self.weights.dt_bias[head];
        let softplus = if x > LINEAR_ABOVE { x } else { x.exp().ln_1p() };
        let beta = 1.0 / (1.0 + (-numbers[self.new.beta + head]).exp());
        ((self.weights.rates[head] * softplus).exp(), beta)
    }

    /// A row's query, key and values of a head after the convolution, into `mixed`.
    fn mix(&self, slot: &SlotRows, row: usize, head: usize, scratch: &mut Scratch) {
        let (taps, channels) = (self.sizes.taps, self.sizes.channels());
        let parts = self.channels(head);
        scratch.mixed.resize(parts.iter().map(Range::len).sum(), 0.0);
        let mut rest = scratch.mixed.as_mut_slice();
        for part in parts {
            let (out, other) = rest.split_at_mut(part.len());
            rest = other;
            let (mut rows, mut weights) = ([&[][..]; MOST_TAPS], [&[][..]; MOST_TAPS]);
            for tap in 0..taps {
                // Rows before the pass's first one are the tail's.
                let place = row - slot.rows.start + tap;
                rows[tap] = match place.checked_sub(taps - 1) {
                    Some(place) => &self.new_row(slot.rows.start + place)[part.clone()],
                    None => self.tail(slot.slot, place, &part),
                };
                weights[tap] = &self.weights.convolution[tap * channels..][part.clone()];
            }
            // SAFETY: `kernels` are of this processor.
            unsafe { (self.kernels.delta.convolve)(&rows[..taps], &weights[..taps], out) };
        }
    }

    /// A row of the tape before: what it does to the states of a key head's value heads.
    fn fold(&self, row: usize, head: usize, states: &mut [f32]) {
        let RecurrentSizes { key_dim, value_dim, .. } = self.sizes;
        let row = &self.before[row * self.sizes.tape()..][..self.sizes.tape()];
        let (keys, rest) = row.split_at(self.sizes.keys());
        let (deltas, rest) = rest.split_at(self.sizes.values());
        let group = self.sizes.value_heads / self.sizes.key_heads;
        for (at, state) in states.chunks_exact_mut(key_dim * value_dim).enumerate() {
            let value_head = head * group + at;
            let delta = &deltas[value_head * value_dim..][..value_dim];
            let key = &keys[head * key_dim..][..key_dim];
            // SAFETY: `kernels` are of this processor.
            unsafe { (self.kernels.delta.fold)(state, key, delta, rest[value_head]) };
        }
    }

    /// Channels of a key head's query, of its key, and of the values that share it.
    fn channels(&self, head: usize) -> [Range<usize>; 3] {
        let RecurrentSizes { key_dim, value_dim, .. } = self.sizes;
        let (keys, group) = (self.sizes.keys(), self.sizes.value_heads / self.sizes.key_heads);
        let part = |first: usize, length: usize| first + head * length..first + (head + 1) * length;
        [part(0, key_dim), part(keys, key_dim), part(2 * keys, group * value_dim)]
    }

    fn new_row(&self, row: usize) -> &[f32] {
        &self.new.rows.numbers[row * self.new.rows.stride..][..self.new.rows.length]
    }

    /// The first number of the states of the value heads that share a key head, and how many there
    /// are.
    fn states_of(&self, slot: usize, head: usize) -> (*mut f32, usize) {
        let length = self.sizes.matrices() / self.sizes.key_heads;
        // SAFETY: the sizes were compared.
        (unsafe { self.states[slot].add(head * length) }, length)
    }

    /// The first of some channels of a row of the tail.
    fn tail_place(&self, slot: usize, row: usize, channel: usize) -> *mut f32 {
        let place = self.sizes.matrices() + row * self.sizes.channels() + channel;
        // SAFETY: the sizes were compared.
        unsafe { self.states[slot].add(place) }
    }

    /// Some channels of a row of the tail. They are the calling piece's own.
    fn tail(&self, slot: usize, row: usize, channels: &Range<usize>) -> &[f32] {
        let place = self.tail_place(slot, row, channels.start);
        // SAFETY: the sizes were compared, and the piece does not write them while it reads them.
        unsafe { std::slice::from_raw_parts(place, channels.len()) }
    }

    fn clear_tail(&self, slot: usize, head: usize) {
        for row in 0..self.sizes.taps - 1 {
            for part in self.channels(head) {
                // SAFETY: the sizes were compared; these channels are one piece's alone.
                unsafe { self.tail_place(slot, row, part.start).write_bytes(0, part.len()) };
            }
        }
    }

    /// The tail after `count` more rows of the convolution's input; `row(i)` begins with row i.
    fn advance_tail<'a>(
        &self,
        slot: usize,
        head: usize,
        count: usize,
        row: impl Fn(usize) -> &'a [f32],
    ) {
        let length = self.sizes.taps - 1;
        if count == 0 {
            return;
        }
        // Ascending: a row of the tail moves to a place before its own.
        for to in 0..length {
            for part in self.channels(head) {
                let from = match (count + to).checked_sub(length) {
                    Some(new) => row(new)[part.clone()].as_ptr(),
                    None => self.tail_place(slot, count + to, part.start).cast_const(),
                };
                // SAFETY: as above; no row overlaps another.
                unsafe { self.tail_place(slot, to, part.start).copy_from(from, part.len()) };
            }
        }
    }

    fn write_tape(&self, row: usize, place: usize, numbers: &[f32]) {
        let place = row * self.sizes.tape() + place;
        // SAFETY: the sizes were compared; these numbers are one piece's alone.
        unsafe { self.tape.add(place).copy_from(numbers.as_ptr(), numbers.len()) };
    }
}

#[cfg(test)]
mod tests;
