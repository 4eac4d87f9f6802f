use super::*;
use crate::samples;

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    samples::numbers(seed).take(count).collect()
}

/// Slots of different lengths, some rows of each.
struct Case {
    kv_heads: usize,
    group: usize,
    key_dim: usize,
    value_dim: usize,
    capacity: usize,
    rows: Vec<RowKeys>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn new(kv_heads: usize, group: usize, dims: [usize; 2], rows: Vec<RowKeys>) -> Self {
        let [key_dim, value_dim] = dims;
        let capacity = rows.iter().map(|row| row.positions.end).max().unwrap_or(0) + 3;
        let slots = rows.iter().map(|row| row.slot).max().unwrap_or(0) + 1;
        let stored = slots * kv_heads * capacity;
        Self {
            kv_heads,
            group,
            key_dim,
            value_dim,
            capacity,
            queries: numbers(rows.len() * kv_heads * group * key_dim, 1),
            keys: numbers(stored * key_dim, 2),
            values: numbers(stored * value_dim, 3),
            rows,
        }
    }

    /// With slots that keep that many positions.
    fn keeping(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// All rows, or some of them.
    fn attend(&self, some: Range<usize>) -> Vec<f32> {
        let length = self.kv_heads * self.group * self.key_dim;
        let queries = FloatRows {
            numbers: &self.queries[some.start * length..some.end * length],
            count: some.len(),
            stride: length,
            length,
        };
        let stored = KeyValues {
            keys: &self.keys,
            values: &self.values,
            kv_heads: self.kv_heads,
            capacity: self.capacity,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        };
        let mut out = vec![f32::NAN; some.len() * self.kv_heads * self.group * self.value_dim];
        attention(queries, &self.rows[some], &stored, 0.25, &mut out);
        out
    }

    /// One head of one row by its formula.
    fn by_definition(&self, row: usize, head: usize) -> Vec<f64> {
        let RowKeys { slot, positions } = self.rows[row].clone();
        let query = &self.queries[(row * self.kv_heads * self.group + head) * self.key_dim..];
        let first = (slot * self.kv_heads + head / self.group) * self.capacity;
        let score = |position: usize| {
            let key = &self.keys[(first + position % self.capacity) * self.key_dim..];
            let dot = |at: usize| f64::from(query[at]) * f64::from(key[at]);
            (0.25 * (0..self.key_dim).map(dot).sum::<f64>()).exp()
        };
        let total: f64 = positions.clone().map(score).sum();
        let value = |position: usize, at: usize| {
            f64::from(self.values[(first + position % self.capacity) * self.value_dim + at])
        };
        let sum = |at: usize| {
            positions.clone().map(|position| score(position) * value(position, at)).sum::<f64>()
        };
        (0..self.value_dim).map(|at| if total == 0.0 { 0.0 } else { sum(at) / total }).collect()
    }
}

fn keys(slot: usize, positions: Range<usize>) -> RowKeys {
    RowKeys { slot, positions }
}

/// Causal rows of a prompt, of decoding streams and of a window; a row without keys; windows of
/// slots that keep their last positions alone.
fn cases() -> Vec<Case> {
    let prompt =
        |slot: usize, from: usize, to: usize| (from..to).map(move |at| keys(slot, 0..at + 1));
    let streams =
        [5usize, 300, 17, 64].into_iter().enumerate().map(|(slot, end)| keys(slot, 0..end));
    let window = (20..90).map(|at| keys(1, at - 15..at + 1));
    let windows =
        |slot: usize, from: usize, to: usize| (from..to).map(move |at| keys(slot, at - 25..at + 1));
    let kept = windows(0, 60, 75).chain(windows(1, 127, 128)).chain(windows(2, 90, 113));
    vec![
        Case::new(3, 3, [64, 64], streams.clone().collect()),
        Case::new(2, 4, [16, 24], prompt(0, 0, 70).chain(prompt(2, 30, 45)).collect()),
        Case::new(1, 1, [8, 8], window.chain([keys(0, 4..4), keys(0, 2..9)]).collect()),
        Case::new(2, 60, [10, 6], streams.collect()),
        Case::new(2, 3, [16, 8], kept.collect()).keeping(64),
        Case::new(1, 8, [64, 64], vec![keys(0, 0..3000), keys(1, 0..2900)]),
        // Alone, chunks of these rows are given out to threads; together whole rows are. Some chunks of
        // a block are seen by one of its rows only.
        Case::new(1, 2, [64, 32], (0..9).map(|at| keys(at, at * 40..600 + at * 90)).collect()),
        Case::new(2, 3, [16, 8], vec![keys(0, 0..40), keys(0, 500..800), keys(0, 30..700)]),
        // A window of 300 positions in slots that keep 310: a chunk lies at both ends of its slot.
        Case::new(1, 3, [16, 8], (900..920).map(|at| keys(0, at - 300..at)).collect()).keeping(320),
    ]
}

#[test]
fn rows_attend_as_by_definition() {
    for (number, case) in cases().iter().enumerate() {
        let found = case.attend(0..case.rows.len());
        let heads = case.kv_heads * case.group;
        for (at, found) in found.chunks_exact(case.value_dim).enumerate() {
            for (found, expected) in found.iter().zip(case.by_definition(at / heads, at % heads)) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-5,
                    "case {number}, head {at}: expected {expected}, found {found}"
                );
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for case in cases() {
        let together = case.attend(0..case.rows.len());
        let length = together.len() / case.rows.len();
        for (row, together) in together.chunks_exact(length).enumerate() {
            let alone = case.attend(row..row + 1);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&alone), bits(together), "row {row}");
        }
    }
}

#[test]
fn scores_of_long_sequences_have_a_bound() {
    let long = |end: usize| (0..100).map(move |row| keys(0, 0..end - 100 + row + 1));
    for (end, group, rows) in [(200, 3, 16), (200, 60, 1), (8192, 4, 12), (1 << 20, 4, 12)] {
        let blocks = blocks(&long(end).collect::<Vec<_>>(), group, SCORE_ROWS);
        assert_eq!(blocks[0].rows.len(), rows, "{end} positions, groups of {group}");
        assert_eq!(blocks.iter().map(|block| block.rows.len()).sum::<usize>(), 100);
        assert_eq!(blocks.last().expect("the last rows").positions, 0..end);
    }
}

#[test]
#[should_panic(expected = "expected at most 7 positions, found 0..8")]
fn more_positions_than_a_slot_keeps_are_refused() {
    let mut case = Case::new(1, 1, [8, 8], vec![keys(0, 0..4)]);
    case.rows[0].positions.end = case.capacity + 1;
    case.attend(0..1);
}

#[test]
fn pieces_of_several_rows_are_as_many_for_each_thread() {
    let of = |lengths: &[usize]| -> Vec<Block> {
        let mut first = 0;
        let block = |rows: &usize| {
            first += rows;
            Block { slot: first, rows: first - rows..first, positions: 0..100 }
        };
        lengths.iter().map(block).collect()
    };
    // Three heads for two threads: a block of 8 rows is cut in two.
    assert_eq!(balanced(&of(&[8]), 3, 2), Some(4));
    assert_eq!(balanced(&of(&[8, 1]), 3, 2), None, "six pieces");
    assert_eq!(balanced(&of(&[8]), 2, 2), None);
    assert_eq!(balanced(&of(&[9]), 1, 3), Some(3));
    for (lengths, heads, threads) in
        [(&[1][..], 3, 2), (&[], 3, 2), (&[16], 3, 1), (&[48; 9], 3, 2)]
    {
        assert_eq!(balanced(&of(lengths), heads, threads), None, "{lengths:?}");
    }
}
