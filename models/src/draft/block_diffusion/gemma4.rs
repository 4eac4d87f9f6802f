//! A backbone's layer of Gemma 4's form, with norms before and after each half, and the choice
//! between the forms. Source of the arithmetic: deepseek-ai/DeepSpec,
//! `modeling/dspark/gemma4/modeling.py`.

use mlx_rs::Array;

use super::{Attention, AttentionWindow, BlockLayer, Config, Layer, LayerForm, Step};
use crate::error::Result;
use crate::kv::KvStore;
use crate::layers::{Gate, GatedMlp, RmsNorm};
use crate::load::{LoadError, Weights};

/// The kind of Gemma's layers that a drafter has, in the rotary keys.
pub(super) const KIND: &str = "full_attention";

/// A layer of Gemma 4's form. Field names are the checkpoint's tensor names.
pub(in crate::draft) struct GemmaLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    post_feedforward_layernorm: RmsNorm,
    layer_scalar: f32,
}

impl GemmaLayer {
    fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        attention: AttentionWindow,
        bits: Option<i32>,
    ) -> Result<Self, LoadError> {
        let Config { hidden_size: hidden, intermediate_size: width, rms_norm_eps: eps, .. } =
            *config;
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(weights, &format!("{name}.{part}"), hidden, eps)
        };
        let self_attn = format!("{name}.self_attn");
        let mlp = GatedMlp::load(weights, &format!("{name}.mlp"), hidden, width, false)?;
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, &self_attn, config, attention, bits)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            pre_feedforward_layernorm: norm(weights, "pre_feedforward_layernorm")?,
            mlp: mlp.gated_by(Gate::Gelu).quantized(bits)?,
            post_feedforward_layernorm: norm(weights, "post_feedforward_layernorm")?,
            layer_scalar: weights.take_number(&format!("{name}.layer_scalar"))?,
        })
    }
}

impl BlockLayer for GemmaLayer {
    fn forward(&self, layer: usize, x: &Array, step: &Step, kv: &mut KvStore) -> Result<Array> {
        let mixed = self.self_attn.forward(layer, &self.input_layernorm.forward(x)?, step, kv)?;
        let x = x.add(self.post_attention_layernorm.forward(&mixed)?)?;
        let more = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&x)?)?;
        let x = x.add(self.post_feedforward_layernorm.forward(&more)?)?;
        let scalar = Array::from_f32(self.layer_scalar).as_dtype(x.dtype())?;
        Ok(x.multiply(scalar)?)
    }

    fn attention(&self) -> &Attention {
        &self.self_attn
    }
}

/// A layer of the form that the config names.
pub(in crate::draft) enum LayerOfForm {
    Qwen3(Layer),
    Gemma4(GemmaLayer),
}

impl LayerOfForm {
    /// Reads the tensors whose names begin with `name`.
    pub(in crate::draft) fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        attention: AttentionWindow,
        bits: Option<i32>,
    ) -> Result<Self, LoadError> {
        match config.form {
            LayerForm::Qwen3 => {
                Layer::load(weights, name, config, attention, bits).map(Self::Qwen3)
            }
            LayerForm::Gemma4 { .. } => {
                GemmaLayer::load(weights, name, config, attention, bits).map(Self::Gemma4)
            }
        }
    }
}

impl BlockLayer for LayerOfForm {
    fn forward(&self, layer: usize, x: &Array, step: &Step, kv: &mut KvStore) -> Result<Array> {
        match self {
            Self::Qwen3(of) => of.forward(layer, x, step, kv),
            Self::Gemma4(of) => of.forward(layer, x, step, kv),
        }
    }

    fn attention(&self) -> &Attention {
        match self {
            Self::Qwen3(of) => of.attention(),
            Self::Gemma4(of) => of.attention(),
        }
    }
}
