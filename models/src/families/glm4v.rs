//! GLM-4.1V and GLM-4.6V-Flash (arXiv 2507.01006), and GLM-OCR, which is smaller: the shared decoder
//! with norms after both halves of a layer, a fused feed-forward and heads whose neighbouring numbers
//! rotate together, on three axes, beside a vision tower. Source: `models/glm4v` and `models/glm_ocr`
//! in transformers.

use paceline_checkpoint::families::Sizes;

use super::attention::{AttentionSpec, RotatedPairs};
use super::decoder::{Decoder, DecoderSpec, FeedForward, TargetFiles};
use super::tower;
use crate::layers::{GatedMlp, NormWeight, Rope, SectionOrder};
use crate::load::{ConfigJson, Layout, LoadError, Weights};
use crate::vision::{GlmKind, GlmTower};

/// What the two families differ in. Not keys of the config: every checkpoint of a family is so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    model_type: &'static str,
    /// Biases of q_proj, k_proj and v_proj.
    qkv_bias: bool,
    /// Frequencies of each axis if the config names none.
    section: [usize; 3],
    tower: GlmKind,
}

const LARGE: Family =
    Family { model_type: "glm4v", qkv_bias: true, section: [8, 12, 12], tower: GlmKind::Large };
/// GLM-OCR's: no biases, and other sections.
pub(super) const OCR: Family =
    Family { model_type: "glm_ocr", qkv_bias: false, section: [16, 24, 24], tower: GlmKind::Ocr };

/// Names of the norms of what the two halves of a layer give.
pub(super) const BRANCH_NORMS: [&str; 2] = ["post_self_attn_layernorm", "post_mlp_layernorm"];

/// The text model of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) sizes: Sizes,
    pub(super) attention: AttentionSpec,
    pub(super) rope: Rope,
    intermediate_size: i32,
}

impl Config {
    pub(super) fn read(config: &ConfigJson, family: Family) -> Result<Self, LoadError> {
        let eps = config.optional("rms_norm_eps")?.unwrap_or(1e-5);
        let sizes = Sizes { rms_norm_eps: eps, ..Sizes::read(config)? };
        let rope = Rope::load_partial(config, sizes.head_dim, 1.0)?.on_three_axes(
            config,
            SectionOrder::OneAfterAnother,
            family.section,
        )?;
        let attention = AttentionSpec {
            qkv_bias: family.qkv_bias,
            pairs: RotatedPairs::Neighbours(rope.rotary_dim() as i32),
            ..AttentionSpec::PLAIN
        };
        Ok(Self { sizes, attention, rope, intermediate_size: config.size("intermediate_size")? })
    }

    /// Reads a layer's gated block.
    pub(super) fn feed_forward(
        &self,
        weights: &mut Weights,
        name: &str,
    ) -> Result<GatedMlp, LoadError> {
        GatedMlp::load_fused(weights, name, self.sizes.hidden_size, self.intermediate_size)
    }
}

/// Loads a GLM-4.1V, in either layout. Without a tower it is a text model.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    load_family(files, LARGE)
}

/// Loads a GLM-OCR, in either layout. Without a tower it is a text model.
pub(super) fn load_ocr(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    load_family(files, OCR)
}

fn load_family(files: TargetFiles<'_>, family: Family) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let read = Config::read(config, family)?;
    let layout = Layout::of(weights.files(), &Layout::WITH_VISION)?;
    let tower = tower::load_if_there(config, &mut weights, &read.sizes, |part, weights, text| {
        GlmTower::load(part, weights, layout.vision, text, family.tower)
    })?;
    let spec = DecoderSpec {
        architecture: family.model_type.into(),
        layout,
        sizes: read.sizes,
        attention: read.attention,
        rotating: &[],
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: Some(BRANCH_NORMS),
        feed_forward: &|weights, _, name| Ok(FeedForward::Dense(read.feed_forward(weights, name)?)),
        rope: read.rope.clone(),
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
