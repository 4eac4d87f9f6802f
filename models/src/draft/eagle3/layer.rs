//! The one layer of an EAGLE-3 drafter, and what it reads of its target. Features → attention →
//! layer. R rows. Field names are the checkpoint's tensor names.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::config::{Config, FeatureNorm};
use crate::error::Result;
use crate::families::{Attention, AttentionSpec, HeadNorms};
use crate::kv::KvStore;
use crate::layers::{GatedMlp, Linear, NormWeight, RmsNorm, RopeTables, last_rows};
#[cfg(target_os = "linux")]
use crate::layers::{LayerOps, Recorder, Value, gated_mlp};
use crate::load::{LoadError, Weights};
use crate::segment::QuerySegments;

/// The projection of the target's hidden states.
pub(super) struct Features {
    /// One for all layers together, one for each, or none.
    norms: Vec<RmsNorm>,
    fc: Linear,
}

impl Features {
    pub(super) fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden_size, target_hidden_size: each, rms_norm_eps, .. } = *config;
        let count = config.feature_layers.len() as i32;
        let mut norm = |name: String, size| RmsNorm::load(weights, &name, size, rms_norm_eps);
        let norms = match config.feature_norm {
            FeatureNorm::None => vec![],
            FeatureNorm::Whole => vec![norm("input_norm".into(), count * each)?],
            FeatureNorm::Each => {
                let norms = (0..count).map(|at| norm(format!("fc_norm.{at}"), each));
                norms.collect::<Result<_, _>>()?
            }
        };
        Ok(Self { norms, fc: Linear::load(weights, "fc", hidden_size, count * each, false)? })
    }

    /// As [`Self::forward`], of the hidden states that a pass is given.
    #[cfg(target_os = "linux")]
    pub(super) fn record(&self, ops: &mut Recorder, inputs: usize) -> Result<Value> {
        let width = inputs / self.norms.len().max(1);
        let parts = (0..inputs / width).map(|at| ops.given(at * width..(at + 1) * width));
        let mut parts: Vec<Value> = parts.collect();
        for (norm, part) in self.norms.iter().zip(&mut parts) {
            *part = ops.norm(norm, part)?;
        }
        let normed = ops.beside(&parts);
        ops.product(&self.fc, &normed)
    }

    /// Hidden states `[R, layers · target's hidden]` → `[R, hidden]`.
    pub(super) fn forward(&self, states: &Array) -> Result<Array> {
        let normed = match self.norms.as_slice() {
            [] => states.clone(),
            [whole] => whole.forward(states)?,
            each => {
                let parts = states.split_equal(each.len() as i32, 1)?;
                let parts = each.iter().zip(&parts).map(|(norm, part)| norm.forward(part));
                concatenate(&parts.collect::<Result<Vec<_>>>()?, 1)?
            }
        };
        self.fc.forward(&normed)
    }
}

/// The layer. Its input is an embedding and a hidden state, each with a norm of its own.
pub(super) struct Layer {
    input_layernorm: RmsNorm,
    hidden_norm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    norm_before_residual: bool,
}

impl Layer {
    pub(super) fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden_size, intermediate_size, mlp_bias, rms_norm_eps, .. } = *config;
        let bias = config.attention_bias;
        let spec = AttentionSpec {
            // Embedding and hidden state side by side.
            inputs: 2,
            qkv_bias: bias,
            output_bias: bias,
            head_norms: match config.head_norms {
                true => HeadNorms::BeforeRotation,
                false => HeadNorms::None,
            },
            ..AttentionSpec::PLAIN
        };
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(weights, &format!("layers.0.{part}"), hidden_size, rms_norm_eps)
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            hidden_norm: norm(weights, "hidden_norm")?,
            self_attn: Attention::load(
                weights,
                "layers.0.self_attn",
                config.sizes(),
                spec,
                NormWeight::Whole,
            )?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: GatedMlp::load(weights, "layers.0.mlp", hidden_size, intermediate_size, mlp_bias)?,
            norm_before_residual: config.norm_before_residual,
        })
    }

    /// As [`Self::forward`], for rows that all attend.
    #[cfg(target_os = "linux")]
    pub(super) fn record(
        &self,
        ops: &mut Recorder,
        embeddings: &Value,
        hidden: &Value,
    ) -> Result<Value> {
        let normed = ops.norm(&self.hidden_norm, hidden)?;
        let embedded = ops.norm(&self.input_layernorm, embeddings)?;
        let both = ops.beside(&[embedded, normed]);
        let attended = self.self_attn.apply(ops, 0, &both)?;
        let residual = if self.norm_before_residual { &normed } else { hidden };
        let x = ops.add(residual, &attended)?;
        let normed = ops.norm(&self.post_attention_layernorm, &x)?;
        let more = gated_mlp(ops, &self.mlp, &normed)?;
        ops.add(&x, &more)
    }

    /// `embeddings` and `hidden` `[R, hidden]` → `[queries, hidden]`, before the final norm; `None`
    /// without queries.
    pub(super) fn forward(
        &self,
        embeddings: &Array,
        hidden: &Array,
        rows: &QuerySegments,
        rope: &RopeTables,
        kv: &mut KvStore,
    ) -> Result<Option<Array>> {
        let normed = self.hidden_norm.forward(hidden)?;
        let x = concatenate(&[&self.input_layernorm.forward(embeddings)?, &normed], 1)?;
        let attended = self.self_attn.forward_queries(0, &x, rope, kv, rows)?;
        let Some(attended) = attended else { return Ok(None) };
        let residual = if self.norm_before_residual { &normed } else { hidden };
        let x = last_rows(residual, attended.dim(0))?.add(&attended)?;
        Ok(Some(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?))
    }
}
