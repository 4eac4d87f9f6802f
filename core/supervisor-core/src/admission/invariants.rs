//! An assertion of the ledger, for builds with debug assertions.

use super::Admission;

impl Admission {
    /// The reserved bytes are the sum over the running requests (I11).
    pub(super) fn assert_sum(&self) {
        let sum = || self.running.values().map(|running| running.cost_bytes).sum::<u64>();
        debug_assert!(
            sum() == self.reserved_bytes,
            "expected {} reserved bytes, as running requests have, found {}",
            sum(),
            self.reserved_bytes
        );
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::super::tests::{admission, capacity, memory, summary};
    use super::*;
    use crate::capacity::Capacity;
    use crate::ids::Ticket;
    use crate::tests::testing::Millis;

    /// Two requests may run, and the ledger has lost a byte of the first.
    fn a_byte_is_lost(capacity: &Capacity) -> Admission {
        let mut admission = admission(4);
        for ticket in [1, 2] {
            let (one, memory) = (summary(10, 10), memory(capacity));
            admission.submit(Ticket(ticket), one, &memory, Millis(0)).expect("a place");
        }
        admission.admit(&memory(capacity), Millis(0)).expect("there is memory");
        admission.reserved_bytes -= 1;
        admission
    }

    #[test]
    #[should_panic(expected = "expected 200 reserved bytes, as running requests have, found 199")]
    fn a_lost_byte_is_noticed_when_a_request_is_admitted() {
        a_byte_is_lost(&capacity()).admit(&memory(&capacity()), Millis(0));
    }

    #[test]
    #[should_panic(expected = "expected 0 reserved bytes, as running requests have, found 1")]
    fn a_byte_too_many_is_noticed_when_a_request_ends() {
        let mut admission = a_byte_is_lost(&capacity());
        admission.reserved_bytes += 2;
        admission.on_ended(Ticket(1));
    }
}
