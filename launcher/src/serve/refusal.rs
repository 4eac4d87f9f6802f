//! Why `serve` does not begin, and how long it waits for an earlier service before that.

use std::time::Duration;

use paceline_vocabulary::Exit;

/// Interval between two requests for the status, until the service is ready.
pub(super) const STATUS_POLL: Duration = Duration::from_millis(200);
/// Longest wait for an earlier service that is still stopping: its gateway's drain, its workers'
/// end, and a margin.
pub(super) const EARLIER_SERVICE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why nothing was started.
pub(super) struct Refusal {
    pub(super) exit: Exit,
    pub(super) message: String,
}

pub(super) fn refuse(exit: Exit, message: impl ToString) -> Refusal {
    Refusal { exit, message: message.to_string() }
}
