//! The place of a span in a trace, and its form in a header: `traceparent` of W3C Trace Context.

use std::fmt;

use crate::RequestId;

/// Name of the header, in HTTP and in the metadata of gRPC.
pub const TRACEPARENT: &str = "traceparent";
/// Bytes of a header of version 0: version, trace, span and flags, with hyphens between them.
const HEADER_BYTES: usize = 55;
/// Bytes of the longest header that is read. Later versions may be longer than version 0.
const MAX_HEADER_BYTES: usize = 512;
/// The flag of traces that are recorded.
const SAMPLED: u8 = 1;

/// Id of a trace. It is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// Id of a span within its trace. It is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

/// A span of a trace, as another process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// Whether the spans of the trace are recorded.
    pub sampled: bool,
}

impl TraceId {
    /// The trace of a request: its id, if that is a number of 128 bits as the gateway draws it.
    pub fn of_request(id: &RequestId) -> Option<Self> {
        Self::parse(id.as_str().as_bytes())
    }

    /// The bytes of the id.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }

    fn parse(digits: &[u8]) -> Option<Self> {
        id(digits).map(Self)
    }
}

impl SpanId {
    /// The id with these bytes; `None` if all of them are zero.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// The bytes of the id.
    pub fn bytes(&self) -> [u8; 8] {
        self.0
    }
}

impl TraceContext {
    /// The context in the values of the header. Several values count as none, as does a value that
    /// breaks a rule of the standard: its sender then finds a trace of its own.
    pub fn of_values<V: AsRef<[u8]>>(values: impl IntoIterator<Item = V>) -> Option<Self> {
        let mut values = values.into_iter();
        let (value, other) = (values.next()?, values.next());
        Self::parse(value.as_ref()).filter(|_| other.is_none())
    }

    /// The context in one value: `00-TRACE-SPAN-FLAGS` in lower-case hexadecimal digits. A later
    /// version may have more after another hyphen, which is ignored.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, more) = value.split_at_checked(HEADER_BYTES)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let [version, trace, span, flags] = std::array::from_fn(|_| parts.next());
        let [version]: [u8; 1] = hex(version?)?;
        let is_known = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => value.len() <= MAX_HEADER_BYTES && more.first().is_none_or(|byte| *byte == b'-'),
        };
        let (trace, span) = (TraceId::parse(trace?)?, SpanId(id(span?)?));
        let [flags]: [u8; 1] = hex(flags?)?;
        let is_whole = is_known && parts.next().is_none();
        is_whole.then_some(Self { trace, span, sampled: flags & SAMPLED != 0 })
    }
}

/// The value of the header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", if self.sampled { SAMPLED } else { 0 })
    }
}

/// An id in digits; `None` for zero.
fn id<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    hex(digits).filter(|bytes| *bytes != [0; BYTES])
}

/// Bytes in lower-case hexadecimal digits, two for each.
fn hex<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    if digits.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_header_is_read_and_written() {
        let context = TraceContext::parse(HEADER.as_bytes()).expect("the standard's example");
        assert_eq!(context.to_string(), HEADER);
        let id = RequestId::parse(TRACE).expect("an id");
        assert_eq!(TraceId::of_request(&id), Some(context.trace));
        let unsampled = HEADER.replace("-01", "-00");
        let context = TraceContext::parse(unsampled.as_bytes()).expect("well formed");
        assert!(!context.sampled && context.to_string() == unsampled);
        let flags = HEADER.replace("-01", "-ff");
        assert!(TraceContext::parse(flags.as_bytes()).expect("unknown flags").sampled);
    }

    #[test]
    fn later_versions_may_be_longer() {
        let later = HEADER.replacen("00", "cc", 1);
        for header in [later.clone(), format!("{later}-"), format!("{later}-what-ever")] {
            let context = TraceContext::parse(header.as_bytes()).expect("a later version");
            assert_eq!(context.to_string(), HEADER);
        }
        for header in [format!("{later}."), format!("{later}-{}", "x".repeat(500))] {
            assert_eq!(TraceContext::parse(header.as_bytes()), None, "{header}");
        }
    }

    #[test]
    fn values_that_break_a_rule_are_no_context() {
        let zero_trace = HEADER.replace(TRACE, &"0".repeat(32));
        let zero_span = HEADER.replace("b7ad6b7169203331", "0000000000000000");
        let shifted = HEADER.replace("9c-b7", "9cb-7");
        for broken in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0-00af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333\u{e9}1-0",
            "-------------------------------------------------------",
            &zero_trace,
            &zero_span,
            &shifted,
        ] {
            assert_eq!(TraceContext::parse(broken.as_bytes()), None, "{broken:?}");
        }
        assert_eq!(TraceContext::parse(&[0xff; 55]), None);
    }

    #[test]
    fn two_headers_are_none() {
        assert!(TraceContext::of_values([HEADER]).is_some());
        assert_eq!(TraceContext::of_values([HEADER, HEADER]), None);
        assert_eq!(TraceContext::of_values([""; 0]), None);
    }

    #[test]
    fn only_numbers_of_128_bits_are_traces() {
        let of = |id: &str| TraceId::of_request(&RequestId::parse(id).expect("an id"));
        assert!(of(TRACE).is_some());
        for other in ["r-1", &TRACE.to_uppercase(), &format!("{TRACE}-1"), &"0".repeat(32)] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
