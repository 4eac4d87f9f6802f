//! Rows of a quantized matrix as floats, as a table of embeddings needs them.

use super::{Factors, QuantizedFormat, QuantizedMatrix, arrange, run_bytes};
use crate::kernel::integer::TILE;
use crate::kernel::{RUN, brain, half};

impl Factors<'_> {
    /// The one of group number `at`, exactly. Groups have `group` inputs. `row`: in tiles the row, of
    /// which the group is one; all rows' groups are counted otherwise.
    fn number(self, at: usize, group: usize, row: Option<usize>) -> f32 {
        // In tiles the factors of 16 columns lie side by side.
        let place = row.map_or(at, |row| at * TILE + row % TILE);
        match self {
            Self::Float32(numbers) => numbers[place],
            Self::Float16(numbers) => half(numbers[place]),
            Self::Bfloat16(numbers) => brain(numbers[place]),
            Self::Scaled(bytes) => {
                let codes = RUN / group;
                let (width, column) = row.map_or((1, 0), |row| (TILE, row % TILE));
                let run = &bytes[at / codes * run_bytes(group) * width..];
                let of_run = half(u16::from_le_bytes([run[2 * column], run[2 * column + 1]]));
                of_run * f32::from(run[(2 + at % codes) * width + column].cast_signed())
            }
        }
    }
}

impl QuantizedMatrix<'_> {
    /// Row `at` of the matrix into `out`: each number is scale · q, rounded, plus its bias, rounded
    /// again. These are the bits of MLX's `dequantize` on the CPU. (Products round once.) With scaled
    /// factors it is rounded once, which makes it the number that a block of GGUF has.
    ///
    /// # Panics
    /// There is no such row, or `out` is not as long as one.
    pub fn expand_row(&self, at: usize, out: &mut [f32]) {
        let Self { packed, scales, biases, format, inputs, tiles, .. } = *self;
        let QuantizedFormat { bits, group } = format;
        assert!(
            at < self.outputs && out.len() == self.inputs,
            "expected one of {} rows of {} numbers, found row {at} and room for {}",
            self.outputs,
            self.inputs,
            out.len()
        );
        let row = &packed[at * (self.inputs / 32 * bits)..][..self.inputs / 32 * bits];
        let groups = inputs / group;
        for (block, numbers) in out.chunks_exact_mut(group).enumerate() {
            let (tiled, factor) = match tiles {
                true => (Some(at), at / TILE * groups + block),
                false => (None, at * groups + block),
            };
            let [scale, bias] = [scales, biases].map(|all| all.number(factor, group, tiled));
            let number_of = |q: f32| match scales.are_scaled() {
                true => scale.mul_add(q, bias),
                false => scale * q + bias,
            };
            for (index, number) in numbers.iter_mut().enumerate() {
                if tiles {
                    let q = arrange::number(packed, bits, inputs, at, block * group + index);
                    *number = number_of(f32::from(q));
                    continue;
                }
                let bit = (block * group + index) * bits;
                let next = row.get(bit / 32 + 1).copied().unwrap_or(0);
                let two = u64::from(row[bit / 32]) | u64::from(next) << 32;
                let q = (two >> (bit % 32)) & ((1 << bits) - 1);
                *number = number_of(q as f32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_lie_across_words_are_read() {
        // 5 bits: the numbers 0, 1, 2, … of a group of 32.
        let mut packed = [0u32; 5];
        for number in 0..32usize {
            for bit in 0..5 {
                let place = number * 5 + bit;
                packed[place / 32] |= ((number as u32 >> bit) & 1) << (place % 32);
            }
        }
        let (scales, biases) = ([0x3800], [0x3f80]); // 0.5 as a half, 1 as a bfloat16
        let matrix = QuantizedMatrix::new(
            &packed,
            Factors::Float16(&scales),
            Factors::Bfloat16(&biases),
            QuantizedFormat { bits: 5, group: 32 },
            32,
        );
        let mut out = [0.0; 32];
        matrix.expect("a matrix").expand_row(0, &mut out);
        let expected: Vec<f32> = (0..32).map(|number| number as f32 / 2.0 + 1.0).collect();
        assert_eq!(out[..], expected[..]);
    }
}
