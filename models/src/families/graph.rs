//! A layer's operations as MLX's graph. Lazy.

use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use crate::error::{ModelError, Result};
use crate::kv::{AttentionParams, KvStore};
use crate::layers::{
    AttentionHeads, DeltaRule, Embedding, ExpertMlp, Gate, HeadRotation, HeadRows, LayerOps,
    Linear, RmsNorm, RopeTables, SharedExpertMlp, activated, gate_heads, gated,
};
use crate::segment::Segment;

/// The graph of one pass.
pub(super) struct Graph<'a> {
    /// The batch's ids `[R]`.
    pub(super) ids: &'a Array,
    /// The rotations of the model.
    pub(super) ropes: &'a [RopeTables],
    pub(super) kv: &'a mut KvStore,
    pub(super) segments: &'a [Segment],
    /// Rows of images that attend to one another both ways.
    pub(super) images: &'a [Range<i32>],
    /// What images add to the rows after a layer.
    pub(super) additions: &'a [(usize, Array)],
    /// Layers whose hidden states are wanted.
    pub(super) wanted: &'a [usize],
    /// Rows whose hidden states are wanted. They are taken here, so that no other row crosses to the
    /// host. `None`: all.
    pub(super) wanted_rows: Option<Array>,
    /// The hidden states that were found on the way.
    pub(super) features: Vec<Option<Array>>,
    /// The model's type.
    pub(super) dtype: Dtype,
}

/// A layer answers in another type than the model's: the layers after it would compute in it, and
/// drafters would be sent it.
fn widened(layer: usize, found: Dtype, expected: Dtype) -> ModelError {
    ModelError::Batch(format!("layer {layer} answers in {found:?}, expected {expected:?}"))
}

impl<'a> Graph<'a> {
    fn params(&self, heads: &AttentionHeads) -> AttentionParams<'a> {
        AttentionParams { scale: heads.scale, images: self.images, ..AttentionParams::default() }
    }
}

impl LayerOps for Graph<'_> {
    type Rows = Array;

    fn embedded(&mut self, table: &Embedding) -> Result<Array> {
        table.rows_of(self.ids)
    }

    fn norm(&mut self, norm: &RmsNorm, x: &Array) -> Result<Array> {
        norm.forward(x)
    }

    fn product(&mut self, linear: &Linear, x: &Array) -> Result<Array> {
        linear.forward(x)
    }

    fn add(&mut self, x: &Array, y: &Array) -> Result<Array> {
        Ok(x.add(y)?)
    }

    fn scale(&mut self, x: &Array, factor: f32) -> Result<Array> {
        Ok(x.multiply(Array::from_f32(factor).as_dtype(x.dtype())?)?)
    }

    fn gated(&mut self, both: &Array, gate: Gate) -> Result<Array> {
        gated(both, gate)
    }

    fn gated_by(&mut self, x: &Array, gate: Gate, all: &Array, column: i32) -> Result<Array> {
        let part = all.try_index((.., column..column + x.dim(1)))?;
        Ok(activated(gate, x)?.multiply(part)?)
    }

    fn heads(&mut self, x: &Array, dim: i32) -> Result<Array> {
        Ok(x.reshape(&[x.dim(0), x.dim(1) / dim, dim])?)
    }

    fn joined_heads(&mut self, heads: &Array) -> Result<Array> {
        Ok(heads.reshape(&[heads.dim(0), -1])?)
    }

    fn rotate(&mut self, rotation: &HeadRotation, rope: usize, x: &Array, _: i32) -> Result<Array> {
        rotation.forward(x, &self.ropes[rope])
    }

    fn norm_heads(&mut self, norm: &RmsNorm, heads: &Range<i32>, x: &Array) -> Result<Array> {
        let (rows, dim) = (x.dim(0), norm.size());
        let heads_of = x.reshape(&[rows, -1, dim])?.try_index((.., heads.clone(), ..))?;
        let normed = norm.forward(&heads_of.reshape(&[-1, dim])?)?;
        Ok(normed.reshape(&[rows, heads.len() as i32, dim])?)
    }

    fn attend(
        &mut self,
        layer: usize,
        heads: &AttentionHeads,
        rotated: &Array,
        projected: &Array,
    ) -> Result<Array> {
        let params = self.params(heads);
        let [queries, keys] =
            [&heads.queries, &heads.keys].map(|part| HeadRows::new(rotated, part.clone()));
        let values = HeadRows::new(projected, heads.values.clone());
        self.kv.attend(layer, queries, keys, values, params, self.segments)
    }

    fn attend_shared(
        &mut self,
        of: usize,
        heads: &AttentionHeads,
        rotated: &Array,
    ) -> Result<Array> {
        let params = self.params(heads);
        let queries = HeadRows::new(rotated, heads.queries.clone());
        self.kv.attend_shared(of, queries, params, self.segments)
    }

    fn gate_heads(&mut self, x: &Array, gates: &Array, _: i32) -> Result<Array> {
        gate_heads(x, gates)
    }

    fn recur(&mut self, layer: usize, rule: &DeltaRule, x: &Array) -> Result<Array> {
        self.kv.recur(layer, x, rule, self.segments)
    }

    fn norm_gated(
        &mut self,
        norm: &RmsNorm,
        x: &Array,
        gates: &Array,
        column: i32,
    ) -> Result<Array> {
        norm.gated(x, gates, column)
    }

    fn experts(&mut self, mlp: &ExpertMlp, routed: &Array, x: &Array) -> Result<Array> {
        mlp.forward(routed, x)
    }

    fn shared_experts(&mut self, mlp: &SharedExpertMlp, x: &Array) -> Result<Array> {
        mlp.forward(x)
    }

    fn end_layer(&mut self, layer: usize, mut x: Array) -> Result<Array> {
        if x.dtype() != self.dtype {
            return Err(widened(layer, x.dtype(), self.dtype));
        }
        for (feature, wanted) in self.features.iter_mut().zip(self.wanted) {
            if *wanted == layer {
                *feature = Some(match &self.wanted_rows {
                    Some(rows) => x.take_axis(rows, 0)?,
                    None => x.clone(),
                });
            }
        }
        // Hidden states are taken before the additions: transformers records a layer's own
        // output, before the model adds to it, and drafters are trained on what it records.
        // (vLLM takes them after the addition. The two differ at an image's rows alone.)
        for (_, addition) in self.additions.iter().filter(|(of, _)| *of == layer) {
            x = x.add(addition)?;
        }
        Ok(x)
    }
}
