//! Rows copied out and in again: the same to the bit, in whatever slot and class they come to lie.

use mlx_rs::transforms::eval;

use super::testing::{HEADS, KV_HEADS, LAYERS, by_definition, rows, step, store};
use super::*;

fn bits(rows: &[KvRows]) -> Vec<Vec<u32>> {
    let of = |rows: &KvRows| {
        rows.numbers
            .try_as_slice::<f32>()
            .expect("floats")
            .iter()
            .map(|value| value.to_bits())
            .collect()
    };
    rows.iter().map(of).collect()
}

/// Attention output of the row at `position` of `sequence`, with queries, keys and values as of
/// sequence `like`.
fn attend_as(store: &mut KvStore, sequence: u64, like: u64, position: i32) -> Vec<f32> {
    let segment = |sequence: u64| Segment {
        sequence: SequenceId(sequence),
        start: position,
        length: 1,
        drafted: 0,
    };
    let alike = [segment(like)];
    let (q, k, v) =
        (rows(0, 0, &alike, HEADS), rows(0, 1, &alike, KV_HEADS), rows(0, 2, &alike, KV_HEADS));
    let params = AttentionParams { scale: 0.25, ..AttentionParams::default() };
    let out = store.attend(0, &q, &k, &v, params, &[segment(sequence)]).expect("attends");
    eval([&out]).expect("evaluates");
    out.try_as_slice::<f32>().expect("floats").to_vec()
}

#[test]
fn pages_come_back_bit_by_bit_in_another_class() {
    let mut store = store(2);
    step(&mut store, &[(0, 250), (1, 70)]);
    let pages = store.copy_out(SequenceId(0), 0, PAGE, 3).expect("copied");
    assert!(
        pages
            .iter()
            .all(|page| page.len() == PAGE && page.bytes() == PAGE as u64 * store.row_bytes())
    );
    // The last pages alone are the same as among others.
    let last = store.copy_out(SequenceId(0), PAGE, PAGE, 2).expect("copied");
    assert_eq!(bits(&last), bits(&pages)[1..]);

    for (name, length, room) in [(7, 192, 0), (8, 192, 700), (9, 100, 300)] {
        store.open(SequenceId(name)).expect("new");
        let needed: Vec<&KvRows> = pages.iter().take((length as usize).div_ceil(64)).collect();
        store.copy_in(SequenceId(name), &needed, None, length, room).expect("copied");
        assert_eq!(store.length(SequenceId(name)), Some(length));
        let whole = length / PAGE;
        let again = store.copy_out(SequenceId(name), 0, PAGE, whole).expect("copied");
        assert_eq!(bits(&again), bits(&pages)[..whole as usize]);
        let found = attend_as(&mut store, name, 0, length);
        for (a, b) in by_definition(0, 0, length).iter().zip(&found) {
            assert!((a - b).abs() < 1e-4, "sequence {name}: {a} {b}");
        }
    }
    assert_eq!(
        store.bytes(SequenceId(8)),
        store.class_bytes()[2].1,
        "it has the room it was promised"
    );
    // Who lay there already is as before.
    step(&mut store, &[(0, 5), (1, 5)]);
}

#[test]
fn copies_survive_their_sequence_and_the_reuse_of_its_slot() {
    let mut store = store(2);
    step(&mut store, &[(0, 130), (1, 3)]);
    let pages = store.copy_out(SequenceId(0), 0, PAGE, 2).expect("copied");
    let before = bits(&pages);
    store.free(SequenceId(0));
    store.open(SequenceId(5)).expect("new");
    step(&mut store, &[(5, 140), (1, 1)]);
    assert_eq!(bits(&pages), before);
}

#[test]
fn rows_are_copied_from_any_position_in_any_number() {
    let mut store = store(1);
    step(&mut store, &[(0, 90)]);
    let odd = store.copy_out(SequenceId(0), 0, 83, 1).expect("copied");
    store.open(SequenceId(3)).expect("new");
    store.copy_in(SequenceId(3), &[&odd[0]], None, 41, 0).expect("copied");
    let (found, expected) =
        (store.copy_out(SequenceId(3), 7, 34, 1), store.copy_out(SequenceId(0), 7, 34, 1));
    assert_eq!(bits(&found.expect("copied")), bits(&expected.expect("copied")));
}

#[test]
fn copies_that_do_not_fit_are_refused() {
    let mut store = store(2);
    step(&mut store, &[(0, 100)]);
    let sequence = SequenceId(0);
    assert!(
        store
            .copy_out(sequence, 0, PAGE, 2)
            .expect_err("too many")
            .to_string()
            .contains("found 100 rows")
    );
    assert!(
        store.copy_out(SequenceId(1), 0, 1, 1).is_err()
            && store.copy_out(SequenceId(44), 0, 1, 1).is_err()
    );
    assert!(
        store.copy_out(sequence, -1, 4, 1).is_err() && store.copy_out(sequence, 0, 0, 1).is_err()
    );
    assert!(store.copy_out(sequence, 1, i32::MAX, 2).is_err());
    let pages = store.copy_out(sequence, 0, 50, 2).expect("copied");
    let all: Vec<&KvRows> = pages.iter().collect();
    assert!(
        store
            .copy_in(sequence, &all, None, 100, 0)
            .expect_err("it has rows")
            .to_string()
            .contains("without rows")
    );
    assert!(
        store.copy_in(SequenceId(1), &all, None, 101, 0).is_err()
            && store.copy_in(SequenceId(1), &[], None, 0, 0).is_err()
    );
    assert!(
        store.copy_in(SequenceId(1), &all, None, 100, 5000).is_err(),
        "longer than the longest class"
    );
    let short = store.copy_out(sequence, 0, 49, 1).expect("copied");
    assert!(store.copy_in(SequenceId(1), &[&pages[0], &short[0]], None, 90, 0).is_err());
    let mut other = KvStore::new(&LAYERS[..1], Dtype::Float32, 500).expect("made");
    other.open(sequence).expect("new");
    assert!(other.copy_in(sequence, &all, None, 100, 0).is_err());
    store.copy_in(SequenceId(1), &all, None, 100, 0).expect("after all that it works");
}
