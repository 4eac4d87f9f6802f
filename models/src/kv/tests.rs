//! The store against attention by definition: ragged batches, growth over class borders, rewinds,
//! copies.

use mlx_rs::transforms::eval;

use super::*;
use crate::batch::Purpose;
use crate::sample::noise::NoiseKey;

pub(super) const HEADS: i32 = 4;
pub(super) const KV_HEADS: i32 = 2;
pub(super) const DIM: i32 = 8;
pub(super) const LAYERS: [LayerKv; 2] =
    [LayerKv::Growing { n_kv: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None }; 2];

/// Rows as the model would make them: a pure function of (layer, kind, sequence, position).
fn row(layer: usize, kind: u32, sequence: u64, position: i32, size: i32) -> Vec<f32> {
    let key = NoiseKey { seed: sequence, sample: kind + 10 * layer as u32 };
    (0..size as u32).map(|at| key.noise(position as u32, at) * 0.5).collect()
}

pub(super) fn rows(layer: usize, kind: u32, segments: &[Segment], heads: i32) -> Array {
    let places = segments
        .iter()
        .flat_map(|s| (s.start..s.start + s.length).map(|position| (s.sequence.0, position)));
    let values: Vec<f32> = places
        .clone()
        .flat_map(|(sequence, position)| row(layer, kind, sequence, position, heads * DIM))
        .collect();
    Array::from_slice(&values, &[places.count() as i32, heads, DIM])
}

pub(super) fn by_definition(layer: usize, sequence: u64, position: i32) -> Vec<f32> {
    let q = row(layer, 0, sequence, position, HEADS * DIM);
    let mut out = Vec::new();
    for head in 0..HEADS {
        let kv_head = head / (HEADS / KV_HEADS);
        let part = |all: &[f32], head: i32| {
            all[(head * DIM) as usize..((head + 1) * DIM) as usize].to_vec()
        };
        let q = part(&q, head);
        let dot = |k: &[f32]| {
            q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * 0.25
        };
        let scores: Vec<f64> = (0..=position)
            .map(|at| dot(&part(&row(layer, 1, sequence, at, KV_HEADS * DIM), kv_head)).exp())
            .collect();
        let total: f64 = scores.iter().sum();
        for dim in 0..DIM {
            let value = |at: i32| {
                f64::from(part(&row(layer, 2, sequence, at, KV_HEADS * DIM), kv_head)[dim as usize])
            };
            out.push(
                (scores.iter().zip(0..).map(|(score, at)| score * value(at)).sum::<f64>() / total)
                    as f32,
            );
        }
    }
    out
}

pub(super) fn step(store: &mut KvStore, lengths: &[(u64, i32)]) {
    let mut segments: Vec<Segment> = lengths
        .iter()
        .map(|(sequence, length)| {
            let sequence = SequenceId(*sequence);
            let start = store.length(sequence).expect("open");
            Segment {
                sequence,
                start,
                length: *length,
                purpose: Purpose::Prefill,
                image_spans: vec![],
            }
        })
        .collect();
    segments.sort_by_key(|segment| store.order(segment.sequence));
    for layer in 0..LAYERS.len() {
        let (q, k, v) = (
            rows(layer, 0, &segments, HEADS),
            rows(layer, 1, &segments, KV_HEADS),
            rows(layer, 2, &segments, KV_HEADS),
        );
        let how = Attend { scale: 0.25, ..Attend::default() };
        let out = store.attend(layer, &q, Some((&k, &v)), how, &segments).expect("attends");
        eval([&out]).expect("evaluates");
        let found: &[f32] = out.try_as_slice().expect("floats");
        let places = segments
            .iter()
            .flat_map(|s| (s.start..s.start + s.length).map(|position| (s.sequence.0, position)));
        for ((sequence, position), found) in places.zip(found.chunks((HEADS * DIM) as usize)) {
            for (a, b) in by_definition(layer, sequence, position).iter().zip(found) {
                assert!(
                    (a - b).abs() < 1e-4,
                    "layer {layer} sequence {sequence} position {position}: {a} {b}"
                );
            }
        }
    }
    for segment in &segments {
        store.commit(segment.sequence, segment.start + segment.length).expect("commits");
    }
}

pub(super) fn store(sequences: u64) -> KvStore {
    let mut store = KvStore::new(&LAYERS, Dtype::Float32, 1000).expect("made");
    for sequence in 0..sequences {
        store.open(SequenceId(sequence)).expect("new");
    }
    store
}

#[test]
fn ragged_batches_attend_as_by_definition() {
    let mut store = store(4);
    step(&mut store, &[(0, 5)]);
    step(&mut store, &[(0, 1), (1, 7), (2, 7)]);
    step(&mut store, &[(0, 1), (1, 1), (2, 1), (3, 3)]);
    step(&mut store, &[(3, 2), (1, 2), (0, 1)]);
}

#[test]
fn sequences_outgrow_their_class() {
    let mut store = store(3);
    step(&mut store, &[(0, 250), (1, 20)]);
    step(&mut store, &[(0, 10), (1, 1)]);
    step(&mut store, &[(2, 300), (0, 1)]);
    assert_eq!(
        store.class_bytes().iter().map(|class| class.0).collect::<Vec<_>>(),
        [256, 512, 1024]
    );
    assert_eq!(store.bytes(SequenceId(0)), store.class_bytes()[1].1);
    for sequence in 0..3 {
        store.free(SequenceId(sequence));
    }
    assert_eq!(store.allocated_bytes(), 0);
}

