//! Qwen2 and Qwen2.5 (arXiv 2407.10671): the shared decoder with biases of q, k and v.

use super::attention::AttentionSpec;
use super::decoder::{Decoder, DecoderSpec, FeedForward, TargetFiles, refuse_sliding_window};
use super::sizes::Sizes;
use crate::layers::{GatedMlp, NormWeight, Rope};
use crate::load::{Layout, LoadError};

/// Loads it, in the layout that transformers and mlx-lm share.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, weights, weight_bytes } = files;
    refuse_sliding_window(config)?;
    let sizes = Sizes::read(config)?;
    let width = config.size("intermediate_size")?;
    let spec = DecoderSpec {
        architecture: "qwen2".into(),
        layout: Layout::TEXT,
        sizes,
        // Not keys of the config: every checkpoint of the family is so.
        attention: AttentionSpec {
            qkv_bias: true,
            output_bias: false,
            head_norms: false,
            gated: false,
        },
        recurrent: &[],
        norms: NormWeight::Whole,
        feed_forward: &|weights, _, name| {
            let mlp = GatedMlp::load(weights, name, sizes.hidden_size, width, false)?;
            Ok(FeedForward::Dense(mlp))
        },
        rope: Rope::load(config, sizes.head_dim)?,
        tower: None,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
