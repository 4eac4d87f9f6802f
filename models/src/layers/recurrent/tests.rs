//! Chunks against rows one after another and against the crate `cpu`: outputs, states and tapes; and
//! the primitives that they build.

use std::sync::Arc;

use mlx_rs::transforms::eval;
use paceline_cpu::SlotRows;

use super::triangle::{CHUNK, Triangle};
use super::*;
use crate::device::{DeviceChoice, choose};

/// Most that a number may differ, in units of the largest of its array (1 at least).
const BOUND: f32 = 1e-5;

/// Shared and own key heads, and the head sizes of Qwen3.5.
const SIZES: [RecurrentSizes; 3] = [
    RecurrentSizes { key_heads: 2, value_heads: 6, key_dim: 8, value_dim: 20, taps: 4 },
    RecurrentSizes { key_heads: 3, value_heads: 3, key_dim: 5, value_dim: 7, taps: 2 },
    RecurrentSizes { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128, taps: 4 },
];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) as usize % end
    }

    /// From -1 to 1.
    fn number(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }

    fn array(&mut self, shape: &[i32], scale: f32) -> Array {
        let count = shape.iter().product::<i32>();
        let numbers: Vec<f32> = (0..count).map(|_| scale * self.number()).collect();
        Array::from_slice(&numbers, shape)
    }
}

fn width(sizes: RecurrentSizes) -> i32 {
    (sizes.channels() + 2 * sizes.value_heads) as i32
}

fn rule(sizes: RecurrentSizes, random: &mut Random) -> DeltaRule {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (heads, channels) = (sizes.value_heads as i32, sizes.channels() as i32);
    let rates = random.array(&[heads], 3.0).exp().and_then(|rates| rates.negative());
    DeltaRule {
        sizes,
        convolution: random.array(&[sizes.taps as i32, channels], 1.0),
        rates: rates.expect("lazy"),
        dt_bias: random.array(&[heads], 3.0),
        beta: channels,
        decay: channels + heads,
    }
}

/// What is needed of a pass beside its rows.
struct Before {
    states: Vec<Array>,
    tape: Option<Array>,
    slots: Arc<[SlotRows]>,
    starts: Vec<i32>,
}

impl Before {
    /// One sequence, whose states are those of its first `start` rows.
    fn of_one(state: Array, start: i32, rows: usize) -> Self {
        let slot = SlotRows { begins: start == 0, rows: 0..rows, ..SlotRows::default() };
        Self { states: vec![state], tape: None, slots: Arc::new([slot]), starts: vec![start] }
    }

    fn pass(&self) -> StatePass<'_> {
        let Self { states, tape, slots, starts } = self;
        let tape_rows = slots.iter().map(|slot| slot.uncertain).sum();
        StatePass { states, before: tape.as_ref(), slots, starts, tape_rows }
    }

    fn advance(&self, rule: &DeltaRule, rows: &Array, most_alone: usize) -> Advanced {
        rule.advance_in_graph(&self.pass(), rows, most_alone).expect("advances")
    }
}

fn floats(x: &Array) -> Vec<f32> {
    eval([x]).expect("evaluates");
    let x = x.contiguous().expect("lazy");
    eval([&x]).expect("evaluates");
    x.try_as_slice().expect("floats").to_vec()
}

/// The largest difference of outputs, states and tapes, in units of the largest number of an array
/// (1 at least).
fn difference(a: &Advanced, b: &Advanced) -> f32 {
    let all = |of: &Advanced| -> Vec<Array> {
        of.states.iter().chain([&of.out]).chain(&of.tape).cloned().collect()
    };
    let (a, b) = (all(a), all(b));
    assert_eq!(a.len(), b.len());
    let of_pair = |(a, b): (&Array, &Array)| {
        assert_eq!(a.shape(), b.shape());
        let (a, b) = (floats(a), floats(b));
        assert!(a.iter().chain(&b).all(|number| number.is_finite()), "expected numbers");
        let largest = b.iter().fold(1.0, |largest: f32, number| largest.max(number.abs()));
        let far = a.iter().zip(&b).fold(0.0, |far: f32, (a, b)| far.max((a - b).abs()));
        far / largest
    };
    a.iter().zip(&b).map(of_pair).fold(0.0, f32::max)
}

