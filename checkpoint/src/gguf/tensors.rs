//! Descriptions of the tensors, and their bytes.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::cursor::{Cursor, cut_off};
use crate::error::{FormatError, shown};

/// Most dimensions of a tensor, as in ggml.
const MAX_DIMENSIONS: u32 = 4;

/// A type of tensors: a row is a sequence of blocks of some values each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockType {
    /// Number of the type in the file.
    id: u32,
    /// Name of the type in ggml.
    pub(crate) name: &'static str,
    /// Values of a block.
    values: u64,
    /// Bytes of a block.
    pub(crate) bytes: u64,
}

/// The types whose blocks are known.
const BLOCK_TYPES: [BlockType; 15] = [
    BlockType::F32,
    block_type(1, "F16", 1, 2),
    block_type(2, "Q4_0", 32, 18),
    BlockType::Q4_1,
    block_type(6, "Q5_0", 32, 22),
    block_type(7, "Q5_1", 32, 24),
    BlockType::Q8_0,
    block_type(10, "Q2_K", 256, 84),
    block_type(11, "Q3_K", 256, 110),
    block_type(12, "Q4_K", 256, 144),
    block_type(13, "Q5_K", 256, 176),
    block_type(14, "Q6_K", 256, 210),
    block_type(20, "IQ4_NL", 32, 18),
    block_type(30, "BF16", 1, 2),
    block_type(39, "MXFP4", 32, 17),
];

const fn block_type(id: u32, name: &'static str, values: u64, bytes: u64) -> BlockType {
    BlockType { id, name, values, bytes }
}

impl BlockType {
    /// Floating-point numbers of 32 bits.
    pub(crate) const F32: Self = block_type(0, "F32", 1, 4);
    /// 32 values of 4 bits with a scale and an offset.
    pub(crate) const Q4_1: Self = block_type(3, "Q4_1", 32, 20);
    /// 32 values of 8 bits with a scale.
    pub(crate) const Q8_0: Self = block_type(8, "Q8_0", 32, 34);
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor<'a> {
    pub(crate) name: &'a str,
    /// Dimensions from the innermost on; at least one, and none is 0.
    pub(crate) dimensions: Vec<u64>,
    /// Type of the blocks.
    pub(crate) kind: BlockType,
    /// Where the blocks are in the data.
    offset: u64,
    bytes: u64,
    /// The blocks, row after row.
    pub(crate) data: &'a [u8],
}

/// Reads the descriptions, and finds the bytes of each tensor.
pub(super) fn read<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
    alignment: u64,
) -> Result<Vec<Tensor<'a>>, FormatError> {
    let (mut tensors, mut names, mut bytes) = (vec![], BTreeSet::new(), 0_u64);
    for _ in 0..count {
        let tensor = Tensor::described(cursor)?;
        if !names.insert(tensor.name) {
            return Err(tensor.error("one tensor of this name", "two"));
        }
        bytes = bytes.saturating_add(tensor.bytes);
        tensors.push(tensor);
    }
    cursor.align(alignment);
    let data = cursor.rest();
    // Tensors that share bytes would make a small file a large model.
    if bytes > data.len() as u64 {
        let expected = format!("{bytes} bytes of all tensors");
        return Err(FormatError::new("data", expected, cut_off(data.len())));
    }
    tensors.into_iter().map(|tensor| tensor.with_data(data, alignment)).collect()
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
        let (id, offset) = (cursor.u32()?, cursor.u64()?);
        let kind = BLOCK_TYPES.into_iter().find(|kind| kind.id == id).ok_or_else(|| {
            let known = BLOCK_TYPES.map(|kind| kind.name).join(", ");
            error(name, format!("one of the types {known}"), format!("type {id}"))
        })?;
        let wrong = |expected: &str| error(name, expected, format!("dimensions {dimensions:?}"));
        if dimensions.contains(&0) || dimensions[0] % kind.values != 0 {
            let rows = format!("rows of a multiple of {} values for {}", kind.values, kind.name);
            return Err(wrong(&rows));
        }
        let values = dimensions.iter().try_fold(1_u64, |all, length| all.checked_mul(*length));
        let bytes = values.and_then(|values| (values / kind.values).checked_mul(kind.bytes));
        let bytes = bytes.ok_or_else(|| wrong("dimensions of a tensor"))?;
        Ok(Self { name, dimensions, kind, offset, bytes, data: &[] })
    }

    fn with_data(self, data: &'a [u8], alignment: u64) -> Result<Self, FormatError> {
        let Self { offset, bytes, .. } = self;
        if offset % alignment != 0 {
            return Err(self.error(format!("an offset that is a multiple of {alignment}"), offset));
        }
        let mut cursor = Cursor::new(data);
        let found = cursor.take(offset).and_then(|_| cursor.take(bytes)).map_err(|_| {
            let found = format!("{} bytes of data: the file is cut off or damaged", data.len());
            self.error(format!("{bytes} bytes from offset {offset} on"), found)
        })?;
        Ok(Self { data: found, ..self })
    }

    /// Values of a row.
    pub(crate) fn columns(&self) -> u64 {
        self.dimensions[0]
    }

    /// Number of rows. A vector is one row.
    pub(crate) fn rows(&self) -> u64 {
        self.dimensions.iter().skip(1).product()
    }

    pub(crate) fn error(&self, expected: impl Display, found: impl Display) -> FormatError {
        error(self.name, expected, found)
    }
}

fn error(name: &str, expected: impl Display, found: impl Display) -> FormatError {
    FormatError::new(format!("tensor {}", shown(name)), expected, found)
}
