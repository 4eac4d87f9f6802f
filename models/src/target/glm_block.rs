//! One layer of GLM-OCR outside of the model: its checkpoints have one more than the model, which
//! predicts further tokens. R rows. Field names are the checkpoint's tensor names.

use mlx_rs::Array;

use super::attention::Attention;
use super::glm4v::{BRANCH_NORMS, Config, OCR};
use super::sizes::Sizes;
use crate::error::Result;
use crate::kv::{GrowingKv, KvStore};
use crate::layers::{GatedMlp, NormWeight, RmsNorm, Rope, RopeTables, last_rows};
use crate::load::{ConfigJson, LoadError, Weights};
use crate::segment::QuerySegments;

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

/// A layer, the only one of its store.
pub(crate) struct GlmBlock {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    /// Norms of what the two halves give, before it is added to the rows.
    branch_norms: [RmsNorm; 2],
    rope: Rope,
    kv: GrowingKv,
}

impl GlmBlock {
    /// Reads the layer whose parts have no name before theirs in `weights`.
    ///
    /// # Errors
    /// A key or a tensor is missing or does not fit.
    pub(crate) fn load(weights: &mut Weights, config: &ConfigJson) -> Result<Self, LoadError> {
        let read = Config::read(config, OCR)?;
        let (sizes, whole) = (read.sizes, NormWeight::Whole);
        let norm = |weights: &mut Weights, name: &str| {
            RmsNorm::load(weights, name, sizes.hidden_size, sizes.rms_norm_eps)
        };
        let [first, second] = BRANCH_NORMS;
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, "self_attn", sizes, read.attention, whole)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: read.feed_forward(weights, "mlp")?,
            branch_norms: [norm(weights, first)?, norm(weights, second)?],
            rope: read.rope,
            kv: sizes.growing(),
        })
    }

    /// Form of the layer's keys and values.
    pub(crate) fn kv(&self) -> GrowingKv {
        self.kv
    }

    /// How its heads turn.
    pub(crate) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// `x` `[R, hidden]` → `[queries, hidden]`, `None` without queries.
    ///
    /// # Errors
    /// A segment does not start at its sequence's length; MLX's own.
    pub(crate) fn forward(
        &self,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        rows: &QuerySegments,
    ) -> Result<Option<Array>> {
        let normed = self.input_layernorm.forward(x)?;
        let attended = self.self_attn.forward_queries(0, &normed, rope, kv, rows)?;
        let Some(attended) = attended else { return Ok(None) };
        let [attention, feed_forward] = &self.branch_norms;
        let x = last_rows(x, attended.dim(0))?.add(attention.forward(&attended)?)?;
        let more = self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?;
        Ok(Some(x.add(feed_forward.forward(&more)?)?))
    }
}
