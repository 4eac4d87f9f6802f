//! Qwen2 and Qwen2.5 (arXiv 2407.10671): the shared decoder with biases of q, k and v.

use super::attention::AttentionSpec;
use super::decoder::{Decoder, DecoderSpec, FeedForward, TargetFiles, refuse_sliding_window};
use super::sizes::Sizes;
use crate::layers::{GatedMlp, NormWeight, Rope};
use crate::load::{ConfigJson, Layout, LoadError, Weights};

/// Not keys of the config: every checkpoint of the family is so.
pub(super) const ATTENTION: AttentionSpec =
    AttentionSpec { qkv_bias: true, ..AttentionSpec::PLAIN };

/// Sizes of one checkpoint. Also those of the text models of Qwen2-VL and Qwen2.5-VL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) sizes: Sizes,
    intermediate_size: i32,
}

impl Config {
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        refuse_sliding_window(config)?;
        let intermediate_size = config.size("intermediate_size")?;
        Ok(Self { sizes: Sizes::read(config)?, intermediate_size })
    }

    /// Reads a layer's gated block.
    pub(super) fn feed_forward(
        &self,
        weights: &mut Weights,
        name: &str,
    ) -> Result<FeedForward, LoadError> {
        let (hidden, width) = (self.sizes.hidden_size, self.intermediate_size);
        Ok(FeedForward::Dense(GatedMlp::load(weights, name, hidden, width, false)?))
    }
}

/// Loads it, in the layout that transformers and mlx-lm share, or in mlx-vlm's.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, weights, weight_bytes } = files;
    let read = Config::read(config)?;
    let spec = DecoderSpec {
        architecture: "qwen2".into(),
        layout: Layout::of(&weights, &Layout::TEXT_ALONE)?,
        sizes: read.sizes,
        attention: ATTENTION,
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: None,
        feed_forward: &|weights, _, name| read.feed_forward(weights, name),
        rope: Rope::load(config, read.sizes.head_dim)?,
        tower: None,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
