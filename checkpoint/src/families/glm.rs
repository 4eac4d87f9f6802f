//! GLM-4.1V and GLM-4.6V-Flash, and GLM-OCR. Some checkpoints have a tower, and some a layer that
//! predicts a further token.

use super::{Family, Towers};
use crate::{CheckpointError, ConfigJson, Unserved};

const fn family(model_types: &'static [&'static str]) -> Family {
    Family {
        towers: Towers::IfThere(Unserved::FREQUENCIES_ALONE),
        next_token: Some("eh_proj"),
        ..Family::attending(model_types, Unserved::FREQUENCIES_ALONE)
    }
}

pub(super) const FAMILY: Family = family(&["glm4v"]);
pub(super) const OCR: Family = family(&["glm_ocr"]);

/// Whether config.json is that of a GLM-OCR.
///
/// # Errors
/// `model_type` is no text.
pub fn is_glm_ocr(config: &ConfigJson) -> Result<bool, CheckpointError> {
    Ok(config.optional::<String>("model_type")?.as_deref() == Some(OCR.name()))
}
