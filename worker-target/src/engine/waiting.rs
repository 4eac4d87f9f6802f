//! Waiting for a draft: the one wait of the engine beside which tokens of running streams may still
//! be kept.

use std::time::Duration;

use paceline_process::clock::monotonic_ns;
use paceline_process::worker::Inbox;
use paceline_vocabulary::Millis;

use super::{Command, Engine};

impl Engine {
    /// Waits for a draft at most until `until`, or for whatever else comes. Committed tokens do not
    /// wait with it: they are sent before, and where a stream's last message is so recent that its
    /// next one is not due, the wait ends when it is.
    pub(super) fn wait_for_draft(&mut self, inbox: &mut Inbox<Command>, until: Millis) {
        let now_ns = monotonic_ns();
        let due =
            self.running.values_mut().filter_map(|running| running.outlet.send_due(now_ns)).min();
        // More of the drafter's frames may be buffered than its socket announces.
        let for_draft =
            if self.drafting.has_unread() { Duration::ZERO } else { self.clock.until(until) };
        let for_tokens =
            due.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns).max(0) as u64));
        inbox.wait(
            &self.drafting.fds(),
            Some(for_tokens.map_or(for_draft, |tokens| tokens.min(for_draft))),
        );
        self.mark_ns = monotonic_ns();
    }
}
