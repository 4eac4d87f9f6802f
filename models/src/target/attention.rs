//! Attention over all rows of a sequence: projections, norms and turns of heads, and a gate for each
//! head where a family has one. R rows of a batch · H heads · D head_dim.

use mlx_rs::Array;

use super::sizes::Sizes;
use crate::error::Result;
use crate::kv::{AttentionParams, KvStore};
use crate::layers::{
    HeadNorm, HeadRows, Linear, NormWeight, RopeTables, TurnedHeads, gate_heads, last_rows,
};
use crate::load::{LoadError, Weights};
use crate::segment::{QuerySegments, Segment};

/// Features of a family's attention beside the four projections.
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
        // The projections first: their shapes tell whether the checkpoint has this number of heads.
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
        let all = self.project(x, rope)?;
        let params = AttentionParams { scale: self.scale(), ..AttentionParams::default() };
        let (keys, values) = (self.keys(&all), self.values(&all));
        let attended = kv.attend(layer, self.queries(&all), keys, values, params, segments)?;
        self.output(attended, &all)
    }

    /// Attention for rows that do not all attend → `[queries, hidden]`, `None` without queries.
    ///
    /// The other rows' queries are computed and left unused, because one product gives queries, keys
    /// and values. That matters for prompts alone, where a target computes many more layers.
    pub(super) fn forward_queries(
        &self,
        layer: usize,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        rows: &QuerySegments,
    ) -> Result<Option<Array>> {
        let all = self.project(x, rope)?;
        let (keys, values) = (self.keys(&all), self.values(&all));
        let queries = Some(rows.queries.as_slice());
        let count = rows.count();
        if count == 0 {
            kv.write(layer, keys, values, queries, &rows.segments)?;
            return Ok(None);
        }
        let attending =
            Projected { qkv: last_rows(&all.qkv, count)?, qk: last_rows(&all.qk, count)? };
        let params = AttentionParams { scale: self.scale(), queries, both_ways: false };
        let queries = self.queries(&attending);
        let attended = kv.attend(layer, queries, keys, values, params, &rows.segments)?;
        self.output(attended, &attending).map(Some)
    }

    fn project(&self, x: &Array, rope: &RopeTables) -> Result<Projected> {
        let Sizes { n_heads, n_kv_heads, head_dim, .. } = self.sizes;
        let heads = self.first_value() + n_kv_heads;
        let qkv = self.qkv_proj.forward(x)?.reshape(&[x.dim(0), heads, head_dim])?;
        let qk = match &self.qk_norm {
            Some(norm) => norm.forward(&qkv, rope)?,
            None => rope.apply_to(&qkv, n_heads + n_kv_heads)?,
        };
        Ok(Projected { qkv, qk })
    }

    fn queries<'a>(&self, rows: &'a Projected) -> HeadRows<'a> {
        HeadRows::new(&rows.qk, 0..self.sizes.n_heads)
    }

    fn keys<'a>(&self, rows: &'a Projected) -> HeadRows<'a> {
        let Sizes { n_heads, n_kv_heads, .. } = self.sizes;
        HeadRows::new(&rows.qk, n_heads..n_heads + n_kv_heads)
    }

    fn values<'a>(&self, rows: &'a Projected) -> HeadRows<'a> {
        let first = self.first_value();
        HeadRows::new(&rows.qkv, first..first + self.sizes.n_kv_heads)
    }

    /// `attended` `[queries, heads · D]` of these rows → `[queries, hidden]`.
    fn output(&self, attended: Array, rows: &Projected) -> Result<Array> {
        let gated = if self.gated { gate_heads(&attended, &rows.qkv)? } else { attended };
        self.o_proj.forward(&gated)
    }

    /// Place of the first head of values among those of a projected row.
    fn first_value(&self) -> i32 {
        let Sizes { n_heads, n_kv_heads, .. } = self.sizes;
        n_kv_heads + if self.gated { 2 * n_heads } else { n_heads }
    }

    /// Factor on products of queries and keys.
    fn scale(&self) -> f32 {
        (self.sizes.head_dim as f32).powf(-0.5)
    }
}

/// Rows after their projection.
struct Projected {
    /// `[R, heads of queries, gates, keys and values, D]`.
    qkv: Array,
    /// Queries and keys, normed and turned `[R, H + heads of keys, D]`.
    qk: Array,
}

/// Places of queries and keys in a row whose queries have their gates behind them.
fn beside_gates(Sizes { n_heads, n_kv_heads, .. }: Sizes) -> TurnedHeads {
    let queries = (0..n_heads).map(|head| 2 * head);
    TurnedHeads::Places(queries.chain(2 * n_heads..2 * n_heads + n_kv_heads).collect())
}
