//! One attending layer of Qwen3.5 outside of the model: the heads of the family that predict further
//! tokens have one. R rows. Field names are the checkpoint's tensor names.

use mlx_rs::Array;

use super::attention::Attention;
use super::decoder::FeedForward;
use super::sizes::Sizes;
use super::{qwen3_5, qwen3_5_moe};
use crate::error::Result;
use crate::kv::{GrowingKv, KvStore};
use crate::layers::{NormWeight, RmsNorm, Rope, RopeTables, SectionOrder, last_rows};
use crate::load::{ConfigJson, LoadError, Weights};
use crate::segment::QuerySegments;

/// `model_type` of the family's models.
const MODEL_TYPES: [&str; 4] = ["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"];

/// Whether config.json is that of a model of the family.
///
/// # Errors
/// `model_type` is no text.
pub(crate) fn is_hybrid(config: &ConfigJson) -> Result<bool, LoadError> {
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(model_type.is_some_and(|name| MODEL_TYPES.contains(&name.as_str())))
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
    let (known, found) = (MODEL_TYPES.join(", "), config.required::<String>("model_type")?);
    let what = format!("expected a target of {known} for a drafter of kind mtp, found {found}");
    Err(config.wrong("model_type", what))
}

/// Sizes of a model of the family, from its config or from a copy of it.
///
/// # Errors
/// A key is missing or out of range, or names a layer that is not computed.
pub(crate) fn hybrid_sizes(config: &ConfigJson) -> Result<Sizes, LoadError> {
    Ok(qwen3_5::Config::read(config)?.sizes)
}

/// A layer that attends, the only one of its store.
pub(crate) struct HybridBlock {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
    rope: Rope,
    kv: GrowingKv,
}

impl HybridBlock {
    /// Reads the layer `name`, with experts if `config` is of a model with some. Norms are stored as
    /// `norms` says.
    ///
    /// # Errors
    /// A key or a tensor is missing or does not fit.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        config: &ConfigJson,
        norms: NormWeight,
    ) -> Result<Self, LoadError> {
        let sizes = hybrid_sizes(config)?;
        let feed_forward = match has_experts(config)? {
            true => qwen3_5_moe::feed_forward(config, sizes.hidden_size)?,
            false => qwen3_5::feed_forward(config, sizes.hidden_size)?,
        };
        let norm = |weights: &mut Weights, part: &str| {
            let name = format!("{name}.{part}");
            RmsNorm::load_stored(weights, &name, sizes.hidden_size, sizes.rms_norm_eps, norms)
        };
        let (attention, rope) = (qwen3_5::attention(config)?, qwen3_5::rope(config, &sizes)?);
        let rope = rope.on_named_axes(config, SectionOrder::Interleaved)?;
        let self_attn = format!("{name}.self_attn");
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, &self_attn, sizes, attention, norms)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: feed_forward(weights, 0, &format!("{name}.mlp"))?,
            rope,
            kv: sizes.growing(),
        })
    }

    /// Form of the block's keys and values.
    pub(crate) fn kv(&self) -> GrowingKv {
        self.kv
    }

    /// How its heads turn: by the target's positions if the config names their sections.
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
        let x = last_rows(x, attended.dim(0))?.add(&attended)?;
        Ok(Some(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?))
    }
}

/// Whether the layers of a model have experts. A head in files of its own need not have the model's
/// `model_type`; only models with experts name their number.
fn has_experts(config: &ConfigJson) -> Result<bool, LoadError> {
    match config.required::<String>("model_type")?.as_str() {
        "qwen3_5" | "qwen3_5_text" => Ok(false),
        "qwen3_5_moe" | "qwen3_5_moe_text" => Ok(true),
        _ => Ok(config.optional::<i64>("num_experts")?.is_some_and(|experts| experts > 0)),
    }
}
