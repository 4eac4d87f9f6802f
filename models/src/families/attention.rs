//! Attention over all rows of a sequence: projections, norms and rotations of heads, and a gate for each
//! head where a family has one. R rows of a batch · H heads · D head_dim.

use mlx_rs::Array;
use paceline_checkpoint::families::Sizes;

use crate::error::Result;
use crate::kv::{AttentionParams, KvStore};
use crate::layers::{
    AttentionHeads, HeadNorm, HeadRotation, HeadRows, LayerOps, Linear, NormWeight, RopeTables,
    RotatedHeads, gate_heads, last_rows,
};
use crate::load::{LoadError, Weights};
use crate::segment::QuerySegments;

/// Norms of the heads of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    None,
    /// q_norm and k_norm, before the heads are rotated.
    BeforeRotation,
    /// query_layernorm and key_layernorm, after the heads are rotated. Not together with gates.
    AfterRotation,
}

/// Features of a family's attention beside the four projections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionSpec {
    /// Hidden states side by side in a row that is read.
    pub(crate) inputs: i32,
    /// Biases of q_proj, k_proj and v_proj.
    pub(crate) qkv_bias: bool,
    /// A bias of o_proj.
    pub(crate) output_bias: bool,
    pub(crate) head_norms: HeadNorms,
    /// q_proj gives each head a query and then a gate. What the head attended to is multiplied by
    /// the gate's sigmoid. Only together with norms before the rotation.
    pub(crate) gated: bool,
    /// The elements of a head that rotate together.
    pub(crate) pairs: RotatedPairs,
    /// Whether heads rotate by their positions. Heads that do not have no norms.
    pub(crate) rotates: bool,
}

impl AttentionSpec {
    /// Four projections without biases.
    pub(crate) const PLAIN: Self = Self {
        inputs: 1,
        qkv_bias: false,
        output_bias: false,
        head_norms: HeadNorms::None,
        gated: false,
        pairs: RotatedPairs::Halves,
        rotates: true,
    };
}

/// The pairs of the R elements of a head that rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RotatedPairs {
    /// Numbers i and i + R/2.
    Halves,
    /// Elements 2i and 2i + 1 of the first R elements rotate together. The value is R. The rows of
    /// the projections are read in the order of halves: a score is a sum over a head's elements,
    /// and queries and keys get the same order. Not together with `gated` and norms of heads.
    Neighbours(i32),
}

impl RotatedPairs {
    /// Reads queries, keys and values as one linear.
    fn load(
        self,
        weights: &mut Weights,
        parts: &[(&str, i32)],
        sizes: Sizes,
        input: i32,
        bias: bool,
    ) -> Result<Linear, LoadError> {
        match self {
            Self::Halves => Linear::load_joined(weights, parts, input, bias),
            Self::Neighbours(rotary_dim) => {
                let order = || in_halves(rotary_dim, sizes);
                Linear::load_ordered(weights, parts, input, bias, Some(&order))
            }
        }
    }
}

/// The place in the checkpoint of each row of queries, keys and values, if of each head that rotates
/// neighbours among the first `rotary_dim` numbers make a pair.
fn in_halves(rotary_dim: i32, Sizes { n_heads, n_kv_heads, head_dim, .. }: Sizes) -> Vec<i32> {
    let of_head = |head: i32| {
        let rotated = (0..rotary_dim).step_by(2).chain((1..rotary_dim).step_by(2));
        rotated.chain(rotary_dim..head_dim).map(move |number| head * head_dim + number)
    };
    let rotated = n_heads + n_kv_heads;
    let values = rotated * head_dim..(rotated + n_kv_heads) * head_dim;
    (0..rotated).flat_map(of_head).chain(values).collect()
}

pub(crate) struct Attention {
    /// Heads of D: queries (each with its gate behind it), keys, values.
    qkv_proj: Linear,
    o_proj: Linear,
    /// With a norm for the query heads and one for the key heads.
    /// `None`: they do not rotate.
    rotation: Option<HeadRotation>,
    heads: AttentionHeads,
    gated: bool,
}

