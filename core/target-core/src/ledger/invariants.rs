//! Assertions of the ledger, for builds with debug assertions. Those that walk all sequences run
//! once a step. The others run at each change.

use super::{Holding, Ledger};
use crate::SequenceKey;

impl Ledger {
    /// What is held and cached is within the budget (I11), and no byte is held by no sequence.
    pub(super) fn assert_bounds(&self) {
        let Self { budget, held_bytes: held, cached_bytes: cached, .. } = self;
        debug_assert!(
            held + cached <= *budget,
            "expected at most {budget} bytes, found {held} held and {cached} cached"
        );
        let is_idle = self.held.is_empty();
        debug_assert!(!is_idle || *held == 0, "expected no bytes of no sequence, found {held}");
    }

    /// The counts are the sums over all sequences (I11). Walks all of them: once a step, not at each
    /// change.
    pub(super) fn assert_sums(&self) {
        let sum = |bytes: fn(&Holding) -> u64| self.held.values().map(bytes).sum::<u64>();
        let sums = || (sum(Holding::bytes), sum(|holding| holding.hidden));
        let counts = (self.held_bytes, self.hidden_bytes);
        debug_assert!(
            sums() == counts,
            "expected {:?} bytes held and of them hidden, found {counts:?}",
            sums()
        );
    }

    /// Only sequences that live hold bytes, or will hold additional ones.
    pub(crate) fn assert_holders(&self, lives: impl Fn(&SequenceKey) -> bool) {
        let gone = || self.held.keys().chain(self.extra.keys()).find(|key| !lives(key));
        debug_assert!(
            gone().is_none(),
            "expected bytes of living sequences alone, found those of {:?}",
            gone()
        );
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::super::tests::{A, B, ledger};
    use super::*;

    /// A and B hold 100 and 200 bytes, and the count is wrong by one byte.
    fn miscounted() -> Ledger {
        let mut ledger = ledger();
        ledger.hold(A, 256, true).expect("room");
        ledger.hold(B, 512, true).expect("room");
        ledger.held_bytes += 1;
        ledger
    }

    #[test]
    #[should_panic(expected = "expected (300, 60) bytes held and of them hidden, found (301, 60)")]
    fn a_byte_that_no_sequence_holds_is_noticed_in_the_next_step() {
        miscounted().begin_step();
    }

    #[test]
    #[should_panic(expected = "expected no bytes of no sequence, found 1")]
    fn a_byte_that_does_not_return_is_noticed_with_the_last_sequence() {
        let mut ledger = miscounted();
        ledger.release(A);
        ledger.release(B);
    }

    #[test]
    #[should_panic(expected = "expected at most 1000 bytes, found 261 held and 900 cached")]
    fn bytes_beyond_the_budget_are_noticed() {
        let mut ledger = miscounted();
        ledger.cached_bytes = 900;
        ledger.release_hidden(B);
    }
}
