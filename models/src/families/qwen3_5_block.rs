//! One attending layer of Qwen3.5 outside of the model: the heads of the family that predict further
//! tokens have one.

use paceline_checkpoint::families::Sizes;
use paceline_checkpoint::families::qwen3_5::{DENSE, EXPERTS};

use super::attending_layer::{AttendingLayer, AttendingLayerSpec};
use super::{qwen3_5, qwen3_5_moe};
use crate::layers::{NormWeight, SectionOrder};
use crate::load::{ConfigJson, LoadError, Weights};

/// Whether config.json is that of a model of the family.
///
/// # Errors
/// `model_type` is no text.
pub(crate) fn is_hybrid(config: &ConfigJson) -> Result<bool, LoadError> {
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(model_type.is_some_and(|name| [DENSE, EXPERTS].concat().contains(&name.as_str())))
}

/// Refuses the config.json of a target of another family: heads read what a model of this one
/// computes.
///
/// # Errors
/// It is of another family, or has no `model_type`.
pub(crate) fn check_hybrid(config: &ConfigJson) -> Result<(), LoadError> {
    if is_hybrid(config)? {
        return Ok(());
    }
    let (known, found) =
        ([DENSE, EXPERTS].concat().join(", "), config.required::<String>("model_type")?);
    let what = format!("expected a target of {known} for a drafter of kind mtp, found {found}");
    Err(config.wrong("model_type", what).into())
}

/// Sizes of a model of the family, from its config or from a copy of it.
///
/// # Errors
/// A key is missing or out of range, or names a layer that is not computed.
pub(crate) fn hybrid_sizes(config: &ConfigJson) -> Result<Sizes, LoadError> {
    Ok(qwen3_5::Config::read(config)?.sizes)
}

/// Reads the layer whose names begin with `prefix`, with experts if `config` is of a model with some.
/// Norms are stored as `norms` says.
///
/// # Errors
/// A key or a tensor is missing or does not fit.
pub(crate) fn hybrid_layer(
    weights: &mut Weights,
    prefix: &str,
    config: &ConfigJson,
    norms: NormWeight,
) -> Result<AttendingLayer, LoadError> {
    let sizes = hybrid_sizes(config)?;
    let feed_forward = match has_experts(config)? {
        true => qwen3_5_moe::feed_forward(config, sizes.hidden_size)?,
        false => qwen3_5::feed_forward(config, sizes.hidden_size)?,
    };
    let rope = qwen3_5::rope(config, &sizes)?;
    let spec = AttendingLayerSpec {
        sizes,
        attention: qwen3_5::attention(config)?,
        norms,
        branch_norms: None,
        feed_forward: &*feed_forward,
        rope: rope.on_named_axes(config, SectionOrder::Interleaved)?,
    };
    AttendingLayer::load(weights, prefix, spec)
}

/// Whether the layers of a model have experts. A head in files of its own need not have the model's
/// `model_type`; only models with experts name their number.
fn has_experts(config: &ConfigJson) -> Result<bool, LoadError> {
    match config.required::<String>("model_type")?.as_str() {
        name if DENSE.contains(&name) => Ok(false),
        name if EXPERTS.contains(&name) => Ok(true),
        _ => Ok(config.optional::<i64>("num_experts")?.is_some_and(|experts| experts > 0)),
    }
}
