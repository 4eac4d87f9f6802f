//! Assertions that hold after each change of the scheduler, for builds with debug assertions.

use super::Scheduler;
use crate::{Phase, Sequence};

impl Scheduler {
    /// No sequence stays after its end (I4), and bytes and drafts belong to living sequences alone.
    /// Walks all sequences once.
    pub(super) fn assert_invariants(&self) {
        let ended = |one: &Sequence| matches!(one.phase, Phase::Finished(_));
        debug_assert!(
            !self.sequences.values().any(ended),
            "expected no sequence after its end, found {:?}",
            self.keys(ended)
        );
        self.ledger.assert_holders(|key| self.sequences.contains_key(key));
        self.speculation.assert_sequences(self.sequences.keys());
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::super::tests::{next, request, scheduler, step};
    use super::*;
    use crate::{Chosen, EndReason, Finish, SequenceKey, Token};

    /// Two sequences decode.
    fn decoding() -> Scheduler {
        let mut scheduler = scheduler();
        for _ in 0..2 {
            scheduler.add(request(10, 50)).expect("room");
        }
        step(&mut scheduler, 0, 9);
        scheduler
    }

    const FIRST: SequenceKey = SequenceKey(0);

    #[test]
    #[should_panic(expected = "expected no sequence after its end, found [SequenceKey(0)]")]
    fn a_sequence_that_stays_after_its_end_is_noticed() {
        let mut scheduler = decoding();
        scheduler.sequences.get_mut(&FIRST).expect("it decodes").phase =
            Phase::Finished(EndReason::Cancelled);
        next(&mut scheduler, 1);
    }

    #[test]
    #[should_panic(
        expected = "expected no token after the end, found 9 after Finished(Completed(Stop))"
    )]
    fn a_second_end_of_a_sequence_is_noticed() {
        let mut scheduler = decoding();
        scheduler.sequences.get_mut(&FIRST).expect("it decodes").phase =
            Phase::Finished(EndReason::Completed(Finish::Stop));
        let tokens = vec![Token { id: 9, margin: 1.0 }];
        scheduler.on_step(&[], vec![Chosen { key: FIRST, tokens }], 1_000);
    }

    #[test]
    #[should_panic(
        expected = "expected bytes of living sequences alone, found those of Some(SequenceKey(7))"
    )]
    fn bytes_of_a_sequence_that_is_gone_are_noticed() {
        let mut scheduler = decoding();
        scheduler.ledger.hold(SequenceKey(7), 1, false).expect("room");
        next(&mut scheduler, 1);
    }

    #[test]
    #[should_panic(
        expected = "expected drafts of [SequenceKey(0), SequenceKey(1)], found [SequenceKey(1)]"
    )]
    fn a_sequence_that_speculation_does_not_know_is_noticed() {
        let mut scheduler = decoding();
        scheduler.speculation.close(FIRST);
        next(&mut scheduler, 1);
    }

    #[test]
    #[should_panic(
        expected = "expected a sequence after Some(SequenceKey(1)), found SequenceKey(1)"
    )]
    fn a_number_of_a_sequence_that_is_used_again_is_noticed() {
        let mut scheduler = decoding();
        scheduler.next_key = 1;
        _ = scheduler.add(request(10, 50));
    }
}
