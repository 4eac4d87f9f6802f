//! Weights as a program reads them: numbers where they lie, with the arrays that own them.

use mlx_rs::{Array, Dtype};
use paceline_cpu::experts::{self, ExpertMatrices, ExpertSizes};
use paceline_cpu::quantized::{self, Factors, FloatRows, QuantizedFormat, QuantizedMatrix};
use paceline_cpu::{floats, rows};

use crate::error::{ModelError, Result};
use crate::layers::QuantizedParts;

/// Numbers of an evaluated array, in the order of their indices.
#[derive(Debug)]
struct Held<T: 'static> {
    numbers: &'static [T],
    /// Owns the numbers.
    _array: Array,
}

// SAFETY: the numbers are read only. The array is never used but to be dropped, which MLX allows on
// any thread.
unsafe impl<T: Sync> Sync for Held<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Send for Held<T> {}

impl<T> Held<T> {
    /// `numbers`: the array's place of numbers of its type.
    ///
    /// # Errors
    /// They do not lie one after another, or not aligned.
    fn new(array: &Array, numbers: *const T) -> Result<Self> {
        array.eval()?;
        let mut next = 1;
        let in_order = array.shape().iter().zip(array.strides()).rev().all(|(length, stride)| {
            let fits = *length == 1 || *stride == next;
            next *= *length as usize;
            fits
        });
        if array.size() == 0 {
            return Ok(Self { numbers: &[], _array: array.clone() });
        }
        if numbers.is_null() || !numbers.is_aligned() || !in_order {
            return Err(not_held(array));
        }
        // SAFETY: the array's numbers lie there, one after another, for as long as the array that is
        // kept beside them. Nothing writes a weight.
        let numbers = unsafe { std::slice::from_raw_parts(numbers, array.size()) };
        Ok(Self { numbers, _array: array.clone() })
    }
}

/// The numbers of a slice as bytes.
fn bytes<T: Copy>(numbers: &[T]) -> &[u8] {
    // SAFETY: numbers have no bytes that are not written.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn not_held(array: &Array) -> ModelError {
    ModelError::Batch(format!(
        "expected aligned numbers of a known type one after another, found an array of {:?} of \
         shape {:?} and strides {:?}",
        array.dtype(),
        array.shape(),
        array.strides()
    ))
}

/// The type of an array, for the right place of its numbers.
fn expect_type(array: &Array, dtype: Dtype) -> Result<()> {
    if array.dtype() == dtype { Ok(()) } else { Err(not_held(array)) }
}

/// A vector or a matrix of float32.
#[derive(Debug)]
pub(super) struct Floats(Held<f32>);

impl Floats {
    /// The numbers of `array`.
    ///
    /// # Errors
    /// They are not float32, or do not lie one after another.
    pub(super) fn new(array: &Array) -> Result<Self> {
        expect_type(array, Dtype::Float32)?;
        array.eval()?;
        // SAFETY: the array is evaluated and of this type.
        Held::new(array, unsafe { mlx_sys::mlx_array_data_float32(array.as_ptr()) }).map(Self)
    }

    pub(super) fn numbers(&self) -> &[f32] {
        self.0.numbers
    }

    fn bytes(&self) -> &[u8] {
        bytes(self.0.numbers)
    }
}

/// Scales or biases.
#[derive(Debug)]
enum HeldFactors {
    Float32(Floats),
    Float16(Held<u16>),
    Bfloat16(Held<u16>),
    /// Runs of a float16 and bytes.
    Scaled(Held<u16>),
}

