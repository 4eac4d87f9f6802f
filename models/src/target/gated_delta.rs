//! Gated DeltaNet (arXiv 2412.06464) as in Qwen3.5: projections of a row, a convolution over the
//! rows before, for each value head a state that decays and learns, and a gated norm. R rows of a
//! batch.

use mlx_rs::ops::exp;
use mlx_rs::{Array, Dtype};
use paceline_blas::RecurrentSizes;

use super::sizes::Sizes;
use crate::error::Result;
use crate::layers::{DeltaRule, LayerOps, Linear, RmsNorm};
use crate::load::{LoadError, Weights};

pub(super) struct GatedDelta {
    /// in_proj_qkv, in_proj_z, in_proj_b and in_proj_a: their outputs lie side by side.
    in_proj: Linear,
    rule: DeltaRule,
    norm: RmsNorm,
    out_proj: Linear,
}

impl GatedDelta {
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        sizes: Sizes,
        states: RecurrentSizes,
    ) -> Result<Self, LoadError> {
        let [heads, values, channels, dim] =
            [states.value_heads, states.values(), states.channels(), states.value_dim]
                .map(|size| size as i32);
        let [qkv, z, b, a] = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"]
            .map(|part| format!("{name}.{part}"));
        let inner = [(qkv.as_str(), channels), (&z, values), (&b, heads), (&a, heads)];
        let hidden = sizes.hidden_size;
        // The projections first: their shapes say whether the checkpoint has such heads.
        let in_proj = Linear::load_joined(weights, &inner, hidden, false)?;
        let out_proj = Linear::load(weights, &format!("{name}.out_proj"), hidden, values, false)?;
        let rates = in_float32(&weights.take(&format!("{name}.A_log"), &[heads])?)?;
        let rates = exp(rates)?.negative()?;
        rates.eval()?;
        let rule = DeltaRule {
            sizes: states,
            convolution: convolution(weights, name, states)?,
            rates,
            dt_bias: in_float32(&weights.take(&format!("{name}.dt_bias"), &[heads])?)?,
            beta: channels + values,
            decay: channels + values + heads,
        };
        let norm = RmsNorm::load(weights, &format!("{name}.norm"), dim, sizes.rms_norm_eps)?;
        Ok(Self { in_proj, rule, norm, out_proj })
    }

    /// Sizes of a sequence's states in this layer.
    pub(super) fn sizes(&self) -> RecurrentSizes {
        self.rule.sizes
    }

    /// `x` `[R, hidden]` → `[R, hidden]`.
    pub(super) fn apply<O: LayerOps>(
        &self,
        ops: &mut O,
        layer: usize,
        x: &O::Rows,
    ) -> Result<O::Rows> {
        let rows = ops.product(&self.in_proj, x)?;
        let values = ops.recur(layer, &self.rule, &rows)?;
        let gates = self.rule.sizes.channels() as i32;
        let gated = ops.norm_gated(&self.norm, &values, &rows, gates)?;
        ops.product(&self.out_proj, &gated)
    }
}

/// The convolution's weight `[taps, channels]`. Stored `[channels, 1, taps]` by transformers and
/// `[channels, taps, 1]` by MLX.
fn convolution(
    weights: &mut Weights,
    name: &str,
    sizes: RecurrentSizes,
) -> Result<Array, LoadError> {
    let (name, taps) = (format!("{name}.conv1d.weight"), sizes.taps as i32);
    let channels = sizes.channels() as i32;
    let shape = match weights.shape(&name).and_then(<[usize]>::last) {
        Some(1) => [channels, taps, 1],
        _ => [channels, 1, taps],
    };
    let weight = weights.take(&name, &shape)?.reshape(&[channels, taps])?;
    let by_tap = in_float32(&weight)?.transpose()?.contiguous()?;
    by_tap.eval()?;
    Ok(by_tap)
}

fn in_float32(array: &Array) -> Result<Array, LoadError> {
    let array = array.as_dtype(Dtype::Float32)?;
    array.eval()?;
    Ok(array)
}
