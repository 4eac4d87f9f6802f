//! When a request must be over: the operator's limit, or the client's own `grpc-timeout` if that is
//! earlier. tonic's timer ends only the time until headers, and with CANCELLED, so it is not used.

use std::time::Duration;

use http::HeaderMap;
use paceline_process::clock::monotonic_ns;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::error::invalid;

/// The gRPC header with the client's patience.
const HEADER: &str = "grpc-timeout";

/// An absolute instant of `paceline_process::platform::CLOCK`, the same in every process of this
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Nanoseconds.
    pub at_ns: i64,
}

impl Deadline {
    /// The deadline of a request that arrived at `arrived_ns`.
    ///
    /// # Errors
    /// A malformed `grpc-timeout`.
    pub fn of(metadata: &MetadataMap, arrived_ns: i64, limit: Duration) -> Result<Self, Status> {
        let patience = match metadata.get(HEADER) {
            None => limit,
            Some(value) => {
                let text = value.to_str().unwrap_or("no text");
                let expected = "at most 8 digits and a unit, one of H M S m u n";
                parse(text)
                    .ok_or_else(|| invalid(HEADER, expected, crate::error::quoted(text)))?
                    .min(limit)
            }
        };
        let patience_ns = i64::try_from(patience.as_nanos()).unwrap_or(i64::MAX);
        Ok(Self { at_ns: arrived_ns.saturating_add(patience_ns) })
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        monotonic_ns() >= self.at_ns
    }

    /// How long until `grace` behind it; zero if that has passed.
    pub fn until(self, grace: Duration) -> Duration {
        let grace_ns = i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX);
        let left_ns = self.at_ns.saturating_add(grace_ns).saturating_sub(monotonic_ns());
        Duration::from_nanos(left_ns.max(0) as u64)
    }
}

/// The timeout that the client has set for its call. `None` without a well-formed one:
/// [`Deadline::of`] refuses the others.
pub fn client_timeout(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get(HEADER)?.to_str().ok()?)
}

/// `grpc-timeout` as the gRPC protocol writes it.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        assert_eq!(parse("100m"), Some(Duration::from_millis(100)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("0n"), Some(Duration::ZERO));
        for broken in ["", "m", "100", "123456789m", "1.5S", "-1S", "+1S", "1s", "1 m", "1é", "é"]
        {
            assert_eq!(parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn the_earlier_one_counts() {
        let limit = Duration::from_secs(10);
        let of = |text: Option<&str>| {
            let mut metadata = MetadataMap::new();
            if let Some(text) = text {
                metadata.insert(HEADER, text.parse().expect("ASCII"));
            }
            Deadline::of(&metadata, 5, limit).map(|deadline| deadline.at_ns)
        };
        assert_eq!(of(None).expect("no header is fine"), 10_000_000_005);
        assert_eq!(of(Some("1S")).expect("fine"), 1_000_000_005);
        assert_eq!(of(Some("99999999H")).expect("fine"), 10_000_000_005);
        assert!(of(Some("1x")).is_err());
    }
}
