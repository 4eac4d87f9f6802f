//! Attention over all rows of a sequence: projections, norms and turns of heads, and a gate for each
//! head where a family has one. R rows of a batch · H heads · D head_dim.

use mlx_rs::Array;

use super::decoder::Sizes;
use crate::error::Result;
use crate::kv::{AttentionParams, KvStore};
use crate::layers::{HeadNorm, HeadRows, Linear, NormWeight, RopeTables, TurnedHeads, gate_heads};
use crate::load::{LoadError, Weights};
use crate::segment::Segment;

/// What a family's attention has beside the four projections.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionSpec {
    /// Biases of q_proj, k_proj and v_proj.
    pub(super) qkv_bias: bool,
    /// A bias of o_proj.
    pub(super) output_bias: bool,
    /// q_norm and k_norm: queries and keys are normed per head before they are turned.
    pub(super) head_norms: bool,
    /// q_proj gives each head a query and then a gate. What the head attended to is multiplied by
    /// the gate's sigmoid. Only together with `head_norms`.
    pub(super) gated: bool,
}

pub(super) struct Attention {
    /// Heads of D: queries (each with its gate behind it), keys, values.
    qkv_proj: Linear,
    o_proj: Linear,
    /// q_norm for the query heads, k_norm for the key heads.
    qk_norm: Option<HeadNorm>,
    sizes: Sizes,
    gated: bool,
}

impl Attention {
    pub(super) fn load(
        weights: &mut Weights,
        name: &str,
        sizes: Sizes,
        spec: AttentionSpec,
        norms: NormWeight,
    ) -> Result<Self, LoadError> {
        let Sizes { n_heads, n_kv_heads, head_dim, hidden_size, .. } = sizes;
        let [q, k, v, o] =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("{name}.{part}"));
        let (wide, narrow) = (n_heads * head_dim, n_kv_heads * head_dim);
        let q_rows = if spec.gated { 2 * wide } else { wide };
        let qkv = [(q.as_str(), q_rows), (&k, narrow), (&v, narrow)];
        let [q_norm, k_norm] = ["q_norm", "k_norm"].map(|part| format!("{name}.{part}"));
        let heads = [(q_norm.as_str(), n_heads), (&k_norm, n_kv_heads)];
        // The projections first: their shapes say whether the checkpoint has so many heads.
        let qkv_proj = Linear::load_joined(weights, &qkv, hidden_size, spec.qkv_bias)?;
        let o_proj = Linear::load(weights, &o, hidden_size, wide, spec.output_bias)?;
        let qk_norm = match spec.head_norms {
            true => {
                let eps = sizes.rms_norm_eps;
                let norm = HeadNorm::load_stored(weights, &heads, head_dim, eps, norms)?;
                Some(if spec.gated { norm.of_heads(beside_gates(sizes)) } else { norm })
            }
            false => None,
        };
        Ok(Self { qkv_proj, o_proj, qk_norm, sizes, gated: spec.gated })
    }

    /// `x` `[R, hidden]` → `[R, hidden]`: queries and keys are turned by their positions.
    pub(super) fn forward(
        &self,
        layer: usize,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        segments: &[Segment],
    ) -> Result<Array> {
        let Sizes { n_heads, n_kv_heads, head_dim, .. } = self.sizes;
        let first_key = if self.gated { 2 * n_heads } else { n_heads };
        let first_value = first_key + n_kv_heads;
        let all = first_value + n_kv_heads;
        let qkv = self.qkv_proj.forward(x)?.reshape(&[x.dim(0), all, head_dim])?;
        let qk = match &self.qk_norm {
            Some(norm) => norm.forward(&qkv, rope)?,
            None => rope.apply_to(&qkv, n_heads + n_kv_heads)?,
        };
        let turned = n_heads + n_kv_heads;
        let (queries, keys) = (HeadRows::new(&qk, 0..n_heads), HeadRows::new(&qk, n_heads..turned));
        let values = HeadRows::new(&qkv, first_value..all);
        let params =
            AttentionParams { scale: (head_dim as f32).powf(-0.5), ..AttentionParams::default() };
        let attended = kv.attend(layer, queries, keys, values, params, segments)?;
        self.o_proj.forward(&if self.gated { gate_heads(&attended, &qkv)? } else { attended })
    }
}

/// Places of queries and keys in a row whose queries have their gates behind them.
fn beside_gates(Sizes { n_heads, n_kv_heads, .. }: Sizes) -> TurnedHeads {
    let queries = (0..n_heads).map(|head| 2 * head);
    TurnedHeads::Places(queries.chain(2 * n_heads..2 * n_heads + n_kv_heads).collect())
}
