//! One attending layer outside of a model: the heads of some families that predict further tokens
//! have one. R rows. Field names are the checkpoint's tensor names.

use mlx_rs::Array;
use paceline_checkpoint::families::Sizes;

use super::attention::{Attention, AttentionSpec};
use super::decoder::{FeedForward, LoadFeedForward};
use crate::error::Result;
use crate::kv::{GrowingKv, KvStore};
use crate::layers::{NormWeight, RmsNorm, Rope, RopeTables, last_rows};
use crate::load::{LoadError, Weights};
use crate::segment::QuerySegments;

/// What is a family's own of such a layer. As in the family's description of a whole model.
pub(super) struct AttendingLayerSpec<'a> {
    pub(super) sizes: Sizes,
    pub(super) attention: AttentionSpec,
    pub(super) norms: NormWeight,
    pub(super) branch_norms: Option<[&'static str; 2]>,
    pub(super) feed_forward: &'a LoadFeedForward<'a>,
    pub(super) rope: Rope,
}

/// A layer that attends, the only one of its store.
pub(crate) struct AttendingLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
    /// Norms of what the two halves give, before it is added to the rows.
    branch_norms: Option<[RmsNorm; 2]>,
    rope: Rope,
    kv: GrowingKv,
}

impl AttendingLayer {
    /// Reads the layer whose names begin with `prefix`.
    ///
    /// # Errors
    /// A key or a tensor is missing or does not fit.
    pub(super) fn load(
        weights: &mut Weights,
        prefix: &str,
        spec: AttendingLayerSpec<'_>,
    ) -> Result<Self, LoadError> {
        let AttendingLayerSpec { sizes, attention, norms, branch_norms, feed_forward, rope } = spec;
        let norm = |weights: &mut Weights, part: &str| {
            let name = format!("{prefix}{part}");
            RmsNorm::load_stored(weights, &name, sizes.hidden_size, sizes.rms_norm_eps, norms)
        };
        let self_attn = format!("{prefix}self_attn");
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, &self_attn, sizes, attention, norms)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: feed_forward(weights, 0, &format!("{prefix}mlp"))?,
            branch_norms: match branch_norms {
                Some([first, second]) => Some([norm(weights, first)?, norm(weights, second)?]),
                None => None,
            },
            rope,
            kv: sizes.kv_heads().into(),
        })
    }

    /// Form of the layer's keys and values.
    pub(crate) fn kv(&self) -> GrowingKv {
        self.kv
    }

    /// How its heads rotate: by the target's positions if the config names their sections.
    pub(crate) fn rope(&self) -> &Rope {
        &self.rope
    }

    /// `x` `[R, hidden]` → `[queries, hidden]`, `None` without queries.
    ///
    /// # Errors
    /// A segment does not start at its sequence's length; MLX's own.
    pub(crate) fn forward(
        &self,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        rows: &QuerySegments,
    ) -> Result<Option<Array>> {
        let normed = self.input_layernorm.forward(x)?;
        let attended = self.self_attn.forward_queries(0, &normed, rope, kv, rows)?;
        let Some(attended) = attended else { return Ok(None) };
        let x = last_rows(x, attended.dim(0))?.add(self.branch(0, attended)?)?;
        let more = self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?;
        Ok(Some(x.add(self.branch(1, more)?)?))
    }

    /// What half `half` of the layer gives, normed if the family does so.
    fn branch(&self, half: usize, given: Array) -> Result<Array> {
        match &self.branch_norms {
            Some(norms) => norms[half].forward(&given),
            None => Ok(given),
        }
    }
}
