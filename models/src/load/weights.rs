//! Named tensors become arrays, each taken once, with the shape that the config requires. A tensor
//! that is left over is an error.

use half::{bf16, f16};
use mlx_rs::{Array, Dtype as MlxDtype};
use safetensors::tensor::Dtype;

use super::LoadError;
use super::files::TensorFiles;

/// In which type weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// float32: half-precision products do not go through BLAS on the CPU.
    Float32,
    /// As in the file: for the GPU.
    AsStored,
}

/// A checkpoint being loaded. `take` every tensor, then `finish`.
pub struct Weights<'a> {
    checkpoint: TensorFiles,
    precision: Precision,
    prefix: String,
    /// Called with the bytes read so far, after each tensor.
    progress: &'a mut dyn FnMut(u64),
    read_bytes: u64,
}

impl<'a> Weights<'a> {
    /// Loads from `checkpoint`.
    pub fn new(
        checkpoint: TensorFiles,
        precision: Precision,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        Self { checkpoint, precision, prefix: String::new(), progress, read_bytes: 0 }
    }

    /// Whether the checkpoint holds `name`.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.entries.contains_key(&format!("{}{name}", self.prefix))
    }

    /// The shape of `name` in the file.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.checkpoint
            .entries
            .get(&format!("{}{name}", self.prefix))
            .map(|entry| entry.shape.as_slice())
    }

    /// Puts `prefix` before every name asked for from now on.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_owned();
        self
    }

    /// Reads tensor `name`, which must have `shape`.
    ///
    /// # Errors
    /// It is missing, has another shape, or a type we cannot read.
    pub fn take(&mut self, name: &str, shape: &[i32]) -> Result<Array, LoadError> {
        let name = format!("{}{name}", self.prefix);
        let entry = self
            .checkpoint
            .entries
            .remove(&name)
            .ok_or_else(|| LoadError::Missing { name: name.clone() })?;
        let expected: Vec<usize> = shape.iter().map(|dim| *dim as usize).collect();
        if entry.shape != expected {
            return Err(LoadError::Shape { name, found: entry.shape, expected });
        }
        let bytes = self.checkpoint.read(&entry)?;
        let array = match (entry.dtype, self.precision) {
            (Dtype::F32, _) => Array::from_slice(&floats(&bytes, f32::from_le_bytes), shape),
            (Dtype::F16, Precision::Float32) => {
                Array::from_slice(&floats(&bytes, |two| f16::from_le_bytes(two).to_f32()), shape)
            }
            (Dtype::BF16, Precision::Float32) => {
                Array::from_slice(&floats(&bytes, |two| bf16::from_le_bytes(two).to_f32()), shape)
            }
            (Dtype::F16, Precision::AsStored) => {
                Array::from_slice(&floats(&bytes, f16::from_le_bytes), shape)
            }
            (Dtype::BF16, Precision::AsStored) => {
                Array::from_slice(&floats(&bytes, bf16::from_le_bytes), shape)
            }
            (found, _) => return Err(LoadError::Dtype { name, found: format!("{found:?}") }),
        };
        self.read_bytes += entry.bytes as u64;
        (self.progress)(self.read_bytes);
        Ok(array)
    }

    /// The type most of the model is computed in: float32, or that of tensor `name`.
    pub fn dtype_of(&self, name: &str) -> MlxDtype {
        let entry = self.checkpoint.entries.get(&format!("{}{name}", self.prefix));
        match (self.precision, entry.map(|entry| entry.dtype)) {
            (Precision::AsStored, Some(Dtype::BF16)) => MlxDtype::Bfloat16,
            (Precision::AsStored, Some(Dtype::F16)) => MlxDtype::Float16,
            _ => MlxDtype::Float32,
        }
    }

    /// Ends loading.
    ///
    /// # Errors
    /// Tensors are left that no part of the model took: the files are of another model.
    pub fn finish(self) -> Result<(), LoadError> {
        match self.checkpoint.entries.keys().next() {
            None => Ok(()),
            Some(name) => {
                Err(LoadError::Unused { name: name.clone(), count: self.checkpoint.entries.len() })
            }
        }
    }
}

fn floats<const N: usize, T>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| value(*chunk)).collect()
}