impl HeldFactors {
    fn new(array: &Array, are_scaled: bool) -> Result<Self> {
        array.eval()?;
        // SAFETY: the array is evaluated and of the type; both kinds of halves are 16 bits.
        unsafe {
            match array.dtype() {
                Dtype::Float32 => Floats::new(array).map(Self::Float32),
                Dtype::Float16 => {
                    let place = mlx_sys::mlx_array_data_float16(array.as_ptr());
                    let form = if are_scaled { Self::Scaled } else { Self::Float16 };
                    Held::new(array, place.cast()).map(form)
                }
                Dtype::Bfloat16 => {
                    let place = mlx_sys::mlx_array_data_bfloat16(array.as_ptr());
                    Held::new(array, place.cast()).map(Self::Bfloat16)
                }
                _ => Err(not_held(array)),
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Float32(floats) => floats.bytes(),
            Self::Float16(held) | Self::Bfloat16(held) | Self::Scaled(held) => bytes(held.numbers),
        }
    }

    fn factors(&self) -> Factors<'_> {
        match self {
            Self::Float32(floats) => Factors::Float32(floats.numbers()),
            Self::Float16(held) => Factors::Float16(held.numbers),
            Self::Scaled(held) => Factors::scaled(held.numbers),
            Self::Bfloat16(held) => Factors::Bfloat16(held.numbers),
        }
    }
}

/// A quantized matrix `[out, in]`.
#[derive(Debug)]
pub(super) struct Quantized {
    packed: Held<u32>,
    scales: HeldFactors,
    biases: HeldFactors,
    format: QuantizedFormat,
    inputs: usize,
    tiles: bool,
}

impl Quantized {
    /// # Errors
    /// There are no kernels for the format, or the parts do not fit each other.
    pub(super) fn new(parts: &QuantizedParts<'_>) -> Result<Self> {
        let QuantizedParts { packed, scales, biases, group, bits, tiles } = *parts;
        expect_type(packed, Dtype::Uint32)?;
        packed.eval()?;
        // SAFETY: the array is evaluated and of this type.
        let place = unsafe { mlx_sys::mlx_array_data_uint32(packed.as_ptr()) };
        let (group, bits) = (group.max(0) as usize, bits.max(0) as usize);
        let words = packed.shape().last().map_or(0, |words| *words as usize);
        let held = Self {
            packed: Held::new(packed, place)?,
            scales: HeldFactors::new(scales, parts.are_scaled())?,
            biases: HeldFactors::new(biases, parts.are_scaled())?,
            format: QuantizedFormat { bits, group },
            inputs: words * 32 / bits.max(1),
            tiles,
        };
        held.checked().map_err(|error| ModelError::Batch(error.to_string()))?;
        Ok(held)
    }

    fn checked(&self) -> Result<QuantizedMatrix<'_>, quantized::QuantizedMatrixError> {
        let (scales, biases) = (self.scales.factors(), self.biases.factors());
        QuantizedMatrix::new(self.packed.numbers, scales, biases, self.format, self.inputs)
    }

    /// All parts as bytes.
    fn bytes(&self) -> [&[u8]; 3] {
        [bytes(self.packed.numbers), self.scales.bytes(), self.biases.bytes()]
    }

    /// The matrix, all experts' rows one after another.
    pub(super) fn matrix(&self) -> QuantizedMatrix<'_> {
        let matrix = self.checked().expect("it was checked when it was made");
        if self.tiles { matrix.of_tiles() } else { matrix }
    }
}

/// A weight of a product.
#[derive(Debug)]
pub(super) enum Weight {
    /// A matrix `[out, in]` of float32.
    Floats {
        numbers: Floats,
        outputs: usize,
    },
    Quantized(Quantized),
}

impl Weight {
    fn bytes(&self) -> Vec<&[u8]> {
        match self {
            Self::Floats { numbers, .. } => vec![numbers.bytes()],
            Self::Quantized(held) => held.bytes().to_vec(),
        }
    }

    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Floats { outputs, .. } => *outputs,
            Self::Quantized(held) => held.matrix().outputs(),
        }
    }

    fn product(&self, x: FloatRows<'_>, out: &mut [f32]) {
        match self {
            Self::Floats { numbers, outputs } => {
                floats::product(x, numbers.numbers(), *outputs, out);
            }
            Self::Quantized(held) => quantized::product(x, &held.matrix(), out),
        }
    }
}

