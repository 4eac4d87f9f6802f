//! What the collector gets: spans that have ended, and the process that recorded them.

use paceline_vocabulary::trace::{SpanId, TraceContext};

/// The process whose spans are sent.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Name of its program.
    pub program: &'static str,
    /// Numbers of its life, as `paceline.epoch`.
    pub numbers: Vec<(&'static str, u64)>,
}

/// Bytes of a text in an attribute. Names of models and words of ours are shorter.
const MAX_TEXT_BYTES: usize = 256;

/// Role of a span beside its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that this process serves.
    Server,
    /// A request that this process makes.
    Client,
    /// Work inside this process.
    Internal,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A count or an id.
    Integer(i64),
    /// A time or a ratio.
    Number(f64),
    /// A word of ours, never text of clients (I9).
    Text(String),
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Integer(value.into())
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Integer(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value[..value.floor_char_boundary(MAX_TEXT_BYTES)].to_owned())
    }
}

/// A span that has ended, as it is queued.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndedSpan {
    pub(super) context: TraceContext,
    pub(super) parent: Option<SpanId>,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Nanoseconds since 1970.
    pub(super) start_unix_ns: u64,
    pub(super) end_unix_ns: u64,
    pub(super) attributes: Vec<(&'static str, Value)>,
    /// The reason's word, if the work failed.
    pub(super) failure: Option<&'static str>,
}
