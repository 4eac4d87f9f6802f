//! Named tensors become arrays, each taken once, with the shape that the config requires. A tensor
//! that is left over is an error.

use mlx_rs::{Array, Dtype as MlxDtype};
use safetensors::tensor::Dtype;

use super::arrays::{blank, is_float, mlx_dtype, stored, widened};
use super::files::{MappedBytes, TensorEntry, TensorFiles};
use super::quantization::{QuantFormat, QuantMode, Quantization};
use super::{LoadError, Unserved};
use crate::products::Products;

/// In which type weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// float32: half-precision products do not go through BLAS on the CPU.
    Float32,
    /// As in the file: for the GPU.
    AsStored,
}

/// In which form weights are kept.
#[derive(Clone, Debug)]
pub struct WeightForms {
    /// The type of floats.
    pub precision: Precision,
    /// Formats of quantized modules, by config.json.
    pub quantization: Quantization,
    /// Whether a quantized weight of this format stays as it is stored. Others are expanded to
    /// float32.
    pub keeps: fn(QuantFormat) -> bool,
    /// How products by weights that stay quantized are computed.
    pub products: Products,
}

impl WeightForms {
    /// The format in which a quantized weight is kept; `None`: its numbers are expanded. For products
    /// of integers mxfp4 becomes affine, with the same numbers ([`QuantFormat::AFFINE_MXFP4`]).
    pub(super) fn kept(&self, format: QuantFormat) -> Option<QuantFormat> {
        let affine = QuantFormat::AFFINE_MXFP4;
        match (self.keeps)(format) {
            true => Some(format),
            false => (format.mode == QuantMode::Mxfp4
                && self.products == Products::Integer
                && (self.keeps)(affine))
            .then_some(affine),
        }
    }

    /// How products by the weights of this checkpoint are computed.
    pub(crate) fn products_of(&self, checkpoint: &TensorFiles) -> Products {
        let mut modules = checkpoint.entries.keys().filter_map(|name| name.strip_suffix(".scales"));
        let keeps = |module| {
            self.quantization.format(module).is_some_and(|format| self.kept(format).is_some())
        };
        if modules.any(keeps) { self.products } else { Products::Float }
    }
}

/// A checkpoint being loaded. `take` every tensor, then `finish`.
pub struct Weights<'a> {
    pub(super) checkpoint: TensorFiles,
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

/// Signs of a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignCount {
    /// Numbers with a minus.
    pub(crate) negative: usize,
    /// All numbers.
    pub(crate) all: usize,
}

/// Quantized weights that became floats.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expanded {
    pub(super) modules: usize,
    pub(super) stored_bytes: u64,
    pub(super) bytes: u64,
    pub(super) format: Option<QuantFormat>,
}

/// Bits to which the matrix of module `name` is quantized where others get `bits`. All later numbers
/// depend on the projection of a target's hidden states, and all of a layer's on a router: 8 bits at
/// least.
pub(super) fn packed_bits(bits: i32, name: &str) -> i32 {
    let matters = matches!(name.rsplit('.').next(), Some("fc" | "input_proj" | "gate"));
    if matters { bits.max(8) } else { bits }
}

impl<'a> Weights<'a> {
    /// Loads from `checkpoint`.
    pub fn new(
        checkpoint: TensorFiles,
        forms: WeightForms,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let prefix = String::new();
        let expanded = Expanded::default();
        let products = forms.products_of(&checkpoint);
        Self {
            checkpoint,
            forms,
            prefix,
            progress,
            read_bytes: 0,
            expanded,
            bits: None,
            rehearses: false,
            products,
        }
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
    pub fn files(&self) -> &TensorFiles {
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
            return Err(LoadError::Dtype { name, found, expected: "F32, F16 or BF16" });
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
                return Err(LoadError::Dtype { name, found, expected: "F32, F16 or BF16" });
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
                return Err(LoadError::Dtype { name, found, expected: "I64 or I32" });
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
    pub fn forgetting(&mut self, forget: impl FnOnce(&mut TensorFiles)) {
        let before = self.checkpoint.total_bytes();
        forget(&mut self.checkpoint);
        self.report((before - self.checkpoint.total_bytes()) as usize);
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
            Some(name) => {
                Err(LoadError::Unused { name: name.clone(), count: self.checkpoint.entries.len() })
            }
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
            return Err(LoadError::Missing { name });
        };
        let expected: Vec<usize> = shape.iter().map(|dim| *dim as usize).collect();
        if entry.shape != expected {
            return Err(LoadError::Shape { name, found: entry.shape, expected });
        }
        let bytes = self.checkpoint.bytes(&entry);
        if !self.rehearses {
            bytes.prefetch();
        }
        Ok((entry, bytes))
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

impl TensorFiles {
    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// How many numbers of tensor `name` have a minus, and how many there are; `None` without
    /// floats of this name.
    pub(crate) fn signs(&self, name: &str) -> Option<SignCount> {
        let entry = self.entries.get(name).filter(|entry| is_float(entry.dtype))?;
        let bytes = self.bytes(entry);
        // The sign is in the last byte of each number.
        let numbers = bytes.as_slice().chunks_exact(entry.dtype.bitsize() / 8);
        let negative = numbers
            .clone()
            .filter(|bytes| bytes.last().is_some_and(|last| last & 0x80 != 0))
            .count();
        Some(SignCount { negative, all: numbers.len() })
    }

    /// Names and shapes of all tensors.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice()))
    }

    /// Forgets all tensors but those with a name that `is_kept` accepts.
    pub fn keep(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.entries.retain(|name, _| is_kept(name));
    }

    /// Forgets all tensors but those of these modules.
    pub fn keep_modules(&mut self, modules: &[&str]) {
        self.keep(|name| match name.rsplit_once('.') {
            Some((module, "weight" | "scales" | "biases")) => modules.contains(&module),
            _ => false,
        });
    }

    /// Leaves layers that have `module` unread: all tensors under the name before it.
    pub fn skip_layers_with(&mut self, module: &str) {
        let mark = format!(".{module}.weight");
        let layers: Vec<String> = self
            .entries
            .keys()
            .filter_map(|name| name.strip_suffix(&mark).map(str::to_owned))
            .collect();
        for layer in layers {
            let first = format!("{layer}.");
            self.entries.retain(|name, _| !name.starts_with(&first));
            tracing::info!(layer, "a layer that predicts a further token is skipped");
        }
    }

    /// Leaves the tensors of parts that are not served unread, and names them in one log line.
    pub fn skip(&mut self, unserved: &Unserved) {
        let (mut count, mut bytes) = (0, 0u64);
        let mut prefixes = std::collections::BTreeSet::new();
        self.entries.retain(|name, entry| match unserved.part_of(name) {
            None => true,
            Some(part) => {
                count += 1;
                bytes += entry.bytes as u64;
                prefixes.insert(part);
                false
            }
        });
        if count > 0 {
            let parts: Vec<_> = prefixes.into_iter().collect();
            tracing::info!(
                count,
                bytes,
                parts = parts.join(", "),
                "tensors of parts that are not served are skipped"
            );
        }
    }
}
