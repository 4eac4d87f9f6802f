//! Matrix products by stored weights. How a weight is kept (transposed view, quantized) is this
//! file's and `quantized.rs`'s alone.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use crate::error::Result;
use crate::load::{LoadError, MatrixPart, MatrixSizes, QuantizedMatrix, StoredMatrix, Weights};

/// y = x·Wᵀ (+ b). `weight` is stored `[out, in]`, as in checkpoints.
#[derive(Debug)]
pub(crate) struct Linear {
    /// Outputs one part after another. More than one only where parts of a checkpoint are stored in
    /// different formats, and after [`Linear::beside`].
    pub(super) parts: Vec<WeightForm>,
    pub(super) bias: Option<Array>,
}

#[derive(Debug)]
pub(super) enum WeightForm {
    /// `[in, out]`: a view, so that a forward is one primitive.
    Transposed(Array),
    Quantized(QuantizedMatrix),
}

impl WeightForm {
    fn new(matrix: StoredMatrix) -> Result<Self, LoadError> {
        match matrix {
            StoredMatrix::Quantized(matrix) => Ok(Self::Quantized(matrix.arranged()?)),
            StoredMatrix::Float(matrix) => {
                let transposed = matrix.transpose()?;
                transposed.eval()?;
                Ok(Self::Transposed(transposed))
            }
        }
    }

    /// `matrix` `[out, in]` in groups of inputs.
    fn pack(matrix: &Array, bits: i32) -> Result<Self, LoadError> {
        Ok(Self::Quantized(QuantizedMatrix::pack(matrix, bits)?.arranged()?))
    }

    /// As [`Linear::quantized`].
    fn quantized(self, bits: i32) -> Result<Self, LoadError> {
        match &self {
            Self::Transposed(transposed) if transposed.dim(0) % QuantizedMatrix::GROUP == 0 => {
                Self::pack(&transposed.transpose()?, bits)
            }
            _ => Ok(self),
        }
    }

    /// `x` `[…, in]` → `[…, out]`.
    fn product(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Transposed(weight) => Ok(x.matmul(weight)?),
            Self::Quantized(weight) => weight.product(x),
        }
    }
}

