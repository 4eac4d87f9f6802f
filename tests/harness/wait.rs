//! Bounded waits for a state.

use std::time::Duration;

use paceline_system::Clock;
use serde_json::Value;

/// Longest wait for any state, in milliseconds.
pub const BOUND_MS: u64 = 30_000;

/// Looks until `look` finds something.
///
/// # Panics
/// Nothing was found within [`BOUND_MS`]; the message names what was waited for.
pub fn wait<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_at(Duration::from_millis(20), what, look)
}

/// As [`wait`], looking this often: a look that starts a process takes time from what is waited
/// for.
pub(crate) fn wait_at<T>(pace: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let clock = Clock::start();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock.now().0 < BOUND_MS, "waited {} s for {what}", BOUND_MS / 1000);
        // The pace of looking, not a wait for something to have happened.
        std::thread::sleep(pace);
    }
}

/// Whether a drafter is linked, by the service's status. A drafter whose drafts came too late is
/// linked and left alone for a while: its state says so until the next stream asks it again.
pub fn is_linked(status: &Value) -> bool {
    status["link"]["state"] == "up" || is_late(status)
}

/// Whether the linked drafter is left alone. Without a stream it stays so, and is no longer `ready`.
pub(crate) fn is_late(status: &Value) -> bool {
    status["link"]["state"] == "suspect"
}