impl Attention {
    pub(crate) fn load(
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
        // The projections first: their shapes tell whether the checkpoint has this number of heads.
        let input = spec.inputs * hidden_size;
        let qkv_proj = spec.pairs.load(weights, &qkv, sizes, input, spec.qkv_bias)?;
        let o_proj = Linear::load(weights, &o, hidden_size, wide, spec.output_bias)?;
        let mut norm = |parts: [&str; 2]| {
            let [q_norm, k_norm] = parts.map(|part| format!("{name}.{part}"));
            let normed = [(q_norm.as_str(), n_heads), (&k_norm, n_kv_heads)];
            HeadNorm::load_stored(weights, &normed, head_dim, sizes.rms_norm_eps, norms)
        };
        let rotation = match spec.head_norms {
            HeadNorms::None if !spec.rotates => None,
            HeadNorms::None => Some(HeadRotation::Plain(n_heads + n_kv_heads)),
            HeadNorms::BeforeRotation => {
                let norm = norm(["q_norm", "k_norm"])?;
                Some(HeadRotation::Normed(match spec.gated {
                    true => norm.of_heads(beside_gates(sizes)),
                    false => norm,
                }))
            }
            HeadNorms::AfterRotation => {
                Some(HeadRotation::ThenNormed(norm(["query_layernorm", "key_layernorm"])?))
            }
        };
        let first_value = n_kv_heads + if spec.gated { 2 * n_heads } else { n_heads };
        let heads = AttentionHeads {
            queries: 0..n_heads,
            keys: n_heads..n_heads + n_kv_heads,
            values: first_value..first_value + n_kv_heads,
            dim: head_dim,
            scale: (head_dim as f32).powf(-0.5),
        };
        Ok(Self { qkv_proj, o_proj, rotation, heads, gated: spec.gated })
    }

    /// `x` `[R, inputs · hidden]` → `[R, hidden]`: queries and keys are rotated by their positions,
    /// if they rotate.
    pub(crate) fn apply<O: LayerOps>(
        &self,
        ops: &mut O,
        layer: usize,
        x: &O::Rows,
    ) -> Result<O::Rows> {
        let dim = self.heads.dim;
        let qkv = ops.product(&self.qkv_proj, x)?;
        let qkv = ops.heads(&qkv, dim)?;
        let qk = match &self.rotation {
            Some(rotation) => ops.rotate(rotation, 0, &qkv, dim)?,
            None => qkv.clone(),
        };
        let attended = ops.attend(layer, &self.heads, &qk, &qkv)?;
        let gated = match self.gated {
            true => ops.gate_heads(&attended, &qkv, dim)?,
            false => attended,
        };
        ops.product(&self.o_proj, &gated)
    }

    /// Attention for rows that do not all attend → `[queries, hidden]`, `None` without queries.
    ///
    /// The other rows' queries are computed and left unused, because one product gives queries, keys
    /// and values. That matters for prompts alone, where a target computes many more layers.
    pub(crate) fn forward_queries(
        &self,
        layer: usize,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        rows: &QuerySegments,
    ) -> Result<Option<Array>> {
        let heads = &self.heads;
        let qkv = self.qkv_proj.forward(x)?.reshape(&[x.dim(0), -1, heads.dim])?;
        let qk = match &self.rotation {
            Some(rotation) => rotation.forward(&qkv, rope)?,
            None => qkv.clone(),
        };
        let keys = HeadRows::new(&qk, heads.keys.clone());
        let values = HeadRows::new(&qkv, heads.values.clone());
        let queries = Some(rows.queries.as_slice());
        let count = rows.count();
        if count == 0 {
            kv.write(layer, keys, values, queries, &rows.segments)?;
            return Ok(None);
        }
        let (last_qkv, last_qk) = (last_rows(&qkv, count)?, last_rows(&qk, count)?);
        let params = AttentionParams { scale: heads.scale, queries, ..Default::default() };
        let attending = HeadRows::new(&last_qk, heads.queries.clone());
        let attended = kv.attend(layer, attending, keys, values, params, &rows.segments)?;
        let gated = if self.gated { gate_heads(&attended, &last_qkv)? } else { attended };
        self.o_proj.forward(&gated).map(Some)
    }
}

/// Places of queries and keys in a row whose queries have their gates behind them.
fn beside_gates(Sizes { n_heads, n_kv_heads, .. }: Sizes) -> RotatedHeads {
    let queries = (0..n_heads).map(|head| 2 * head);
    RotatedHeads::Places(queries.chain(2 * n_heads..2 * n_heads + n_kv_heads).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_each_turned_head_become_halves() {
        let sizes = Sizes {
            hidden_size: 8,
            n_layers: 1,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 6,
            vocab_size: 8,
            context: 8,
            rms_norm_eps: 1e-5,
            tie_word_embeddings: false,
            window: None,
        };
        let expected =
            [[0, 2, 1, 3, 4, 5], [6, 8, 7, 9, 10, 11], [12, 14, 13, 15, 16, 17]].concat();
        let values: Vec<i32> = (18..24).collect();
        assert_eq!(in_halves(4, sizes), [expected, values.clone()].concat());
        assert_eq!(in_halves(6, sizes)[6..12], [6, 8, 10, 7, 9, 11]);
        assert_eq!(in_halves(6, sizes)[18..], values);
    }
}
