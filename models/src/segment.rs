//! Rows of one sequence in a forward: the words that batches and the KV store share.

/// A sequence's name in the KV store, given by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Rows of one sequence that follow one another, in the batch and in the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sequence that the rows belong to.
    pub sequence: SequenceId,
    /// Position of the first row. Equals the committed length of the sequence.
    pub start: i32,
    /// Number of rows, at least 1.
    pub length: i32,
    /// How many of the last rows may be rejected by the next commit: drafted tokens. The rows
    /// before them are certain. Only recurrent layers need to know.
    pub drafted: i32,
}

/// Segments of a forward in which not every row attends.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuerySegments {
    pub(crate) segments: Vec<Segment>,
    /// Queries of each segment: its last rows. The other rows only write their keys and values. A
    /// forward has first all rows that are not queries and then the queries, each in the segments'
    /// order.
    pub(crate) queries: Vec<i32>,
}

impl QuerySegments {
    /// Queries of all segments.
    pub(crate) fn count(&self) -> i32 {
        self.queries.iter().sum()
    }
}

impl Segment {
    /// Position after the last row.
    pub fn end(&self) -> i32 {
        self.start + self.length
    }
}
