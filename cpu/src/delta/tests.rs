//! The rule against its definition in double precision, and the same bits however rows are cut.

use super::*;
use crate::kernel::available;

/// Numbers between -1 and 1, the same each time.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..count).map(next).collect()
}

/// A layer with numbers of its own.
struct Layer {
    sizes: RecurrentSizes,
    convolution: Vec<f32>,
    rates: Vec<f32>,
    dt_bias: Vec<f32>,
}

impl Layer {
    fn new(sizes: RecurrentSizes) -> Self {
        let heads = sizes.value_heads;
        Self {
            sizes,
            convolution: numbers(sizes.taps * sizes.channels(), 1),
            rates: numbers(heads, 2).iter().map(|x| -x.exp()).collect(),
            dt_bias: numbers(heads, 3),
        }
    }

    fn width(&self) -> usize {
        self.sizes.channels() + 2 * self.sizes.value_heads
    }

    fn rows(&self, count: usize, seed: u32) -> Vec<f32> {
        numbers(count * self.width(), seed).iter().map(|x| 3.0 * x).collect()
    }

    /// Returns the output and the tape.
    fn pass(
        &self,
        rows: &[f32],
        before: &[f32],
        slots: &[SlotRows],
        states: &mut [f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let Self { sizes, convolution, rates, dt_bias } = self;
        let count = rows.len() / self.width();
        let mut out = vec![f32::NAN; count * sizes.values()];
        let uncertain: usize = slots.iter().map(|slot| slot.uncertain).sum();
        let mut tape = vec![f32::NAN; uncertain * sizes.tape()];
        let length = self.width();
        let rows = FloatRows { numbers: rows, count, stride: length, length };
        let (beta, decay) = (sizes.channels(), sizes.channels() + sizes.value_heads);
        let states = &mut states.chunks_exact_mut(sizes.slot()).collect::<Vec<_>>();
        let output = PassOutput { states, out: &mut out, tape: &mut tape };
        let weights = RuleWeights { convolution, rates, dt_bias };
        advance(*sizes, weights, NewRows { rows, beta, decay }, before, slots, output);
        (out, tape)
    }

    /// The output of one sequence's rows, by definition, in double precision.
    fn by_definition(&self, rows: &[f32]) -> Vec<f64> {
        let RecurrentSizes { key_heads, value_heads, key_dim, value_dim, taps } = self.sizes;
        let (channels, keys) = (self.sizes.channels(), self.sizes.keys());
        let count = rows.len() / self.width();
        let at = |row: usize, column: usize| f64::from(rows[row * self.width() + column]);
        let mut states = vec![vec![vec![0.0; value_dim]; key_dim]; value_heads];
        let mut out = vec![];
        for row in 0..count {
            let mixed: Vec<f64> = (0..channels)
                .map(|channel| {
                    let weight = |tap| f64::from(self.convolution[tap * channels + channel]);
                    let tap = |tap: usize| {
                        (row + tap + 1).checked_sub(taps).map_or(0.0, |row| at(row, channel))
                            * weight(tap)
                    };
                    let sum: f64 = (0..taps).map(tap).sum();
                    sum / (1.0 + (-sum).exp())
                })
                .collect();
            let normed = |first: usize| {
                let x = &mixed[first..first + key_dim];
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / length).collect::<Vec<f64>>()
            };
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = head / (value_heads / key_heads);
                let (query, key) = (normed(key_head * key_dim), normed(keys + key_head * key_dim));
                let value = &mixed[2 * keys + head * value_dim..][..value_dim];
                let x = at(row, channels + value_heads + head) + f64::from(self.dt_bias[head]);
                let decay = (f64::from(self.rates[head]) * x.exp().ln_1p()).exp();
                let beta = 1.0 / (1.0 + (-at(row, channels + head)).exp());
                for column in 0..value_dim {
                    let read: f64 = (0..key_dim).map(|i| key[i] * decay * state[i][column]).sum();
                    let delta = beta * (value[column] - read);
                    for i in 0..key_dim {
                        state[i][column] = decay * state[i][column] + key[i] * delta;
                    }
                    let y: f64 = (0..key_dim).map(|i| query[i] * state[i][column]).sum();
                    out.push(y / (key_dim as f64).sqrt());
                }
            }
        }
        out
    }
}

/// Whole and partial vectors of every instruction set, shared and own key heads.
const SIZES: [RecurrentSizes; 3] = [
    RecurrentSizes { key_heads: 2, value_heads: 6, key_dim: 8, value_dim: 20, taps: 4 },
    RecurrentSizes { key_heads: 3, value_heads: 3, key_dim: 5, value_dim: 7, taps: 2 },
    RecurrentSizes { key_heads: 2, value_heads: 4, key_dim: 64, value_dim: 128, taps: 4 },
];

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn begin(slot: usize, rows: Range<usize>) -> SlotRows {
    SlotRows { slot, begins: true, rows, ..SlotRows::default() }
}

