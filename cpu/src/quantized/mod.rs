//! Products by quantized matrices, float32 rows: y = x · Wᵀ with w = scale · q + bias, as MLX's
//! affine quantization stores it. Nothing is widened in memory: bits, scales and biases are read as
//! they are stored. An element has the same bits whatever other rows there are and however many
//! threads (I1); they are those of the float product by the expanded matrix ([`crate::kernel`]'s
//! order), or of a product of 8-bit integers where the matrix was arranged for it ([`arrange`],
//! [`crate::kernel::integer`]).

mod arrange;
mod expand;

use std::fmt;

use crate::kernel::{self, Product, QuantizedWeight};
use crate::pool;
use crate::sgemm::kernels;

pub use arrange::{FactorsMut, arrange, can_be as can_be_arranged, restore};

/// Scales or biases as they are stored.
#[derive(Clone, Copy, Debug)]
pub enum Factors<'a> {
    /// Stored as float32.
    Float32(&'a [f32]),
    /// Stored as float16 (IEEE 754 binary16), one `u16` of bits for each.
    Float16(&'a [u16]),
    /// Stored as bfloat16, one `u16` of bits for each.
    Bfloat16(&'a [u16]),
    /// For 256 inputs each a float16 (little-endian) and a signed byte for each of their groups: a factor
    /// is their product, which float32 has exactly. K-quants of GGUF are stored so.
    Scaled(&'a [u8]),
}

/// Bytes of the scaled factors of 256 inputs in groups of `group`.
pub const fn run_bytes(group: usize) -> usize {
    2 + kernel::RUN / group
}

impl<'a> Factors<'a> {
    /// Scaled factors, whose bytes lie in numbers of 16 bits.
    pub fn scaled(numbers: &'a [u16]) -> Self {
        // SAFETY: each number is two bytes, and a byte may have any value.
        let bytes =
            unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), 2 * numbers.len()) };
        Self::Scaled(bytes)
    }
}

impl Factors<'_> {
    /// How many factors of groups of `group` there are; `None` if they are none of whole runs.
    fn count(self, group: usize) -> Option<usize> {
        match self {
            Self::Float32(numbers) => Some(numbers.len()),
            Self::Float16(numbers) | Self::Bfloat16(numbers) => Some(numbers.len()),
            Self::Scaled(bytes) if bytes.len().is_multiple_of(run_bytes(group)) => {
                Some(bytes.len() / run_bytes(group) * (kernel::RUN / group))
            }
            Self::Scaled(_) => None,
        }
    }

    fn are_scaled(self) -> bool {
        matches!(self, Self::Scaled(_))
    }

    /// From the one at `from` on, of groups of `group`. Scaled ones begin with a run.
    ///
    /// # Panics
    /// There are fewer.
    fn place(self, from: usize, group: usize) -> kernel::Factors {
        match self {
            Self::Scaled(bytes) => {
                let codes = kernel::RUN / group;
                let place = bytes[from / codes * run_bytes(group)..].as_ptr().cast();
                kernel::Factors::Scaled { place, codes }
            }
            Self::Float32(numbers) => kernel::Factors::Float32(numbers[from..].as_ptr()),
            Self::Float16(numbers) => kernel::Factors::Float16(numbers[from..].as_ptr()),
            Self::Bfloat16(numbers) => kernel::Factors::Bfloat16(numbers[from..].as_ptr()),
        }
    }
}

/// How the numbers of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedFormat {
    /// Bits of a number.
    pub bits: usize,
    /// Neighbouring inputs that share a scale and a bias.
    pub group: usize,
}

impl QuantizedFormat {
    /// Whether there are kernels for it.
    pub fn is_known(self) -> bool {
        matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(self.group, 32 | 64 | 128)
            || self == Self::SIXTEENS
    }

    /// Groups of 16, which only scaled factors have.
    const SIXTEENS: Self = Self { bits: 6, group: 16 };
}

/// Why a quantized matrix is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedMatrixError(String);

impl fmt::Display for QuantizedMatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantizedMatrixError {}

/// A matrix `[outputs, inputs]`.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedMatrix<'a> {
    packed: &'a [u32],
    scales: Factors<'a>,
    biases: Factors<'a>,
    format: QuantizedFormat,
    outputs: usize,
    inputs: usize,
    /// Whether it is [`arrange`]d.
    tiles: bool,
}

