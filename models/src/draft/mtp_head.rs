//! What heads of Qwen3.5 and of GLM-OCR compute: a product, a layer and the norms around them.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::next_token::{NextTokenModel, Scores};
use super::vocabulary::RowsById;
use super::{DraftFacts, TargetEnds};
use crate::error::Result;
use crate::families::AttendingLayer;
use crate::kv::KvStore;
use crate::layers::{Linear, RmsNorm, Rope, RopeTables};
use crate::segment::QuerySegments;

/// The weights of a head. Fields have the names of Qwen's tensors.
pub(super) struct Head {
    pub(super) facts: DraftFacts,
    pub(super) target: TargetEnds,
    pub(super) pre_fc_norm_embedding: RmsNorm,
    pub(super) pre_fc_norm_hidden: RmsNorm,
    pub(super) fc: Linear,
    pub(super) layer: AttendingLayer,
    /// Of the layer's output before the target's head.
    pub(super) norm: RmsNorm,
    /// Whether h of the next row is the normed output.
    pub(super) hands_on_normed: bool,
    /// Whether a row of position 0 reads its token.
    pub(super) reads_at_0: bool,
}

impl NextTokenModel for Head {
    fn facts(&self) -> &DraftFacts {
        &self.facts
    }

    fn rope(&self) -> &Rope {
        self.layer.rope()
    }

    fn features(&self, states: &Array) -> Result<Array> {
        Ok(self.target.norm(states)?.as_dtype(self.facts.dtype)?)
    }

    fn embed(&self, ids: &Array) -> Result<Array> {
        self.target.embed(ids)
    }

    fn proposed(&self) -> Option<&RowsById> {
        self.target.proposed()
    }

    fn reads_at_0(&self) -> bool {
        self.reads_at_0
    }

    fn layer(
        &self,
        embeddings: &Array,
        hidden: &Array,
        rows: &QuerySegments,
        rope: &RopeTables,
        kv: &mut KvStore,
    ) -> Result<Option<Array>> {
        let token = self.pre_fc_norm_embedding.forward(embeddings)?;
        let both = concatenate(&[token, self.pre_fc_norm_hidden.forward(hidden)?], 1)?;
        self.layer.forward(&self.fc.forward(&both)?, rope, kv, rows)
    }

    fn scores(&self, output: &Array) -> Result<Scores> {
        let normed = self.norm.forward(output)?;
        let logits = self.target.logits(&normed)?;
        Ok(Scores { logits, hidden: if self.hands_on_normed { normed } else { output.clone() } })
    }
}
