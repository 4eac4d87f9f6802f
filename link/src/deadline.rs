//! Instants by which something must have happened.

use std::time::Duration;

use nix::poll::PollTimeout;
use nix::time::clock_gettime;

use crate::platform;

/// An instant of the machine's monotonic clock, which stands still during sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    /// `wait` from now.
    pub(crate) fn after(wait: Duration) -> Self {
        Self(now().saturating_add(wait))
    }

    /// Time that is left; zero when the deadline has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_sub(now())
    }

    /// Time that is left, for `poll`. Rounded up, because rounded down it would spin through the
    /// last millisecond.
    pub(crate) fn poll_timeout(self) -> PollTimeout {
        let ms = self.left().as_micros().div_ceil(1000);
        PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
    }
}

fn now() -> Duration {
    clock_gettime(platform::CLOCK).expect("every supported system has this clock").into()
}
