//! Target models: the registry by `model_type`, and what every family gives.
//!
//! # What a new family needs
//!
//! - A file named as its `model_type`, with a `load`. If its layers are those of `decoder.rs`, it
//!   reads its own keys and describes what differs.
//! - A row in `paceline_checkpoint::families`, and a line in [`LOADERS`].
//! - `models/tests/`: parity with its reference implementation, with golden files.

mod attending_layer;
mod attention;
mod decoder;
mod gated_delta;
mod gemma;
mod gemma3;
mod gemma4;
mod glm4v;
mod glm_block;
mod graph;
mod hello;
mod hunyuan_vl;
mod image_rows;
mod llama;
#[cfg(target_os = "linux")]
mod on_cpu;
mod paddleocr_vl;
mod prepared;
mod qwen2;
mod qwen2_vl;
mod qwen3;
mod qwen3_5;
mod qwen3_5_block;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_vl;
mod sizes;
mod smollm3;
mod stored_norms;
mod tower;

use std::path::Path;

use mlx_rs::{Array, Dtype};
use paceline_checkpoint::families::{FAMILIES, Family};
use paceline_checkpoint::plan::{CheckpointPlan, PlanOptions, ServedCheckpoint, most_rows};

use crate::batch::{Batch, Forward, Wants};
use crate::error::Result;
use crate::info::TargetInfo;
use crate::kv::{KvStore, LayerKv};
use crate::load::{LoadError, Weights};
use crate::products;
use crate::sample::softcap;
use crate::vision::Vision;

use decoder::Decoder;

pub(crate) use attending_layer::AttendingLayer;
pub(crate) use attention::{Attention, AttentionSpec, HeadNorms};
pub(crate) use decoder::TargetFiles;
pub(crate) use gemma4::{AssistedLayers, AssistedTarget};
pub(crate) use glm_block::{check_glm_ocr, glm_ocr_layer, glm_ocr_sizes};
pub use hello::planned_hello;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use on_cpu::tests::PASSES;
#[cfg(target_os = "linux")]
pub(crate) use on_cpu::{HostForward, Pass};
pub use prepared::{PreparedStep, prepare_next, take_prepared};
pub(crate) use qwen3_5_block::{check_hybrid, hybrid_layer, hybrid_sizes, is_hybrid};
pub(crate) use stored_norms::stored_norms;

/// A model whose distribution clients get. One set of weights, any number of sequences.
pub trait Target {
    /// Properties of the target.
    fn info(&self) -> &TargetInfo;

    /// Forms of its layers' keys and values, for [`KvStore::new`].
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

    /// As [`Target::embed`], of ids `[ids]`, uint32, that are a part of a graph. The caller guarantees
    /// that every id is below the vocabulary. Lazy.
    ///
    /// # Errors
    /// MLX's own.
    fn embed_chosen(&self, ids: &Array) -> Result<Array>;

    /// Logits `[rows, vocab]`, float32, of hidden states after the final norm `[rows, hidden]`.
    ///
    /// # Errors
    /// MLX's own.
    fn head(&self, hidden: &Array) -> Result<Array>;

    /// Whether [`Target::head`] caps its logits.
    fn caps_logits(&self) -> bool {
        false
    }

    /// Logits of hidden rows that a drafter proposes, capped as the drafter was trained: by `cap`,
    /// unless the head has a cap of its own. A drafter of such a target names the same cap.
    ///
    /// # Errors
    /// MLX's own.
    fn draft_logits(&self, hidden: &Array, cap: Option<f32>) -> Result<Array> {
        let logits = self.head(hidden)?;
        match cap.filter(|_| !self.caps_logits()) {
            Some(cap) => softcap(&logits, cap),
            None => Ok(logits),
        }
    }

    /// Vision tower of the target, if it has one. Its [`crate::vision::VisionInfo`] tells whether
    /// rows have positions on several axes.
    fn vision(&self) -> Option<&dyn Vision> {
        None
    }

    /// Most rows that a pass adds to a sequence, for [`KvStore::with_most_rows`]: enough for the
    /// rows of an image that must be in one pass.
    fn most_rows(&self) -> i32 {
        let info = self.vision().map(Vision::info).filter(|info| info.whole);
        most_rows(info.and_then(|info| info.most_rows))
    }
}

