//! Passes over sequences with states: cut in any way, with drafted rows that are accepted or
//! rejected, beside others. The output of every row that stays, and the states after it, are those
//! of one pass over the sequence alone.

use mlx_rs::transforms::eval;

use super::super::{GrowingKv, KvStore, LayerKv};
use super::*;
use crate::device::{DeviceChoice, choose};
use crate::kv::tests::testing::number;

const SIZES: RecurrentSizes =
    RecurrentSizes { key_heads: 2, value_heads: 4, key_dim: 6, value_dim: 10, taps: 4 };
const LAYERS: [LayerKv; 3] = [
    LayerKv::Recurrent(SIZES),
    LayerKv::Growing(GrowingKv { n_kv: 1, key_dim: 4, value_dim: 4, window: None }),
    LayerKv::Recurrent(SIZES),
];
/// Places of the recurrent layers.
const RECURRENT: [usize; 2] = [0, 2];
/// How long random runs make sequences and passes.
#[derive(Clone, Copy)]
struct Lengths {
    /// Most rows of a sequence.
    sequence: i32,
    /// Most certain rows of a sequence in a pass.
    certain: i32,
}

/// Sequences that many passes advance by a few rows each.
const SHORT: Lengths = Lengths { sequence: 40, certain: 4 };
/// Sequences and passes of several chunks, which end anywhere within them.
const LONG: Lengths = Lengths { sequence: 290, certain: 130 };

impl Lengths {
    /// Whether a sequence of `rows` rows has room for another pass.
    fn have_room(self, rows: i32) -> bool {
        // Two accepted and two rejected rows may come with the certain ones.
        rows < self.sequence - self.certain - 4
    }
}

fn wave(shape: &[i32], kind: u64) -> Array {
    let count = shape.iter().product::<i32>() as u64;
    let numbers: Vec<f32> = (0..count).map(|at| number([77, kind, at, 0])).collect();
    Array::from_slice(&numbers, shape)
}

fn rule(layer: usize) -> DeltaRule {
    let (kind, heads) = (10 * layer as u64, SIZES.value_heads as i32);
    let rates = wave(&[heads], kind + 1).exp().and_then(|rates| rates.negative());
    let channels = SIZES.channels() as i32;
    DeltaRule {
        sizes: SIZES,
        convolution: wave(&[SIZES.taps as i32, channels], kind),
        rates: rates.expect("lazy"),
        dt_bias: wave(&[heads], kind + 2),
        beta: channels,
        decay: channels + heads,
    }
}

/// A projected row: a pure function of its layer, sequence and position. `draft` 0 is the row that
/// the sequence has; any other is a draft that will be rejected.
fn row(layer: usize, sequence: u64, position: i32, draft: u64) -> Vec<f32> {
    let width = (SIZES.channels() + 2 * SIZES.value_heads) as u64;
    let kind = 1000 + 10 * layer as u64 + draft;
    (0..width).map(|at| 2.0 * number([kind, sequence, position as u64, at])).collect()
}

/// Rows of a sequence in a step.
#[derive(Clone, Copy, Debug)]
struct Part {
    sequence: u64,
    certain: i32,
    accepted: i32,
    rejected: i32,
}

/// Output rows and states of every layer.
type Found = Vec<Vec<f32>>;

struct Run {
    store: KvStore,
    rules: [DeltaRule; 2],
    /// The rows that each sequence has: those of this sequence, in case it was forked.
    rows_of: HashMap<u64, u64>,
    /// For random changes.
    lengths: Lengths,
}

impl Run {
    fn new(by_host: bool) -> Self {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let store = KvStore::new(&LAYERS, Dtype::Float32, 300).expect("made");
        let store = if by_host { store } else { store.by_class() };
        Self { store, rules: [rule(0), rule(1)], rows_of: HashMap::new(), lengths: SHORT }
    }

    fn open(&mut self, sequence: u64) {
        self.store.open(SequenceId(sequence)).expect("new");
        self.rows_of.insert(sequence, sequence);
    }

    fn length(&self, sequence: u64) -> i32 {
        self.store.length(SequenceId(sequence)).expect("open")
    }

