//! GLM-4.1V and GLM-4.6V-Flash (arXiv 2507.01006), and GLM-OCR, which is smaller: the shared decoder
//! with norms after both halves of a layer, a fused feed-forward and heads whose neighbouring numbers
//! turn together, on three axes, beside a vision tower. Source: `models/glm4v` and `models/glm_ocr`
//! in transformers.

use super::attention::{AttentionSpec, HeadNorms, TurnedPairs};
use super::decoder::{Decoder, DecoderSpec, FeedForward, TargetFiles};
use super::sizes::Sizes;
use super::tower;
use crate::layers::{GatedMlp, NormWeight, Rope, SectionOrder};
use crate::load::{Layout, LoadError};
use crate::vision::GlmKind;

/// What the two families differ in. Not keys of the config: every checkpoint of a family is so.
struct Kind {
    model_type: &'static str,
    /// Biases of q_proj, k_proj and v_proj.
    qkv_bias: bool,
    /// Frequencies of each axis if the config names none.
    section: [usize; 3],
    tower: GlmKind,
}

/// Loads a GLM-4.1V, in either layout. Without a tower it is a text model.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let (section, tower) = ([8, 12, 12], GlmKind::Large);
    load_kind(files, Kind { model_type: "glm4v", qkv_bias: true, section, tower })
}

/// Loads a GLM-OCR, in either layout. Without a tower it is a text model.
pub(super) fn load_ocr(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let (section, tower) = ([16, 24, 24], GlmKind::Ocr);
    load_kind(files, Kind { model_type: "glm_ocr", qkv_bias: false, section, tower })
}

fn load_kind(files: TargetFiles<'_>, kind: Kind) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let read = Sizes::read(config)?;
    let eps = config.optional("rms_norm_eps")?.unwrap_or(1e-5);
    let sizes = Sizes { rms_norm_eps: eps, ..read };
    let width = config.size("intermediate_size")?;
    let rope = Rope::load_partial(config, sizes.head_dim, 1.0)?.on_three_axes(
        config,
        SectionOrder::OneAfterAnother,
        kind.section,
    )?;
    let layout = Layout::of(&weights, &Layout::WITH_VISION)?;
    let tower = match tower::is_there(config, weights.files())? {
        true => Some(tower::load_glm(config, &mut weights, layout, &sizes, kind.tower)?),
        false => None,
    };
    let spec = DecoderSpec {
        architecture: kind.model_type.into(),
        layout,
        sizes,
        attention: AttentionSpec {
            qkv_bias: kind.qkv_bias,
            output_bias: false,
            head_norms: HeadNorms::None,
            gated: false,
            pairs: TurnedPairs::Neighbours(rope.turning() as i32),
        },
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: Some(["post_self_attn_layernorm", "post_mlp_layernorm"]),
        feed_forward: &|weights, _, name| {
            let mlp = GatedMlp::load_fused(weights, name, sizes.hidden_size, width)?;
            Ok(FeedForward::Dense(mlp))
        },
        rope,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
