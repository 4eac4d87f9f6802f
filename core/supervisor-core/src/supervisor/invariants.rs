//! Assertions that hold after each event, for builds with debug assertions.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::Supervisor;
use crate::action::Action;
use crate::event::Event;
use crate::ids::Ticket;

impl Supervisor {
    /// Requests that wait for their outcome when this event comes. A request that ends may be one
    /// of them.
    pub(super) fn undecided(&self, event: &Event) -> RangeInclusive<usize> {
        let waiting = self.admission.queued();
        match event {
            Event::Submitted { .. } => waiting + 1..=waiting + 1,
            Event::Ended { .. } => waiting.saturating_sub(1)..=waiting,
            _ => waiting..=waiting,
        }
    }

    /// Each of the `undecided` requests still waits, or is admitted or denied once (I4). All
    /// running requests, with their permits and reserved bytes, belong to the target's last life.
    pub(super) fn assert_invariants(&self, undecided: &RangeInclusive<usize>, out: &[Action]) {
        let ticket = |action: &Action| match action {
            Action::Admit { ticket, .. } | Action::Deny { ticket, .. } => Some(*ticket),
            _ => None,
        };
        let decided = || out.iter().filter_map(ticket).collect::<BTreeSet<Ticket>>().len();
        let queued = self.admission.queued();
        debug_assert!(
            undecided.contains(&(queued + decided())),
            "expected one outcome or a place in the queue for {undecided:?} requests, found {} \
             outcomes and {queued} places",
            decided()
        );
        let (epoch, active) = (self.target.last_epoch(), self.admission.active());
        let living = || self.admission.running(epoch).count();
        debug_assert!(
            living() == active,
            "expected {active} running requests in epoch {epoch} of the target, found {}",
            living()
        );
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::admission::TargetMemory;
    use crate::admission::tests::summary;
    use crate::tests::testing::*;

    fn capacity() -> Capacity {
        Capacity { classes: kv_classes(&[(256, 100)]), max_sequences: 2, patch_bytes: 1 }
    }

    fn memory(capacity: &Capacity) -> TargetMemory<'_> {
        let (budget_bytes, held_bytes, spare_bytes) = (1_000, 0, None);
        TargetMemory { epoch: Epoch(7), capacity, budget_bytes, held_bytes, spare_bytes }
    }

    /// A supervisor without a target, in whose queue this request was put `times` times.
    fn supervisor(times: usize) -> Supervisor {
        let mut core = Supervisor::new(Settings::default(), DrafterPlan::default(), Term(1));
        for _ in 0..times {
            let submitted =
                core.admission.submit(Ticket(1), summary(10, 10), &memory(&capacity()), Millis(0));
            assert_eq!(submitted, Ok(None));
        }
        core
    }

    #[test]
    fn a_request_that_waits_gets_its_outcome_once() {
        let mut core = supervisor(1);
        let out = core.on_event(Event::TimePassed, Millis(0));
        let denied = |action: &Action| matches!(action, Action::Deny { ticket: Ticket(1), .. });
        assert_eq!(out.iter().filter(|action| denied(action)).count(), 1);
    }

    #[test]
    #[should_panic(expected = "for 2..=2 requests, found 1 outcomes and 0 places")]
    fn a_second_outcome_of_a_request_is_noticed() {
        supervisor(2).on_event(Event::TimePassed, Millis(0));
    }

    #[test]
    #[should_panic(expected = "for 2..=3 requests, found 0 outcomes and 0 places")]
    fn requests_that_leave_the_queue_without_an_outcome_are_noticed() {
        supervisor(3).on_event(Event::Ended { ticket: Ticket(1) }, Millis(0));
    }

    #[test]
    #[should_panic(expected = "expected 1 running requests in epoch 0 of the target, found 0")]
    fn a_request_of_another_life_of_the_target_is_noticed() {
        let mut core = supervisor(1);
        core.admission.admit(&memory(&capacity()), Millis(0)).expect("there is memory");
        core.on_event(Event::TimePassed, Millis(0));
    }
}