/// A pass over one to three slots: some begin, others have rows and a tape of which rows were
/// accepted; any number of certain rows from any position on, and rows that may be rejected.
fn random_pass(rule: &DeltaRule, random: &mut Random) -> (Before, Array) {
    let sizes = rule.sizes;
    let count = 1 + random.below(3);
    let (mut slots, mut starts, mut row, mut tape) = (vec![], vec![], 0, 0);
    for slot in 0..count {
        let begins = random.below(3) == 0;
        let [certain, uncertain] = [random.below(200), random.below(4)];
        let certain = if random.below(3) == 0 { certain % 6 } else { certain };
        let certain = certain.max(1 - uncertain.min(1));
        let accepted = if begins { 0 } else { random.below(3) };
        slots.push(SlotRows {
            slot,
            begins,
            accepted: 2 * slot..2 * slot + accepted,
            rows: row..row + certain + uncertain,
            uncertain,
            tape,
        });
        starts.push(if begins { 0 } else { random.below(1000) as i32 });
        (row, tape) = (row + certain + uncertain, tape + uncertain);
    }
    let first_slots: Vec<SlotRows> = (0..count)
        .map(|slot| SlotRows {
            slot,
            begins: true,
            rows: 4 * slot..4 * slot + 4,
            uncertain: 2,
            tape: 2 * slot,
            ..SlotRows::default()
        })
        .collect();
    let zeros = vec![Array::from_slice(&vec![0.0f32; sizes.slot()], &[1, sizes.slot() as i32])];
    let first = Before {
        states: zeros.into_iter().cycle().take(count).collect(),
        tape: None,
        slots: first_slots.into(),
        starts: vec![0; count],
    };
    let first_rows = random.array(&[4 * count as i32, width(sizes)], 2.0);
    let Advanced { states, tape, .. } = first.advance(rule, &first_rows, usize::MAX);
    let rows = random.array(&[row as i32, width(sizes)], 3.0);
    (Before { states, tape, slots: slots.into(), starts }, rows)
}

#[test]
fn chunks_leave_what_rows_one_after_another_leave() {
    let (mut random, mut largest) = (Random(0x5eed), 0.0f32);
    for round in 0..24 {
        let rule = rule(SIZES[round % SIZES.len()], &mut random);
        let (before, rows) = random_pass(&rule, &mut random);
        let found = before.advance(&rule, &rows, MOST_ROWS_ALONE);
        let alone = before.advance(&rule, &rows, usize::MAX);
        let far = difference(&found, &alone);
        assert!(far < BOUND, "round {round}: {far:e} from rows one after another");
        largest = largest.max(far);
        #[cfg(target_os = "linux")]
        if let Some(host) = host::advance(&rule, &before.pass(), &rows).expect("advances") {
            let far = difference(&found, &host);
            assert!(far < BOUND, "round {round}: {far:e} from the crate cpu");
        }
    }
    println!("largest difference {largest:e}");
}

/// Rows of one key that hardly decay and are learned whole: the worst case of an inverse.
#[test]
fn rows_of_one_token_are_as_exact_as_others() {
    let mut random = Random(3);
    for sizes in SIZES {
        let rule = rule(sizes, &mut random);
        let heads = sizes.value_heads;
        let mut row = floats(&random.array(&[1, width(sizes)], 3.0));
        let gates = row.len() - 2 * heads;
        row[gates..gates + heads].fill(6.0);
        row[gates + heads..].fill(-12.0);
        let rows = Array::from_slice(&row.repeat(192), &[192, width(sizes)]);
        let before = Before::of_one(random.array(&[1, sizes.slot() as i32], 1.0), 64, 192);
        let [found, alone] =
            [MOST_ROWS_ALONE, usize::MAX].map(|most| before.advance(&rule, &rows, most));
        let far = difference(&found, &alone);
        assert!(far < BOUND, "{sizes:?}: {far:e}");
    }
}

