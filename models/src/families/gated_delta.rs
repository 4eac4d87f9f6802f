//! Gated DeltaNet (arXiv 2412.06464) as in Qwen3.5: projections of a row, a convolution over the
//! rows before, for each value head a state that decays and learns, and a gated norm. R rows of a
//! batch.

use mlx_rs::ops::exp;
use mlx_rs::{Array, Dtype};
use paceline_checkpoint::RecurrentSizes;
use paceline_checkpoint::families::Sizes;

use crate::device::on_gpu;
use crate::error::Result;
use crate::layers::{DeltaRule, LayerOps, Linear, RmsNorm};
use crate::load::{LoadError, Weights};

pub(super) struct GatedDelta {
    /// in_proj_qkv, in_proj_z, in_proj_b and in_proj_a: their outputs lie side by side. One product,
    /// or two: see [`joins_all`].
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
        let (wide, narrow) =
            ([(qkv.as_str(), channels), (&z, values)], [(&*b, heads), (&a, heads)]);
        let hidden = sizes.hidden_size;
        // The projections first: their shapes say whether the checkpoint has such heads.
        let in_proj = match joins_all(channels + values + 2 * heads, on_cuda()) {
            true => Linear::load_joined(weights, &[wide, narrow].concat(), hidden, false)?,
            false => Linear::load_joined(weights, &wide, hidden, false)?
                .beside(Linear::load_joined(weights, &narrow, hidden, false)?),
        };
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

/// MLX's kernel for quantized products of 8 rows and more on CUDA takes outputs in multiples of this
/// number; others go to a naive kernel. Source: mlx, `qmm_sm80` in `backend/cuda/quantized`.
const CUDA_OUTPUTS: i32 = 128;

/// Whether the projections of a row with `outputs` numbers in all are one product. On CUDA the few
/// numbers of b and a may keep the many of qkv and z from the fast kernel: then b and a are a product
/// of their own.
fn joins_all(outputs: i32, on_cuda: bool) -> bool {
    !on_cuda || outputs % CUDA_OUTPUTS == 0
}

fn on_cuda() -> bool {
    on_gpu() && !cfg!(target_os = "macos")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_cuda_the_many_outputs_of_known_models_are_a_product_in_whole_multiples() {
        // Value heads of Qwen3.5's models, 16 key heads, heads of 128 numbers; and whether all
        // projections are one product on CUDA.
        let models = [(16, false), (32, false), (48, false), (64, true)];
        for (value_heads, joined) in models {
            let sizes = RecurrentSizes {
                key_heads: 16,
                value_heads,
                key_dim: 128,
                value_dim: 128,
                taps: 4,
            };
            let [channels, values, heads] =
                [sizes.channels(), sizes.values(), value_heads].map(|size| size as i32);
            let outputs = channels + values + 2 * heads;
            assert_eq!(joins_all(outputs, true), joined, "{outputs} outputs");
            assert!(joins_all(outputs, false), "elsewhere one product serves any number");
            let widest = if joined { outputs } else { channels + values };
            assert_eq!(widest % CUDA_OUTPUTS, 0, "{widest} outputs");
        }
        let outputs = |value_heads: i32| 4096 + 2 * 128 * value_heads + 2 * value_heads;
        assert_eq!([outputs(48), outputs(32)], [16_480, 12_352], "27B and 9B");
    }
}
