//! Matrix products by stored weights. How a weight is kept (transposed view, quantized) is this
//! file's alone.

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, dequantize, quantize, quantized_matmul};
use mlx_rs::transforms::eval;

use crate::device::on_gpu;
use crate::error::Result;
use crate::load::{LoadError, Weights};

/// Inputs that share a scale and a bias in a quantized weight.
const GROUP: i32 = 64;

/// y = x·Wᵀ (+ b). `weight` is stored `[out, in]`, as in checkpoints.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: WeightForm,
    bias: Option<Array>,
}

#[derive(Debug)]
enum WeightForm {
    /// `[in, out]`: a view, so that a forward is one primitive.
    Transposed(Array),
    /// Affine by groups of inputs: w = scale · q + bias. `packed` `[out, in · bits / 32]`, `scales`
    /// and `biases` `[out, in / GROUP]`.
    Quantized { packed: Array, scales: Array, biases: Array, bits: i32 },
}

impl WeightForm {
    /// `matrix` `[out, in]` in groups of inputs. Evaluated now and not at the first forward, so
    /// that the float weight is gone before the next one is read.
    fn pack(matrix: &Array, bits: i32) -> Result<Self, LoadError> {
        let (packed, scales, biases) = quantize(matrix, GROUP, bits)?;
        eval([&packed, &scales, &biases])?;
        Ok(Self::Quantized { packed, scales, biases, bits })
    }

    /// The same numbers as floats.
    fn expand(self) -> Result<Self, LoadError> {
        let Self::Quantized { packed, scales, biases, bits } = &self else { return Ok(self) };
        let matrix = dequantize(packed, scales, biases, GROUP, *bits)?;
        matrix.eval()?;
        let transposed = matrix.transpose()?;
        transposed.eval()?;
        Ok(Self::Transposed(transposed))
    }

    /// `x` `[…, in]` → `[…, out]`.
    fn product(&self, x: &Array) -> Result<Array> {
        Ok(match self {
            Self::Transposed(weight) => x.matmul(weight)?,
            Self::Quantized { packed, scales, biases, bits } => {
                quantized_matmul(x, packed, scales, biases, true, GROUP, *bits)?
            }
        })
    }
}

impl Linear {
    /// Reads `{name}.weight` and, if `bias`, `{name}.bias`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        out: i32,
        input: i32,
        bias: bool,
    ) -> Result<Self, LoadError> {
        Self::load_joined(weights, &[(name, out)], input, bias)
    }

    /// Reads several linears of one input as one: their outputs lie side by side. Fewer, larger
    /// products.
    pub(crate) fn load_joined(
        weights: &mut Weights,
        parts: &[(&str, i32)],
        input: i32,
        bias: bool,
    ) -> Result<Self, LoadError> {
        let mut matrices = Vec::with_capacity(parts.len());
        let mut biases = Vec::new();
        for (name, out) in parts {
            matrices.push(weights.take(&format!("{name}.weight"), &[*out, input])?);
            if bias {
                biases.push(weights.take(&format!("{name}.bias"), &[*out])?);
            }
        }
        let join = |arrays: Vec<Array>| -> Result<Array, LoadError> {
            let joined =
                if let [one] = arrays.as_slice() { one.clone() } else { concatenate(&arrays, 0)? };
            joined.eval()?;
            Ok(joined)
        };
        let matrix = join(matrices)?;
        let transposed = matrix.transpose()?;
        transposed.eval()?;
        let bias = if bias { Some(join(biases)?) } else { None };
        Ok(Self { weight: WeightForm::Transposed(transposed), bias })
    }

    /// From a weight `[out, in]` and a bias `[out]`.
    pub(crate) fn new(weight: &Array, bias: Array) -> Result<Self, LoadError> {
        let transposed = weight.transpose()?;
        transposed.eval()?;
        Ok(Self { weight: WeightForm::Transposed(transposed), bias: Some(bias) })
    }

    /// The same with its weight quantized to `bits` an element (4 or 8; `None` leaves it). One
    /// whose input is not made of whole groups stays as it is. On the CPU the quantized values are
    /// kept as floats: MLX computes the quantized product row by row there, on one thread.
    /// Measured: a draft block of 16 rows took ten times as long.
    pub(crate) fn quantized(self, bits: Option<i32>) -> Result<Self, LoadError> {
        let (WeightForm::Transposed(transposed), Some(bits)) = (&self.weight, bits) else {
            return Ok(self);
        };
        if transposed.dim(0) % GROUP != 0 {
            return Ok(self);
        }
        let packed = WeightForm::pack(&transposed.transpose()?, bits)?;
        Ok(Self { weight: if on_gpu() { packed } else { packed.expand()? }, bias: self.bias })
    }

    /// `x` `[…, in]` → `[…, out]`.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        let y = self.weight.product(x)?;
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
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        vocab: i32,
        hidden: i32,
    ) -> Result<Self, LoadError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceChoice, choose};

    fn wave(rows: i32, columns: i32, step: f32) -> Array {
        let values: Vec<f32> = (0..rows * columns).map(|at| (at as f32 * step).sin()).collect();
        Array::from_slice(&values, &[rows, columns])
    }

    fn numbers(array: Array) -> Vec<f32> {
        array.eval().expect("evaluates");
        array.try_as_slice::<f32>().expect("floats").to_vec()
    }

    #[test]
    fn a_packed_weight_and_its_expansion_give_the_same() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let (matrix, x) = (wave(48, 128, 0.37), wave(5, 128, 0.11));
        let exact = numbers(x.matmul(matrix.transpose().expect("a view")).expect("a product"));
        let size = exact.iter().map(|value| value.abs()).fold(0.0, f32::max);
        for (bits, share) in [(8, 0.02), (4, 0.2)] {
            let packed = WeightForm::pack(&matrix, bits).expect("packs");
            let found = numbers(packed.product(&x).expect("a product"));
            let expanded =
                numbers(packed.expand().expect("expands").product(&x).expect("a product"));
            let off = |other: &[f32]| {
                found.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
            };
            assert!(off(&expanded) < 1e-4 * size, "{bits} bits: {}", off(&expanded));
            assert!(
                off(&exact) < share * size && off(&exact) > 0.0,
                "{bits} bits: {} of {size}",
                off(&exact)
            );
        }
    }

    #[test]
    fn inputs_without_whole_groups_stay_as_they_are() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let matrix = wave(8, 96, 0.37);
        let linear = Linear {
            weight: WeightForm::Transposed(matrix.transpose().expect("a view")),
            bias: None,
        };
        let (before, x) =
            (numbers(linear.forward(&wave(3, 96, 0.2)).expect("a product")), wave(3, 96, 0.2));
        assert_eq!(
            before,
            numbers(linear.quantized(Some(4)).expect("left").forward(&x).expect("a product"))
        );
    }
}
