//! Products by the weights of some of many experts.

use mlx_rs::Array;
use mlx_rs::ops::{argsort_axis, concatenate, gather_mm};

use super::{ExpertParts, host};
use crate::error::Result;
use crate::load::{
    CheckpointError, LoadError, MatrixPart, MatrixSizes, QuantizedMatrix, StoredMatrix, Weights,
};

/// y = x·Wᵀ with a weight of its own for each expert, without biases.
#[derive(Debug)]
pub(crate) struct ExpertLinear {
    /// As the parts of a [`super::Linear`].
    pub(super) parts: Vec<ExpertForm>,
}

#[derive(Debug)]
pub(super) enum ExpertForm {
    /// `[experts, in, out]`: a view.
    Transposed(Array),
    Quantized(QuantizedMatrix),
}

impl ExpertForm {
    fn new(stored: StoredMatrix) -> Result<Self, LoadError> {
        match stored {
            StoredMatrix::Quantized(matrix) => Ok(Self::Quantized(matrix.arranged()?)),
            StoredMatrix::Float(matrix) => {
                let transposed = matrix.swap_axes(-1, -2)?;
                transposed.eval()?;
                Ok(Self::Transposed(transposed))
            }
        }
    }

    /// `x` `[rows, 1 or k, 1, in]` → `[rows, k, 1, out]`. `sorted`: `ids` ascend.
    fn product(&self, x: &Array, ids: &Array, sorted: bool) -> Result<Array> {
        match self.host_product(x, ids)? {
            Some(y) => Ok(y),
            None => self.by_mlx(x, ids, sorted),
        }
    }

    /// [`Self::product`] by MLX.
    pub(super) fn by_mlx(&self, x: &Array, ids: &Array, sorted: bool) -> Result<Array> {
        match self {
            Self::Transposed(weight) => Ok(gather_mm(x, weight, None, ids, sorted)?),
            Self::Quantized(weight) => weight.expert_product(x, ids, sorted),
        }
    }

    /// The product as a node of our own, where the crate `cpu` computes it.
    fn host_product(&self, x: &Array, ids: &Array) -> Result<Option<Array>> {
        // A row of its own for each expert: one expert a row.
        let (rows, chosen) = (x.dim(0) * x.dim(1), ids.dim(1) / x.dim(1));
        let (x, rows_ids) = (x.reshape(&[rows, -1])?, ids.reshape(&[rows, chosen])?);
        let stored;
        let parts = match self {
            Self::Transposed(weight) => {
                stored = weight.swap_axes(-1, -2)?;
                ExpertParts::Floats(&stored)
            }
            Self::Quantized(weight) => match weight.affine_parts() {
                Some(parts) => ExpertParts::Quantized(parts),
                None => return Ok(None),
            },
        };
        let Some(y) = host::expert_product(&x, &rows_ids, &parts)? else { return Ok(None) };
        Ok(Some(y.reshape(&[ids.dim(0), ids.dim(1), 1, -1])?))
    }
}

/// Pairs of a row and one of its experts, in the order of the experts. All rows of an expert then lie
/// together, and a GPU reads the expert's weight once for them. Source: mlx-lm, `switch_layers.py`.
pub(crate) struct SortedPairs {
    /// `[pairs, 1]`, ascending.
    experts: Array,
    /// `[pairs]`: the row of each pair.
    rows: Array,
    /// `[pairs]`: for each pair in the order of the rows, its place among the sorted ones.
    places: Array,
}

impl SortedPairs {
    /// Of `experts` `[rows, k]`, uint32. Pairs of one expert stay in the order of their rows.
    pub(crate) fn of(experts: &Array) -> Result<Self> {
        let (pairs, chosen) = (experts.size() as i32, experts.dim(1));
        let flat = experts.reshape(&[pairs])?;
        let order = argsort_axis(&flat, 0)?;
        let chosen = Array::from_slice(&[chosen as u32], &[1]);
        Ok(Self {
            experts: flat.take_axis(&order, 0)?.reshape(&[pairs, 1])?,
            rows: order.floor_divide(&chosen)?,
            places: argsort_axis(&order, 0)?,
        })
    }

    /// `x` `[rows, width]` → the row of each pair `[pairs, width]`.
    pub(crate) fn gather(&self, x: &Array) -> Result<Array> {
        Ok(x.take_axis(&self.rows, 0)?)
    }

    /// `y` `[pairs, width]` → `[rows, k, width]`, the experts of a row in their order.
    pub(crate) fn put_back(&self, y: &Array, rows: i32) -> Result<Array> {
        let (pairs, width) = (y.dim(0), y.dim(1));
        Ok(y.take_axis(&self.places, 0)?.reshape(&[rows, pairs / rows, width])?)
    }
}

