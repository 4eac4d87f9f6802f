//! The only clock. Cores get [`Millis`] as an argument (I10); shells read it here.
//!
//! All deadlines, timeouts and ages count on the monotonic clock, so a jump of the wall clock
//! changes none of them. clippy.toml bans the wall clock except for stamps: log lines, events,
//! route log, [`unix_seconds`] (`weights_loaded_at`), and the date that a chat template asks for.
//! Start times of processes are only compared for equality. On Linux they are ticks since the boot,
//! on macOS the wall clock at the start of the process.

use std::time::Duration;

use paceline_vocabulary::Millis;

use crate::platform;

/// Turns the machine's monotonic clock into [`Millis`] since this value was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: i64,
}

impl Clock {
    /// A clock that reads 0 now.
    pub fn start() -> Self {
        Self { origin_ns: monotonic_ns() }
    }

    /// Milliseconds since the start.
    pub fn now(&self) -> Millis {
        self.at(monotonic_ns())
    }

    /// An absolute monotonic instant on this clock's scale; 0 if it lies before the start.
    pub fn at(&self, monotonic_ns: i64) -> Millis {
        Millis(monotonic_ns.saturating_sub(self.origin_ns).max(0) as u64 / 1_000_000)
    }

    /// How long until `when`; zero if it has passed.
    pub fn until(&self, when: Millis) -> Duration {
        Duration::from_millis(when.since(self.now()))
    }
}

/// Nanoseconds of [`platform::CLOCK`]. Deadlines and stamps that cross processes are instants of
/// this clock.
pub fn monotonic_ns() -> i64 {
    let now =
        nix::time::clock_gettime(platform::CLOCK).expect("every supported system has this clock");
    now.tv_sec() as i64 * 1_000_000_000 + now.tv_nsec() as i64
}

/// Seconds since 1970; for log stamps and `status` only, never for timers.
#[expect(clippy::disallowed_methods, reason = "a stamp for people")]
pub fn unix_seconds() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() as i64)
}

/// Nanoseconds since 1970; for the stamps of traces only, never for timers.
#[expect(clippy::disallowed_methods, reason = "a stamp for people")]
pub fn unix_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_before_the_start_are_zero() {
        let clock = Clock::start();
        assert_eq!(clock.at(0), Millis(0));
    }
}
