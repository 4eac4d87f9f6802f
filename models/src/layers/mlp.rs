//! Gated feed-forward: down(silu(gate(x)) · up(x)) (arXiv 2002.05202).

use mlx_rs::{Array, ops};

use super::{Linear, gate_kernel, host};
use crate::error::Result;
use crate::load::{LoadError, Weights};

/// The SwiGLU block of Llama and Qwen.
#[derive(Debug)]
pub(crate) struct GatedMlp {
    pub(super) gate_up: Linear,
    pub(super) down: Linear,
}

impl GatedMlp {
    /// Reads `{name}.{gate,up,down}_proj`, all three with a bias or none.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        hidden: i32,
        intermediate: i32,
        bias: bool,
    ) -> Result<Self, LoadError> {
        let (gate, up) = (format!("{name}.gate_proj"), format!("{name}.up_proj"));
        Ok(Self {
            gate_up: Linear::load_joined(
                weights,
                &[(&gate, intermediate), (&up, intermediate)],
                hidden,
                bias,
            )?,
            down: Linear::load(weights, &format!("{name}.down_proj"), hidden, intermediate, bias)?,
        })
    }

    /// The layer with its weights quantized as [`Linear::quantized`] does.
    pub(crate) fn quantized(self, bits: Option<i32>) -> Result<Self, LoadError> {
        Ok(Self { gate_up: self.gate_up.quantized(bits)?, down: self.down.quantized(bits)? })
    }

    /// `x` `[rows, hidden]` → the same shape.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        self.down.forward(&gated(&self.gate_up.forward(x)?)?)
    }
}

/// silu(gate) · up of `both` `[rows, 2 · width]`, gate first → `[rows, width]`.
pub(crate) fn gated(both: &Array) -> Result<Array> {
    if let Some(gated) = host::gated(both)? {
        return Ok(gated);
    }
    if let Some(gated) = gate_kernel::gated(both)? {
        return Ok(gated);
    }
    let halves = both.split_equal(2, 1)?;
    let silu = halves[0].multiply(ops::sigmoid(&halves[0])?)?;
    let gated = silu.multiply(&halves[1])?;
    gate_kernel::counted(&gated, both)?;
    Ok(gated)
}