    /// Builds the pass. Returns for each recurrent layer its lazy output.
    fn build(&mut self, parts: &[Part]) -> (Vec<Segment>, Vec<Array>) {
        let segment = |part: &Part| Segment {
            sequence: SequenceId(part.sequence),
            start: self.length(part.sequence),
            length: part.certain + part.accepted + part.rejected,
            drafted: part.accepted + part.rejected,
        };
        let segments: Vec<Segment> = parts.iter().map(segment).collect();
        let mut outputs = vec![];
        for (at, layer) in RECURRENT.into_iter().enumerate() {
            let mut numbers = vec![];
            for (part, segment) in parts.iter().zip(&segments) {
                let stays = segment.start + part.certain + part.accepted;
                let sequence = self.rows_of[&part.sequence];
                for position in segment.start..segment.end() {
                    let draft = if position < stays { 0 } else { 1 + position as u64 % 3 };
                    numbers.extend(row(at, sequence, position, draft));
                }
            }
            let count: i32 = segments.iter().map(|segment| segment.length).sum();
            let rows = Array::from_slice(&numbers, &[count, numbers.len() as i32 / count]);
            let out = self.store.recur(layer, &rows, &self.rules[at], &segments).expect("a pass");
            outputs.push(out);
        }
        (segments, outputs)
    }

    /// A step. Returns for each part the output of the rows that stay, all layers.
    fn step(&mut self, parts: &[Part]) -> Vec<Found> {
        let (segments, outputs) = self.build(parts);
        eval(&outputs).expect("evaluates");
        let mut first = 0;
        let mut found = vec![];
        for (part, segment) in parts.iter().zip(&segments) {
            let (stays, width) = ((part.certain + part.accepted) as usize, SIZES.values());
            let rows = |out: &Array| {
                let out: &[f32] = out.try_as_slice().expect("floats");
                out[first * width..(first + stays) * width].to_vec()
            };
            found.push(outputs.iter().map(rows).collect());
            first += segment.length as usize;
            let length = segment.start + stays as i32;
            self.store.commit(segment.sequence, length).expect("commits");
        }
        found
    }

    /// The states of a sequence after its committed rows, all layers.
    fn states(&mut self, sequence: u64) -> Found {
        let (wanted, by_host) = (SequenceId(sequence), self.store.by_row);
        let states = &mut self.store.states;
        states.settle(|sequence| sequence == wanted, by_host).expect("settled");
        let read = |states: &Array| {
            states.eval().expect("evaluates");
            states.try_as_slice().expect("floats").to_vec()
        };
        states.progress[&wanted].states.iter().map(read).collect()
    }
}

/// One pass over a sequence alone, by nodes of our own: the outputs of its rows, and its states.
fn alone(sequence: u64, rows: i32) -> (Found, Found) {
    let mut run = Run::new(true);
    run.open(sequence);
    let part = Part { sequence, certain: rows, accepted: 0, rejected: 0 };
    (run.step(&[part]).remove(0), run.states(sequence))
}

/// Checks numbers: equal bits by nodes of our own, nearly equal numbers by MLX.
fn same(expected: &[f32], found: &[f32], by_host: bool, what: &str) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (at, (a, b)) in expected.iter().zip(found).enumerate() {
        let fits = if by_host { a.to_bits() == b.to_bits() } else { (a - b).abs() < 1e-5 };
        assert!(fits, "{what}: expected {a} at {at}, found {b}");
    }
}

/// Expected outputs and states of the sequences of a test.
struct Expected(HashMap<(u64, i32), (Found, Found)>);

impl Expected {
    /// Compares the last outputs of a sequence with those of one pass over its rows.
    fn check_rows(&mut self, run: &Run, sequence: u64, out: &[Vec<f32>], what: &str) {
        for (expected, found) in self.of(run, sequence).0.iter().zip(out) {
            same(&expected[expected.len() - found.len()..], found, run.store.by_row, what);
        }
    }

    /// Compares the states of a sequence. Folds its accepted rows, which the next pass would do.
    fn check_states(&mut self, run: &mut Run, sequence: u64, what: &str) {
        if run.length(sequence) == 0 {
            return;
        }
        let by_host = run.store.by_row;
        for (expected, found) in self.of(run, sequence).1.iter().zip(run.states(sequence)) {
            same(expected, &found, by_host, &format!("{what}: states"));
        }
    }

    /// Outputs and states after one pass over the rows of a sequence.
    fn of(&mut self, run: &Run, sequence: u64) -> &(Found, Found) {
        let (rows_of, length) = (run.rows_of[&sequence], run.length(sequence));
        self.0.entry((rows_of, length)).or_insert_with(|| alone(rows_of, length))
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % end
    }
}