/// One row in eight forgets all that was before it, the others next to nothing.
#[test]
fn small_decays_after_large_ones_keep_their_precision() {
    let mut random = Random(5);
    let sizes = SIZES[0];
    let mut rule = rule(sizes, &mut random);
    let heads = sizes.value_heads;
    rule.rates = Array::from_slice(&vec![-8.0f32; heads], &[heads as i32]);
    rule.dt_bias = Array::from_slice(&vec![0.0f32; heads], &[heads as i32]);
    let mut rows = floats(&random.array(&[128, width(sizes)], 2.0));
    for (at, row) in rows.chunks_exact_mut(width(sizes) as usize).enumerate() {
        let gates = row.len() - heads;
        row[gates..].fill(if at % 8 == 0 { 400.0 } else { -9.0 });
    }
    let rows = Array::from_slice(&rows, &[128, width(sizes)]);
    let before = Before::of_one(random.array(&[1, sizes.slot() as i32], 1.0), 0, 128);
    let [found, alone] =
        [MOST_ROWS_ALONE, usize::MAX].map(|most| before.advance(&rule, &rows, most));
    let far = difference(&found, &alone);
    assert!(far < 2e-6, "{far:e}");
}

/// The rows of one sequence in passes that end at `cuts`.
fn in_passes(rule: &DeltaRule, rows: &Array, cuts: &[i32]) -> Advanced {
    let slot = rule.sizes.slot();
    let mut state = Array::from_slice(&vec![f32::NAN; slot], &[1, slot as i32]);
    let (mut out, mut start) = (vec![], 0);
    for end in cuts.iter().copied().chain([rows.dim(0)]) {
        let before = Before::of_one(state, start, (end - start) as usize);
        let part = rows.try_index((start..end, ..)).expect("lazy");
        let mut advanced = before.advance(rule, &part, MOST_ROWS_ALONE);
        state = advanced.states.remove(0);
        out.push(advanced.out);
        start = end;
    }
    Advanced { states: vec![state], out: concatenate(&out, 0).expect("lazy"), tape: None }
}

#[test]
fn a_scheduler_may_cut_a_prompt_anywhere() {
    let mut random = Random(11);
    for sizes in SIZES {
        let rule = rule(sizes, &mut random);
        let rows = random.array(&[300, width(sizes)], 3.0);
        let whole = in_passes(&rule, &rows, &[]);
        for (fewer, more) in
            [(&[][..], &[64][..]), (&[], &[128, 256]), (&[64], &[192]), (&[17], &[17, 64, 192])]
        {
            let [fewer, parts] = [fewer, more].map(|cuts| in_passes(&rule, &rows, cuts));
            assert_eq!(difference(&fewer, &parts), 0.0, "{sizes:?}: cut at borders, {more:?}");
        }
        for cuts in [&[1][..], &[63], &[65], &[3, 100, 105, 290], &[32, 64, 96, 128, 160]] {
            let far = difference(&whole, &in_passes(&rule, &rows, cuts));
            assert!(far < BOUND, "{sizes:?}: cut at {cuts:?}: {far:e}");
        }
    }
}

/// Rows of a chunk have the same bits whatever other sequences are in the pass.
#[test]
fn sequences_beside_one_another_leave_the_bits_of_each_alone() {
    let mut random = Random(13);
    for sizes in SIZES {
        let rule = rule(sizes, &mut random);
        let rows = random.array(&[230, width(sizes)], 3.0);
        let state = |random: &mut Random| random.array(&[1, sizes.slot() as i32], 1.0);
        let (first, second) = (state(&mut random), state(&mut random));
        let slot = |slot, rows| SlotRows { slot, rows, ..SlotRows::default() };
        let both = Before {
            states: vec![first, second.clone()],
            tape: None,
            slots: Arc::new([slot(0, 0..100), slot(1, 100..230)]),
            starts: vec![17, 40],
        };
        let found = both.advance(&rule, &rows, MOST_ROWS_ALONE);
        let rows = rows.try_index((100.., ..)).expect("lazy");
        let alone = Before::of_one(second, 40, 130).advance(&rule, &rows, MOST_ROWS_ALONE);
        let found = Advanced {
            states: found.states[1..].to_vec(),
            out: found.out.try_index((100.., ..)).expect("lazy"),
            tape: None,
        };
        assert_eq!(difference(&found, &alone), 0.0, "{sizes:?}");
    }
}

