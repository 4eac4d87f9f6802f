//! Target models: the registry by `model_type`, and what every family gives.

mod image_rows;
mod prepared;
mod qwen3;
mod qwen3_vl;

use std::path::Path;

use mlx_rs::{Array, Dtype};

use crate::batch::{Batch, Forward, Wants};
use crate::device::on_gpu;
use crate::error::Result;
use crate::info::TargetInfo;
use crate::kv::{KvStore, LayerKv};
use crate::layers::has_product;
use crate::load::{
    ConfigJson, LoadError, Precision, Quantization, TensorFiles, WeightForms, Weights,
};
use crate::vision::Vision;

pub use prepared::{PreparedStep, prepare_next, take_prepared};

/// A model whose distribution clients get. One set of weights, any number of sequences.
pub trait Target {
    /// What is known of it.
    fn info(&self) -> &TargetInfo;

    /// What its layers remember, for [`KvStore::new`].
    fn kv_layers(&self) -> Vec<LayerKv>;

    /// In which type it computes.
    fn dtype(&self) -> Dtype;

    /// One pass over the rows of a batch: their KV is written, and what `wants` names is computed.
    /// Lazy.
    ///
    /// # Errors
    /// A batch that contradicts itself; MLX's own.
    fn forward(&self, batch: &Batch, kv: &mut KvStore, wants: &Wants) -> Result<Forward>;

    /// Embeddings of `ids` `[ids, hidden]`.
    ///
    /// # Errors
    /// An id beyond the vocabulary; MLX's own.
    fn embed(&self, ids: &[u32]) -> Result<Array>;

    /// Logits `[rows, vocab]`, float32, of hidden states after the final norm `[rows, hidden]`.
    ///
    /// # Errors
    /// MLX's own.
    fn head(&self, hidden: &Array) -> Result<Array>;

    /// Its vision tower, if it has one. A target with one takes positions on three axes.
    fn vision(&self) -> Option<&dyn Vision> {
        None
    }
}

/// What a caller chooses of a target's loading.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Quantized weights stay as they are stored if the device has products by them. Otherwise the
    /// CPU computes with their numbers as float32; the GPU keeps them in any case.
    pub keep_quantized: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { keep_quantized: true }
    }
}

/// Loads the target in `dir`. `progress` is called with (bytes read, bytes in all).
///
/// # Errors
/// Broken or foreign files; see [`LoadError`].
pub fn load_target(
    dir: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Target>, LoadError> {
    load_target_with(dir, LoadOptions::default(), progress)
}

/// As [`load_target`], with options.
///
/// # Errors
/// As [`load_target`].
pub fn load_target_with(
    dir: &Path,
    options: LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Box<dyn Target>, LoadError> {
    let config = ConfigJson::read(dir)?;
    let architecture: String = config.required("model_type")?;
    let forms = WeightForms {
        precision: if on_gpu() { Precision::AsStored } else { Precision::Float32 },
        quantization: Quantization::read(&config)?,
        keeps: if options.keep_quantized { has_product } else { |_| on_gpu() },
    };
    let checkpoint = TensorFiles::open(dir)?;
    let weight_bytes = checkpoint.total_bytes();
    progress(0, weight_bytes);
    let mut report = |read| progress(read, weight_bytes);
    let weights = Weights::new(checkpoint, forms, &mut report);
    match architecture.as_str() {
        "qwen3" => Ok(Box::new(qwen3::Qwen3::load(dir, &config, weights, weight_bytes)?)),
        "qwen3_vl" => Ok(Box::new(qwen3_vl::load(dir, &config, weights, weight_bytes)?)),
        other => {
            let what = format!(
                "expected qwen3 or qwen3_vl, found {other}: this version serves no other architecture"
            );
            Err(LoadError::Config { key: "model_type".into(), what })
        }
    }
}
