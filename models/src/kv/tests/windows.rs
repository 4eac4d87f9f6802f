//! Layers of which a slot keeps the last positions alone: the same numbers as by definition,
//! whatever was rejected, copied or kept.

use super::testing::number;
use super::visibility::{DIM, layer, step};
use super::*;

/// A layer that keeps all, and windows of 5 and of 40 positions.
const LAYERS: [LayerKv; 3] = [layer(None), layer(Some(5)), layer(Some(40))];
/// Rows of a pass. Slots keep 64 positions of both windows.
const MOST: i32 = 20;
const KEPT: i32 = 64;

fn store(sequences: u64) -> KvStore {
    let mut store = KvStore::with_most_rows(&LAYERS, Dtype::Float32, 600, MOST).expect("made");
    assert_eq!(store.layers.rings, [None, Some(KEPT), Some(KEPT)]);
    for sequence in 0..sequences {
        store.open(SequenceId(sequence)).expect("new");
    }
    store
}

/// By nodes of our own, and by MLX's calls on each device.
pub(super) fn ways(sequences: u64) -> [KvStore; 4] {
    [
        store(sequences),
        store(sequences).by_class(),
        store(sequences).with_calls(None),
        store(sequences).with_calls(Some(1)),
    ]
}

/// Whole numbers from 0 to below `end`, a pure function of the case.
fn draw(case: u64, what: u64, end: i32) -> i32 {
    let share = (number([91, case, what, 0]) + 1.0) / 2.0;
    ((share * end as f32) as i32).min(end - 1)
}

/// One case is a pass: rows that are accepted, and rows that ask and are rejected. Rows that ask
/// are held to attention by definition over all rows that were accepted before.
fn rewinds(cases: u64) {
    let mut lengths = [0i32; 3];
    let mut stores = ways(3);
    for case in 0..cases {
        let mut parts = vec![];
        for sequence in 0..3u64 {
            let (accepted, rejected) = (draw(case, sequence, 8), draw(case, 3 + sequence, 8));
            if draw(case, 6 + sequence, 3) == 0 || accepted + rejected == 0 {
                continue;
            }
            let length = &mut lengths[sequence as usize];
            if *length + accepted + rejected > 330 {
                // Another sequence of the name.
                *length = 0;
                for store in &mut stores {
                    store.free(SequenceId(sequence));
                    store.open(SequenceId(sequence)).expect("new");
                }
            }
            *length += accepted;
            parts.push((sequence, accepted, rejected));
        }
        if !parts.is_empty() {
            // Each way in its turn, so that each gets all positions.
            let turn = case as usize % stores.len();
            for (at, store) in stores.iter_mut().enumerate() {
                match at == turn {
                    true => step(store, &parts, false),
                    false => write(store, &parts),
                }
            }
        }
    }
}

/// The rows of a pass without its answers.
fn write(store: &mut KvStore, parts: &[(u64, i32, i32)]) {
    let all: Vec<(u64, i32, i32)> = parts
        .iter()
        .map(|(sequence, accepted, rejected)| (*sequence, accepted + rejected, 0))
        .collect();
    let before: Vec<i32> =
        parts.iter().map(|part| store.length(SequenceId(part.0)).expect("open")).collect();
    step(store, &all, false);
    for ((sequence, accepted, _), before) in parts.iter().zip(before) {
        store.commit(SequenceId(*sequence), before + accepted).expect("rewinds");
    }
}

#[test]
fn rewinds_across_the_edge_of_a_window_give_the_numbers_of_recomputation() {
    rewinds(1_000);
}

#[test]
#[ignore = "soak: ten times the cases of the test above"]
fn ten_thousand_rewinds_across_the_edge_of_a_window_give_the_numbers_of_recomputation() {
    rewinds(10_000);
}

