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

impl Segment {
    /// Position after the last row.
    pub fn end(&self) -> i32 {
        self.start + self.length
    }
}
