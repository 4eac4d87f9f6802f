//! SmolLM3: a Llama of which the heads of some layers do not rotate, usually of every fourth one (NoPE,
//! arXiv 2305.19466). Source: `models/smollm3` in transformers and in mlx-lm.

use paceline_checkpoint::families::{Sizes, is_tied};

use super::attention::AttentionSpec;
use super::decoder::{Decoder, TargetFiles, dense, refuse_sliding_window};
use crate::load::{ConfigJson, LoadError};

/// Of this many layers the last one does not rotate, if the config names no layers.
const INTERVAL: i32 = 4;

/// Loads it, in the layout that transformers and mlx-lm share.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let config = files.config;
    refuse_sliding_window(config)?;
    let sizes = Sizes { tie_word_embeddings: is_tied(config)?, ..Sizes::read(config)? };
    let rotating = rotating_layers(config, sizes.n_layers)?;
    let bias = config.optional("attention_bias")?.unwrap_or(false);
    let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, ..AttentionSpec::PLAIN };
    let mlp_bias = config.optional("mlp_bias")?.unwrap_or(false);
    let feed_forward = dense(sizes.hidden_size, config.size("intermediate_size")?, mlp_bias);
    Decoder::load_partly_rotating("smollm3", files, sizes, attention, &rotating, &*feed_forward)
}

/// For each layer whether its heads rotate. The key's name says the opposite of its values: 1 is a
/// layer that rotates.
fn rotating_layers(config: &ConfigJson, layers: i32) -> Result<Vec<bool>, LoadError> {
    const KEY: &str = "no_rope_layers";
    let Some(named) = config.optional::<Vec<u32>>(KEY)? else {
        let interval = config.size_or("no_rope_layer_interval", INTERVAL)?;
        return Ok((1..=layers).map(|layer| layer % interval != 0).collect());
    };
    if named.len() != layers as usize || named.iter().any(|one| *one > 1) {
        let what = format!("expected 0 or 1 for each of {layers} layers, found {named:?}");
        return Err(config.wrong(KEY, what).into());
    }
    Ok(named.into_iter().map(|one| one == 1).collect())
}
