//! Llama and the many models of its architecture, and Mistral, whose rows may attend to a window.

use super::{Family, Sizes};
use crate::{CheckpointError, ConfigJson, KvHeads, Unserved};

/// A vision tower and what joins it to the text model, beside a config of the text alone.
const UNSERVED: Unserved = Unserved {
    prefixes: &["vision_tower.", "multi_modal_projector."],
    suffixes: Unserved::FREQUENCIES,
};

pub(super) const FAMILY: Family = Family::attending(&["llama"], UNSERVED);
pub(super) const MISTRAL: Family =
    Family { kv_heads: mistral_kv_heads, ..Family::attending(&["mistral"], UNSERVED) };

/// Sizes of a Mistral.
///
/// # Errors
/// As [`Sizes::read`].
pub fn mistral_sizes(config: &ConfigJson) -> Result<Sizes, CheckpointError> {
    let sizes = Sizes::read(config)?;
    Ok(Sizes { window: sliding_window(config, sizes.context)?, ..sizes })
}

fn mistral_kv_heads(config: &ConfigJson) -> Result<Option<Vec<KvHeads>>, CheckpointError> {
    let sizes = mistral_sizes(config)?;
    Ok(Some(vec![sizes.kv_heads(); sizes.n_layers as usize]))
}

/// The window of every layer. One that no row of the context can fill is none.
///
/// # Errors
/// It is out of range, or no number.
pub fn sliding_window(config: &ConfigJson, context: i32) -> Result<Option<i32>, CheckpointError> {
    match config.optional::<i64>("sliding_window")? {
        Some(window) if window < i64::from(context) => Ok(Some(config.size("sliding_window")?)),
        _ => Ok(None),
    }
}
