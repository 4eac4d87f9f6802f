//! Qwen2 and Qwen2.5 (arXiv 2407.10671): the shared decoder with biases of q, k and v.

use paceline_checkpoint::families::Sizes;

use super::attention::AttentionSpec;
use super::decoder::{Decoder, LoadFeedForward, TargetFiles, dense, refuse_sliding_window};
use crate::load::{ConfigJson, LoadError};

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

    /// The second half of every layer.
    pub(super) fn feed_forward(&self) -> Box<LoadFeedForward<'static>> {
        dense(self.sizes.hidden_size, self.intermediate_size, false)
    }
}

/// Loads it, in the layout that transformers and mlx-lm share, or in mlx-vlm's.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let read = Config::read(files.config)?;
    Decoder::load_text("qwen2", files, read.sizes, ATTENTION, &*read.feed_forward())
}