/// x · Wᵀ (+ b), the outputs of all parts side by side.
#[derive(Debug)]
pub(super) struct Product {
    parts: Vec<Weight>,
    bias: Option<Floats>,
    outputs: usize,
}

impl Product {
    pub(super) fn new(parts: Vec<Weight>, bias: Option<Floats>) -> Self {
        let outputs = parts.iter().map(Weight::outputs).sum();
        Self { parts, bias, outputs }
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The weights as bytes.
    pub(super) fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(Weight::bytes)
    }

    /// Into `out`, rows of [`Product::outputs`].
    pub(super) fn compute(&self, x: FloatRows<'_>, out: &mut [f32]) {
        match self.parts.as_slice() {
            [one] => one.product(x, out),
            // Parts of one row lie one after another, those of more rows do not.
            several => {
                let (mut first, mut part_rows) = (0, Vec::new());
                for part in several {
                    let outputs = part.outputs();
                    if x.count == 1 {
                        part.product(x, &mut out[first..first + outputs]);
                    } else {
                        part_rows.resize(x.count * outputs, 0.0);
                        part.product(x, &mut part_rows);
                        let wide = out.chunks_exact_mut(self.outputs);
                        for (wide, narrow) in wide.zip(part_rows.chunks_exact(outputs)) {
                            wide[first..first + outputs].copy_from_slice(narrow);
                        }
                    }
                    first += outputs;
                }
            }
        }
        if let Some(bias) = &self.bias {
            rows::add_to_rows(out, bias.numbers());
        }
    }
}

/// The weights of all experts of a layer, of one projection or of two side by side.
#[derive(Debug)]
pub(super) enum ExpertWeights {
    /// Matrices `[experts, out, in]` of float32.
    Floats { numbers: Floats, sizes: ExpertSizes },
    /// One matrix of as many rows as all experts have.
    Quantized { held: Quantized, sizes: ExpertSizes },
}

impl ExpertWeights {
    /// The weights as bytes.
    pub(super) fn bytes(&self) -> Vec<&[u8]> {
        match self {
            Self::Floats { numbers, .. } => vec![numbers.bytes()],
            Self::Quantized { held, .. } => held.bytes().to_vec(),
        }
    }

    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Floats { sizes, .. } | Self::Quantized { sizes, .. } => sizes.outputs,
        }
    }

    /// Into `out` `[rows, chosen, outputs]`, by the experts `ids` of each row.
    pub(super) fn compute(&self, x: FloatRows<'_>, ids: &[u32], out: &mut [f32]) {
        match self {
            Self::Floats { numbers, sizes } => {
                let matrices = ExpertMatrices::Floats(numbers.numbers());
                experts::product(x, ids, &matrices, *sizes, out);
            }
            Self::Quantized { held, sizes } => {
                let matrices = ExpertMatrices::Quantized(held.matrix());
                experts::product(x, ids, &matrices, *sizes, out);
            }
        }
    }
}

/// A table of embeddings.
#[derive(Debug)]
pub(super) enum Table {
    /// Rows of `width` numbers.
    Floats {
        numbers: Floats,
        width: usize,
    },
    Quantized(Quantized),
}

impl Table {
    /// The row of each id, into `out`. An id without a row gives NaN, which the check of the logits
    /// finds.
    pub(super) fn rows(&self, ids: &[u32], width: usize, out: &mut [f32]) {
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
            let id = *id as usize;
            match self {
                Self::Floats { numbers, .. } => match numbers.numbers().chunks_exact(width).nth(id)
                {
                    Some(row) => out.copy_from_slice(row),
                    None => out.fill(f32::NAN),
                },
                Self::Quantized(held) => {
                    let matrix = held.matrix();
                    if id < matrix.outputs() {
                        matrix.expand_row(id, out);
                    } else {
                        out.fill(f32::NAN);
                    }
                }
            }
        }
    }

    /// Numbers of a row.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Floats { width, .. } => *width,
            Self::Quantized(held) => held.matrix().inputs(),
        }
    }
}