impl Linear {
    /// Reads `{name}.weight`, quantized if the checkpoint has it so, and, if `bias`, `{name}.bias`.
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
        Self::load_ordered(weights, parts, input, bias, None)
    }

    /// As [`Linear::load_joined`], with the outputs of all parts in another order. `order` gives the
    /// place of each output among all of them, and keeps the outputs of a part together. It is called
    /// after the shapes were checked, because it takes memory for all outputs.
    pub(crate) fn load_ordered(
        weights: &mut Weights,
        parts: &[(&str, i32)],
        input: i32,
        bias: bool,
        order: Option<&dyn Fn() -> Vec<i32>>,
    ) -> Result<Self, LoadError> {
        let part =
            |(name, out): &(&str, i32)| MatrixPart { modules: vec![(*name).to_owned()], out: *out };
        let stored = weights.take_matrices(
            &parts.iter().map(part).collect::<Vec<_>>(),
            MatrixSizes { input, experts: None },
        )?;
        let order = order.map(|order| order());
        let stored = match &order {
            Some(order) if !weights.rehearses() => in_order(&stored, order)?,
            _ => stored,
        };
        let forms = stored.into_iter().map(WeightForm::new).collect::<Result<_, _>>()?;
        let mut biases = Vec::new();
        for (name, out) in parts.iter().filter(|_| bias) {
            biases.push(weights.take(&format!("{name}.bias"), &[*out])?);
        }
        let bias = match biases.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            several => Some(concatenate(several, 0)?),
        };
        let bias = match (bias, order) {
            (Some(bias), Some(order)) => {
                Some(bias.take_axis(Array::from_slice(&order, &[order.len() as i32]), 0)?)
            }
            (bias, _) => bias,
        };
        if let Some(bias) = &bias {
            bias.eval()?;
        }
        Ok(Self { parts: forms, bias })
    }

    /// Outputs of `self` and then those of `other`, both without a bias, as products of their own.
    pub(crate) fn beside(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// Reads these rows of `{name}.weight`: outputs in their order. `out` is the number of all rows.
    pub(crate) fn load_rows(
        weights: &mut Weights,
        name: &str,
        out: i32,
        input: i32,
        rows: &[i32],
    ) -> Result<Self, LoadError> {
        let part = MatrixPart { modules: vec![name.to_owned()], out };
        let stored = weights.take_matrices(&[part], MatrixSizes { input, experts: None })?;
        let parts = stored.iter().map(|weight| WeightForm::new(weight.rows(rows)?));
        Ok(Self { parts: parts.collect::<Result<_, LoadError>>()?, bias: None })
    }

    /// From a weight as it is stored, without a bias.
    pub(crate) fn of(weight: StoredMatrix) -> Result<Self, LoadError> {
        Ok(Self { parts: vec![WeightForm::new(weight)?], bias: None })
    }

    /// From a weight `[out, in]` and a bias `[out]`.
    pub(crate) fn new(weight: &Array, bias: Array) -> Result<Self, LoadError> {
        let weight = WeightForm::new(StoredMatrix::Float(weight.clone()))?;
        Ok(Self { parts: vec![weight], bias: Some(bias) })
    }

    /// The layer with its weight quantized to `bits` an element (4 or 8; `None` leaves it). A
    /// weight that is quantized already, or whose input is not made of whole groups, stays as it
    /// is.
    pub(crate) fn quantized(self, bits: Option<i32>) -> Result<Self, LoadError> {
        let Some(bits) = bits else { return Ok(self) };
        let parts = self.parts.into_iter().map(|part| part.quantized(bits));
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, bias: self.bias })
    }

    /// Parts that are kept apart.
    #[cfg(test)]
    pub(crate) fn count_parts(&self) -> usize {
        self.parts.len()
    }

    /// `x` `[…, in]` → `[…, out]`.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        let y = match self.parts.as_slice() {
            [one] => one.product(x)?,
            several => {
                let parts = several.iter().map(|part| part.product(x));
                concatenate(&parts.collect::<Result<Vec<_>>>()?, -1)?
            }
        };
        let y = match &self.bias {
            Some(bias) => y.add(bias)?,
            None => y,
        };
        // MLX answers in the wider type where a checkpoint stores a weight, scales or a bias so.
        Ok(y.as_dtype(x.dtype())?)
    }
}

/// Matrices whose outputs lie side by side, with all of these in `order`.
fn in_order(stored: &[StoredMatrix], order: &[i32]) -> Result<Vec<StoredMatrix>, LoadError> {
    let mut first = 0;
    let one = |matrix: &StoredMatrix| {
        let end = first + matrix.outputs();
        let rows: Vec<i32> =
            order[first as usize..end as usize].iter().map(|row| row - first).collect();
        first = end;
        matrix.rows(&rows)
    };
    stored.iter().map(one).collect()
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
            let WeightForm::Quantized(packed) = packed else { panic!("it was packed") };
            let floats = packed.dequantized().expect("expands").transpose().expect("a view");
            let expanded = numbers(x.matmul(&floats).expect("a product"));
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
    fn outputs_in_another_order_stay_in_their_matrices() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let (first, second) = (wave(3, 64, 0.37), wave(2, 64, 0.11));
        let packed = QuantizedMatrix::pack(&first, 8).expect("packs");
        let floats = packed.dequantized().expect("expands");
        let stored = [StoredMatrix::Quantized(packed), StoredMatrix::Float(second.clone())];
        let order = [2, 0, 1, 4, 3];
        let parts = in_order(&stored, &order).expect("taken");
        let all = numbers(concatenate(&[floats, second], 0).expect("joined"));
        let found = parts.iter().flat_map(|part| match part {
            StoredMatrix::Float(matrix) => numbers(matrix.clone()),
            StoredMatrix::Quantized(matrix) => numbers(matrix.dequantized().expect("expands")),
        });
        let expected = order.iter().flat_map(|row| &all[*row as usize * 64..][..64]);
        assert!(found.eq(expected.copied()));
    }

    #[test]
    fn inputs_without_whole_groups_stay_as_they_are() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let matrix = wave(8, 96, 0.37);
        let linear = Linear {
            parts: vec![WeightForm::new(StoredMatrix::Float(matrix)).expect("a view")],
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
