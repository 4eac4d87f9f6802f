//! What a backbone's layer of Gemma 4's form has beside the parts of a plain one. Source of the
//! arithmetic: deepseek-ai/DeepSpec, `modeling/dspark/gemma4/modeling.py`.

use super::Config;
use crate::layers::RmsNorm;
use crate::load::{LoadError, Weights};

/// The kind of Gemma's layers that a drafter has, in the rotary keys.
pub(super) const KIND: &str = "full_attention";

/// Norms before and after the second half, and a factor. Field names are the checkpoint's tensor names.
pub(super) struct GemmaParts {
    pub(super) pre_feedforward_layernorm: RmsNorm,
    pub(super) post_feedforward_layernorm: RmsNorm,
    pub(super) layer_scalar: f32,
}

impl GemmaParts {
    /// Reads the tensors whose names begin with `name`.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
    ) -> Result<Self, LoadError> {
        let mut norm = |part: &str| {
            let name = format!("{name}.{part}");
            RmsNorm::load(weights, &name, config.hidden_size, config.rms_norm_eps)
        };
        Ok(Self {
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            layer_scalar: weights.take_number(&format!("{name}.layer_scalar"))?,
        })
    }
}
