//! How many bytes of keys, values and states a sequence takes, by its length. The store in `models/`
//! has these sizes.

use crate::{KvHeads, RecurrentSizes};

/// Positions of a page, the unit in which capacities are counted.
pub const PAGE: i32 = 64;
/// Positions of the smallest capacity.
const FIRST_CAPACITY: i32 = 256;
/// Positions above which a capacity is not twice the one before, but a quarter of a power of two more:
/// a long sequence then holds at most a fifth more than it needs, and not half.
const QUARTERS_FROM: i32 = 4_096;
/// Most rows that a pass adds to a sequence if layers have windows: a slot keeps as many positions
/// beyond the window. More takes memory, fewer make passes over prompts short.
pub const MOST_ROWS: i32 = 512;
/// Bytes of an element of a state.
const STATE_BYTES: u64 = 4;

/// The capacities of slots for sequences of up to `max_positions` positions, ascending: 256, 512,
/// 1,024, 2,048, 4,096, 5,120, 6,144, 7,168, 8,192, 10,240 and so on.
pub fn capacities(max_positions: i32) -> Vec<i32> {
    let last = (max_positions.max(1).saturating_add(PAGE - 1)) / PAGE * PAGE;
    let next = |capacity: &i32| match *capacity {
        small if small < QUARTERS_FROM => Some(small * 2),
        large => Some(large.saturating_add((1 << large.ilog2()) / 4)),
    };
    let steps = std::iter::successors(Some(FIRST_CAPACITY), next);
    steps.take_while(|capacity| *capacity < last).chain([last]).collect()
}

/// Positions that a slot keeps of a layer with this window, to which a pass adds `most_rows` rows at
/// most: a row of a pass attends to the window before it, and the pass may be rejected. `None`: all.
pub fn kept_positions(window: Option<i32>, most_rows: i32, max_positions: i32) -> Option<i32> {
    let kept = window?.saturating_add(most_rows).saturating_add(PAGE - 1) / PAGE * PAGE;
    (kept < max_positions).then_some(kept)
}

/// Sizes of what the layers of a model remember of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSizes {
    /// For each layer with keys and values the bytes of a position, and the positions that are kept;
    /// `None`: all.
    growing: Vec<(u64, Option<i32>)>,
    state_bytes: u64,
    capacities: Vec<i32>,
}

impl KvSizes {
    /// Of a model with these layers, whose keys and values have elements of `number_bytes` bytes. A
    /// pass adds `most_rows` rows to a sequence at most.
    pub fn new(
        kv_heads: &[KvHeads],
        recurrent: &[RecurrentSizes],
        number_bytes: u64,
        max_positions: i32,
        most_rows: i32,
    ) -> Self {
        let growing = |heads: &KvHeads| {
            let elements = 2 * i64::from(heads.n_kv) * i64::from(heads.head_dim);
            let kept = kept_positions(heads.window, most_rows, max_positions);
            (elements as u64 * number_bytes, kept)
        };
        Self {
            growing: kv_heads.iter().map(growing).collect(),
            state_bytes: recurrent.iter().map(|sizes| STATE_BYTES * sizes.slot() as u64).sum(),
            capacities: capacities(max_positions),
        }
    }

    /// Bytes of a position in the layers that keep all positions.
    pub fn row_bytes(&self) -> u64 {
        self.growing.iter().filter(|(_, kept)| kept.is_none()).map(|(bytes, _)| bytes).sum()
    }

    /// Bytes of the states of a sequence, however long it is; 0 without recurrent layers.
    pub fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Most bytes of the layers of which a sequence keeps the last positions alone; 0 without such.
    pub fn window_bytes(&self) -> u64 {
        self.growing.iter().filter_map(|(bytes, kept)| Some(bytes * (*kept)? as u64)).sum()
    }

    /// Most positions of a sequence by capacities, and the bytes it then holds, states included:
    /// (positions, bytes), ascending.
    pub fn class_bytes(&self) -> Vec<(i32, u64)> {
        let bytes = |capacity: i32| {
            let of_layer = |(bytes, kept): &(u64, Option<i32>)| {
                bytes * kept.unwrap_or(capacity).min(capacity) as u64
            };
            self.growing.iter().map(of_layer).sum::<u64>() + self.state_bytes
        };
        self.capacities.iter().map(|capacity| (*capacity, bytes(*capacity))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_double_and_then_grow_by_quarters() {
        let first = [256, 512, 1024, 2048, 4096, 5120, 6144, 7168, 8192, 10_240, 12_288];
        assert_eq!(capacities(12_288), first);
        assert_eq!(capacities(1), [64]);
        assert_eq!(capacities(257), [256, 320]);
        assert!(capacities(i32::MAX).len() < 100);
    }

    #[test]
    fn windows_keep_their_positions_and_those_of_a_pass() {
        let whole = KvHeads { n_kv: 2, head_dim: 8, window: None };
        let sliding = KvHeads { window: Some(100), ..whole };
        let sizes = KvSizes::new(&[whole, sliding], &[], 2, 2_048, 512);
        // Keys and values of two heads of eight elements of two bytes.
        assert_eq!(sizes.row_bytes(), 64);
        assert_eq!(sizes.window_bytes(), 64 * 640);
        let bytes: Vec<u64> = sizes.class_bytes().into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(bytes, [64 * 512, 64 * 1_024, 64 * (1_024 + 640), 64 * (2_048 + 640)]);
        let states =
            RecurrentSizes { key_heads: 1, value_heads: 1, key_dim: 2, value_dim: 3, taps: 2 };
        let sizes = KvSizes::new(&[], &[states], 2, 64, 512);
        assert_eq!(sizes.class_bytes(), [(64, 4 * states.slot() as u64)]);
    }
}
