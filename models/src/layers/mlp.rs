//! Gated feed-forward: down(act(gate(x)) · up(x)) (arXiv 2002.05202).

use mlx_rs::Array;

use super::{Gate, Linear, activated, gate_kernel, host};
use crate::error::Result;
use crate::load::{LoadError, Weights};

/// The gated block of Llama and Qwen (silu) and of Gemma (gelu).
#[derive(Debug)]
pub(crate) struct GatedMlp {
    pub(super) gate_up: Linear,
    pub(super) down: Linear,
    pub(super) gate: Gate,
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
            gate: Gate::Silu,
        })
    }

    /// Reads `{name}.gate_up_proj`, the gate's outputs first, and `{name}.down_proj`, both without a
    /// bias.
    pub(crate) fn load_fused(
        weights: &mut Weights,
        name: &str,
        hidden: i32,
        intermediate: i32,
    ) -> Result<Self, LoadError> {
        let [both, down] = ["gate_up_proj", "down_proj"].map(|part| format!("{name}.{part}"));
        Ok(Self {
            gate_up: Linear::load(weights, &both, 2 * intermediate, hidden, false)?,
            down: Linear::load(weights, &down, hidden, intermediate, false)?,
            gate: Gate::Silu,
        })
    }

    /// The block with another activation.
    pub(crate) fn gated_by(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    /// The layer with its weights quantized as [`Linear::quantized`] does.
    pub(crate) fn quantized(self, bits: Option<i32>) -> Result<Self, LoadError> {
        let (gate_up, down) = (self.gate_up.quantized(bits)?, self.down.quantized(bits)?);
        Ok(Self { gate_up, down, ..self })
    }

    /// `x` `[rows, hidden]` → the same shape.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        self.down.forward(&gated(&self.gate_up.forward(x)?, self.gate)?)
    }
}

/// act(gate) · up of `both` `[rows, 2 · width]`, gate first → `[rows, width]`.
pub(crate) fn gated(both: &Array, gate: Gate) -> Result<Array> {
    if let Some(gated) = host::gated(both, gate)? {
        return Ok(gated);
    }
    if gate == Gate::Silu
        && let Some(gated) = gate_kernel::gated(both)?
    {
        return Ok(gated);
    }
    let halves = both.split_equal(2, 1)?;
    let gated = activated(gate, &halves[0])?.multiply(&halves[1])?;
    if gate == Gate::Silu {
        gate_kernel::counted(&gated, both)?;
    }
    Ok(gated)
}
