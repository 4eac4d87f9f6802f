//! Sizes of a decoder, as config.json has them.

use crate::kv::GrowingKv;
use crate::layers::ExpertSizes;
use crate::load::{ConfigJson, LoadError};

/// Sizes that every family has under the same keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) hidden_size: i32,
    pub(crate) n_layers: i32,
    pub(super) n_heads: i32,
    pub(super) n_kv_heads: i32,
    pub(super) head_dim: i32,
    pub(crate) vocab_size: i32,
    pub(crate) context: i32,
    pub(crate) rms_norm_eps: f32,
    pub(super) tie_word_embeddings: bool,
    /// Most positions a row attends to, in every layer; `None` is all.
    pub(super) window: Option<i32>,
}

impl Sizes {
    /// Reads them for a family whose layers all attend to all rows. Refuses other layers.
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let layer_types: Vec<String> = config.optional("layer_types")?.unwrap_or_default();
        if let Some(other) = layer_types.iter().find(|kind| *kind != "full_attention") {
            let what = format!("expected full_attention for every layer, found {other}");
            return Err(config.wrong("layer_types", what));
        }
        Self::read_any(config)
    }

    /// Reads them, whatever the layers are. Refuses activations that no family here computes.
    pub(super) fn read_any(config: &ConfigJson) -> Result<Self, LoadError> {
        let (hidden_size, n_heads) =
            (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let read = Self {
            hidden_size,
            n_layers: config.size("num_hidden_layers")?,
            n_heads,
            n_kv_heads: config.size_or("num_key_value_heads", n_heads)?,
            head_dim: config.size_or("head_dim", (hidden_size / n_heads).max(1))?,
            vocab_size: config.size("vocab_size")?,
            context: config.context()?.positions,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(false),
            window: None,
        };
        if read.n_heads % read.n_kv_heads != 0 || read.head_dim % 2 != 0 {
            let what = format!(
                "expected a divisor of {} heads and an even head_dim, found {} and {}",
                read.n_heads, read.n_kv_heads, read.head_dim
            );
            return Err(config.wrong("num_key_value_heads", what));
        }
        config.check_heads("num_attention_heads", read.n_heads, read.head_dim)?;
        config.check_word("hidden_act", "silu")?;
        Ok(read)
    }

    /// Form of the keys and values of an attention of these sizes.
    pub(super) fn growing(&self) -> GrowingKv {
        let Self { n_kv_heads, head_dim, window, .. } = *self;
        GrowingKv { n_kv: n_kv_heads, key_dim: head_dim, value_dim: head_dim, window }
    }
}

/// Sizes of the experts of one checkpoint, in every layer the same. `chosen`: the key of how many a
/// row goes through. `renormalized`: the shares of the chosen ones add up to 1.
pub(super) fn experts(
    config: &ConfigJson,
    chosen: &str,
    hidden: i32,
    renormalized: bool,
) -> Result<ExpertSizes, LoadError> {
    let sizes = ExpertSizes {
        hidden,
        intermediate: config.size("moe_intermediate_size")?,
        n_experts: config.size("num_experts")?,
        chosen: config.size(chosen)?,
        renormalized,
    };
    if sizes.chosen > sizes.n_experts {
        let what =
            format!("expected at most the {} experts, found {}", sizes.n_experts, sizes.chosen);
        return Err(config.wrong(chosen, what));
    }
    Ok(sizes)
}
