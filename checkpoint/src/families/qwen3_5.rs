//! Qwen3.5, 3.6 and 3.8: most layers have states of fixed size, every few one attends.

use super::{Family, Towers};
use crate::layers::{MOST_TAPS, RecurrentSizes};
use crate::{CheckpointError, ConfigJson, Unserved};

/// `model_type`s of the models whose layers are dense.
pub const DENSE: &[&str] = &["qwen3_5", "qwen3_5_text", "qwen3_8", "qwen3_8_text"];
/// `model_type`s of the models with experts.
pub const EXPERTS: &[&str] =
    &["qwen3_5_moe", "qwen3_5_moe_text", "qwen3_8_moe", "qwen3_8_moe_text"];

/// A Qwen's vision tower, in either layout, and its layers that predict several tokens, also in MLX's
/// layout.
const UNSERVED: Unserved = Unserved {
    prefixes: &[
        "mtp.",
        "model.mtp.",
        "language_model.mtp.",
        "visual.",
        "model.visual.",
        "vision_tower.",
    ],
    suffixes: Unserved::FREQUENCIES,
};
/// As of [`UNSERVED`], for a checkpoint whose tower is served.
const BESIDE_A_TOWER: Unserved = Unserved {
    prefixes: &["mtp.", "model.mtp.", "language_model.mtp."],
    suffixes: Unserved::FREQUENCIES,
};

const fn family(model_types: &'static [&'static str]) -> Family {
    Family {
        recurrent: recurrent_layers,
        towers: Towers::IfThere(BESIDE_A_TOWER),
        ..Family::attending(model_types, UNSERVED)
    }
}

pub(super) const FAMILY: Family = family(DENSE);
pub(super) const MOE: Family = family(EXPERTS);

/// Most layers. Published checkpoints have up to 64; a list of the kinds of any number of layers
/// could be larger than memory.
const MOST_LAYERS: i32 = 1024;

/// For each layer the sizes of its states, if it has some instead of attention.
///
/// # Errors
/// A key is missing, contradicts another, or names a layer that is not computed.
pub fn recurrent_layers(
    config: &ConfigJson,
) -> Result<Vec<Option<RecurrentSizes>>, CheckpointError> {
    let (states, n_layers) = (states(config)?, config.size("num_hidden_layers")?);
    config.check_most("num_hidden_layers", n_layers, MOST_LAYERS)?;
    let interval = config.size_or("full_attention_interval", 4)?;
    let usual = |at: i32| match (at + 1) % interval {
        0 => "full_attention".to_owned(),
        _ => "linear_attention".to_owned(),
    };
    let kinds: Option<Vec<String>> = config.optional("layer_types")?;
    let kinds = kinds.unwrap_or_else(|| (0..n_layers).map(usual).collect());
    let wrong = |what: String| Err(config.wrong("layer_types", what));
    if kinds.len() != n_layers as usize {
        return wrong(format!("expected {n_layers}, one for each layer, found {}", kinds.len()));
    }
    let known = ["linear_attention", "full_attention"];
    if let Some(other) = kinds.iter().find(|kind| !known.contains(&kind.as_str())) {
        return wrong(format!("expected {}, found {other}", known.join(" or ")));
    }
    if !kinds.iter().any(|kind| kind == known[1]) {
        return wrong("expected a layer of full_attention, found none".into());
    }
    Ok(kinds.iter().map(|kind| (kind == known[0]).then_some(states)).collect())
}

fn states(config: &ConfigJson) -> Result<RecurrentSizes, CheckpointError> {
    let mut sizes = [0; 4];
    let keys = [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    ];
    for (size, key) in sizes.iter_mut().zip(keys) {
        *size = config.size(key)?;
    }
    let [key_heads, value_heads, key_dim, value_dim] = sizes;
    config.check_heads(keys[0], key_heads, key_dim)?;
    config.check_heads(keys[1], value_heads, value_dim)?;
    if value_heads % key_heads != 0 {
        let what = format!("expected a multiple of {key_heads} key heads, found {value_heads}");
        return Err(config.wrong(keys[1], what));
    }
    let taps = config.size_or("linear_conv_kernel_dim", 4)?;
    if !(2..=MOST_TAPS as i32).contains(&taps) {
        let what = format!("expected 2 to {MOST_TAPS}, found {taps}");
        return Err(config.wrong("linear_conv_kernel_dim", what));
    }
    let [key_heads, value_heads, key_dim, value_dim] = sizes.map(|size| size as usize);
    Ok(RecurrentSizes { key_heads, value_heads, key_dim, value_dim, taps: taps as usize })
}