type Load = fn(TargetFiles<'_>) -> Result<Decoder, LoadError>;

/// The loader of each family, by its name in [`FAMILIES`].
const LOADERS: [(&str, Load); FAMILIES.len()] = [
    ("llama", llama::load),
    ("mistral", llama::load_mistral),
    ("smollm3", smollm3::load),
    ("qwen2", qwen2::load),
    ("qwen3", qwen3::load),
    ("qwen3_moe", qwen3_moe::load),
    ("qwen3_vl", qwen3_vl::load),
    ("qwen3_vl_moe", qwen3_vl::load_moe),
    ("qwen2_vl", qwen2_vl::load),
    ("qwen2_5_vl", qwen2_vl::load_two_and_half),
    ("paddleocr_vl", paddleocr_vl::load),
    ("hunyuan_vl", hunyuan_vl::load),
    ("glm4v", glm4v::load),
    ("glm_ocr", glm4v::load_ocr),
    ("gemma3_text", gemma3::load),
    ("gemma4", gemma::load),
    ("qwen3_5", qwen3_5::load),
    ("qwen3_5_moe", qwen3_5_moe::load),
];

fn loader(family: &Family) -> Load {
    let found = LOADERS.iter().find(|(name, _)| *name == family.name());
    found.expect("each family has a loader").1
}

/// Loads a target whose files are open. Unlike [`load_target`] the caller chooses the form of the
/// weights.
///
/// # Errors
/// As [`load_target`].
pub(crate) fn load_opened(mut files: TargetFiles<'_>) -> Result<Box<dyn Target>, LoadError> {
    let family = Family::of(files.config)?;
    let parts = family.parts(files.dir, files.config, files.weights.files())?;
    files.weights.forgetting(|files| parts.keep(files, true))?;
    Ok(Box::new(loader(family)(files)?))
}

/// Choices of a caller that loads a target.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Quantized weights stay as they are stored if the device has products by them. Otherwise the
    /// CPU computes with their numbers as float32; the GPU keeps them in any case.
    pub keep_quantized: bool,
    /// The vision tower of a checkpoint that has one is served. Otherwise it is left unread.
    pub vision: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { keep_quantized: true, vision: true }
    }
}

impl LoadOptions {
    /// These choices on the device of this process.
    fn here(self) -> PlanOptions {
        PlanOptions {
            device: products::device_kind(),
            keep_quantized: self.keep_quantized,
            vision: self.vision,
            products: products::choice(),
        }
    }
}

/// Plan of the target in `dir`: its properties and its memory on this device. Reads headers and
/// config.json, and no weight but a head that may be the embedding. Refuses what a load refuses.
///
/// # Errors
/// Broken or foreign files; see [`LoadError`].
pub fn plan_target(dir: &Path, options: LoadOptions) -> Result<CheckpointPlan, LoadError> {
    let served = ServedCheckpoint::open(dir, &options.here())?;
    let mut unread = |_: u64| {};
    let (tensors, forms) = (served.tensors.clone(), served.forms.clone());
    let weights = Weights::new(tensors, forms, &mut unread)?.rehearsing();
    let config = &served.config;
    loader(served.family)(TargetFiles { dir, config, weights, weight_bytes: 0 })?;
    Ok(served.plan()?)
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
    let served = ServedCheckpoint::open(dir, &options.here())?;
    products::settle(served.forms.products);
    let ServedCheckpoint { config, tensors, forms, family, has_vision, .. } = served;
    if !has_vision && config.part("vision_config")?.is_some() {
        tracing::info!("no vision tower is served of this checkpoint: requests with images fail");
    }
    let weight_bytes = tensors.total_bytes();
    progress(0, weight_bytes);
    let mut report = |read| progress(read, weight_bytes);
    let weights = Weights::new(tensors, forms, &mut report)?;
    let loaded = loader(family)(TargetFiles { dir, config: &config, weights, weight_bytes })?;
    Ok(Box::new(loaded))
}

#[cfg(test)]
mod tests;
