//! Descriptions of the tensors, and their bytes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;

use super::blocks::BlockType;
use super::cursor::{Cursor, cut_off};
use crate::error::{FormatError, shown};

/// Most dimensions of a tensor, as in ggml.
const MAX_DIMENSIONS: u32 = 4;
/// Most tensors of a file: the largest published models have some 2,000. A description takes several
/// times its bytes in memory.
const MAX_TENSORS: u64 = 1 << 16;

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    /// Dimensions from the innermost on; at least one, and none is 0.
    pub(crate) dimensions: Vec<u64>,
    /// Type of the blocks.
    pub(crate) kind: BlockType,
    /// Number of the file of a split model that has the tensor, from 0 on.
    pub(crate) part: usize,
    /// First byte of the blocks in that file.
    pub(crate) begin: u64,
    /// Bytes of the blocks.
    pub(crate) bytes: u64,
    /// The blocks, row after row; empty if they were not read.
    pub(crate) data: Cow<'a, [u8]>,
}

/// Reads the descriptions, and finds the bytes of each tensor in a file of `file_bytes` bytes. The
/// cursor need not have more than the descriptions.
pub(super) fn read<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<Tensor<'a>>, FormatError> {
    if count > MAX_TENSORS {
        return Err(FormatError::new("number of tensors", format!("at most {MAX_TENSORS}"), count));
    }
    let (mut tensors, mut names, mut bytes) = (vec![], BTreeSet::new(), 0_u64);
    for _ in 0..count {
        let tensor = Tensor::described(cursor)?;
        if !names.insert(tensor.name) {
            return Err(tensor.error("one tensor of this name", "two"));
        }
        bytes = bytes.saturating_add(tensor.bytes);
        tensors.push(tensor);
    }
    let begin = cursor.at().checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    let data_bytes = file_bytes.saturating_sub(begin);
    // Tensors that share bytes would make a small file a large model.
    if bytes > data_bytes {
        let expected = format!("{bytes} bytes of all tensors");
        return Err(FormatError::new("data", expected, cut_off(data_bytes)));
    }
    let place = |tensor: Tensor<'a>| tensor.placed(cursor, begin, data_bytes, alignment);
    tensors.into_iter().map(place).collect()
}

impl<'a> Tensor<'a> {
    /// Reads the description of a tensor, which has no data yet.
    fn described(cursor: &mut Cursor<'a>) -> Result<Self, FormatError> {
        let name = cursor.text()?;
        let count = cursor.u32()?;
        if !(1..=MAX_DIMENSIONS).contains(&count) {
            return Err(error(name, format!("1 to {MAX_DIMENSIONS} dimensions"), count));
        }
        let dimensions = (0..count).map(|_| cursor.u64()).collect::<Result<Vec<_>, _>>()?;
        let (id, begin) = (cursor.u32()?, cursor.u64()?);
        let kind = BlockType::ALL.into_iter().find(|kind| kind.id() == id).ok_or_else(|| {
            let known = BlockType::ALL.map(BlockType::name).join(", ");
            error(name, format!("one of the types {known}"), format!("type {id}"))
        })?;
        let wrong = |expected: &str| error(name, expected, format!("dimensions {dimensions:?}"));
        if dimensions.contains(&0) || dimensions[0] % kind.values() != 0 {
            let (values, name) = (kind.values(), kind.name());
            let rows = format!("rows of a multiple of {values} values for {name}");
            return Err(wrong(&rows));
        }
        let values = dimensions.iter().try_fold(1_u64, |all, length| all.checked_mul(*length));
        let bytes = values.and_then(|values| (values / kind.values()).checked_mul(kind.bytes()));
        let bytes = bytes.ok_or_else(|| wrong("dimensions of a tensor"))?;
        Ok(Self { name, dimensions, kind, part: 0, begin, bytes, data: Cow::Borrowed(&[]) })
    }

    /// The tensor with its place in the file. So far `begin` is its offset in the data.
    fn placed(
        self,
        file: &Cursor<'a>,
        data_begin: u64,
        data_bytes: u64,
        alignment: u64,
    ) -> Result<Self, FormatError> {
        let Self { begin: offset, bytes, .. } = self;
        if offset % alignment != 0 {
            return Err(self.error(format!("an offset that is a multiple of {alignment}"), offset));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > data_bytes) {
            let found = format!("{data_bytes} bytes of data: the file is cut off or damaged");
            return Err(self.error(format!("{bytes} bytes from offset {offset} on"), found));
        }
        let begin = data_begin + offset;
        Ok(Self { begin, data: Cow::Borrowed(file.between(begin, begin + bytes)), ..self })
    }

    /// Values of a row.
    pub(crate) fn columns(&self) -> u64 {
        self.dimensions[0]
    }

    /// Number of rows. A vector is one row.
    pub(crate) fn rows(&self) -> u64 {
        self.dimensions.iter().skip(1).product()
    }

    /// An error about this tensor.
    pub(crate) fn error(&self, expected: impl Display, found: impl Display) -> FormatError {
        error(self.name, expected, found)
    }
}

fn error(name: &str, expected: impl Display, found: impl Display) -> FormatError {
    FormatError::new(format!("tensor {}", shown(name)), expected, found)
}