#[test]
fn dropped_rows_are_written_again() {
    let mut store = store(2);
    step(&mut store, &[(0, 10), (1, 4)]);
    store.commit(SequenceId(0), 6).expect("rewinds");
    step(&mut store, &[(0, 3), (1, 1)]);
    assert_eq!(store.length(SequenceId(0)), Some(9));
}

#[test]
fn a_freed_slot_is_used_again_and_nothing_of_it_is_seen() {
    let mut store = store(3);
    step(&mut store, &[(0, 30), (1, 3), (2, 9)]);
    store.free(SequenceId(1));
    store.open(SequenceId(7)).expect("new");
    step(&mut store, &[(7, 2), (0, 1), (2, 1)]);
}

#[test]
fn what_nobody_uses_is_given_back_where_memory_is_short() {
    let mut store = store(5);
    let [small, middle, ..] = store.class_bytes()[..] else { panic!("expected two classes") };
    step(&mut store, &[(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)]);
    assert_eq!((store.allocated_bytes(), store.idle_bytes()), (8 * small.1, 3 * small.1));
    // Those in front go, so the others move.
    store.free(SequenceId(0));
    store.free(SequenceId(2));
    store.set_limit(6 * small.1).expect("fits");
    assert_eq!((store.allocated_bytes(), store.idle_bytes()), (3 * small.1, 0));
    step(&mut store, &[(1, 2), (3, 1), (4, 3)]);
    // One more than there are, not twice as many: the last has the room that is left.
    store.open(SequenceId(7)).expect("new");
    store.set_limit(4 * small.1 + small.1 / 2).expect("fits");
    step(&mut store, &[(7, 4), (3, 1)]);
    assert_eq!(store.allocated_bytes(), 4 * small.1);
    // What another class has left makes room for one that grows; its own old place is in that
    // class.
    store.free(SequenceId(1));
    store.free(SequenceId(3));
    store.set_limit(2 * small.1 + middle.1).expect("fits");
    step(&mut store, &[(7, 1), (4, 300)]);
    store.set_limit(small.1 + middle.1).expect("fits");
    assert_eq!((store.allocated_bytes(), store.idle_bytes()), (small.1 + middle.1, 0));
    // A copy, too: the place of what is copied changes while it is made.
    store.open(SequenceId(8)).expect("new");
    step(&mut store, &[(8, 3)]);
    store.free(SequenceId(7));
    store.set_limit(small.1 + 2 * middle.1).expect("fits");
    store.fork(SequenceId(4), SequenceId(9), 290).expect("copied");
    assert_eq!(
        (store.length(SequenceId(9)), store.allocated_bytes()),
        (Some(290), small.1 + 2 * middle.1)
    );
    step(&mut store, &[(4, 1), (8, 1)]);
    // What is held may be more than the limit: nothing that is held goes.
    store.set_limit(0).expect("as far as it goes");
    step(&mut store, &[(4, 1), (8, 1)]);
    assert_eq!(store.idle_bytes(), 0);
}

#[test]
fn a_copy_is_the_same_and_its_own() {
    let mut store = store(1);
    step(&mut store, &[(0, 20)]);
    // Sequence 0's rows under another name would not equal their definition, so compare what both
    // attend to.
    store.fork(SequenceId(0), SequenceId(9), 12).expect("copied");
    assert_eq!(store.length(SequenceId(9)), Some(12));
    let segment = |sequence, start| Segment {
        sequence,
        start,
        length: 1,
        purpose: Purpose::Decode,
        image_spans: vec![],
    };
    let like = [segment(SequenceId(0), 12)];
    let (q, k, v) =
        (rows(0, 0, &like, HEADS), rows(0, 1, &like, KV_HEADS), rows(0, 2, &like, KV_HEADS));
    let how = Attend { scale: 0.25, ..Attend::default() };
    let out =
        store.attend(0, &q, Some((&k, &v)), how, &[segment(SequenceId(9), 12)]).expect("attends");
    eval([&out]).expect("evaluates");
    let found: &[f32] = out.try_as_slice().expect("floats");
    for (a, b) in by_definition(0, 0, 12).iter().zip(found) {
        assert!((a - b).abs() < 1e-4);
    }
}

#[test]
fn contradictions_are_refused() {
    let mut store = store(2);
    step(&mut store, &[(0, 3)]);
    let how = Attend { scale: 1.0, ..Attend::default() };
    let wrong = [Segment {
        sequence: SequenceId(0),
        start: 2,
        length: 1,
        purpose: Purpose::Decode,
        image_spans: vec![],
    }];
    let (q, k) = (rows(0, 0, &wrong, HEADS), rows(0, 1, &wrong, KV_HEADS));
    assert!(
        store
            .attend(0, &q, Some((&k, &k)), how, &wrong)
            .expect_err("refused")
            .to_string()
            .contains("committed rows")
    );
    let long = [Segment {
        sequence: SequenceId(1),
        start: 0,
        length: 2000,
        purpose: Purpose::Prefill,
        image_spans: vec![],
    }];
    assert!(store.attend(0, &q, Some((&k, &k)), how, &long).is_err());
    assert!(store.open(SequenceId(0)).is_err());
    assert!(store.commit(SequenceId(0), 5000).is_err());
}
