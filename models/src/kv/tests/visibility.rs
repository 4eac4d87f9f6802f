//! Rows that are only written, rows that attend to later ones, windows: against attention by
//! definition.

use mlx_rs::transforms::eval;

use super::super::step_rows::{Call, Causality, ClassRead, QueryKind, Reach};
use super::testing::number;
use super::*;
use crate::layers::HiddenKeys;

pub(super) const HEADS: usize = 2;
pub(super) const DIM: usize = 8;
pub(super) const fn layer(window: Option<i32>) -> LayerKv {
    LayerKv::Growing(GrowingKv { n_kv: 1, key_dim: DIM as i32, value_dim: DIM as i32, window })
}
const LAYERS: [LayerKv; 3] = [layer(None), layer(Some(5)), layer(Some(300))];

/// A row's values, a pure function of (kind, sequence, position).
fn row(kind: u32, sequence: u64, position: i32, size: usize) -> Vec<f32> {
    let kind = u64::from(kind);
    (0..size as u64).map(|at| number([kind, sequence, position as u64, at])).collect()
}

/// Attention of one row over `seen` positions.
pub(super) fn by_definition(sequence: u64, position: i32, seen: std::ops::Range<i32>) -> Vec<f32> {
    let q = row(0, sequence, position, HEADS * DIM);
    let one = |q: &[f32]| {
        let dot =
            |k: Vec<f32>| q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(b)).sum::<f64>();
        let scores: Vec<f64> =
            seen.clone().map(|at| dot(row(1, sequence, at, DIM)).exp()).collect();
        let total: f64 = scores.iter().sum();
        let sum = |dim: usize| {
            scores
                .iter()
                .zip(seen.clone())
                .map(|(s, at)| s * f64::from(row(2, sequence, at, DIM)[dim]))
                .sum::<f64>()
        };
        (0..DIM).map(|dim| (sum(dim) / total) as f32).collect::<Vec<_>>()
    };
    q.chunks(DIM).flat_map(one).collect()
}

pub(super) fn rows(kind: u32, places: &[(u64, i32)], heads: usize) -> Array {
    let values: Vec<f32> = places
        .iter()
        .flat_map(|(sequence, position)| row(kind, *sequence, *position, heads * DIM))
        .collect();
    Array::from_slice(&values, &[places.len() as i32, heads as i32, DIM as i32])
}

/// (sequence, rows that only write and are kept, rows that ask and are dropped) in one pass over
/// all layers.
pub(super) fn step(store: &mut KvStore, parts: &[(u64, i32, i32)], both_ways: bool) {
    let mut parts = parts.to_vec();
    parts.sort_by_key(|part| store.order(SequenceId(part.0)));
    let starts: Vec<i32> =
        parts.iter().map(|part| store.length(SequenceId(part.0)).expect("open")).collect();
    let segment = |((sequence, silent, asking), start): (&(u64, i32, i32), &i32)| {
        let (sequence, length) = (SequenceId(*sequence), silent + asking);
        Segment { sequence, start: *start, length, drafted: 0 }
    };
    let segments: Vec<Segment> = parts.iter().zip(&starts).map(segment).collect();
    let queries: Vec<i32> = parts.iter().map(|part| part.2).collect();
    let place = |asks: bool| {
        let all = parts.iter().zip(&starts);
        all.flat_map(move |((sequence, silent, asking), start)| {
            let middle = start + silent;
            if asks { middle..middle + asking } else { *start..middle }
                .map(|position| (*sequence, position))
        })
    };
    let asking: Vec<(u64, i32)> = place(true).collect();
    let written: Vec<(u64, i32)> = place(false).chain(asking.clone()).collect();
    let (q, k, v) = (rows(0, &asking, HEADS), rows(1, &written, 1), rows(2, &written, 1));
    let params = AttentionParams { scale: 1.0, queries: Some(&queries), both_ways, images: &[] };
    let windows: Vec<_> = store.layers.growing.iter().map(|layer| layer.window).collect();
    for (at, window) in windows.into_iter().enumerate() {
        if asking.is_empty() {
            store.write(at, &k, &v, Some(&queries), &segments).expect("writes");
            continue;
        }
        let out = store.attend(at, &q, &k, &v, params, &segments).expect("attends");
        eval([&out]).expect("evaluates");
        let found: &[f32] = out.try_as_slice().expect("floats");
        for ((sequence, position), found) in asking.iter().zip(found.chunks(HEADS * DIM)) {
            let segment =
                segments.iter().find(|segment| segment.sequence.0 == *sequence).expect("there");
            let end = if both_ways { segment.start + segment.length } else { position + 1 };
            let first = window.map_or(0, |window| (position - window + 1).max(0));
            for (a, b) in by_definition(*sequence, *position, first..end).iter().zip(found) {
                assert!(
                    (a - b).abs() < 1e-4,
                    "layer {at} sequence {sequence} position {position}: {a} {b}"
                );
            }
        }
    }
    for (segment, part) in segments.iter().zip(&parts) {
        store.commit(segment.sequence, segment.start + part.1).expect("commits");
    }
}