#[test]
fn rows_equal_the_definition() {
    for sizes in SIZES {
        let layer = Layer::new(sizes);
        let rows = layer.rows(9, 7);
        let mut states = vec![f32::NAN; sizes.slot()];
        let (out, _) = layer.pass(&rows, &[], &[begin(0, 0..9)], &mut states);
        for (at, (found, expected)) in out.iter().zip(layer.by_definition(&rows)).enumerate() {
            let far = (f64::from(*found) - expected).abs();
            assert!(far < 1e-5, "{sizes:?}, {at}: expected {expected}, found {found}");
        }
    }
}

#[test]
fn rows_have_the_same_bits_however_they_are_cut_and_beside_other_slots() {
    crate::set_threads(3);
    for sizes in SIZES {
        let layer = Layer::new(sizes);
        let (width, values) = (layer.width(), sizes.values());
        let rows = layer.rows(12, 11);
        let mut whole = vec![f32::NAN; sizes.slot()];
        let (expected, _) = layer.pass(&rows, &[], &[begin(0, 0..12)], &mut whole);
        for cut in 1..12 {
            let mut states = vec![f32::NAN; 3 * sizes.slot()];
            let others = layer.rows(2, 5);
            let first = [others.as_slice(), &rows[..cut * width]].concat();
            let slots = [begin(0, 0..2), begin(2, 2..2 + cut)];
            let (out, _) = layer.pass(&first, &[], &slots, &mut states);
            assert_eq!(bits(&out[2 * values..]), bits(&expected[..cut * values]), "{sizes:?}");
            let rest = SlotRows { begins: false, ..begin(2, 0..12 - cut) };
            let (out, _) = layer.pass(&rows[cut * width..], &[], &[rest], &mut states);
            assert_eq!(bits(&out), bits(&expected[cut * values..]), "{sizes:?}");
            assert_eq!(bits(&states[2 * sizes.slot()..]), bits(&whole), "{sizes:?}, cut {cut}");
        }
    }
}

#[test]
fn accepted_rows_leave_the_states_of_a_pass_of_those_rows_alone() {
    for sizes in SIZES {
        let layer = Layer::new(sizes);
        let (width, rows) = (layer.width(), layer.rows(12, 3));
        for accepted in 0..=5 {
            let mut states = vec![f32::NAN; sizes.slot()];
            // Four certain rows and five that may be rejected.
            let block = SlotRows { uncertain: 5, ..begin(0, 0..9) };
            let (out, tape) = layer.pass(&rows[..9 * width], &[], &[block], &mut states);
            let mut plain = vec![f32::NAN; sizes.slot()];
            let kept = 4 + accepted;
            let alone = [begin(0, 0..kept)];
            let (expected, _) = layer.pass(&rows[..kept * width], &[], &alone, &mut plain);
            assert_eq!(bits(&out[..expected.len()]), bits(&expected), "{sizes:?}");
            let fold = SlotRows { accepted: 0..accepted, ..SlotRows::default() };
            layer.pass(&[], &tape, &[fold], &mut states);
            assert_eq!(bits(&states), bits(&plain), "{sizes:?}, {accepted} accepted");
        }
    }
}

#[test]
fn every_instruction_set_folds_as_it_steps() {
    let (keys, width) = (12, 37);
    let [query, key] = [1, 2].map(|seed| numbers(keys, seed));
    let value = numbers(width, 3);
    for kernels in available() {
        let mut stepped = numbers(keys * width, 4);
        let mut folded = stepped.clone();
        let (mut out, mut delta) = (vec![0.0; width], vec![0.0; width]);
        let row = DeltaRow { query: &query, key: &key, value: &value, decay: 0.9, beta: 0.4 };
        // SAFETY: `available` are of this processor.
        unsafe {
            (kernels.delta.step)(&mut stepped, row, &mut out, &mut delta);
            (kernels.delta.fold)(&mut folded, &key, &delta, 0.9);
        }
        assert_eq!(bits(&stepped), bits(&folded), "{}", kernels.name);
    }
}

#[test]
fn gates_equal_their_formulas() {
    let silu = |x: f32| f64::from(x) / (1.0 + (-f64::from(x)).exp());
    for kernels in available() {
        for length in [1, 7, 16, 33, 128] {
            let [x, gate, weight] = [1, 2, 3].map(|seed| {
                numbers(length, seed + length as u32).iter().map(|x| 5.0 * x).collect::<Vec<_>>()
            });
            let (mut normed, mut gated) = (vec![f32::NAN; length], vec![f32::NAN; length]);
            // SAFETY: `available` are of this processor.
            unsafe {
                (kernels.delta.norm_gated)(&x, &gate, &weight, 1e-6, &mut normed);
                (kernels.delta.sigmoid_gated)(&x, &gate, &mut gated);
            }
            let squares = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            let rms = (squares / length as f64 + 1e-6).sqrt();
            for at in 0..length {
                let expected = f64::from(x[at]) / rms * f64::from(weight[at]) * silu(gate[at]);
                assert!((f64::from(normed[at]) - expected).abs() < 1e-4, "{}", kernels.name);
                let expected = f64::from(x[at]) / (1.0 + (-f64::from(gate[at])).exp());
                assert!((f64::from(gated[at]) - expected).abs() < 1e-5, "{}", kernels.name);
            }
        }
    }
}
