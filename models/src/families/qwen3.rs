//! Qwen3 dense (arXiv 2505.09388): the shared decoder with norms of query and key heads.

use paceline_checkpoint::families::Sizes;

use super::attention::{AttentionSpec, HeadNorms};
use super::decoder::{Decoder, LoadFeedForward, TargetFiles, dense, refuse_sliding_window};
use crate::load::{ConfigJson, LoadError};

/// Sizes of one checkpoint. Also those of Qwen3-VL's text model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) sizes: Sizes,
    intermediate_size: i32,
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
                head_norms: HeadNorms::BeforeRotation,
                ..AttentionSpec::PLAIN
            },
        })
    }

    /// The second half of every layer.
    pub(super) fn feed_forward(&self) -> Box<LoadFeedForward<'static>> {
        dense(self.sizes.hidden_size, self.intermediate_size, false)
    }
}

/// Loads it, in the layout that transformers and mlx-lm share, or in mlx-vlm's.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let read = Config::read(files.config)?;
    Decoder::load_text("qwen3", files, read.sizes, read.attention, &*read.feed_forward())
}
