//! Sizes of a decoder, as config.json has them.

use crate::{CheckpointError, ConfigJson, KvHeads};

/// Sizes that every family has under the same keys.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Width of the hidden states.
    pub hidden_size: i32,
    /// Layers.
    pub n_layers: i32,
    /// Heads of queries.
    pub n_heads: i32,
    /// Heads of keys and values.
    pub n_kv_heads: i32,
    /// Elements of a head.
    pub head_dim: i32,
    /// Rows of the embedding.
    pub vocab_size: i32,
    /// Most positions of a sequence.
    pub context: i32,
    /// Added to a mean of squares before its root is taken.
    pub rms_norm_eps: f32,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Most positions a row attends to, in every layer; `None` is all.
    pub window: Option<i32>,
}

impl Sizes {
    /// Reads them for a family whose layers all attend to all rows. Refuses other layers.
    ///
    /// # Errors
    /// As [`Sizes::read_any`]; a layer of another kind.
    pub fn read(config: &ConfigJson) -> Result<Self, CheckpointError> {
        let layer_types: Vec<String> = config.optional("layer_types")?.unwrap_or_default();
        if let Some(other) = layer_types.iter().find(|kind| *kind != "full_attention") {
            let what = format!("expected full_attention for every layer, found {other}");
            return Err(config.wrong("layer_types", what));
        }
        Self::read_any(config)
    }

    /// Reads them, whatever the layers are. Refuses activations that no family here computes.
    ///
    /// # Errors
    /// A key is missing, out of range, or contradicts another.
    pub fn read_any(config: &ConfigJson) -> Result<Self, CheckpointError> {
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

    /// Keys and values of an attention of these sizes.
    pub fn kv_heads(&self) -> KvHeads {
        let Self { n_kv_heads, head_dim, window, .. } = *self;
        KvHeads { n_kv: n_kv_heads, head_dim, window }
    }
}
