//! Llama (arXiv 2407.21783) and the many models of its architecture: SmolLM2, MiniCPM, Mistral
//! (arXiv 2310.06825), whose rows may attend to a window. The shared decoder, with biases only
//! where the config has them.

use paceline_checkpoint::families::Sizes;
use paceline_checkpoint::families::llama::{mistral_sizes, sliding_window};

use super::attention::AttentionSpec;
use super::decoder::{Decoder, TargetFiles, dense};
use crate::load::LoadError;

/// Loads a Llama, in the layout that transformers and mlx-lm share, or in mlx-vlm's.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let sizes = Sizes::read(files.config)?;
    if let Some(window) = sliding_window(files.config, sizes.context)? {
        let what = format!(
            "expected null or at least the context of {}: this family has no sliding windows; found \
             {window}",
            sizes.context
        );
        return Err(files.config.wrong("sliding_window", what).into());
    }
    load_as("llama", files, sizes)
}

/// Loads a Mistral.
pub(super) fn load_mistral(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let sizes = mistral_sizes(files.config)?;
    load_as("mistral", files, sizes)
}

fn load_as(
    architecture: &'static str,
    files: TargetFiles<'_>,
    sizes: Sizes,
) -> Result<Decoder, LoadError> {
    let bias = files.config.optional("attention_bias")?.unwrap_or(false);
    let mlp_bias = files.config.optional("mlp_bias")?.unwrap_or(false);
    let width = files.config.size("intermediate_size")?;
    let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, ..AttentionSpec::PLAIN };
    let feed_forward = dense(sizes.hidden_size, width, mlp_bias);
    Decoder::load_text(architecture, files, sizes, attention, &*feed_forward)
}
