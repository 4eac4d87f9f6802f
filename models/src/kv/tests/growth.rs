//! Sequences that outgrow their class: the classes, the rows of all sequences after a move, and the
//! most memory that a move takes.

use mlx_rs::memory::{active_memory, peak_memory, reset_peak_memory};

use super::*;

const WIDE: GrowingKv = GrowingKv { n_kv: 2, key_dim: 64, value_dim: 64, window: None };
const WIDE_LAYERS: usize = 8;
/// Bytes of a position of one layer.
const LAYER_ROW_BYTES: u64 = 2 * (64 + 64) * 4;

fn wide_store(sequences: u64) -> KvStore {
    let layers = [LayerKv::Growing(WIDE); WIDE_LAYERS];
    let mut store = KvStore::new(&layers, Dtype::Float32, 32_768).expect("made");
    for sequence in 0..sequences {
        store.open(SequenceId(sequence)).expect("new");
    }
    store
}

/// What a sequence has at a position of a layer, the same number all over the row.
fn mark(sequence: u64, layer: usize, position: i32) -> f32 {
    (sequence * 100_000) as f32 + layer as f32 * 10_000.0 + position as f32
}

/// Writes `length` further rows.
fn append(store: &mut KvStore, sequence: u64, length: i32) {
    let id = SequenceId(sequence);
    let start = store.length(id).expect("open");
    let segments = [Segment { sequence: id, start, length, drafted: 0 }];
    for layer in 0..WIDE_LAYERS {
        let marks: Vec<f32> = (start..start + length).map(|at| mark(sequence, layer, at)).collect();
        let marks = Array::from_slice(&marks, &[length, 1, 1]);
        let rows = mlx_rs::ops::broadcast_to(&marks, &[length, 2, 64]).expect("spread");
        store.write(layer, &rows, &rows, None, &segments).expect("writes");
        store.evaluate().expect("evaluates");
    }
    store.commit(id, start + length).expect("commits");
}

fn check(store: &KvStore, sequence: u64) {
    let entry = store.sequences[&SequenceId(sequence)];
    let slot = entry.slot.expect("it has rows");
    for layer in 0..WIDE_LAYERS {
        let (keys, values) = store.classes[slot.class]
            .view(layer, slot.index..slot.index + 1, 0..entry.length)
            .expect("a view");
        for rows in [keys, values] {
            let means = rows.mean_axes(&[1, 3], false).expect("means");
            eval([&means]).expect("evaluates");
            for (at, found) in (0..).zip(means.try_as_slice::<f32>().expect("floats")) {
                let expected = mark(sequence, layer, at);
                assert_eq!(*found, expected, "sequence {sequence} layer {layer} position {at}");
            }
        }
    }
}

#[test]
fn classes_above_4096_positions_are_quarters_of_powers_of_two() {
    let positions = |longest| {
        let store = KvStore::new(&testing::LAYERS, Dtype::Float32, longest).expect("made");
        store.class_bytes().iter().map(|class| class.0).collect::<Vec<_>>()
    };
    let short = [256, 512, 1_024, 2_048, 4_096];
    let long = [5_120, 6_144, 7_168, 8_192, 10_240, 12_288, 14_336, 16_384, 20_480];
    assert_eq!(positions(20_480), [&short[..], &long].concat());
    assert_eq!(positions(5_000), [&short[..], &[5_056]].concat());
    assert_eq!(positions(4_096), short);
    // A long sequence's class is at most a quarter longer than the class below it.
    let all = positions(1 << 20);
    assert!(all.windows(2).all(|pair| pair[0] < 4_096 || pair[1] * 4 <= pair[0] * 5), "{all:?}");
    assert_eq!(positions(i32::MAX - 100).last(), Some(&2_147_483_584));
}

#[test]
fn a_growth_takes_one_layer_beside_the_new_slot() {
    for by_class in [false, true] {
        let mut store = if by_class { wide_store(1).by_class() } else { wide_store(1) };
        append(&mut store, 0, 4_000);
        let before = active_memory().expect("counts") as u64;
        let [old, new] = [4_096u64, 5_120].map(|rows| rows * LAYER_ROW_BYTES * 8);
        assert!(before >= old, "the old slot is there: {before}");
        reset_peak_memory().expect("resets");
        // The growth without the rows of a step, whose own memory would be counted as well.
        let segment = Segment { sequence: SequenceId(0), start: 4_000, length: 200, drafted: 0 };
        store.make_room(&[segment]).expect("grows");
        let peak = peak_memory().expect("counts") as u64 - (before - old);
        let (row, least) = store.growth_bytes();
        let growth = (4_096 * row).max(least);
        assert_eq!(growth, 2 * 4_096 * LAYER_ROW_BYTES);
        assert!(
            peak <= new + growth + (1 << 20),
            "by class {by_class}: {peak} of {new} + {growth}"
        );
        let after = active_memory().expect("counts") as u64 - (before - old);
        assert!(after.abs_diff(new) < 1 << 20, "{after} of {new}");
        append(&mut store, 0, 200);
        check(&store, 0);
    }
}

#[test]
fn a_growth_where_memory_is_short_moves_the_neighbours_of_the_old_slot() {
    for by_class in [false, true] {
        let mut store = if by_class { wide_store(3).by_class() } else { wide_store(3) };
        for sequence in 0..3 {
            append(&mut store, sequence, 250 + sequence as i32);
        }
        let [small, middle] = [256u64, 512].map(|rows| rows * LAYER_ROW_BYTES * 8);
        store.set_limit(2 * small + middle).expect("fits");
        append(&mut store, 0, 20);
        // The slots of the others moved, and nothing is left of the first one's.
        assert_eq!((store.allocated_bytes(), store.idle_bytes()), (2 * small + middle, 0));
        for sequence in 0..3 {
            check(&store, sequence);
        }
        // With memory to spare the old slot stays for a later sequence.
        store.set_limit(u64::MAX).expect("fits");
        append(&mut store, 1, 20);
        assert_eq!(store.idle_bytes(), small);
        (0..3).for_each(|sequence| check(&store, sequence));
    }
}
