//! Attention of a Gemma layer: normed heads of queries and keys, in Gemma 4 of values as well; values
//! that are the keys' projections; keys and values of an earlier layer.

use paceline_checkpoint::families::gemma4::{AttentionSizes, LayerPlan};

use super::config::{Config, LayerForm};
use crate::error::Result;
use crate::layers::{AttentionHeads, HeadNorm, HeadRotation, LayerOps, Linear, RmsNorm};
use crate::load::{LoadError, Weights};

pub(super) struct Attention {
    /// Heads of queries; then, without `shares`, of keys, and of values that are not the keys.
    qkv_proj: Linear,
    o_proj: Linear,
    /// q_norm and k_norm.
    rotation: HeadRotation,
    /// The norm of values, without a weight; `None`: they have none.
    v_norm: Option<RmsNorm>,
    /// Heads of values among the projected ones.
    values: std::ops::Range<i32>,
    heads: AttentionHeads,
    /// Number of the rotation.
    rope: usize,
    shares: Option<usize>,
}

impl Attention {
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        config: &Config,
        layer: &LayerPlan,
    ) -> Result<Self, LoadError> {
        let AttentionSizes { n_heads, n_kv, head_dim, k_eq_v, .. } = config.attention_of(layer);
        let [q, k, v, o] =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("{name}.{part}"));
        let [q_norm, k_norm] = ["q_norm", "k_norm"].map(|part| format!("{name}.{part}"));
        let (wide, narrow) = (n_heads * head_dim, n_kv * head_dim);
        let mut projected = vec![(q.as_str(), wide)];
        let mut normed = vec![(q_norm.as_str(), n_heads)];
        if layer.shares.is_none() {
            projected.push((&k, narrow));
            normed.push((&k_norm, n_kv));
            if !k_eq_v {
                projected.push((&v, narrow));
            }
        } else {
            // Some exporters write what the layer does not use.
            [&k, &v].iter().for_each(|module| weights.skip(module));
            weights.skip(&k_norm);
        }
        // The projections first: their shapes tell whether the checkpoint has this number of heads.
        let qkv_proj = Linear::load_joined(weights, &projected, config.hidden, false)?;
        let first_value = if k_eq_v { n_heads } else { n_heads + n_kv };
        let values = first_value..first_value + n_kv;
        let LayerForm { norms, score_scale, norms_values, .. } = config.form;
        Ok(Self {
            qkv_proj,
            o_proj: Linear::load(weights, &o, config.hidden, wide, false)?,
            rotation: HeadRotation::Normed(HeadNorm::load_stored(
                weights, &normed, head_dim, config.eps, norms,
            )?),
            v_norm: match norms_values {
                true => Some(RmsNorm::without_weight(head_dim, config.eps)?),
                false => None,
            },
            values: values.clone(),
            heads: AttentionHeads {
                queries: 0..n_heads,
                keys: n_heads..n_heads + n_kv,
                values: if norms_values { 0..n_kv } else { values },
                dim: head_dim,
                scale: score_scale,
            },
            rope: layer.kind,
            shares: layer.shares,
        })
    }

    /// `x` `[R, hidden]` → `[R, hidden]`.
    pub(super) fn apply<O: LayerOps>(
        &self,
        ops: &mut O,
        layer: usize,
        x: &O::Rows,
    ) -> Result<O::Rows> {
        let dim = self.heads.dim;
        let qkv = ops.product(&self.qkv_proj, x)?;
        let qkv = ops.heads(&qkv, dim)?;
        let rotated = ops.rotate(&self.rotation, self.rope, &qkv, dim)?;
        let attended = match self.shares {
            Some(of) => ops.attend_shared(of, &self.heads, &rotated)?,
            None => match &self.v_norm {
                Some(norm) => {
                    let values = ops.norm_heads(norm, &self.values, &qkv)?;
                    ops.attend(layer, &self.heads, &rotated, &values)?
                }
                None => ops.attend(layer, &self.heads, &rotated, &qkv)?,
            },
        };
        ops.product(&self.o_proj, &attended)
    }
}