fn store(sequences: u64) -> KvStore {
    let mut store = KvStore::new(&LAYERS, Dtype::Float32, 600).expect("made");
    for sequence in 0..sequences {
        store.open(SequenceId(sequence)).expect("new");
    }
    store
}

/// Whether rows attend to later ones, and a store: one whose rows go through nodes of our own, and
/// those that MLX alone writes and reads, on each device by its calls.
fn ways(sequences: u64) -> Vec<(bool, KvStore)> {
    let each = |both_ways: bool| {
        [
            store(sequences),
            store(sequences).by_class(),
            store(sequences).with_calls(None),
            store(sequences).with_calls(Some(1)),
            store(sequences).with_calls(Some(3)),
        ]
        .map(|store| (both_ways, store))
    };
    [each(false), each(true)].into_iter().flatten().collect()
}

#[test]
fn query_rows_attend_as_their_layer_allows() {
    for (both_ways, mut store) in ways(1) {
        step(&mut store, &[(0, 7, 4)], both_ways);
        step(&mut store, &[(0, 3, 4)], both_ways);
        step(&mut store, &[(0, 0, 6)], both_ways);
        step(&mut store, &[(0, 30, 0)], both_ways);
        step(&mut store, &[(0, 1, 2)], both_ways);
        assert_eq!(store.length(SequenceId(0)), Some(41));
    }
}

#[test]
fn segments_with_and_without_queries_share_a_batch() {
    for (both_ways, mut store) in ways(4) {
        step(&mut store, &[(0, 5, 3), (1, 9, 0), (2, 2, 3), (3, 1, 3)], both_ways);
        step(&mut store, &[(0, 1, 3), (1, 0, 3), (2, 4, 0), (3, 2, 3)], both_ways);
        step(&mut store, &[(3, 2, 2), (0, 1, 4), (2, 3, 4)], both_ways);
        step(&mut store, &[(0, 4, 0), (1, 4, 0)], both_ways);
    }
}

#[test]
fn segments_of_several_classes_share_a_batch() {
    for (both_ways, mut store) in ways(3) {
        step(&mut store, &[(0, 310, 0), (1, 3, 0), (2, 5, 0)], both_ways);
        step(&mut store, &[(0, 2, 5), (1, 3, 5), (2, 1, 0)], both_ways);
        step(&mut store, &[(0, 2, 5), (1, 3, 5), (2, 1, 4)], both_ways);
    }
}

#[test]
fn a_sequence_may_outgrow_its_class_between_others() {
    for (both_ways, mut store) in ways(5) {
        step(&mut store, &[(0, 250, 0), (1, 20, 0), (2, 300, 0)], both_ways);
        // In the order before it moves, 0 comes first and is of 2's class behind 1's; 3 and 4 are
        // new, the longer one first.
        step(&mut store, &[(0, 4, 8), (1, 2, 8), (2, 2, 8), (3, 290, 8), (4, 3, 8)], both_ways);
        step(&mut store, &[(0, 4, 8), (1, 2, 8), (2, 2, 8), (3, 1, 8), (4, 3, 8)], both_ways);
    }
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let mut store = store(1);
    let segment = Segment { sequence: SequenceId(0), start: 0, length: 2, drafted: 0 };
    let k = rows(1, &[(0, 0), (0, 1)], 1);
    for queries in [&[3][..], &[-1], &[1, 1], &[]] {
        let error = store
            .write(0, &k, &k, Some(queries), std::slice::from_ref(&segment))
            .expect_err("refused");
        assert!(error.to_string().contains("queries"), "{error}");
    }
    let params = AttentionParams { scale: 1.0, queries: Some(&[0]), ..AttentionParams::default() };
    let nobody = store.attend(0, &k, &k, &k, params, std::slice::from_ref(&segment));
    assert!(nobody.expect_err("refused").to_string().contains("query"));
    assert!(KvStore::new(&[layer(Some(0))], Dtype::Float32, 10).is_err());
}

/// The calls of the last step for the layer without a window, of rows that attend backwards.
fn calls(store: &mut KvStore) -> Vec<Call> {
    let form = store.calls;
    let causality = Causality { window: None, reach: Reach::Own };
    let kind = QueryKind { causality, kept: 600, heads: HEADS as i32, dtype: Dtype::Float32 };
    let access = store.access.as_mut().expect("a step was made");
    let each = |read: &mut ClassRead| read.calls(kind, form);
    access.reads.iter_mut().flat_map(|read| each(read).expect("made").to_vec()).collect()
}

