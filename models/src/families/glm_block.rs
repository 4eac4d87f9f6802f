//! One layer of GLM-OCR outside of the model: its checkpoints have one more than the model, which
//! predicts further tokens.

use paceline_checkpoint::families::Sizes;
use paceline_checkpoint::families::glm::is_glm_ocr;

use super::attending_layer::{AttendingLayer, AttendingLayerSpec};
use super::decoder::FeedForward;
use super::glm4v::{BRANCH_NORMS, Config, OCR};
use crate::layers::NormWeight;
use crate::load::{ConfigJson, LoadError, Weights};

/// Refuses the config.json of a target of another family.
///
/// # Errors
/// It is of another family, or has no `model_type`.
pub(crate) fn check_glm_ocr(config: &ConfigJson) -> Result<(), LoadError> {
    if is_glm_ocr(config)? {
        return Ok(());
    }
    let found: String = config.required("model_type")?;
    let what = format!("expected a target of glm_ocr for its drafter, found {found}");
    Err(config.wrong("model_type", what).into())
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
