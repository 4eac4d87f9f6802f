//! EAGLE-3 drafter (arXiv 2503.01840) in the speculators layout: one layer that reads a token and
//! the hidden state that led to it. Vocabulary → drafter; next_token.rs has the rows that are read.
//! R rows. Field names are the checkpoint's tensor names. Source of the arithmetic: speculators 0.9,
//! `models/eagle3`.

mod config;
mod layer;

use std::path::Path;

use mlx_rs::{Array, Dtype};

use config::Config;
use layer::{Features, Layer};

use super::next_token::{NextToken, NextTokenModel, Scores};
use super::vocabulary::{BadOffset, RowsById};
use super::{Borrows, DraftFacts, DraftInfo, DrafterFiles, Kind, all_tensors};
use crate::error::Result;
use crate::kv::{GrowingKv, KvStore};
use crate::layers::{Embedding, Linear, RmsNorm, Rope, RopeTables, SectionOrder};
use crate::load::{CheckpointError, LoadError, Weights};
use crate::segment::QuerySegments;

/// The ids that can be proposed, and the head that scores them.
struct DraftVocabulary {
    lm_head: Linear,
    /// `None`: the head has a row for each id.
    rows: Option<RowsById>,
}

impl DraftVocabulary {
    fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden_size, draft_vocab, vocab, .. } = *config;
        let rows = match weights.has("d2t") {
            true => {
                let offsets = weights.take_integers("d2t", &[draft_vocab])?;
                let wrong = |BadOffset { row, offset }| {
                    let what = format!(
                        "tensor d2t: expected ids below {vocab}, each once; row {row} has offset {offset}"
                    );
                    LoadError::from(CheckpointError::Config {
                        key: "draft_vocab_size".into(),
                        what,
                    })
                };
                Some(RowsById::of_offsets(&offsets, vocab).map_err(wrong)?)
            }
            false if draft_vocab == vocab => None,
            false => return Err(LoadError::from(CheckpointError::Missing { name: "d2t".into() })),
        };
        // It marks the ids that d2t names.
        weights.skip_tensor("t2d");
        let lm_head = Linear::load(weights, "lm_head", draft_vocab, hidden_size, false)?;
        Ok(Self { lm_head, rows })
    }

    /// Logits of the target's ids `[rows, vocab]`, float32, of `normed` `[rows, hidden]`: −∞ for an
    /// id that cannot be proposed.
    fn logits(&self, normed: &Array) -> Result<Array> {
        let logits = self.lm_head.forward(normed)?.as_dtype(Dtype::Float32)?;
        match &self.rows {
            Some(rows) => rows.spread(&logits),
            None => Ok(logits),
        }
    }
}

/// Tensor of the embedding. A checkpoint without it computes with its target's embedding.
const EMBEDDING: &str = "embed_tokens.weight";

/// How EAGLE-3 drafters are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "eagle3",
    is_config_of: Config::is_eagle3,
    info: |config, dir, weight_bytes| Ok(info(&Config::read(config)?, dir, weight_bytes)),
    of_target: None,
    own_tensors: all_tensors,
    borrows: |files| match files.has(EMBEDDING) {
        true => Borrows::Nothing,
        false => Borrows::Embedding,
    },
    floats: &[],
    load: |files| Ok(Box::new(NextToken::new(Eagle3::load(files)?))),
};

/// Inputs and proposals of a drafter with this config.
fn info(sizes: &Config, dir: &Path, weight_bytes: u64) -> DraftInfo {
    DraftInfo {
        hidden: sizes.target_hidden_size,
        block: sizes.block,
        feature_layers: sizes.feature_layers.clone(),
        vocab: Some(sizes.vocab),
        context: sizes.context,
        // Rows of images are read as the id that stands for them. What was seen is in the hidden states.
        images: true,
        ..DraftInfo::of_tokens(KIND.name, dir, weight_bytes)
    }
}

/// Refuses what this version would compute wrongly or cannot compute.
fn check_tensors(weights: &Weights<'_>, sizes: &Config) -> Result<(), LoadError> {
    let wrong = |key: &str, what: &str| {
        LoadError::from(CheckpointError::Config { key: key.into(), what: what.into() })
    };
    if !weights.has(EMBEDDING) && sizes.hidden_size != sizes.target_hidden_size {
        let what = "the checkpoint has no tensor embed_tokens.weight, and its layer is not as wide as \
                    the target's embedding: add the embedding that it was trained with";
        return Err(wrong("target_hidden_size", what));
    }
    if weights.is_float16("fc") || weights.dtype_of("fc.weight") == Dtype::Float16 {
        let what = "the checkpoint has fc in float16: hidden states have outliers that overflow \
                    there, and hardly a draft is accepted; convert from the original in bfloat16 or \
                    float32";
        return Err(wrong("dtype", what));
    }
    Ok(())
}

/// The weights of an EAGLE-3 drafter.
struct Eagle3 {
    facts: DraftFacts,
    norm_output: bool,
    rope: Rope,
    embed_tokens: Embedding,
    features: Features,
    layer: Layer,
    norm: RmsNorm,
    vocabulary: DraftVocabulary,
}

impl Eagle3 {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, embedding, .. } = files;
        let sizes = Config::read(config)?;
        let mut weights = weights.quantizing(quantize.bits());
        check_tensors(&weights, &sizes)?;
        let Config { hidden_size, vocab, .. } = sizes;
        let layer = config::layer_config(config)?;
        let rope = Rope::load(&layer, sizes.head_dim)?;
        let rope = rope.on_named_axes(&layer, SectionOrder::OneAfterAnother)?;
        let dtype = weights.dtype_of("fc.weight");
        let embed_tokens = match embedding {
            Some(of_target) => of_target,
            None => Embedding::load(&mut weights, "embed_tokens", vocab, hidden_size)?,
        };
        let features = Features::load(&mut weights, &sizes)?;
        let layer = Layer::load(&mut weights, &sizes)?;
        let norm = RmsNorm::load(&mut weights, "norm", hidden_size, sizes.rms_norm_eps)?;
        let vocabulary = DraftVocabulary::load(&mut weights, &sizes)?;
        weights.finish()?;
        let Config { n_kv_heads: n_kv, head_dim, norm_output, .. } = sizes;
        let kv = GrowingKv { n_kv, key_dim: head_dim, value_dim: head_dim, window: None };
        let info = info(&sizes, dir, weight_bytes);
        let facts = DraftFacts { info, kv_layers: vec![kv.into()], dtype };
        Ok(Self { facts, norm_output, rope, embed_tokens, features, layer, norm, vocabulary })
    }
}

impl NextTokenModel for Eagle3 {
    fn facts(&self) -> &DraftFacts {
        &self.facts
    }

    fn rope(&self) -> &Rope {
        &self.rope
    }

    fn features(&self, states: &Array) -> Result<Array> {
        self.features.forward(states)
    }

    fn embed(&self, ids: &Array) -> Result<Array> {
        self.embed_tokens.rows_of(ids)
    }

    fn layer(
        &self,
        embeddings: &Array,
        hidden: &Array,
        rows: &QuerySegments,
        rope: &RopeTables,
        kv: &mut KvStore,
    ) -> Result<Option<Array>> {
        self.layer.forward(embeddings, hidden, rows, rope, kv)
    }

    fn scores(&self, output: &Array) -> Result<Scores> {
        let normed = self.norm.forward(output)?;
        let logits = self.vocabulary.logits(&normed)?;
        let hidden = if self.norm_output { normed } else { output.clone() };
        Ok(Scores { logits, hidden })
    }
}
