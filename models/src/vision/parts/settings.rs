//! Settings that towers of several families have under the same names.

use crate::layers::Gelu;
use crate::load::{ConfigJson, LoadError};

/// The activation of a block. `usual`: if the config names none.
///
/// # Errors
/// One that no tower here computes.
pub(in crate::vision) fn activation(config: &ConfigJson, usual: &str) -> Result<Gelu, LoadError> {
    let name: String = config.optional("hidden_act")?.unwrap_or_else(|| usual.into());
    match name.as_str() {
        "gelu_pytorch_tanh" => Ok(Gelu::Tanh),
        "gelu" => Ok(Gelu::Exact),
        "quick_gelu" => Ok(Gelu::Quick),
        other => {
            let what = format!("expected gelu_pytorch_tanh, gelu or quick_gelu, found {other}");
            Err(config.wrong("hidden_act", what).into())
        }
    }
}

/// The base of the rotations by place. `usual`: if the config names none.
///
/// # Errors
/// The rotary keys are of another kind, or the base is none.
pub(in crate::vision) fn rope_theta(config: &ConfigJson, usual: f64) -> Result<f64, LoadError> {
    let Some(rope) = config.part("rope_parameters")? else { return Ok(usual) };
    let kind: String = rope.optional("rope_type")?.unwrap_or_else(|| "axial".into());
    // Published configs call it default; see transformers.
    if !matches!(kind.as_str(), "axial" | "default") {
        return Err(rope.wrong("rope_type", format!("expected axial, found {kind}")).into());
    }
    let theta: f64 = rope.optional("rope_theta")?.unwrap_or(usual);
    if theta > 0.0 && theta.is_finite() {
        return Ok(theta);
    }
    Err(rope.wrong("rope_theta", format!("expected above 0, found {theta}")).into())
}
