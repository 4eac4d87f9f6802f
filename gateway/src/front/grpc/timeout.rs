//! The client's own limit on the time of a request: the gRPC header `grpc-timeout`. tonic's timer
//! ends only the time until headers, and with CANCELLED, so it is not used.

use std::time::Duration;

use http::HeaderMap;
use paceline_protocols::inference::error::{InferenceError, Result, quoted};
use tonic::metadata::MetadataMap;

/// The gRPC header with the client's timeout.
const HEADER: &str = "grpc-timeout";

/// The timeout that the client has set for a request; `None` if it has set none.
///
/// # Errors
/// A malformed `grpc-timeout`.
pub(super) fn of_request(metadata: &MetadataMap) -> Result<Option<Duration>> {
    let Some(value) = metadata.get(HEADER) else { return Ok(None) };
    let text = value.to_str().unwrap_or("no text");
    let expected = "at most 8 digits and a unit, one of H M S m u n";
    let timeout = parse(text);
    timeout.ok_or_else(|| InferenceError::invalid(HEADER, expected, quoted(text))).map(Some)
}

/// The timeout in a request's headers. `None` without a well-formed one: [`of_request`] refuses
/// the others.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<Duration> {
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
    fn a_malformed_timeout_is_refused() {
        let of = |text: Option<&str>| {
            let mut metadata = MetadataMap::new();
            if let Some(text) = text {
                metadata.insert(HEADER, text.parse().expect("ASCII"));
            }
            of_request(&metadata)
        };
        assert_eq!(of(None), Ok(None));
        assert_eq!(of(Some("1S")), Ok(Some(Duration::from_secs(1))));
        assert_eq!(of(Some("1x")).expect_err("no unit").field.as_deref(), Some(HEADER));
    }
}
