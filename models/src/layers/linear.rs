//! Matrix products by stored weights. How a weight is kept (transposed view, quantized) is this file's alone.

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, quantize, quantized_matmul};

use crate::error::{LoadError, Result};
use crate::load::Weights;

/// Inputs that share a scale and a bias in a quantized weight.
const GROUP: i32 = 64;

/// y = x·Wᵀ (+ b). `weight` is stored `[out, in]`, as in checkpoints.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Kept,
    bias: Option<Array>,
}

#[derive(Debug)]
enum Kept {
    /// `[in, out]`: a view, so that a forward is one primitive.
    Transposed(Array),
    /// Affine by groups of inputs: w = scale · q + bias. `packed` `[out, in · bits / 32]`, `scales` and `biases`
    /// `[out, in / GROUP]`.
    Quantized { packed: Array, scales: Array, biases: Array, bits: i32 },
}

impl Linear {
    /// Reads `{name}.weight` and, if `bias`, `{name}.bias`.
    pub(crate) fn load(weights: &mut Weights, name: &str, out: i32, input: i32, bias: bool) -> Result<Self, LoadError> {
        Self::load_joined(weights, &[(name, out)], input, bias)
    }

    /// Reads several linears of one input as one: their outputs lie side by side. Fewer, larger products.
    pub(crate) fn load_joined(weights: &mut Weights, parts: &[(&str, i32)], input: i32, bias: bool) -> Result<Self, LoadError> {
        let mut matrices = Vec::with_capacity(parts.len());
        let mut biases = Vec::new();
        for (name, out) in parts {
            matrices.push(weights.take(&format!("{name}.weight"), &[*out, input])?);
            if bias {
                biases.push(weights.take(&format!("{name}.bias"), &[*out])?);
            }
        }
        let join = |arrays: Vec<Array>| -> Result<Array, LoadError> {
            let joined = if let [one] = arrays.as_slice() { one.clone() } else { concatenate(&arrays, 0)? };
            joined.eval()?;
            Ok(joined)
        };
        let matrix = join(matrices)?;
        let transposed = matrix.transpose()?;
        transposed.eval()?;
        let bias = if bias { Some(join(biases)?) } else { None };
        Ok(Self { weight: Kept::Transposed(transposed), bias })
    }

    /// The same with its weight quantized to `bits` an element (4 or 8; `None` leaves it). One whose input is not made of
    /// whole groups stays as it is.
    pub(crate) fn quantized(self, bits: Option<i32>) -> Result<Self, LoadError> {
        let (Kept::Transposed(transposed), Some(bits)) = (&self.weight, bits) else { return Ok(self) };
        if transposed.dim(0) % GROUP != 0 {
            return Ok(self);
        }
        let (packed, scales, biases) = quantize(transposed.transpose()?, GROUP, bits)?;
        // Now and not at the first forward, so that the float weight is gone before the next one is read.
        mlx_rs::transforms::eval([&packed, &scales, &biases])?;
        Ok(Self { weight: Kept::Quantized { packed, scales, biases, bits }, bias: self.bias })
    }

    /// `x` `[…, in]` → `[…, out]`.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        let y = match &self.weight {
            Kept::Transposed(weight) => x.matmul(weight)?,
            Kept::Quantized { packed, scales, biases, bits } => quantized_matmul(x, packed, scales, biases, true, GROUP, *bits)?,
        };
        Ok(match &self.bias {
            Some(bias) => y.add(bias)?,
            None => y,
        })
    }
}

/// A table of rows by id; with tied weights also the output head.
#[derive(Debug)]
pub(crate) struct Embedding {
    table: Array,
    transposed: Array,
}

impl Embedding {
    /// Reads `{name}.weight` `[vocab, hidden]`.
    pub(crate) fn load(weights: &mut Weights, name: &str, vocab: i32, hidden: i32) -> Result<Self, LoadError> {
        let table = weights.take(&format!("{name}.weight"), &[vocab, hidden])?;
        let transposed = table.transpose()?;
        transposed.eval()?;
        Ok(Self { table, transposed })
    }

    /// Rows of `ids` → `[ids, hidden]`.
    pub(crate) fn rows(&self, ids: &[u32]) -> Result<Array> {
        self.rows_of(&Array::from_slice(ids, &[ids.len() as i32]))
    }

    /// Rows of `ids` `[ids]`, which need not be known yet → `[ids, hidden]`.
    pub(crate) fn rows_of(&self, ids: &Array) -> Result<Array> {
        Ok(self.table.take_axis(ids, 0)?)
    }

    /// `hidden` `[rows, hidden]` → `[rows, vocab]`.
    pub(crate) fn as_head(&self, hidden: &Array) -> Result<Array> {
        Ok(hidden.matmul(&self.transposed)?)
    }
}
