//! The sizes of Gemma 4's towers, from a wrapper's `vision_config`.

use crate::load::{ConfigJson, LoadError};
use crate::vision::parts::rope_theta;

/// What a tower needs to know of its text model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmaText {
    /// Width of its hidden states.
    pub(crate) hidden: i32,
    pub(crate) image_token: u32,
    /// Whether rows of an image attend to one another both ways.
    pub(crate) both_ways: bool,
    /// Most rows of an image.
    pub(crate) most_rows: u32,
}

/// Patches of an image, in either kind of tower.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchSizes {
    /// Pixels of a side.
    pub(super) side: i32,
    /// Patches of a side that become one row of the prompt.
    pub(super) pooled: i32,
}

impl PatchSizes {
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let read = Self {
            side: config.size_or("patch_size", 16)?,
            pooled: config.size_or("pooling_kernel_size", 3)?,
        };
        for (key, size, most) in
            [("patch_size", read.side, 128), ("pooling_kernel_size", read.pooled, 16)]
        {
            config.check_most(key, size, most)?;
        }
        Ok(read)
    }
}

/// Sizes of one checkpoint with a tower.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) depth: i32,
    pub(super) hidden: i32,
    pub(super) intermediate: i32,
    pub(super) heads: i32,
    pub(super) head_dim: i32,
    pub(super) eps: f32,
    pub(super) rope_theta: f64,
    pub(super) patches: PatchSizes,
    /// Places of an axis that have a position.
    pub(super) positions: i32,
    /// Whether numbers are clamped around each linear.
    pub(super) clips: bool,
    /// Whether pooled rows are moved and scaled.
    pub(super) standardizes: bool,
}

impl Config {
    /// Values that are not there are the reference's own.
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let wrong = |key: &str, what: String| Err(config.wrong(key, what).into());
        let act: Option<String> = config.optional("hidden_activation")?;
        if let Some(other) = act.filter(|act| act != "gelu_pytorch_tanh") {
            return wrong(
                "hidden_activation",
                format!("expected gelu_pytorch_tanh, found {other}"),
            );
        }
        if config.optional("attention_bias")?.unwrap_or(false) {
            return wrong("attention_bias", "expected false, found true".into());
        }
        let read = Self {
            depth: config.size_or("num_hidden_layers", 16)?,
            hidden: config.size_or("hidden_size", 768)?,
            intermediate: config.size_or("intermediate_size", 3072)?,
            heads: config.size_or("num_attention_heads", 12)?,
            head_dim: config.size_or("head_dim", 64)?,
            eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: rope_theta(config, 100.0)?,
            patches: PatchSizes::read(config)?,
            positions: config.size_or("position_embedding_size", 10_240)?,
            clips: config.optional("use_clipped_linears")?.unwrap_or(false),
            standardizes: config.optional("standardize")?.unwrap_or(false),
        };
        let key_heads = config.size_or("num_key_value_heads", read.heads)?;
        if key_heads != read.heads {
            let what = format!("expected num_attention_heads, {}, found {key_heads}", read.heads);
            return wrong("num_key_value_heads", what);
        }
        if read.head_dim % 4 != 0 {
            let what = format!("expected a multiple of 4, found {}", read.head_dim);
            return wrong("head_dim", what);
        }
        config.check_heads("num_attention_heads", read.heads, read.head_dim)?;
        if read.hidden > 1 << 16 || read.intermediate > 1 << 20 || read.depth > 1024 {
            let what = format!(
                "expected at most 65536, an intermediate_size of at most 1048576 and at most 1024 \
                 layers, found {}, {} and {}",
                read.hidden, read.intermediate, read.depth
            );
            return wrong("hidden_size", what);
        }
        Ok(read)
    }
}
