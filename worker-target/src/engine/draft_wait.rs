//! The wait for a draft: the only wait during which running streams may have tokens to send.

use std::time::Duration;

use paceline_process::worker::Inbox;
use paceline_system::clock::monotonic_ns;
use paceline_vocabulary::Millis;

use super::{Engine, EngineCommand};

impl Engine {
    /// Waits for a draft or a command, at most until `until`, or until committed tokens of a stream are
    /// due: see [`TokenOutlet::send_due`](crate::outlet::TokenOutlet::send_due).
    pub(super) fn wait_for_draft(&mut self, inbox: &mut Inbox<EngineCommand>, until: Millis) {
        let now_ns = monotonic_ns();
        let due =
            self.running.values_mut().filter_map(|running| running.outlet.send_due(now_ns)).min();
        // The drafter's frames may be buffered in this process: its socket does not announce them.
        let for_draft =
            if self.drafting.has_unread() { Duration::ZERO } else { self.clock.until(until) };
        let for_tokens =
            due.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns).max(0) as u64));
        let at_most = for_tokens.map_or(for_draft, |tokens| tokens.min(for_draft));
        inbox.wait(&self.drafting.poll_fds(), Some(at_most));
        self.mark_ns = monotonic_ns();
    }
}