/// One random change of a run: a step of some sequences, built in advance or not, a fork, an end and
/// a new begin, or memory given back.
fn change(run: &mut Run, expected: &mut Expected, random: &mut Random, what: &str) {
    let lengths = run.lengths;
    let mut open: Vec<u64> = run.rows_of.keys().copied().collect();
    open.sort_unstable();
    let one = open[random.below(open.len() as u64) as usize];
    match random.below(13) {
        0 if open.len() < 5 => {
            let (from, length) = (SequenceId(one), run.length(one));
            let to = (0..).find(|to| !open.contains(to)).expect("there are numbers");
            run.store.fork(from, SequenceId(to), length).expect("copied");
            run.rows_of.insert(to, run.rows_of[&one]);
            expected.check_states(run, to, what);
        }
        1 => {
            run.store.free(SequenceId(one));
            run.open(one);
        }
        2 => {
            run.store.set_limit(0).expect("given back");
            run.store.set_limit(u64::MAX).expect("no bound");
        }
        4 if open.len() < 5 && run.length(one) > 0 => {
            let to = (0..).find(|to| !open.contains(to)).expect("there are numbers");
            copy_apart(run, one, to, random);
            expected.check_states(run, to, what);
        }
        3 => {
            run.store.commit(SequenceId(one), 0).expect("all rows may be dropped");
        }
        _ => {
            let in_advance = random.below(4) == 0;
            let parts: Vec<Part> = open
                .iter()
                .filter(|sequence| lengths.have_room(run.length(**sequence)))
                .filter_map(|sequence| {
                    let ends = [1 + lengths.certain as u64, 3, 3];
                    let [certain, accepted, rejected] = ends.map(|end| random.below(end));
                    let is_in = random.below(3) > 0 && certain + accepted + rejected > 0;
                    let [certain, accepted, rejected] =
                        [certain, accepted, rejected].map(|rows| rows as i32);
                    is_in.then_some(Part { sequence: *sequence, certain, accepted, rejected })
                })
                .collect();
            if parts.is_empty() {
                return;
            }
            if in_advance {
                step_in_advance(run, &parts, random.below(2) == 0);
            }
            let has_room = |part: &Part| lengths.have_room(run.length(part.sequence));
            let parts: Vec<Part> = parts.into_iter().filter(has_room).collect();
            if parts.is_empty() {
                return;
            }
            let found = run.step(&parts);
            for (part, out) in parts.iter().zip(found) {
                let what = format!("{what}, {part:?}");
                if part.certain + part.accepted > 0 {
                    expected.check_rows(run, part.sequence, &out, &what);
                }
                // Else the next pass folds what was accepted.
                if random.below(3) == 0 {
                    expected.check_states(run, part.sequence, &what);
                }
            }
        }
    }
}

/// Copies rows and states of a sequence out, and into a new one. The states are those after one of
/// the rows of which the store still has states.
fn copy_apart(run: &mut Run, from: u64, to: u64, random: &mut Random) {
    let (source, copy) = (SequenceId(from), SequenceId(to));
    let Progress { rows, tape, .. } = run.store.states.progress[&source].clone();
    let length = (rows + random.below(tape.len() as u64 + 1) as i32).max(1);
    let pieces = run.store.copy_out(source, 0, length, 1).expect("copied");
    let states = run.store.keep_states(source, length).expect("copied");
    assert_eq!((states.rows(), states.bytes()), (length, run.store.state_bytes()));
    run.open(to);
    run.store.copy_in(copy, &[&pieces[0]], Some(&states), length, 0).expect("copied");
    assert_eq!(run.length(to), length);
    run.rows_of.insert(to, run.rows_of[&from]);
}

/// Builds a step of one row for each sequence in advance. If it is not taken it leaves no trace.
fn step_in_advance(run: &mut Run, parts: &[Part], is_taken: bool) {
    let segment = |part: &Part| Segment {
        sequence: SequenceId(part.sequence),
        start: run.length(part.sequence),
        length: 1,
        drafted: 0,
    };
    let segments: Vec<Segment> = parts.iter().map(segment).collect();
    let (rules, rows_of) = ([rule(0), rule(1)], run.rows_of.clone());
    let has_room = run
        .store
        .stage(&segments, |store| {
            let outputs = RECURRENT.iter().enumerate().map(|(at, layer)| {
                let rows: Vec<f32> = segments
                    .iter()
                    .flat_map(|one| row(at, rows_of[&one.sequence.0], one.start, 0))
                    .collect();
                let width = rows.len() / segments.len();
                let rows = Array::from_slice(&rows, &[segments.len() as i32, width as i32]);
                store.recur(*layer, &rows, &rules[at], &segments)
            });
            outputs.collect::<Result<Vec<Array>>>()
        })
        .expect("built");
    if has_room && is_taken {
        let outputs = run.store.take_staged(|_: &Vec<Array>| true).expect("nothing has changed");
        eval(&outputs).expect("evaluates");
        for one in segments {
            run.store.commit(one.sequence, one.end()).expect("commits");
        }
    }
}

