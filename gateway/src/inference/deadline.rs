//! When a request must be over: at the operator's limit, or at the client's own if that is earlier.

use std::time::Duration;

use paceline_system::clock::monotonic_ns;

/// The target ends a request at its deadline, when a step ends. The gateway ends the request
/// this much later, whatever the target does.
pub const BACKSTOP: Duration = Duration::from_millis(20);

/// An absolute instant of `paceline_system::platform::CLOCK`, the same in every process of this
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Nanoseconds.
    pub at_ns: i64,
}

impl Deadline {
    /// The deadline of a request that arrived at `arrived_ns`: after the operator's `limit`, or
    /// after the client's own `timeout` if that is shorter.
    pub fn new(arrived_ns: i64, limit: Duration, timeout: Option<Duration>) -> Self {
        let allowed = timeout.map_or(limit, |timeout| timeout.min(limit));
        let allowed_ns = i64::try_from(allowed.as_nanos()).unwrap_or(i64::MAX);
        Self { at_ns: arrived_ns.saturating_add(allowed_ns) }
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        monotonic_ns() >= self.at_ns
    }

    /// How long until `grace` after it; zero if that has passed.
    pub fn until(self, grace: Duration) -> Duration {
        let grace_ns = i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX);
        let left_ns = self.at_ns.saturating_add(grace_ns).saturating_sub(monotonic_ns());
        Duration::from_nanos(left_ns.max(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_of_limit_and_timeout_is_the_deadline() {
        let limit = Duration::from_secs(10);
        let at =
            |timeout: Option<u64>| Deadline::new(5, limit, timeout.map(Duration::from_secs)).at_ns;
        assert_eq!(at(None), 10_000_000_005);
        assert_eq!(at(Some(1)), 1_000_000_005);
        assert_eq!(at(Some(99_999_999 * 3600)), 10_000_000_005);
    }
}
