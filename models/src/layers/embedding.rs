//! The table of token embeddings.

use mlx_rs::{Array, Dtype};

use super::Linear;
use crate::error::Result;
use crate::load::{
    CheckpointError, LoadError, MatrixPart, MatrixSizes, QuantizedMatrix, StoredMatrix, Weights,
};

/// A table of rows by id; with tied weights also the output head.
#[derive(Debug)]
pub(crate) struct Embedding {
    pub(super) table: Table,
}

#[derive(Debug)]
pub(super) enum Table {
    Float { rows: Array, transposed: Array },
    Quantized { rows: QuantizedMatrix, dtype: Dtype },
}

impl Embedding {
    /// Reads `{name}.weight` `[vocab, hidden]`, quantized if the checkpoint has it so.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        vocab: i32,
        hidden: i32,
    ) -> Result<Self, LoadError> {
        let dtype = weights.dtype_of(&format!("{name}.weight"));
        let part = MatrixPart { modules: vec![name.to_owned()], out: vocab };
        let sizes = MatrixSizes { input: hidden, experts: None };
        match weights.take_matrices(&[part], sizes)?.pop() {
            Some(StoredMatrix::Quantized(rows)) => {
                Ok(Self { table: Table::Quantized { rows: rows.arranged()?, dtype } })
            }
            Some(StoredMatrix::Float(rows)) => Self::new(rows),
            None => Err(LoadError::from(CheckpointError::Missing { name: name.to_owned() })),
        }
    }

    /// A table of these rows `[vocab, hidden]`.
    pub(crate) fn new(rows: Array) -> Result<Self, LoadError> {
        let transposed = rows.transpose()?;
        transposed.eval()?;
        Ok(Self { table: Table::Float { rows, transposed } })
    }

    /// Rows of `ids` `[ids]`, which need not be known yet → `[ids, hidden]`.
    pub(crate) fn rows_of(&self, ids: &Array) -> Result<Array> {
        match &self.table {
            Table::Float { rows, .. } => Ok(rows.take_axis(ids, 0)?),
            Table::Quantized { rows, dtype } => rows.rows_of(ids, *dtype),
        }
    }

    /// The tied output head with the rows of these ids alone: `[rows, hidden]` → `[rows, ids]`.
    pub(crate) fn head_of(&self, ids: &[i32]) -> Result<Linear, LoadError> {
        let table = match &self.table {
            Table::Float { rows, .. } => StoredMatrix::Float(rows.clone()),
            Table::Quantized { rows, .. } => StoredMatrix::Quantized(rows.clone()),
        };
        Linear::of(table.rows(ids)?)
    }

    /// `hidden` `[rows, hidden]` → `[rows, vocab]`.
    pub(crate) fn as_head(&self, hidden: &Array) -> Result<Array> {
        match &self.table {
            Table::Float { transposed, .. } => Ok(hidden.matmul(transposed)?),
            Table::Quantized { rows, .. } => rows.product(hidden),
        }
    }
}
