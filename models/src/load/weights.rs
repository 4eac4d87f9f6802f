//! Named tensors become arrays, each taken once, with the shape that the config requires. A tensor
//! that is left over is an error.

use mlx_rs::{Array, Dtype as MlxDtype};
use paceline_checkpoint::TensorEntry;
use paceline_checkpoint::numbers::is_float;
use paceline_checkpoint::plan::packed_bits;
use safetensors::tensor::Dtype;

use super::arrays::{blank, mlx_dtype, stored, widened};
use super::gguf;
use super::mapped::{MappedBytes, MappedFiles};
use super::{CheckpointError, LoadError, Precision, QuantFormat, Tensors, WeightForms};
use crate::products::Products;

/// A checkpoint being loaded. `take` every tensor, then `finish`.
pub struct Weights<'a> {
    pub(super) checkpoint: Tensors,
    maps: MappedFiles,
    pub(super) forms: WeightForms,
    prefix: String,
    /// Called with the bytes read so far, after each tensor.
    progress: &'a mut dyn FnMut(u64),
    read_bytes: u64,
    pub(super) expanded: Expanded,
    /// Bits of matrices that are quantized as they are read.
    bits: Option<i32>,
    rehearses: bool,
    products: Products,
}

/// Quantized weights that became floats.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expanded {
    pub(super) modules: usize,
    pub(super) stored_bytes: u64,
    pub(super) bytes: u64,
    pub(super) format: Option<QuantFormat>,
}

impl<'a> Weights<'a> {
    /// Loads from `checkpoint`.
    ///
    /// # Errors
    /// A file cannot be mapped, or has changed since its header was read.
    pub fn new(
        checkpoint: Tensors,
        forms: WeightForms,
        progress: &'a mut dyn FnMut(u64),
    ) -> Result<Self, LoadError> {
        let maps = MappedFiles::of(&checkpoint)?;
        let prefix = String::new();
        let expanded = Expanded::default();
        let products = forms.products_of(&checkpoint);
        Ok(Self {
            checkpoint,
            maps,
            forms,
            prefix,
            progress,
            read_bytes: 0,
            expanded,
            bits: None,
            rehearses: false,
            products,
        })
    }

    /// Names, types and shapes are checked as in a load, and no weight is read: each array is zeros
    /// that take the memory of one number. What is made of it must not be computed with.
    pub fn rehearsing(self) -> Self {
        Self { rehearses: true, ..self }
    }

    /// Whether these are the weights of [`Weights::rehearsing`].
    pub fn rehearses(&self) -> bool {
        self.rehearses
    }

    /// How products by them are computed.
    pub fn products(&self) -> Products {
        self.products
    }

    /// The tensors that were not taken yet.
    pub fn files(&self) -> &Tensors {
        &self.checkpoint
    }