fn masks(calls: &[Call]) -> usize {
    let is_mask = |call: &&Call| matches!(call.hidden, HiddenKeys::Masked(_));
    calls.iter().filter(is_mask).count()
}

/// Rows of a sequence that are asked without being committed: the plan of the step stays.
fn ask(store: &mut KvStore, parts: &[(u64, i32)]) {
    let segments: Vec<Segment> = parts
        .iter()
        .map(|(sequence, length)| {
            let sequence = SequenceId(*sequence);
            let start = store.length(sequence).expect("open");
            Segment { sequence, start, length: *length, drafted: 0 }
        })
        .collect();
    let places: Vec<(u64, i32)> = segments
        .iter()
        .flat_map(|s| (s.start..s.end()).map(move |position| (s.sequence.0, position)))
        .collect();
    let (q, k, v) = (rows(0, &places, HEADS), rows(1, &places, 1), rows(2, &places, 1));
    let params = AttentionParams { scale: 1.0, ..AttentionParams::default() };
    store.attend(0, &q, &k, &v, params, &segments).expect("attends");
}

#[test]
fn a_read_of_one_sequence_has_no_mask_on_a_gpu() {
    for rows_at_once in [None, Some(1), Some(3)] {
        for rows in [1, 2, 3, 4, 8, 16, 40] {
            let mut store = store(1).with_calls(rows_at_once);
            step(&mut store, &[(0, 300, 0)], false);
            ask(&mut store, &[(0, rows)]);
            let calls = calls(&mut store);
            assert_eq!(masks(&calls), 0, "{rows} rows, {rows_at_once:?} at once");
            if rows_at_once.is_none() || rows == 40 {
                assert_eq!(calls.len(), 1, "one call for {rows} rows");
            }
        }
    }
}

#[test]
fn on_cuda_each_of_few_rows_has_its_own_keys_alone() {
    let mut store = store(2).with_calls(Some(1));
    step(&mut store, &[(0, 10, 0), (1, 7, 0)], false);
    ask(&mut store, &[(0, 2), (1, 2)]);
    let calls = calls(&mut store);
    let keys: Vec<_> = calls.iter().map(|call| call.keys.clone()).collect();
    assert_eq!(keys, [0..11, 0..12, 0..8, 0..9]);
    assert_eq!(masks(&calls), 0);
}

/// The mask of the last step's only call, computed.
fn only_mask(store: &mut KvStore) -> Array {
    match calls(store).as_slice() {
        [Call { hidden: HiddenKeys::Masked(mask), .. }] => {
            eval([mask]).expect("evaluates");
            mask.clone()
        }
        calls => panic!("expected one call with a mask, found {calls:?}"),
    }
}

#[test]
fn on_metal_sequences_of_several_lengths_share_one_mask_in_the_type_of_the_queries() {
    let mut store = store(2).with_calls(None);
    step(&mut store, &[(0, 10, 0), (1, 7, 0)], false);
    ask(&mut store, &[(0, 2), (1, 2)]);
    let mask = only_mask(&mut store);
    // One number after another for all heads, or MLX copies it in every layer.
    assert_eq!((mask.dtype(), mask.shape()), (Dtype::Float32, &[2, HEADS as i32, 2, 12][..]));
    assert_eq!(mask.strides(), [HEADS * 24, 24, 12, 1]);
    let numbers = |mask: &Array| mask.try_as_slice::<f32>().expect("floats").as_ptr();
    let again = only_mask(&mut store);
    assert_eq!(numbers(&mask), numbers(&again), "made once for all layers");
    let hidden = |slot: i32, row: i32| {
        let row =
            mask.try_index((slot, 0, row, ..)).and_then(|row| row.contiguous()).expect("a row");
        row.eval().expect("evaluates");
        let row: &[f32] = row.try_as_slice().expect("floats");
        row.iter().filter(|number| **number == f32::NEG_INFINITY).count()
    };
    assert_eq!([hidden(0, 0), hidden(0, 1), hidden(1, 0), hidden(1, 1)], [1, 0, 4, 3]);
}

#[test]
fn on_metal_a_mask_of_many_rows_is_not_spread_over_heads() {
    let mut store = store(2).with_calls(None);
    step(&mut store, &[(0, 10, 0), (1, 7, 0)], false);
    ask(&mut store, &[(0, 9), (1, 9)]);
    assert_eq!(only_mask(&mut store).shape(), [2, 1, 9, 19]);
}
