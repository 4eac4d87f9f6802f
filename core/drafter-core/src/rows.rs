//! Rows of tensors that came over the link.

use std::ops::Range;
use std::rc::Rc;

/// Some rows of a tensor that came over the link, as bytes. The tensor lives as long as rows of it
/// wait to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    tensor: Rc<Vec<u8>>,
    bytes: Range<usize>,
}

impl Rows {
    pub(crate) fn new(tensor: &Rc<Vec<u8>>, rows: Range<u32>, row_bytes: usize) -> Self {
        Self {
            tensor: tensor.clone(),
            bytes: rows.start as usize * row_bytes..rows.end as usize * row_bytes,
        }
    }

    /// The rows.
    pub fn bytes(&self) -> &[u8] {
        &self.tensor[self.bytes.clone()]
    }

    /// Bytes of the rows.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the first `length` bytes off.
    pub(crate) fn split(&mut self, length: usize) -> Self {
        let middle = self.bytes.start + length;
        let first = Self { tensor: self.tensor.clone(), bytes: self.bytes.start..middle };
        self.bytes.start = middle;
        first
    }
}