    /// Whether the checkpoint holds `name`.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.entries.contains_key(&self.full(name))
    }

    /// The shape of `name` in the file.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.checkpoint.entries.get(&self.full(name)).map(|entry| entry.shape.as_slice())
    }

    /// Puts `prefix` before every name asked for from now on.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// The weights with `prefix` before every name, if the checkpoint has `probe` under it.
    pub fn with_prefix_of(self, prefix: &str, probe: &str) -> Self {
        if self.has(&format!("{prefix}{probe}")) { self.with_prefix(prefix) } else { self }
    }

    /// Quantizes float matrices from now on as they are read: to `bits` an element (4 or 8; `None`
    /// leaves them), in groups of 64. A matrix without whole groups of inputs stays as it is.
    pub fn quantizing(mut self, bits: Option<i32>) -> Self {
        self.bits = bits;
        self
    }

    /// Bits to which the matrix of module `name` is quantized.
    pub(super) fn bits_of(&self, name: &str) -> Option<i32> {
        self.bits.map(|bits| packed_bits(bits, name))
    }

    /// Whether the weight of module `name` is stored in float16.
    pub fn is_float16(&self, name: &str) -> bool {
        self.entry(&format!("{name}.weight")).is_some_and(|entry| entry.dtype == Dtype::F16)
    }

    /// Reads tensor `name`, which must have `shape`.
    ///
    /// # Errors
    /// It is missing, has another shape, or a type we cannot read.
    pub fn take(&mut self, name: &str, shape: &[i32]) -> Result<Array, LoadError> {
        let (entry, bytes) = self.open(name, shape)?;
        if !is_float(entry.dtype) {
            let (name, found) = (self.full(name), format!("{:?}", entry.dtype));
            return Err(LoadError::from(CheckpointError::Dtype {
                name,
                found,
                expected: "F32, F16 or BF16",
            }));
        }
        let array = self.floats(vec![(bytes, entry.dtype)], shape)?;
        self.report(entry.bytes);
        Ok(array)
    }

    /// Reads the only number of tensor `name`.
    ///
    /// # Errors
    /// It is missing, has more numbers, or is not of floats.
    pub fn take_number(&mut self, name: &str) -> Result<f32, LoadError> {
        // Buffers of transformers have no axis.
        let shape: &[i32] = if self.shape(name).is_some_and(<[_]>::is_empty) { &[] } else { &[1] };
        let (entry, bytes) = self.open(name, shape)?;
        let number = match (entry.dtype, bytes.as_slice()) {
            (Dtype::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
            (Dtype::BF16, [a, b]) => half::bf16::from_le_bytes([*a, *b]).to_f32(),
            (Dtype::F16, [a, b]) => half::f16::from_le_bytes([*a, *b]).to_f32(),
            (other, _) => {
                let (name, found) = (self.full(name), format!("{other:?}"));
                return Err(LoadError::from(CheckpointError::Dtype {
                    name,
                    found,
                    expected: "F32, F16 or BF16",
                }));
            }
        };
        self.report(entry.bytes);
        Ok(number)
    }

    /// Reads the integers of tensor `name`, which must have `shape`.
    ///
    /// # Errors
    /// It is missing, has another shape, or another type than I64 and I32.
    pub fn take_integers(&mut self, name: &str, shape: &[i32]) -> Result<Vec<i64>, LoadError> {
        let (entry, bytes) = self.open(name, shape)?;
        let bytes = bytes.as_slice();
        let numbers = match entry.dtype {
            Dtype::I64 => {
                bytes.as_chunks().0.iter().map(|eight| i64::from_le_bytes(*eight)).collect()
            }
            Dtype::I32 => {
                bytes.as_chunks().0.iter().map(|four| i32::from_le_bytes(*four).into()).collect()
            }
            other => {
                let (name, found) = (self.full(name), format!("{other:?}"));
                return Err(LoadError::from(CheckpointError::Dtype {
                    name,
                    found,
                    expected: "I64 or I32",
                }));
            }
        };
        self.report(entry.bytes);
        Ok(numbers)
    }

    /// Leaves tensor `name` unread, if it is there.
    pub fn skip_tensor(&mut self, name: &str) {
        if let Some(entry) = self.checkpoint.entries.remove(&self.full(name)) {
            self.report(entry.bytes);
        }
    }

    /// Leaves the tensors unread that `forget` takes out of the files.
    ///
    /// # Errors
    /// Those of `forget`.
    pub fn forgetting(
        &mut self,
        forget: impl FnOnce(&mut Tensors) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let before = self.checkpoint.total_bytes();
        forget(&mut self.checkpoint)?;
        self.report((before - self.checkpoint.total_bytes()) as usize);
        Ok(())
    }

    /// Leaves the tensors of module `name` unread: the model has what they hold from elsewhere.
    pub fn skip(&mut self, name: &str) {
        for part in ["weight", "scales", "biases", "bias"] {
            self.skip_tensor(&format!("{name}.{part}"));
        }
    }

    /// The type most of the model is computed in: float32, or that of tensor `name`. If it is
    /// quantized, that of its scales, else that of the checkpoint's first tensor of floats.
    pub fn dtype_of(&self, name: &str) -> MlxDtype {
        if self.forms.precision == Precision::Float32 {
            return MlxDtype::Float32;
        }
        let name = self.full(name);
        let scales = format!("{}.scales", name.trim_end_matches(".weight"));
        let entries = &self.checkpoint.entries;
        let named = [name, scales];
        let found = named.iter().filter_map(|name| entries.get(name)).chain(entries.values());
        found
            .map(|entry| entry.dtype)
            .find(|dtype| is_float(*dtype))
            .and_then(mlx_dtype)
            .unwrap_or(MlxDtype::Float32)
    }

    /// The type in which tensor `name` is stored; of a quantized one that of its scales. float32 if
    /// it is missing or no float.
    pub fn dtype_in_file(&self, name: &str) -> MlxDtype {
        let scales = format!("{}.scales", name.trim_end_matches(".weight"));
        let entry = self.entry(&scales).or_else(|| self.entry(name));
        let dtype = entry.map(|entry| entry.dtype).filter(|dtype| is_float(*dtype));
        dtype.and_then(mlx_dtype).unwrap_or(MlxDtype::Float32)
    }

    /// Ends loading.
    ///
    /// # Errors
    /// Tensors are left that no part of the model took: the files are of another model.
    pub fn finish(self) -> Result<(), LoadError> {
        let Expanded { modules, stored_bytes, bytes, format } = self.expanded;
        if let Some(format) = format {
            tracing::info!(
                modules,
                stored_bytes,
                bytes,
                format = %format,
                "quantized weights were expanded to float32"
            );
        }
        match self.checkpoint.entries.keys().next() {
            None => Ok(()),
            Some(name) => Err(LoadError::from(CheckpointError::Unused {
                name: name.clone(),
                count: self.checkpoint.entries.len(),
            })),
        }
    }

    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn entry(&self, name: &str) -> Option<&TensorEntry> {
        self.checkpoint.entries.get(&self.full(name))
    }

    /// Takes tensor `name`, which must have `shape`, out of the list.
    pub(super) fn open(
        &mut self,
        name: &str,
        shape: &[i32],
    ) -> Result<(TensorEntry, MappedBytes), LoadError> {
        let name = self.full(name);
        let Some(entry) = self.checkpoint.entries.remove(&name) else {
            return Err(LoadError::from(CheckpointError::Missing { name }));
        };
        let expected: Vec<usize> = shape.iter().map(|dim| *dim as usize).collect();
        if entry.shape != expected {
            return Err(LoadError::from(CheckpointError::Shape {
                name,
                found: entry.shape,
                expected,
            }));
        }
        let bytes = self.maps.bytes(&entry);
        if self.rehearses {
            return Ok((entry, bytes));
        }
        bytes.prefetch();
        match entry.gguf.filter(|form| !form.kind.is_quantized()) {
            Some(form) => {
                let rows = entry.shape.first().copied().unwrap_or(1);
                let (bytes, dtype) = gguf::floats(bytes, entry.dtype, form, rows);
                Ok((TensorEntry { dtype, ..entry }, bytes))
            }
            None => Ok((entry, bytes)),
        }
    }

    /// The pieces one after another, in the type in which floats are kept.
    pub(super) fn floats(
        &self,
        pieces: Vec<(MappedBytes, safetensors::Dtype)>,
        shape: &[i32],
    ) -> Result<Array, LoadError> {
        let first = pieces.first().map(|(_, dtype)| *dtype);
        if self.rehearses {
            let dtype =
                first.and_then(mlx_dtype).filter(|_| self.forms.precision == Precision::AsStored);
            return blank(dtype.unwrap_or(MlxDtype::Float32), shape);
        }
        match (self.forms.precision, first) {
            (Precision::AsStored, Some(dtype))
                if pieces.iter().all(|(_, other)| *other == dtype) =>
            {
                stored(pieces.into_iter().map(|(bytes, _)| bytes).collect(), dtype, shape)
            }
            _ => widened(pieces, shape),
        }
    }

    pub(super) fn report(&mut self, bytes: usize) {
        self.read_bytes += bytes as u64;
        (self.progress)(self.read_bytes);
    }
}
