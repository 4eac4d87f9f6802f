//! What is PaddleOCR-VL's own: names, and the projector. Source: transformers 5.24,
//! `models/paddleocr_vl/modeling_paddleocr_vl.py`.

use mlx_rs::Array;

use super::embeddings::EmbeddingNames;
use super::sizes::Sizes;
use crate::error::Result;
use crate::layers::{Gelu, LayerNorm, Linear};
use crate::load::{LoadError, Weights};
use crate::vision::parts::{AttentionSpec, BlockSpec, MlpSpec, NormKind};

/// Of the projector's norm. MLX's conversions compute with 1e-6, which moves a logit by 3e-5.
const EPS: f32 = 1e-5;

/// Where the tensors are.
pub(super) struct Names {
    embeddings: &'static str,
    pub(super) layers: &'static str,
    projections: &'static [&'static str],
    pub(super) post_layernorm: &'static str,
    pub(super) projector: &'static str,
}

/// As published.
pub(super) const HUB: Names = Names {
    embeddings: "visual.vision_model.embeddings",
    layers: "visual.vision_model.encoder.layers",
    projections: &["q_proj", "k_proj", "v_proj"],
    post_layernorm: "visual.vision_model.post_layernorm",
    projector: "mlp_AR",
};

/// As MLX's conversions have them.
pub(super) const MLX: Names = Names {
    embeddings: "visual.embeddings",
    layers: "visual.layers",
    projections: &["qkv"],
    post_layernorm: "visual.post_layernorm",
    projector: "visual.projector",
};

impl Names {
    /// The blocks by their parts.
    pub(super) fn block(&self, sizes: &Sizes) -> BlockSpec<'static> {
        let Sizes { hidden, inner, heads, eps, activation, .. } = *sizes;
        BlockSpec {
            hidden,
            norm: NormKind::Layer(eps),
            norms: ["layer_norm1", "layer_norm2"],
            attention: AttentionSpec {
                name: "self_attn",
                projections: self.projections,
                output: "out_proj",
                biases: true,
                heads,
                head_norms: None,
            },
            mlp: MlpSpec::Plain { names: ["mlp.fc1", "mlp.fc2"], inner, activation },
        }
    }

    pub(super) fn embeddings(&self) -> EmbeddingNames {
        EmbeddingNames {
            patch: format!("{}.patch_embedding", self.embeddings),
            table: format!("{}.position_embedding.weight", self.embeddings),
            leading: 0,
        }
    }
}

/// Squares of patches → rows of the prompt.
#[derive(Debug)]
pub(super) struct Projector {
    pre_norm: LayerNorm,
    linear_1: Linear,
    linear_2: Linear,
    /// Numbers of a square.
    square: i32,
}

impl Projector {
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        sizes: &Sizes,
        out: i32,
    ) -> Result<Self, LoadError> {
        let square = sizes.square();
        let linear_1 = format!("{name}.linear_1");
        Ok(Self {
            pre_norm: LayerNorm::load(weights, &format!("{name}.pre_norm"), sizes.hidden, EPS)?,
            linear_1: Linear::load(weights, &linear_1, square, square, true)?,
            linear_2: Linear::load(weights, &format!("{name}.linear_2"), out, square, true)?,
            square,
        })
    }

    /// `x` `[N, hidden]` → `[N / merge², out]`.
    pub(super) fn forward(&self, x: &Array) -> Result<Array> {
        let squares = self.pre_norm.forward(x)?.reshape(&[-1, self.square])?;
        let inner = Gelu::Exact.forward(&self.linear_1.forward(&squares)?)?;
        self.linear_2.forward(&inner)
    }
}
