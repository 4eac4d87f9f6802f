//! Parts that towers share: norms, attention, blocks, and the product that embeds patches. What
//! differs by family is in the descriptions that a tower gives. N patches · H heads · D head_dim.

mod convolution;
mod patches;
mod settings;

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;

use super::attention::{attend_by_windows, in_parts};
use super::windows::WindowRun;
use crate::error::Result;
use crate::layers::{
    GatedMlp, Gelu, HeadNorm, HeadRotation, LayerNorm, Linear, RmsNorm, RopeTables,
};
use crate::load::{LoadError, Weights};

pub(super) use convolution::convolution_as_product;
pub(super) use patches::{PatchEmbedding, PatchSizes};
pub(super) use settings::{activation, rope_theta};

/// The norm of rows, and its eps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NormKind {
    /// With the mean taken off, and a bias.
    Layer(f32),
    /// Root mean square.
    Rms(f32),
}

/// A norm of rows.
#[derive(Debug)]
pub(super) enum TowerNorm {
    /// With the mean taken off, and a bias.
    Layer(LayerNorm),
    /// Root mean square.
    Rms(RmsNorm),
}

impl TowerNorm {
    /// Reads the norm `name` of rows of `size` numbers.
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        size: i32,
        kind: NormKind,
    ) -> Result<Self, LoadError> {
        Ok(match kind {
            NormKind::Layer(eps) => Self::Layer(LayerNorm::load(weights, name, size, eps)?),
            NormKind::Rms(eps) => Self::Rms(RmsNorm::load(weights, name, size, eps)?),
        })
    }

    /// `x` `[…, size]` → the same shape.
    pub(super) fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Layer(norm) => norm.forward(x),
            Self::Rms(norm) => norm.forward(x),
        }
    }
}

/// A family's attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionSpec<'a> {
    /// Name of the attention in its block.
    pub(super) name: &'a str,
    /// Names of the products that give queries, keys and values: one for all, or three.
    pub(super) projections: &'a [&'a str],
    /// Name of the product after it.
    pub(super) output: &'a str,
    /// Whether the products have biases.
    pub(super) biases: bool,
    pub(super) heads: i32,
    /// eps of `q_norm` and `k_norm`, norms of heads before they rotate.
    pub(super) head_norms: Option<f32>,
}

/// Attention of patches to one another, both ways.
#[derive(Debug)]
pub(super) struct PatchAttention {
    qkv: Linear,
    output: Linear,
    /// Queries and keys.
    rotation: HeadRotation,
    heads: i32,
    dim: i32,
}

impl PatchAttention {
    /// Reads it for rows of `hidden` numbers, in the block `block`.
    fn load(
        weights: &mut Weights,
        block: &str,
        hidden: i32,
        spec: AttentionSpec<'_>,
    ) -> Result<Self, LoadError> {
        let AttentionSpec { projections, biases, heads, .. } = spec;
        let name = format!("{block}.{}", spec.name);
        let names: Vec<String> = projections.iter().map(|part| format!("{name}.{part}")).collect();
        let out = 3 * hidden / names.len().max(1) as i32;
        let parts: Vec<(&str, i32)> = names.iter().map(|name| (name.as_str(), out)).collect();
        let (dim, output) = (hidden / heads, format!("{name}.{}", spec.output));
        let rotation = match spec.head_norms {
            None => HeadRotation::Plain(2 * heads),
            Some(eps) => {
                let [q, k] = ["q_norm", "k_norm"].map(|part| format!("{name}.{part}"));
                HeadRotation::Normed(HeadNorm::load(
                    weights,
                    &[(&q, heads), (&k, heads)],
                    dim,
                    eps,
                )?)
            }
        };
        Ok(Self {
            qkv: Linear::load_joined(weights, &parts, hidden, biases)?,
            output: Linear::load(weights, &output, hidden, hidden, biases)?,
            rotation,
            heads,
            dim,
        })
    }

