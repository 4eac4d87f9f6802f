//! One layer of GLM-OCR outside of the model: its checkpoints have one more than the model, which
//! predicts further tokens.

use super::attending_layer::{AttendingLayer, AttendingLayerSpec};
use super::decoder::FeedForward;
use super::glm4v::{BRANCH_NORMS, Config, OCR};
use super::sizes::Sizes;
use crate::layers::NormWeight;
use crate::load::{ConfigJson, LoadError, Weights};

/// `model_type` of the family's models.
const MODEL_TYPE: &str = "glm_ocr";

/// Whether config.json is that of a GLM-OCR.
///
/// # Errors
/// `model_type` is no text.
pub(crate) fn is_glm_ocr(config: &ConfigJson) -> Result<bool, LoadError> {
    Ok(config.optional::<String>("model_type")?.as_deref() == Some(MODEL_TYPE))
}

/// Refuses the config.json of a target of another family.
///
/// # Errors
/// It is of another family, or has no `model_type`.
pub(crate) fn check_glm_ocr(config: &ConfigJson) -> Result<(), LoadError> {
    if is_glm_ocr(config)? {
        return Ok(());
    }
    let found: String = config.required("model_type")?;
    let what = format!("expected a target of {MODEL_TYPE} for its drafter, found {found}");
    Err(config.wrong("model_type", what))
}

/// Sizes of a model of the family.
///
/// # Errors
/// A key is missing or out of range, or names what is not computed.
pub(crate) fn glm_ocr_sizes(config: &ConfigJson) -> Result<Sizes, LoadError> {
    Ok(Config::read(config, OCR)?.sizes)
}

/// Reads the layer whose parts have no name before theirs in `weights`.
///
/// # Errors
/// A key or a tensor is missing or does not fit.
pub(crate) fn glm_ocr_layer(
    weights: &mut Weights,
    config: &ConfigJson,
) -> Result<AttendingLayer, LoadError> {
    let read = Config::read(config, OCR)?;
    let spec = AttendingLayerSpec {
        sizes: read.sizes,
        attention: read.attention,
        norms: NormWeight::Whole,
        branch_norms: Some(BRANCH_NORMS),
        feed_forward: &|weights, _, name| Ok(FeedForward::Dense(read.feed_forward(weights, name)?)),
        rope: read.rope.clone(),
    };
    AttendingLayer::load(weights, "", spec)
}
