//! Where the states of a sequence are kept, for a model with recurrent layers: at the last page
//! border before the prompt's end, at the last one before its last turn, and at every
//! [`SNAPSHOT_INTERVAL`] positions.
//!
//! A repeated prompt, and a prompt that continues it, begin at the first of these places. A prompt
//! with another last turn, or whose template shows the turns after that one differently, begins at
//! the second. The others bound what is read again of a long sequence.

use super::PAGE;

/// Positions between two snapshots of a long sequence: its states then take about as many bytes as
/// its pages. In Qwen3.5-27B states take as many bytes as 2,400 positions of bfloat16, in 9B as 1,600.
pub const SNAPSHOT_INTERVAL: usize = 2_048;

/// The places of one sequence, in positions: multiples of [`PAGE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPlaces {
    /// The last one before the prompt's end; 0 for none.
    prompt_end: usize,
    /// The last one before the last turn; 0 for none.
    last_turn: usize,
}

impl SnapshotPlaces {
    /// The places of a prompt of `prompt_len` ids, whose last turn begins at `last_turn`. The row
    /// of the last id is always computed, so that no place is after it.
    pub fn of(prompt_len: usize, last_turn: Option<usize>) -> Self {
        let border = |place: usize| place / PAGE * PAGE;
        let prompt_end = border(prompt_len.saturating_sub(1));
        let last_turn = last_turn.map_or(0, border).min(prompt_end);
        Self { prompt_end, last_turn }
    }

    /// The first place after `position`.
    pub fn next(&self, position: usize) -> usize {
        let regular = (position / SNAPSHOT_INTERVAL + 1) * SNAPSHOT_INTERVAL;
        let own = [self.prompt_end, self.last_turn].into_iter();
        own.filter(|place| *place > position).fold(regular, usize::min)
    }

    /// The last place after `position` and up to `end`.
    pub fn last(&self, position: usize, end: usize) -> Option<usize> {
        let regular = end / SNAPSHOT_INTERVAL * SNAPSHOT_INTERVAL;
        let places = [regular, self.prompt_end, self.last_turn].into_iter();
        places.filter(|place| (position + 1..=end).contains(place)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All places up to `end`.
    fn all(places: SnapshotPlaces, end: usize) -> Vec<usize> {
        let mut found = vec![];
        let mut at = places.next(0);
        while at <= end {
            found.push(at);
            at = places.next(at);
        }
        found
    }

    #[test]
    fn states_are_kept_before_the_end_of_the_prompt_before_its_last_turn_and_at_intervals() {
        for (prompt, turn, expected) in [
            (1, None, &[][..]),
            (64, None, &[]),
            (65, None, &[64]),
            (129, Some(100), &[64, 128]),
            (129, Some(63), &[128]),
            (150, Some(140), &[128]),
            (2_049, Some(2_048), &[2_048]),
            (5_000, Some(4_200), &[2_048, 4_096, 4_160, 4_992]),
            (5_000, None, &[2_048, 4_096, 4_992]),
            // A place after the prompt is none.
            (100, Some(7_000), &[64]),
        ] {
            let places = SnapshotPlaces::of(prompt, turn);
            assert_eq!(all(places, prompt), expected, "{prompt} ids, last turn at {turn:?}");
            let last = expected.last().copied();
            assert_eq!(places.last(0, prompt), last, "{prompt} ids, last turn at {turn:?}");
        }
        // Generated positions have places at intervals.
        assert_eq!(all(SnapshotPlaces::of(100, None), 6_200), [64, 2_048, 4_096, 6_144]);
    }

    #[test]
    fn each_place_is_the_last_one_of_the_rows_that_reach_it() {
        let places = SnapshotPlaces::of(4_500, Some(3_000));
        for position in 0..4_600 {
            let next = places.next(position);
            assert_eq!(places.last(position, next), Some(next));
            assert_eq!(places.last(position, next - 1), None);
        }
        assert_eq!(places.last(0, 4_600), Some(4_480));
        assert_eq!(places.last(4_480, 4_600), None);
    }
}