impl<'a> QuantizedMatrix<'a> {
    /// `packed` `[outputs, inputs · bits / 32]`, low bits first; `scales` and `biases` `[outputs,
    /// inputs / group]`.
    ///
    /// # Errors
    /// There are no kernels for the format, inputs are not whole groups, or a part has another
    /// size.
    pub fn new(
        packed: &'a [u32],
        scales: Factors<'a>,
        biases: Factors<'a>,
        format: QuantizedFormat,
        inputs: usize,
    ) -> Result<Self, QuantizedMatrixError> {
        let QuantizedFormat { bits, group } = format;
        if !format.is_known() || inputs == 0 || !inputs.is_multiple_of(group) {
            return Err(QuantizedMatrixError(format!(
                "expected 2, 3, 4, 5, 6 or 8 bits and inputs in whole groups of 32, 64 or 128, \
                 found {bits} bits and {inputs} inputs in groups of {group}"
            )));
        }
        let are_scaled = scales.are_scaled();
        let whole_runs = !are_scaled || inputs.is_multiple_of(kernel::RUN);
        if are_scaled != biases.are_scaled() || !whole_runs || (group < 32 && !are_scaled) {
            return Err(QuantizedMatrixError(format!(
                "expected scales and biases of one kind, and of scaled ones whole runs of {} inputs, \
                 found {inputs} inputs in groups of {group}",
                kernel::RUN
            )));
        }
        let (row, groups) = (inputs / 32 * bits, inputs / group);
        let outputs = packed.len() / row;
        let factors = [scales.count(group), biases.count(group)].map(Option::unwrap_or_default);
        if packed.len() != outputs * row || factors != [outputs * groups; 2] {
            return Err(QuantizedMatrixError(format!(
                "expected rows of {row} words and {groups} scales and biases, found {} words, {} \
                 scales and {} biases",
                packed.len(),
                factors[0],
                factors[1]
            )));
        }
        Ok(Self { packed, scales, biases, format, outputs, inputs, tiles: false })
    }

    /// The matrix whose parts are [`arrange`]d, which is multiplied by rows of 8-bit integers.
    ///
    /// # Panics
    /// It cannot be arranged.
    #[must_use]
    pub fn of_tiles(self) -> Self {
        assert!(arrange::can_be(self.outputs), "expected whole tiles, found {} rows", self.outputs);
        Self { tiles: true, ..self }
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Numbers of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// # Panics
    /// Parts of `rows` rows would begin in the middle of a tile.
    pub(crate) fn check_parts(&self, rows: usize) {
        let fits = !self.tiles || arrange::can_be(rows);
        assert!(fits, "expected parts of whole tiles of an arranged matrix, found {rows} rows");
    }

    /// Where the numbers lie from row `from` on.
    ///
    /// # Panics
    /// There are fewer rows.
    pub(crate) fn weight(&self, from: usize) -> QuantizedWeight {
        let QuantizedFormat { bits, group } = self.format;
        let groups = self.inputs / group;
        QuantizedWeight {
            packed: self.packed[from * (self.inputs / 32 * bits)..].as_ptr().cast(),
            scales: self.scales.place(from * groups, group),
            biases: self.biases.place(from * groups, group),
            group,
            bits,
            tiles: self.tiles,
        }
    }

    /// The product of rows by `weight`, which has this matrix's sizes.
    fn product(&self, weight: &QuantizedWeight, x: FloatRows<'_>, out: &mut [f32]) -> Product {
        Product {
            transposed: true,
            m: x.count,
            n: self.outputs,
            k: self.inputs,
            alpha: 1.0,
            a: x.numbers.as_ptr(),
            a_row: x.stride,
            a_step: 1,
            packed: std::ptr::null(),
            b: std::ptr::null(),
            ldb: 0,
            weight,
            beta: 0.0,
            c: out.as_mut_ptr(),
            ldc: self.outputs,
        }
    }
}

/// Rows of floats.
#[derive(Clone, Copy, Debug)]
pub struct FloatRows<'a> {
    /// The numbers, from the first row's first to the last row's last.
    pub numbers: &'a [f32],
    /// Number of rows.
    pub count: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Numbers of a row.
    pub length: usize,
}

impl FloatRows<'_> {
    /// # Panics
    /// There are fewer numbers.
    pub(crate) fn check(&self) {
        let last = self.count.saturating_sub(1).checked_mul(self.stride);
        let size = last.and_then(|last| last.checked_add(self.length));
        assert!(
            self.count == 0 || size.is_some_and(|size| size <= self.numbers.len()),
            "expected {} rows of {} numbers, {} apart, found {}",
            self.count,
            self.length,
            self.stride,
            self.numbers.len()
        );
    }
}

/// x · Wᵀ into `out`, rows of as many numbers as the matrix has rows.
///
/// # Panics
/// Rows of x are not as long as the matrix's, or `out` is not as many numbers.
pub fn product(x: FloatRows<'_>, weight: &QuantizedMatrix<'_>, out: &mut [f32]) {
    x.check();
    assert!(
        x.length == weight.inputs && out.len() == x.count * weight.outputs,
        "expected {} rows of {} numbers and room for {} each, found rows of {} and room for {}",
        x.count,
        weight.inputs,
        weight.outputs,
        x.length,
        out.len()
    );
    if out.is_empty() {
        return;
    }
    let quantized = weight.weight(0);
    let product = weight.product(&quantized, x, out);
    // SAFETY: the sizes were checked above and where the matrix was made; `kernels` are of this
    // processor.
    unsafe { pool::run(kernels(), &product) }
}

#[cfg(test)]
mod scaled;
#[cfg(test)]
mod tests;