fn random_runs(runs: u64, seed: u64, by_host: bool, lengths: Lengths) {
    let mut expected = Expected(HashMap::new());
    for at in 0..runs {
        let mut random = Random(seed + 977 * at);
        let mut run = Run { lengths, ..Run::new(by_host) };
        (0..3).for_each(|sequence| run.open(sequence));
        for turn in 0..12 {
            let what = format!("run {at}, turn {turn}");
            change(&mut run, &mut expected, &mut random, &what);
        }
    }
}

#[test]
fn any_accepted_rows_leave_what_a_pass_of_those_rows_alone_does() {
    random_runs(100, 0x5eed, true, SHORT);
}

#[test]
fn mlx_alone_leaves_the_same_states() {
    random_runs(6, 0x5eed, false, SHORT);
}

#[test]
fn chunks_of_mlx_leave_what_a_pass_of_single_rows_does() {
    random_runs(6, 0x0c0c, false, LONG);
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn ten_thousand_runs_leave_what_a_pass_of_those_rows_alone_does() {
    random_runs(10_000, 0x00c0_ffee, true, SHORT);
}

#[test]
fn sixteen_sequences_are_one_node_a_layer_written_in_place() {
    let mut run = Run::new(true);
    (0..16).for_each(|sequence| run.open(sequence));
    let parts = |certain| -> Vec<Part> {
        (0..16).map(|sequence| Part { sequence, certain, accepted: 0, rejected: 0 }).collect()
    };
    run.step(&parts(3));
    let addresses = |run: &Run| -> Vec<*const f32> {
        let states = (0..16).map(|sequence| &run.store.states.progress[&SequenceId(sequence)]);
        let place = |states: &Array| states.try_as_slice::<f32>().expect("floats").as_ptr();
        states.flat_map(|progress| progress.states.iter().map(place)).collect()
    };
    let before = addresses(&run);
    run.step(&parts(1));
    assert_eq!(addresses(&run), before, "no copy of the states");
    let (_, outputs) = run.build(&parts(1));
    assert_eq!(outputs[0].shape(), [16, SIZES.values() as i32]);
}

#[test]
fn rows_that_cannot_be_dropped_and_passes_without_a_commit_are_refused() {
    let mut run = Run::new(true);
    run.open(0);
    run.step(&[Part { sequence: 0, certain: 4, accepted: 1, rejected: 2 }]);
    let refused = |run: &mut Run, length: i32| {
        run.store.commit(SequenceId(0), length).expect_err("refused").to_string()
    };
    assert!(refused(&mut run, 3).contains("expected 4 to 5 rows, or none"), "certain rows stay");
    assert!(refused(&mut run, 6).contains("found 6"), "rejected rows do not come back");
    let fork = run.store.fork(SequenceId(0), SequenceId(1), 2).expect_err("refused").to_string();
    assert!(fork.contains("no state of the first 2"), "{fork}");
    assert_eq!(run.store.length(SequenceId(1)), None);
    for (rows, found) in [(3, "found those of 4 to 5"), (6, "found those"), (0, "found those")] {
        let error = run.store.keep_states(SequenceId(0), rows).expect_err("refused").to_string();
        assert!(error.contains(found), "{error}");
    }
    let (rows, states) = (
        run.store.copy_out(SequenceId(0), 0, 5, 1).expect("copied"),
        run.store.keep_states(SequenceId(0), 4).expect("copied"),
    );
    run.open(1);
    let mut into = |states| {
        let copied = run.store.copy_in(SequenceId(1), &[&rows[0]], states, 5, 0);
        copied.expect_err("refused").to_string()
    };
    assert!(into(None).contains("found 0 after 5"), "rows alone are of no use");
    assert!(into(Some(&states)).contains("after 5 rows, found"), "states of other rows");
    assert_eq!(run.length(1), 0);
    let part = Part { sequence: 0, certain: 1, accepted: 0, rejected: 0 };
    run.build(&[part]);
    let segment = Segment { sequence: SequenceId(0), start: 5, length: 1, drafted: 0 };
    let rows = row(0, 0, 5, 0);
    let rows = Array::from_slice(&rows, &[1, rows.len() as i32]);
    let error = run.store.recur(0, &rows, &rule(0), &[segment]).expect_err("refused").to_string();
    assert!(error.contains("expected a commit after its last pass"), "{error}");
}

/// A copy shares the arrays. Whichever goes on writes into its own memory, once.
#[test]
fn a_copied_sequence_shares_its_states_until_one_goes_on() {
    let mut run = Run::new(true);
    (0..2).for_each(|sequence| run.open(sequence));
    let part = |sequence, certain| Part { sequence, certain, accepted: 0, rejected: 0 };
    run.step(&[part(0, 3), part(1, 2)]);
    run.store.fork(SequenceId(0), SequenceId(2), 3).expect("copied");
    run.rows_of.insert(2, 0);
    let place = |run: &Run, sequence| {
        let states = &run.store.states.progress[&SequenceId(sequence)].states[0];
        states.try_as_slice::<f32>().expect("floats").as_ptr()
    };
    let (first, other) = (place(&run, 0), place(&run, 1));
    assert_eq!(place(&run, 2), first);
    let mut expected = Expected(HashMap::new());
    for round in 0..2 {
        for sequence in [2, 0] {
            let found = run.step(&[part(sequence, 1)]).remove(0);
            let what = format!("round {round} of {sequence}");
            expected.check_rows(&run, sequence, &found, &what);
            expected.check_states(&mut run, sequence, &what);
        }
        assert_eq!((place(&run, 0), place(&run, 1)), (first, other));
        assert_ne!(place(&run, 2), first);
    }
}

#[test]
fn states_are_counted_and_given_back_with_the_slots() {
    let mut run = Run::new(true);
    let state_bytes = 2 * 4 * SIZES.slot() as u64;
    let class = run.store.class_bytes()[0];
    assert_eq!(class, (256, 256 * 8 * 4 + state_bytes));
    (0..3).for_each(|sequence| run.open(sequence));
    let part = |sequence| Part { sequence, certain: 2, accepted: 0, rejected: 0 };
    run.step(&[part(0), part(1), part(2)]);
    assert_eq!(run.store.bytes(SequenceId(1)), class.1);
    // Three slots of keys and values are held; doubling made a fourth.
    let rows = class.1 - state_bytes;
    assert_eq!(run.store.allocated_bytes(), 4 * rows + 3 * state_bytes);
    assert_eq!(run.store.idle_bytes(), rows);
    run.store.free(SequenceId(1));
    assert_eq!((run.store.bytes(SequenceId(1)), run.store.idle_bytes()), (0, 2 * rows));
    run.store.set_limit(2 * class.1).expect("given back");
    assert_eq!((run.store.allocated_bytes(), run.store.idle_bytes()), (2 * class.1, 0));
    let mut expected = Expected(HashMap::new());
    for sequence in [0, 2] {
        let found = run.step(&[part(sequence)]).remove(0);
        let what = "after the others have moved";
        expected.check_rows(&run, sequence, &found, what);
        expected.check_states(&mut run, sequence, what);
    }
    [0, 2].into_iter().for_each(|sequence| run.store.free(SequenceId(sequence)));
    assert_eq!(run.store.allocated_bytes(), 0);
}

#[test]
fn states_of_32_sequences_are_counted_to_the_byte() {
    let mut run = Run::new(true);
    let states = 2 * 4 * SIZES.slot() as u64;
    assert_eq!(run.store.state_bytes(), states);
    assert_eq!(run.store.tape_row_bytes(), 2 * 4 * SIZES.tape() as u64);
    (0..32).for_each(|sequence| run.open(sequence));
    let part = |sequence| Part { sequence, certain: 1, accepted: 1, rejected: 0 };
    run.step(&(0..32).map(part).collect::<Vec<_>>());
    let class = run.store.class_bytes()[0].1;
    let held: u64 = (0..32).map(|sequence| run.store.bytes(SequenceId(sequence))).sum();
    assert_eq!((held, run.store.allocated_bytes()), (32 * class, 32 * class));
    assert_eq!(run.store.states.allocated_bytes(), 32 * states);
    let bytes: usize = run.store.states.arrays().map(Array::nbytes).sum();
    assert_eq!(bytes as u64, 32 * states, "the arrays themselves");
    // A copy is its owner's: the store does not count it.
    let kept = run.store.keep_states(SequenceId(7), 2).expect("copied");
    assert_eq!((kept.bytes(), run.store.allocated_bytes()), (states, 32 * class));
    (0..32).for_each(|sequence| run.store.free(SequenceId(sequence)));
    assert_eq!((run.store.allocated_bytes(), kept.bytes()), (0, states));
}
