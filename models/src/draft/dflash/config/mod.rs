//! config.json of a plain DFlash drafter: the backbone's keys, and none of a related kind's.

use serde_json::Value;

use crate::draft::block_diffusion::{Config, Keys, wrong};
use crate::load::{ConfigJson, LoadError};

/// The name in `architectures`.
const ARCHITECTURE: &str = "DFlashDraftModel";

/// Keys of other kinds of drafters, and the kind of each.
const FOREIGN: [(&str, &str); 9] = [
    ("conv_kernel_size", "DFlash 2"),
    ("conv_group_size", "DFlash 2"),
    ("selector_rank", "DFlash 2"),
    ("selector_top_k", "DFlash 2"),
    ("output_multiplier", "DFlash 2"),
    ("markov_rank", "DSpark"),
    ("markov_head_type", "DSpark"),
    ("enable_confidence_head", "DSpark"),
    ("speculators_model_type", "the speculators layout"),
];

/// Whether a config.json is that of a DFlash drafter.
///
/// # Errors
/// A key has another type.
pub(super) fn is_dflash(config: &ConfigJson) -> Result<bool, LoadError> {
    let keys = Keys::of(config)?;
    let architectures = keys.architectures()?;
    let named = architectures.iter().any(|name| name == ARCHITECTURE);
    Ok(if architectures.is_empty() { keys.has_inner() } else { named })
}

/// Sizes and rules of one checkpoint.
///
/// # Errors
/// A config of another kind, or one that is not served.
pub(super) fn read(config: &ConfigJson) -> Result<Config, LoadError> {
    let keys = Keys::of(config)?;
    if !is_dflash(config)? {
        let architectures = keys.architectures()?;
        let model_type: String = config.optional("model_type")?.unwrap_or_default();
        let what = format!(
            "expected [\"{ARCHITECTURE}\"], found {architectures:?} with model_type \
             {model_type:?}: set drafter.kind to the kind of this drafter; if there is none, this \
             version serves no such drafter"
        );
        return Err(wrong("architectures", what));
    }
    for (key, kind) in FOREIGN {
        let found = keys
            .either::<Value>(key)?
            .filter(|value| *value != Value::Bool(false) && value.as_f64() != Some(0.0));
        if let Some(value) = found {
            let what = format!(
                "found {value}, a key of {kind}, which is not plain DFlash: leave drafter.kind at \
                 auto"
            );
            return Err(wrong(key, what));
        }
    }
    keys.backbone(keys.block(2)?)
}

#[cfg(test)]
mod tests;
