//! Heads of an assistant: for all ids, or for the ids of the best clusters. Of the second kind the
//! rows of few clusters are read for a draft, because the whole table would be most of its cost.
//! R rows.

use mlx_rs::ops::indexing::put_along_axis;
use mlx_rs::ops::{argpartition_axis, indexing::TryIndexOp};
use mlx_rs::{Array, Dtype};

use super::config::{ClusterSizes, Config};
use crate::error::Result;
use crate::layers::{Embedding, Linear};
use crate::load::{CheckpointError, LoadError, Weights};

/// Name of the table, and of what the clusters have.
const TABLE: &str = "model.embed_tokens";
const CENTROIDS: &str = "masked_embedding.centroids";
const ORDERING: &str = "masked_embedding.token_ordering";

/// Clusters of ids.
struct Clusters {
    /// Rows → scores of the clusters.
    centroids: Linear,
    /// `[clusters, ids of each]`, int32.
    ids: Array,
    best: i32,
}

impl Clusters {
    fn load(
        weights: &mut Weights,
        config: &Config,
        sizes: ClusterSizes,
    ) -> Result<Self, LoadError> {
        let ClusterSizes { count, best } = sizes;
        let centroids = Linear::load(weights, CENTROIDS, count, config.hidden, false)?;
        let ids = weights.take_integers(ORDERING, &[config.vocab])?;
        if let Some(id) = ids.iter().find(|id| !(0..i64::from(config.vocab)).contains(*id)) {
            let what = format!("expected ids below {} in {ORDERING}, found {id}", config.vocab);
            return Err(LoadError::from(CheckpointError::Config {
                key: "use_ordered_embeddings".into(),
                what,
            }));
        }
        let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
        let ids = Array::from_slice(&ids, &[count, config.vocab / count]);
        Ok(Self { centroids, ids, best })
    }

    /// The ids of the best clusters of each row of `x` `[R, hidden]` → `[R, ids]`.
    fn chosen(&self, x: &Array) -> Result<Array> {
        let scores = self.centroids.forward(x)?.as_dtype(Dtype::Float32)?.negative()?;
        let best = argpartition_axis(&scores, self.best - 1, -1)?;
        let best = best.try_index((.., ..self.best))?;
        Ok(self.ids.take_axis(&best, 0)?.reshape(&[x.dim(0), -1])?)
    }
}

/// The head of an assistant.
pub(super) struct Head {
    embed_tokens: Embedding,
    /// `None`: tied to the embedding.
    lm_head: Option<Linear>,
    clusters: Option<Clusters>,
    vocab: i32,
}

impl Head {
    pub(super) fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let (vocab, hidden) = (config.vocab, config.hidden);
        weights.forgetting(|files| files.settle_head(config.tied))?;
        let embed_tokens = Embedding::load(weights, TABLE, vocab, hidden)?;
        let lm_head = if config.tied && !weights.has("lm_head.weight") {
            None
        } else {
            Some(Linear::load(weights, "lm_head", vocab, hidden, false)?)
        };
        if lm_head.is_some() && config.clusters.is_some() {
            let what = "expected a head that is the embedding for heads of clusters, found another";
            let key = "use_ordered_embeddings".to_owned();
            return Err(LoadError::from(CheckpointError::Config { key, what: what.into() }));
        }
        let clusters =
            config.clusters.map(|sizes| Clusters::load(weights, config, sizes)).transpose()?;
        Ok(Self { embed_tokens, lm_head, clusters, vocab })
    }

    /// Logits of normed rows `x` `[R, hidden]` → `[R, vocab]`, float32; −∞ for the ids of clusters
    /// that are not chosen.
    pub(super) fn logits(&self, x: &Array) -> Result<Array> {
        let Some(clusters) = &self.clusters else {
            let logits = match &self.lm_head {
                Some(head) => head.forward(x)?,
                None => self.embed_tokens.as_head(x)?,
            };
            return Ok(logits.as_dtype(Dtype::Float32)?);
        };
        let ids = clusters.chosen(x)?;
        let (rows, count) = (ids.dim(0), ids.dim(1));
        let table = self.embed_tokens.rows_of(&ids.reshape(&[-1])?)?;
        let table = table.reshape(&[rows, count, -1])?.transpose_axes(&[0, 2, 1])?;
        let logits = x.expand_dims(1)?.matmul(table.as_dtype(x.dtype())?)?;
        let logits = logits.reshape(&[rows, count])?.as_dtype(Dtype::Float32)?;
        let nothing = Array::full::<f32>(&[rows, self.vocab], Array::from_f32(f32::NEG_INFINITY))?;
        Ok(put_along_axis(&nothing, &ids, &logits, 1)?)
    }
}
