//! Qwen3 dense (arXiv 2505.09388): the shared decoder with norms of query and key heads.

use super::attention::{AttentionSpec, HeadNorms};
use super::decoder::{Decoder, DecoderSpec, FeedForward, TargetFiles, refuse_sliding_window};
use super::sizes::Sizes;
use crate::layers::{GatedMlp, NormWeight, Rope};
use crate::load::{ConfigJson, Layout, LoadError, Weights};

/// Sizes of one checkpoint. Also those of Qwen3-VL's text model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) sizes: Sizes,
    pub(super) intermediate_size: i32,
    pub(super) attention: AttentionSpec,
}

impl Config {
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        refuse_sliding_window(config)?;
        let bias = config.optional("attention_bias")?.unwrap_or(false);
        Ok(Self {
            sizes: Sizes::read(config)?,
            intermediate_size: config.size("intermediate_size")?,
            attention: AttentionSpec {
                qkv_bias: bias,
                output_bias: bias,
                head_norms: HeadNorms::BeforeTurn,
                ..AttentionSpec::PLAIN
            },
        })
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
        architecture: "qwen3".into(),
        layout: Layout::of(&weights, &Layout::TEXT_ALONE)?,
        sizes: read.sizes,
        attention: read.attention,
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: None,
        feed_forward: &|weights, _, name| read.feed_forward(weights, name),
        rope: Rope::load(config, read.sizes.head_dim)?,
        tower: None,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
