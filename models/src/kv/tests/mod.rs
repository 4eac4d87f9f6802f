//! The store against attention by definition: ragged batches, growth over class borders, rewinds,
//! copies.

#[cfg(target_os = "linux")]
mod copies;
mod growth;
mod images;
mod rows;
pub(crate) mod testing;
mod visibility;
mod windows;

use mlx_rs::transforms::eval;

use super::*;
use testing::{HEADS, KV_HEADS, by_definition, rows, step, store};

#[test]
fn ragged_batches_attend_as_by_definition() {
    for mut store in [store(4), store(4).by_class()] {
        step(&mut store, &[(0, 5)]);
        step(&mut store, &[(0, 1), (1, 7), (2, 7)]);
        step(&mut store, &[(0, 1), (1, 1), (2, 1), (3, 3)]);
        step(&mut store, &[(3, 2), (1, 2), (0, 1)]);
    }
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
fn dropped_rows_are_overwritten() {
    let mut store = store(2);
    step(&mut store, &[(0, 10), (1, 4)]);
    store.commit(SequenceId(0), 6).expect("rewinds");
    step(&mut store, &[(0, 3), (1, 1)]);
    assert_eq!(store.length(SequenceId(0)), Some(9));
}

#[test]
fn a_freed_slot_is_reused_and_its_old_rows_are_invisible() {
    let mut store = store(3);
    step(&mut store, &[(0, 30), (1, 3), (2, 9)]);
    store.free(SequenceId(1));
    store.open(SequenceId(7)).expect("new");
    step(&mut store, &[(7, 2), (0, 1), (2, 1)]);
}

#[test]
fn idle_slots_are_given_back_when_memory_is_short() {
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
    // Sequences may hold more than the limit: their slots stay.
    store.set_limit(0).expect("as far as it goes");
    step(&mut store, &[(4, 1), (8, 1)]);
    assert_eq!(store.idle_bytes(), 0);
}

#[test]
fn a_forked_sequence_has_the_same_rows_and_changes_alone() {
    let mut store = store(1);
    step(&mut store, &[(0, 20)]);
    // Sequence 0's rows under another name would not equal their definition, so compare what both
    // attend to.
    store.fork(SequenceId(0), SequenceId(9), 12).expect("copied");
    assert_eq!(store.length(SequenceId(9)), Some(12));
    let segment = |sequence, start| Segment { sequence, start, length: 1, drafted: 0 };
    let like = [segment(SequenceId(0), 12)];
    let (q, k, v) =
        (rows(0, 0, &like, HEADS), rows(0, 1, &like, KV_HEADS), rows(0, 2, &like, KV_HEADS));
    let params = AttentionParams { scale: 0.25, ..AttentionParams::default() };
    let out = store.attend(0, &q, &k, &v, params, &[segment(SequenceId(9), 12)]).expect("attends");
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
    let params = AttentionParams { scale: 1.0, ..AttentionParams::default() };
    let wrong = [Segment { sequence: SequenceId(0), start: 2, length: 1, drafted: 0 }];
    let (q, k) = (rows(0, 0, &wrong, HEADS), rows(0, 1, &wrong, KV_HEADS));
    assert!(
        store
            .attend(0, &q, &k, &k, params, &wrong)
            .expect_err("refused")
            .to_string()
            .contains("committed rows")
    );
    let long = [Segment { sequence: SequenceId(1), start: 0, length: 2000, drafted: 0 }];
    assert!(store.attend(0, &q, &k, &k, params, &long).is_err());
    assert!(store.open(SequenceId(0)).is_err());
    assert!(store.commit(SequenceId(0), 5000).is_err());
}