impl ExpertLinear {
    /// Reads projections of one input as one, whose outputs lie side by side. `projections` are
    /// names and outputs, such as `("gate_proj", 768)`. They are `{block}.switch_mlp.{projection}`
    /// or `{block}.experts.switch_glu.{projection}` with an axis of experts, as MLX writes them, or
    /// `{block}.experts.{expert}.{projection}`, as transformers does. Newer models have one tensor
    /// for all experts there, too: `{block}.experts.{projection}`, and
    /// `{block}.experts.gate_up_proj` for both inner ones, the gate's outputs first. Qwen3-VL has
    /// inputs as rows of these, and outputs as columns.
    pub(crate) fn load(
        weights: &mut Weights,
        block: &str,
        projections: &[(&str, i32)],
        experts: i32,
        input: i32,
    ) -> Result<Self, LoadError> {
        let name = if let [(name, _)] = projections { name } else { "gate_up_proj" };
        let fused = format!("{block}.experts.{name}");
        let part = |(name, out): &(&str, i32)| {
            let stacked = format!("{block}.switch_mlp.{name}");
            let gemma = format!("{block}.experts.switch_glu.{name}");
            for module in [&stacked, &gemma] {
                if weights.has(&format!("{module}.weight")) {
                    return Ok(MatrixPart { modules: vec![module.clone()], out: *out });
                }
            }
            let module = |expert: i32| format!("{block}.experts.{expert}.{name}");
            // The last one is looked for before the names of all are made.
            let last = format!("{}.weight", module(experts - 1));
            if !weights.has(&last) {
                let name = format!("{fused}, {stacked}.weight or {last}");
                return Err(LoadError::from(CheckpointError::Missing { name }));
            }
            Ok(MatrixPart { modules: (0..experts).map(module).collect(), out: *out })
        };
        let parts = if weights.has(&fused) {
            let out = projections.iter().map(|(_, out)| out).sum();
            if has_inputs_as_rows(weights, &fused, [out, input]) {
                let by_input = weights.take(&fused, &[experts, input, out])?;
                let by_output = by_input.swap_axes(-1, -2)?;
                let by_output = match weights.rehearses() {
                    true => by_output,
                    false => by_output.contiguous()?,
                };
                return Ok(Self { parts: vec![ExpertForm::new(StoredMatrix::Float(by_output))?] });
            }
            vec![MatrixPart { modules: vec![fused], out }]
        } else {
            projections.iter().map(part).collect::<Result<Vec<_>, _>>()?
        };
        let sizes = MatrixSizes { input, experts: Some(experts) };
        let stored = weights.take_matrices(&parts, sizes)?;
        Ok(Self { parts: stored.into_iter().map(ExpertForm::new).collect::<Result<_, _>>()? })
    }

    /// From a weight as it is stored.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn of(weight: StoredMatrix) -> Result<Self, LoadError> {
        Ok(Self { parts: vec![ExpertForm::new(weight)?] })
    }

    /// The products of each row by k experts, `ids` `[rows, k]`. `x` is `[rows, in]`, or for each
    /// expert another row `[rows, k, in]` → `[rows, k, out]`.
    pub(crate) fn forward(&self, x: &Array, ids: &Array) -> Result<Array> {
        self.products(x, ids, false)
    }

    /// The products of pairs of a row and an expert: `rows` `[pairs, in]` → `[pairs, out]`.
    pub(crate) fn forward_sorted(&self, rows: &Array, pairs: &SortedPairs) -> Result<Array> {
        let y = self.products(rows, &pairs.experts, true)?;
        Ok(y.reshape(&[rows.dim(0), -1])?)
    }

    fn products(&self, x: &Array, ids: &Array, sorted: bool) -> Result<Array> {
        let (rows, k, input) = (ids.dim(0), ids.dim(1), x.dim(-1));
        let each = if x.ndim() == 2 { 1 } else { k };
        let x = x.reshape(&[rows, each, 1, input])?;
        let y = match self.parts.as_slice() {
            [one] => one.product(&x, ids, sorted)?,
            several => {
                let parts = several.iter().map(|part| part.product(&x, ids, sorted));
                concatenate(&parts.collect::<Result<Vec<_>>>()?, -1)?
            }
        };
        // In the type of the rows: see `Linear::forward`.
        Ok(y.reshape(&[rows, k, -1])?.as_dtype(x.dtype())?)
    }
}

/// Whether the matrices of experts in one tensor are `[in, out]`. Square ones are `[out, in]`, as the
/// reference reads them.
fn has_inputs_as_rows(weights: &Weights, name: &str, [out, input]: [i32; 2]) -> bool {
    let is = |size: usize, expected: i32| size as i64 == i64::from(expected);
    weights.shape(name).is_some_and(|shape| match shape {
        [_, rows, columns] => is(*rows, input) && is(*columns, out) && out != input,
        _ => false,
    })
}

#[cfg(test)]
mod tests;