    /// `x` `[N, hidden]` → the same shape. `rope`: how heads rotate by their patches' places, if they
    /// do. `windows`: see [`attend_by_windows`].
    fn forward(
        &self,
        x: &Array,
        rope: Option<&RopeTables>,
        windows: &[WindowRun],
    ) -> Result<Array> {
        let Self { heads, dim, .. } = *self;
        let qkv = self.qkv.forward(x)?.reshape(&[x.dim(0), 3 * heads, dim])?;
        let rotated = match rope {
            Some(rope) => self.rotation.forward(&qkv, rope)?,
            None => qkv.clone(),
        };
        let queries = rotated.try_index((.., ..heads, ..))?;
        let keys = rotated.try_index((.., heads..2 * heads, ..))?;
        let values = qkv.try_index((.., 2 * heads.., ..))?;
        let scale = (dim as f32).powf(-0.5);
        self.output.forward(&attend_by_windows(&queries, &keys, &values, scale, windows)?)
    }
}

/// A family's second half of a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum MlpSpec<'a> {
    /// Two products with biases and an activation between them.
    Plain {
        /// Their names in the block.
        names: [&'a str; 2],
        /// Width between them.
        inner: i32,
        activation: Gelu,
    },
    /// `{name}.{gate,up,down}_proj` with silu.
    Gated { name: &'a str, inner: i32, biases: bool },
}

#[derive(Debug)]
enum TowerMlp {
    Plain { first: Linear, activation: Gelu, second: Linear },
    Gated(GatedMlp),
}

impl TowerMlp {
    fn load(
        weights: &mut Weights,
        block: &str,
        hidden: i32,
        spec: MlpSpec<'_>,
    ) -> Result<Self, LoadError> {
        Ok(match spec {
            MlpSpec::Plain { names: [first, second], inner, activation } => Self::Plain {
                first: Linear::load(weights, &format!("{block}.{first}"), inner, hidden, true)?,
                activation,
                second: Linear::load(weights, &format!("{block}.{second}"), hidden, inner, true)?,
            },
            MlpSpec::Gated { name, inner, biases } => {
                let name = format!("{block}.{name}");
                Self::Gated(GatedMlp::load(weights, &name, hidden, inner, biases)?)
            }
        })
    }

    /// `x` `[rows, hidden]` → the same shape.
    fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Plain { first, activation, second } => {
                second.forward(&activation.forward(&first.forward(x)?)?)
            }
            Self::Gated(mlp) => mlp.forward(x),
        }
    }
}

/// A family's block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSpec<'a> {
    pub(super) hidden: i32,
    pub(super) norm: NormKind,
    /// Names of the norms before each half.
    pub(super) norms: [&'a str; 2],
    pub(super) attention: AttentionSpec<'a>,
    pub(super) mlp: MlpSpec<'a>,
}

/// A block: x + attention(norm(x)), and then x + mlp(norm(x)).
#[derive(Debug)]
pub(super) struct TowerBlock {
    before_attention: TowerNorm,
    attention: PatchAttention,
    before_mlp: TowerNorm,
    mlp: TowerMlp,
}

impl TowerBlock {
    /// Reads the block `name`.
    fn load(weights: &mut Weights, name: &str, spec: BlockSpec<'_>) -> Result<Self, LoadError> {
        let BlockSpec { hidden, norm, norms: [first, second], attention, mlp } = spec;
        Ok(Self {
            before_attention: TowerNorm::load(weights, &format!("{name}.{first}"), hidden, norm)?,
            attention: PatchAttention::load(weights, name, hidden, attention)?,
            before_mlp: TowerNorm::load(weights, &format!("{name}.{second}"), hidden, norm)?,
            mlp: TowerMlp::load(weights, name, hidden, mlp)?,
        })
    }

    /// Reads the blocks `{name}.0` and so on.
    pub(super) fn load_all(
        weights: &mut Weights,
        name: &str,
        count: i32,
        spec: BlockSpec<'_>,
    ) -> Result<Vec<Self>, LoadError> {
        (0..count).map(|at| Self::load(weights, &format!("{name}.{at}"), spec)).collect()
    }

    /// `x` `[N, hidden]` → the same shape. For `rope` and `windows` see [`PatchAttention`].
    pub(super) fn forward(
        &self,
        x: &Array,
        rope: Option<&RopeTables>,
        windows: &[WindowRun],
    ) -> Result<Array> {
        let mixed = self.attention.forward(&self.before_attention.forward(x)?, rope, windows)?;
        // Row by row from here on.
        in_parts(&x.add(mixed)?, |x| Ok(x.add(self.mlp.forward(&self.before_mlp.forward(x)?)?)?))
    }
}
