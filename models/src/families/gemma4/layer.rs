//! A layer of Gemma 4: norms before and after each half, experts beside the dense block, and in the
//! edge models the layer's embedding of the row's id.

use mlx_rs::Dtype;
use paceline_checkpoint::families::gemma4::LayerPlan;

use super::attention::Attention;
use super::config::{Config, LayerForm};
use crate::error::Result;
use crate::layers::{
    ExpertMlp, ExpertNames, ExpertSizes, Gate, GatedMlp, LayerOps, Linear, RmsNorm, gated_mlp,
};
use crate::load::{LoadError, Weights};

pub(in crate::families) struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    experts: Option<Experts>,
    post_feedforward_layernorm: RmsNorm,
    per_layer: Option<PerLayerBlock>,
    /// `None`: the layer's output is not multiplied by a number.
    layer_scalar: Option<f32>,
}

/// Experts beside a layer's dense block.
struct Experts {
    /// The router's norm, times its scale and hidden^-½.
    router_norm: RmsNorm,
    experts: ExpertMlp,
    /// Of the rows that the experts get.
    pre_feedforward_layernorm_2: RmsNorm,
    /// Of what the dense block gives.
    post_feedforward_layernorm_1: RmsNorm,
    /// Of what the experts give.
    post_feedforward_layernorm_2: RmsNorm,
}

/// Adds a layer's part of the per-layer embeddings to its rows, through a gate.
struct PerLayerBlock {
    per_layer_input_gate: Linear,
    per_layer_projection: Linear,
    post_per_layer_input_norm: RmsNorm,
    /// Column of the layer's part.
    column: i32,
}

impl Layer {
    pub(in crate::families) fn load(
        weights: &mut Weights,
        text: &str,
        at: usize,
        config: &Config,
    ) -> Result<Self, LoadError> {
        let (name, plan) = (format!("{text}.layers.{at}"), &config.layers[at]);
        let LayerForm { norms, scales_layers, .. } = config.form;
        let norm = |weights: &mut Weights, part: &str| {
            let name = format!("{name}.{part}");
            RmsNorm::load_stored(weights, &name, config.hidden, config.eps, norms)
        };
        let attention = format!("{name}.self_attn");
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, &attention, config, plan)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            pre_feedforward_layernorm: norm(weights, "pre_feedforward_layernorm")?,
            mlp: mlp(weights, &format!("{name}.mlp"), config, plan)?,
            experts: match config.experts {
                Some(sizes) => Some(Experts::load(weights, &name, config, sizes)?),
                None => None,
            },
            post_feedforward_layernorm: norm(weights, "post_feedforward_layernorm")?,
            per_layer: match config.per_layer {
                Some([width, _]) => {
                    Some(PerLayerBlock::load(weights, &name, config, [at as i32, width])?)
                }
                None => None,
            },
            layer_scalar: match scales_layers {
                true => Some(weights.take_number(&format!("{name}.layer_scalar"))?),
                false => None,
            },
        })
    }

    /// `x` `[R, hidden]` → the same shape. `inputs`: the rows' embeddings for all layers, if the
    /// model has per-layer embeddings.
    pub(in crate::families) fn apply<O: LayerOps>(
        &self,
        ops: &mut O,
        layer: usize,
        x: O::Rows,
        inputs: Option<&O::Rows>,
    ) -> Result<O::Rows> {
        let normed = ops.norm(&self.input_layernorm, &x)?;
        let mixed = self.self_attn.apply(ops, layer, &normed)?;
        let mixed = ops.norm(&self.post_attention_layernorm, &mixed)?;
        let x = ops.add(&x, &mixed)?;
        let normed = ops.norm(&self.pre_feedforward_layernorm, &x)?;
        let mut more = gated_mlp(ops, &self.mlp, &normed)?;
        if let Some(experts) = &self.experts {
            let dense = ops.norm(&experts.post_feedforward_layernorm_1, &more)?;
            let routed = experts.apply(ops, &x)?;
            more = ops.add(&dense, &routed)?;
        }
        let more = ops.norm(&self.post_feedforward_layernorm, &more)?;
        let mut x = ops.add(&x, &more)?;
        if let (Some(block), Some(inputs)) = (&self.per_layer, inputs) {
            x = block.apply(ops, x, inputs)?;
        }
        let x = match self.layer_scalar {
            Some(factor) => ops.scale(&x, factor)?,
            None => x,
        };
        ops.end_layer(layer, x)
    }
}

impl Experts {
    fn load(
        weights: &mut Weights,
        layer: &str,
        config: &Config,
        sizes: ExpertSizes,
    ) -> Result<Self, LoadError> {
        let router = format!("{layer}.router.proj");
        let experts =
            ExpertMlp::load_named(weights, ExpertNames { router: &router, block: layer }, sizes)?;
        let factors =
            weights.take(&format!("{layer}.router.per_expert_scale"), &[sizes.n_experts])?;
        let factors = factors.as_dtype(Dtype::Float32)?;
        factors.eval()?;
        let scale = weights.take(&format!("{layer}.router.scale"), &[config.hidden])?;
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(weights, &format!("{layer}.{part}"), config.hidden, config.eps)
        };
        Ok(Self {
            router_norm: RmsNorm::of(scale, config.eps).times((config.hidden as f32).powf(-0.5))?,
            experts: experts.with(Gate::Gelu, factors),
            pre_feedforward_layernorm_2: norm(weights, "pre_feedforward_layernorm_2")?,
            post_feedforward_layernorm_1: norm(weights, "post_feedforward_layernorm_1")?,
            post_feedforward_layernorm_2: norm(weights, "post_feedforward_layernorm_2")?,
        })
    }

    /// `x` are the rows before the norm of the dense block.
    fn apply<O: LayerOps>(&self, ops: &mut O, x: &O::Rows) -> Result<O::Rows> {
        let routed = ops.norm(&self.router_norm, x)?;
        let normed = ops.norm(&self.pre_feedforward_layernorm_2, x)?;
        let out = ops.experts(&self.experts, &routed, &normed)?;
        ops.norm(&self.post_feedforward_layernorm_2, &out)
    }
}

impl PerLayerBlock {
    fn load(
        weights: &mut Weights,
        layer: &str,
        config: &Config,
        [at, width]: [i32; 2],
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("{layer}.{part}");
        let hidden = config.hidden;
        Ok(Self {
            per_layer_input_gate: Linear::load(
                weights,
                &name("per_layer_input_gate"),
                width,
                hidden,
                false,
            )?,
            per_layer_projection: Linear::load(
                weights,
                &name("per_layer_projection"),
                hidden,
                width,
                false,
            )?,
            post_per_layer_input_norm: RmsNorm::load(
                weights,
                &name("post_per_layer_input_norm"),
                hidden,
                config.eps,
            )?,
            column: at * width,
        })
    }

    fn apply<O: LayerOps>(&self, ops: &mut O, x: O::Rows, inputs: &O::Rows) -> Result<O::Rows> {
        let gate = ops.product(&self.per_layer_input_gate, &x)?;
        let gated = ops.gated_by(&gate, Gate::Gelu, inputs, self.column)?;
        let projected = ops.product(&self.per_layer_projection, &gated)?;
        let normed = ops.norm(&self.post_per_layer_input_norm, &projected)?;
        ops.add(&x, &normed)
    }
}

fn mlp(
    weights: &mut Weights,
    name: &str,
    config: &Config,
    plan: &LayerPlan,
) -> Result<GatedMlp, LoadError> {
    let mlp = GatedMlp::load(weights, name, config.hidden, plan.intermediate, false)?;
    Ok(mlp.gated_by(Gate::Gelu))
}