#[test]
fn growth_and_copies_keep_the_windows() {
    for mut store in ways(2) {
        // Past the edge in the class of 256, then in that of 512.
        for _ in 0..13 {
            step(&mut store, &[(0, 17, 3)], false);
        }
        // To another sequence and back: rows are made of a sequence's name.
        for (from, to) in [(0, 7), (7, 0)] {
            let (from, to) = (SequenceId(from), SequenceId(to));
            store.fork(from, to, 221).expect("the window is there");
            store.free(from);
        }
        for _ in 0..6 {
            step(&mut store, &[(0, 16, 4), (1, 1, 2)], false);
        }
        assert_eq!(store.length(SequenceId(0)), Some(317));
    }
}

#[test]
fn a_sequence_continues_from_pages_and_a_kept_window() {
    for mut store in ways(1) {
        for _ in 0..8 {
            step(&mut store, &[(0, 16, 2)], false);
        }
        let pieces = store.copy_out(SequenceId(0), 0, PAGE, 2).expect("copies");
        let kept = store.keep_states(SequenceId(0), 128).expect("the window is there");
        assert_eq!(kept.bytes(), store.kept_bytes());
        assert_eq!(kept.bytes(), ((4 + 39) * 2 * DIM * 4) as u64);
        assert_eq!(pieces[0].bytes(), (64 * 2 * DIM * 4) as u64, "of the whole layer alone");
        store.free(SequenceId(0));
        store.open(SequenceId(0)).expect("new");
        let pieces: Vec<_> = pieces.iter().collect();
        let refused = store.copy_in(SequenceId(0), &pieces, None, 128, 128);
        assert!(refused.expect_err("no window").to_string().contains("windows"));
        store.copy_in(SequenceId(0), &pieces, Some(&kept), 128, 200).expect("copies");
        let earlier = store.commit(SequenceId(0), 127).expect_err("its window was not kept");
        assert!(earlier.to_string().contains("began after row 128"), "{earlier}");
        for _ in 0..8 {
            step(&mut store, &[(0, 6, 3)], false);
        }
    }
}

#[test]
fn rows_whose_window_is_gone_are_no_end_of_a_sequence() {
    let mut store = store(1);
    for _ in 0..10 {
        step(&mut store, &[(0, 20, 0)], false);
    }
    // Rows up to 200 took the places of those before 136: row 175 attends to 136.
    store.commit(SequenceId(0), 175).expect("its window is there");
    let error = store.commit(SequenceId(0), 174).expect_err("its window is gone");
    assert!(error.to_string().contains("the 40 rows before row 174"), "{error}");
    assert!(store.fork(SequenceId(0), SequenceId(1), 174).is_err());
    assert!(store.keep_states(SequenceId(0), 174).is_err());
    store.commit(SequenceId(0), 0).expect("nothing is needed of what is not there");
    step(&mut store, &[(0, 19, 1)], false);
}

#[test]
fn a_pass_of_more_rows_than_a_slot_has_room_for_is_refused() {
    let mut store = store(1);
    let segment = Segment { sequence: SequenceId(0), start: 0, length: MOST + 1, drafted: 0 };
    let error = store.make_room(&[segment]).expect_err("too many");
    assert!(error.to_string().contains("at most 20 rows, found 21"), "{error}");
    assert_eq!(store.most_rows(), Some(MOST));
}

#[test]
fn a_long_sequence_holds_a_fifth_of_what_full_layers_would() {
    let of = |window| {
        let layer = |at: usize| {
            let window = if at % 6 == 5 { None } else { window };
            LayerKv::Growing(GrowingKv { n_kv: 4, key_dim: 64, value_dim: 64, window })
        };
        let layers: Vec<LayerKv> = (0..30).map(layer).collect();
        let store = KvStore::new(&layers, Dtype::Bfloat16, 131_072).expect("made");
        let bytes = |positions| {
            let classes = store.class_bytes();
            classes.into_iter().find(|(longest, _)| *longest == positions).expect("a class").1
        };
        [bytes(32_768), bytes(131_072)]
    };
    let (sliding, full) = (of(Some(1_024)), of(None));
    let share = |at: usize| sliding[at] as f64 / full[at] as f64;
    assert!(share(0) <= 0.25, "{} at 32k", share(0));
    assert!(share(1) <= 0.18, "{} at 128k", share(1));
}
