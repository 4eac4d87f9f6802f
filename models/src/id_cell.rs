//! Ids that a graph reads and that are written after it was built.
//!
//! The host chooses the tokens of sampled rows, and the next step reads them. Its graph can be built
//! meanwhile, on an array whose memory the host writes before the graph runs.

use mlx_rs::Array;

use crate::error::{ModelError, Result};

/// Ids of rows that are not known when the graph that reads them is built.
#[derive(Debug)]
pub struct IdCell {
    /// `[rows]`, uint32, of this cell's own.
    ids: Array,
}

impl IdCell {
    /// A cell of as many ids, all 0 until they are written.
    pub fn new(rows: usize) -> Self {
        Self { ids: Array::from_slice(&vec![0u32; rows], &[rows as i32]) }
    }

    /// The ids `[rows]`, uint32, for a graph that runs after [`IdCell::write`].
    pub fn ids(&self) -> &Array {
        &self.ids
    }

    /// Writes the ids, once, before the graph on them runs.
    ///
    /// # Errors
    /// Another number of ids.
    pub fn write(self, ids: &[u32]) -> Result<()> {
        // SAFETY: the array was made of numbers in one piece, in `new`. Nothing has read it: a graph
        // on it runs after this call, and there is one call, because it takes the cell.
        if unsafe { mlx_sys::write_numbers(self.ids.as_ptr(), ids) } {
            return Ok(());
        }
        let (expected, found) = (self.ids.size(), ids.len());
        Err(ModelError::Batch(format!("expected {expected} ids, found {found}")))
    }
}