/// L of equal keys, of opposed ones, of similar ones and of random ones.
#[test]
fn inverses_are_as_exact_as_forward_substitution() {
    choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (mut random, size) = (Random(17), CHUNK as usize);
    let kinds: [fn(usize, f32) -> f32; 4] = [
        |_, _| 1.0,
        |distance, _| if distance % 2 == 0 { 1.0 } else { -1.0 },
        |_, number| 0.9 + 0.1 * number,
        |_, number| number / 8.0,
    ];
    for (kind, number) in kinds.into_iter().enumerate() {
        let mut matrix = vec![vec![0.0f32; size]; size];
        for (row, numbers) in matrix.iter_mut().enumerate() {
            for (column, place) in numbers.iter_mut().enumerate() {
                // Numbers that do not count are large.
                let of_row = (column < row).then(|| number(row - column, random.number()));
                *place = of_row.unwrap_or(1e6);
            }
        }
        let mut expected: Vec<Vec<f64>> = vec![];
        for (row, numbers) in matrix.iter().enumerate() {
            let product = |column: usize| -> f64 {
                let known = numbers.iter().zip(&expected);
                known.map(|(number, line)| f64::from(*number) * line[column]).sum()
            };
            let unit = |column: usize| if column == row { 1.0 } else { 0.0 };
            expected.push((0..size).map(|column| unit(column) - product(column)).collect());
        }
        let matrix = Array::from_slice(&matrix.concat(), &[1, CHUNK, CHUNK]);
        let found = Triangle::new().and_then(|triangle| triangle.inverse(&matrix));
        for (found, expected) in floats(&found.expect("lazy")).iter().zip(expected.concat()) {
            let far = (f64::from(*found) - expected).abs();
            assert!(far < 2e-6, "kind {kind}: expected {expected}, found {found}");
        }
    }
}

/// In builds that can count them.
#[cfg(any(debug_assertions, feature = "test-graph"))]
#[test]
fn a_prompt_of_512_rows_takes_500_primitives_at_most() {
    use crate::testing::primitives;

    let mut random = Random(19);
    let rule = rule(SIZES[0], &mut random);
    eval([&rule.rates]).expect("evaluates");
    let mut count = |start: i32, rows: usize, most_alone: usize| {
        let state = random.array(&[1, rule.sizes.slot() as i32], 1.0);
        let before = Before::of_one(state, start, rows);
        let rows = random.array(&[rows as i32, width(rule.sizes)], 3.0);
        let Advanced { states, out, .. } = before.advance(&rule, &rows, most_alone);
        primitives::count(states.iter().chain([&out])).expect("counted")
    };
    let (aligned, across) = (count(512, 512, MOST_ROWS_ALONE), count(500, 512, MOST_ROWS_ALONE));
    println!("512 rows: {aligned} primitives in whole chunks, {across} across their borders");
    assert!(aligned < across && across <= 500, "{aligned} and {across}");
    // Rows alone as long as they cost no more than a chunk.
    let [few, more] =
        [0, 1].map(|more| [0, usize::MAX].map(|most| count(9, MOST_ROWS_ALONE + more, most)));
    println!("{MOST_ROWS_ALONE} rows by chunks and alone {few:?}, one more {more:?}");
    assert!(few[1] < few[0] + few[0] / 10 && more[1] > more[0], "{few:?}, {more:?}");
}

#[test]
fn outputs_have_the_type_of_the_rows() {
    let mut random = Random(23);
    let rule = rule(SIZES[0], &mut random);
    let rows = random.array(&[70, width(rule.sizes)], 3.0);
    let rows = rows.as_dtype(Dtype::Bfloat16).expect("lazy");
    let before = Before::of_one(random.array(&[1, rule.sizes.slot() as i32], 1.0), 0, 70);
    let found = before.advance(&rule, &rows, MOST_ROWS_ALONE);
    assert_eq!((found.out.dtype(), found.states[0].dtype()), (Dtype::Bfloat16, Dtype::Float32));
}
