//! Element types and places of tensors that cross the link.

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl TensorType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::Bf16 => 2,
        }
    }
}

/// A tensor in its sender's half of the shared segment: row-major, two axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRef {
    /// Counts the sender's tensors up from 1.
    pub number: u64,
    /// Distance from the segment's start, in bytes; a multiple of 64.
    pub offset: u64,
    /// Bytes: rows · columns · bytes of an element.
    pub length: u64,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Element type.
    pub element: TensorType,
}
