//! Copies of rows by nodes of our own, against those by MLX.

use super::testing::{keys_address, step, store};
use super::*;

/// Numbers of a piece.
fn numbers(rows: &KvRows) -> Vec<f32> {
    rows.numbers.try_as_slice::<f32>().expect("floats").to_vec()
}

#[test]
fn pieces_are_those_of_mlx_and_go_back_to_where_they_were() {
    let [mut nodes, mut mlx] = [store(4), store(4).by_class()];
    for store in [&mut nodes, &mut mlx] {
        step(store, &[(1, 150), (2, 20)]);
    }
    let cut = |store: &KvStore| store.copy_out(SequenceId(1), 3, 64, 2).expect("copied");
    let (found, expected) = (cut(&nodes), cut(&mlx));
    assert_eq!(found.len(), 2);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!((found.len(), found.bytes()), (expected.len(), expected.bytes()));
        assert_eq!(numbers(found), numbers(expected));
    }
    // Into a larger class and not whole, beside a sequence that stays as it is.
    let pieces: Vec<&KvRows> = found.iter().collect();
    let before = nodes.copy_out(SequenceId(2), 0, 20, 1).expect("copied");
    nodes.copy_in(SequenceId(3), &pieces, None, 100, 300).expect("copied");
    assert_eq!(nodes.length(SequenceId(3)), Some(100));
    let again = nodes.copy_out(SequenceId(3), 0, 50, 2).expect("copied");
    let same = nodes.copy_out(SequenceId(1), 3, 50, 2).expect("copied");
    assert!(again.iter().zip(&same).all(|(again, same)| numbers(again) == numbers(same)));
    let after = nodes.copy_out(SequenceId(2), 0, 20, 1).expect("copied");
    assert_eq!(numbers(&before[0]), numbers(&after[0]));
}

#[test]
fn a_fork_in_the_same_class_is_written_in_place() {
    let mut store = store(3);
    step(&mut store, &[(1, 40)]);
    let expected = store.copy_out(SequenceId(1), 0, 30, 1).expect("copied");
    step(&mut store, &[(2, 5)]);
    let place = keys_address(&store);
    store.free(SequenceId(2));
    store.fork(SequenceId(1), SequenceId(9), 30).expect("copied");
    assert_eq!(keys_address(&store), place, "no copy of the class");
    let found = store.copy_out(SequenceId(9), 0, 30, 1).expect("copied");
    assert_eq!(numbers(&found[0]), numbers(&expected[0]));
}
