//! Llama (arXiv 2407.21783) and the many models of its architecture: SmolLM2, MiniCPM, Mistral
//! without sliding windows. The shared decoder, with biases only where the config has them.

use super::attention::AttentionSpec;
use super::decoder::{Decoder, DecoderSpec, FeedForward, TargetFiles};
use super::sizes::Sizes;
use crate::layers::{GatedMlp, NormWeight, Rope};
use crate::load::{ConfigJson, Layout, LoadError};

/// Loads a Llama, in the layout that transformers and mlx-lm share.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    load_as("llama", files)
}

/// Loads a Mistral whose rows attend to all rows before them.
pub(super) fn load_mistral(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    load_as("mistral", files)
}

fn load_as(architecture: &'static str, files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, weights, weight_bytes } = files;
    let sizes = Sizes::read(config)?;
    refuse_sliding_window(config, sizes.context)?;
    let bias = config.optional("attention_bias")?.unwrap_or(false);
    let mlp_bias = config.optional("mlp_bias")?.unwrap_or(false);
    let width = config.size("intermediate_size")?;
    let spec = DecoderSpec {
        architecture: architecture.into(),
        layout: Layout::TEXT,
        sizes,
        attention: AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            head_norms: false,
            gated: false,
        },
        recurrent: &[],
        norms: NormWeight::Whole,
        feed_forward: &|weights, _, name| {
            let mlp = GatedMlp::load(weights, name, sizes.hidden_size, width, mlp_bias)?;
            Ok(FeedForward::Dense(mlp))
        },
        rope: Rope::load(config, sizes.head_dim)?,
        tower: None,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}

/// A window that no row of the context can fill is none.
fn refuse_sliding_window(config: &ConfigJson, context: i32) -> Result<(), LoadError> {
    match config.optional::<i64>("sliding_window")? {
        Some(window) if window < i64::from(context) => {
            let what = format!(
                "expected null or at least the context of {context}: this version has no sliding \
                 windows; found {window}"
            );
            Err(config.wrong("sliding_window", what))
        }
        _ => Ok(()),
    }
}
