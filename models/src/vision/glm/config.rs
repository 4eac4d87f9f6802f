//! The sizes of a GLM tower, from a wrapper's `vision_config`.

use crate::load::{ConfigJson, LoadError};
use crate::vision::TextModelSizes;
use crate::vision::parts::rope_theta;

/// The towers of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GlmKind {
    /// GLM-4.1V and its successors: a table of positions.
    Large,
    /// GLM-OCR: norms of heads.
    Ocr,
}

/// Sizes of one checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) kind: GlmKind,
    pub(super) depth: i32,
    pub(super) hidden_size: i32,
    pub(super) num_heads: i32,
    pub(super) patch_size: i32,
    pub(super) temporal_patch_size: i32,
    pub(super) spatial_merge_size: i32,
    /// Width of a block's feed-forward.
    pub(super) inner: i32,
    /// Width of a row of the prompt.
    pub(super) out_hidden_size: i32,
    /// Width of the merger's feed-forward.
    pub(super) merged_inner: i32,
    /// Biases of a block's products.
    pub(super) biases: bool,
    /// Rows and columns of the table of positions.
    pub(super) side: i32,
    pub(super) eps: f32,
    pub(super) rope_theta: f64,
}

impl Config {
    /// Values that are not there are the reference's own.
    pub(super) fn read(
        config: &ConfigJson,
        text: TextModelSizes,
        kind: GlmKind,
    ) -> Result<Self, LoadError> {
        let [hidden, heads, inner] = match kind {
            GlmKind::Large => [1536, 12, 13_696],
            GlmKind::Ocr => [1024, 16, 4096],
        };
        let out_hidden_size = config.size_or("out_hidden_size", text.hidden)?;
        let intermediate_size = config.size_or("intermediate_size", inner)?;
        let (patch_size, channels) =
            (config.size_or("patch_size", 14)?, config.size_or("in_channels", 3)?);
        let (inner, merged_inner) = match kind {
            GlmKind::Large => (out_hidden_size, intermediate_size),
            GlmKind::Ocr => (intermediate_size, out_hidden_size.saturating_mul(channels)),
        };
        let read = Self {
            kind,
            depth: config.size_or("depth", 24)?,
            hidden_size: config.size_or("hidden_size", hidden)?,
            num_heads: config.size_or("num_heads", heads)?,
            patch_size,
            temporal_patch_size: config.size_or("temporal_patch_size", 2)?,
            spatial_merge_size: config.size_or("spatial_merge_size", 2)?,
            inner,
            out_hidden_size,
            merged_inner,
            biases: config.optional("attention_bias")?.unwrap_or(kind == GlmKind::Ocr),
            side: config.size_or("image_size", 336)? / patch_size,
            eps: config.optional("rms_norm_eps")?.unwrap_or(1e-5),
            rope_theta: rope_theta(config, 10_000.0)?,
        };
        read.check(config, text)?;
        Ok(read)
    }

    /// Checks the sizes against each other, against the text model's and against what memory holds.
    fn check(&self, config: &ConfigJson, text: TextModelSizes) -> Result<(), LoadError> {
        let wrong = |key: &str, what: String| Err(config.wrong(key, what).into());
        for (key, size, most) in [
            ("patch_size", self.patch_size, 256),
            ("temporal_patch_size", self.temporal_patch_size, 16),
            ("spatial_merge_size", self.spatial_merge_size, 16),
            ("hidden_size", self.hidden_size, 1 << 16),
            ("intermediate_size", self.inner.max(self.merged_inner), 1 << 20),
        ] {
            config.check_most(key, size, most)?;
        }
        let Self { hidden_size, num_heads, .. } = *self;
        if hidden_size % num_heads != 0 || hidden_size / num_heads % 4 != 0 {
            let what = format!(
                "expected heads of {hidden_size} in all, a multiple of 4 each, found {num_heads}"
            );
            return wrong("num_heads", what);
        }
        let channels = config.size_or("in_channels", 3)?;
        if channels != 3 {
            return wrong(
                "in_channels",
                format!("expected 3 (red, green, blue), found {channels}"),
            );
        }
        if self.kind == GlmKind::Large && !(1..=1 << 12).contains(&self.side) {
            let what = format!("expected 1 to 4096 patches of a side, found {}", self.side);
            return wrong("image_size", what);
        }
        if self.out_hidden_size != text.hidden {
            let (expected, found) = (text.hidden, self.out_hidden_size);
            let what = format!("expected the text model's hidden_size, {expected}, found {found}");
            return wrong("out_hidden_size", what);
        }
        Ok(config.check_word("hidden_act", "silu")?)
    }

    /// Numbers of a head.
    pub(super) fn head_dim(&self) -> i32 {
        self.hidden_size / self.num_heads
    }
}
