//! Gemma 3's text model: sliding layers, and every sixth layer attends to all rows. Source: Gemma 3 in
//! transformers (`models/gemma3`).

use super::Family;
use super::gemma4::{AttentionSizes, KINDS, LayerPlan, Layers, MOST_LAYERS, kinds};
use crate::{CheckpointError, ConfigJson, KvHeads, Unserved};

pub(super) const FAMILY: Family = Family {
    kv_heads: |config| kv_heads(config).map(Some),
    is_tied: true,
    ..Family::attending(
        &["gemma3_text"],
        Unserved { prefixes: &[], suffixes: Unserved::FREQUENCIES },
    )
};

/// One of this many layers attends to all rows, if config.json names neither kinds nor a pattern.
const PATTERN: i32 = 6;
/// Positions that a row of a sliding layer attends to, if config.json does not say it.
const WINDOW: i32 = 4096;

/// The layers of a checkpoint.
///
/// # Errors
/// A key is missing, out of range, or names what is not computed.
pub fn layers(config: &ConfigJson) -> Result<Layers, CheckpointError> {
    let count = config.size("num_hidden_layers")?;
    config.check_most("num_hidden_layers", count, MOST_LAYERS)?;
    let pattern = config.size_or("sliding_window_pattern", PATTERN)? as usize;
    let usual = |at: usize| KINDS[usize::from((at + 1).is_multiple_of(pattern))];
    let intermediate = config.size("intermediate_size")?;
    let plan = |kind| LayerPlan { kind, shares: None, intermediate };
    let layers = kinds(config, count as usize, usual)?.into_iter().map(plan).collect();
    let n_heads = config.size("num_attention_heads")?;
    let head_dim = config.size_or("head_dim", 256)?;
    let full = AttentionSizes {
        n_heads,
        n_kv: config.size("num_key_value_heads")?,
        head_dim,
        window: None,
        k_eq_v: false,
    };
    if n_heads % full.n_kv != 0 || head_dim % 2 != 0 {
        let what = format!(
            "expected a divisor of {n_heads} heads and heads of an even size, found {} and {head_dim}",
            full.n_kv
        );
        return Err(config.wrong("num_key_value_heads", what));
    }
    config.check_heads("num_attention_heads", n_heads, head_dim)?;
    let window = Some(config.size_or("sliding_window", WINDOW)?);
    Ok(Layers { attention: [AttentionSizes { window, ..full }, full], layers })
}

fn kv_heads(config: &ConfigJson) -> Result<Vec<KvHeads>, CheckpointError> {
    let Layers { attention, layers } = layers(config)?;
    Ok(layers.iter().map(|layer| attention[layer.kind].kv_heads()).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_sixth_layer_attends_to_all_rows_and_the_last_one_may_slide() {
        let read = |more: &str| {
            let json = format!(
                r#"{{"num_hidden_layers": 8, "intermediate_size": 32, "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 512{more}}}"#
            );
            layers(
                &ConfigJson::parse(Path::new("config.json"), json.as_bytes()).expect("an object"),
            )
        };
        let of = |more: &str| {
            let Layers { attention, layers } = read(more).expect("layers");
            let windows = layers.iter().map(|layer| attention[layer.kind].window.is_some());
            windows.collect::<Vec<_>>()
        };
        let sixth = [true, true, true, true, true, false, true, true];
        assert_eq!(of(""), sixth);
        assert_eq!(of(r#", "sliding_window_pattern": 2"#)[..4], [true, false, true, false]);
        let refused = read(r#", "layer_types": ["full_attention"]"#).expect_err("too few");
        assert!(refused.to_string().contains("layer_types"), "{refused}");
    }
}
