//! DSpark drafter (arXiv 2607.05147): DFlash's backbone, a table of token pairs that moves each
//! row's logits by the token chosen before it, and a head that says how probable it is that the
//! row's draft is accepted. Pairs → confidence → ids → drafter. P proposing rows · n parts of a
//! step · r rank. Field names are the checkpoint's tensor names. Sources: vllm-project/speculators,
//! `models/dspark`; mlx-vlm 0.7.10, `drafters/dspark`.

mod config;

use std::path::Path;

use mlx_rs::ops::{concatenate, sigmoid};
use mlx_rs::{Array, Dtype};
use paceline_vocabulary::link::ProposalKind;

use config::Config;

use super::block_diffusion::{self, Backbone, Layer};
use super::chain::Chains;
use super::vocabulary::{BadOffset, RowsById};
use super::{
    BlockRequest, Borrows, DraftBatch, DraftFacts, DraftInfo, DraftPart, Drafter, DrafterFiles,
    Kind, Proposal, TokenDraft, all_tensors,
};
use crate::error::Result;
use crate::kv::KvStore;
use crate::layers::{Embedding, Linear};
use crate::load::{CheckpointError, LoadError, Tensors, Weights};
use crate::sample::softcap;

/// A block ends before the draft that is reached and accepted with a lower probability than this,
/// by the drafter's own estimate. Others measured on Metal, with 4-bit weights, that each verified
/// row from the fourth on costs about 6 % of the speed, so a draft that is accepted less than one
/// time in ten hardly pays anywhere. Not measured here. The target chooses how many rows to ask
/// for; this only drops the end of a block that is worse than usual.
const LEAST_CONFIDENCE: f32 = 0.1;

/// How DSpark drafters are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "dspark",
    is_config_of: config::is_dspark,
    info: |config, dir, weight_bytes| Ok(info(&Config::read(config)?.backbone, dir, weight_bytes)),
    of_target: None,
    own_tensors: all_tensors,
    borrows: |files| if has_own_head(files) { Borrows::Nothing } else { Borrows::Head },
    floats: &["markov_w1", "proj", "embed_tokens"],
    load: |files| Ok(Box::new(Dspark::load(files)?)),
};

fn has_own_head(files: &Tensors) -> bool {
    ["lm_head.weight", "model.lm_head.weight"].iter().any(|name| files.has(name))
}

/// Inputs and proposals of a drafter with this config.
fn info(sizes: &block_diffusion::Config, dir: &Path, weight_bytes: u64) -> DraftInfo {
    sizes.info(KIND.name, ProposalKind::Tokens, dir, weight_bytes)
}

/// Additions to the logits by the token before: a table of all pairs, of low rank.
struct MarkovHead {
    /// By the token before.
    markov_w1: Embedding,
    /// To the head's rows.
    markov_w2: Linear,
}

impl MarkovHead {
    fn load(weights: &mut Weights, sizes: &Config, bits: Option<i32>) -> Result<Self, LoadError> {
        let (w1, w2) = ("markov_head.markov_w1", "markov_head.markov_w2");
        Ok(Self {
            markov_w1: Embedding::load(weights, w1, sizes.vocab, sizes.rank)?,
            markov_w2: Linear::load(weights, w2, sizes.draft_vocab, sizes.rank, false)?
                .quantized(bits)?,
        })
    }
}

/// The probability that a row's draft is accepted if those before it are.
struct ConfidenceHead {
    proj: Linear,
    /// Whether it reads the token before, as the row of `markov_w1`, after the hidden row.
    with_markov: bool,
}

impl ConfidenceHead {
    fn load(weights: &mut Weights, sizes: &Config) -> Result<Self, LoadError> {
        let with_markov = sizes.confidence_with_markov;
        let input = sizes.backbone.hidden_size + if with_markov { sizes.rank } else { 0 };
        let proj = Linear::load(weights, "confidence_head.proj", 1, input, true)?;
        Ok(Self { proj, with_markov })
    }

    /// `hidden` `[n, hidden]`, `before` `[n, r]` → `[n]`, float32.
    fn forward(&self, hidden: &Array, before: Option<&Array>) -> Result<Array> {
        let logits = match before.filter(|_| self.with_markov) {
            Some(before) => {
                let before = before.as_dtype(hidden.dtype())?;
                self.proj.forward(&concatenate(&[hidden, &before], 1)?)?
            }
            None => self.proj.forward(hidden)?,
        };
        Ok(sigmoid(logits.as_dtype(Dtype::Float32)?.reshape(&[-1])?)?)
    }
}

/// Rows of a head with fewer rows than the target's vocabulary, by the target's ids; `None` if each
/// id has a row. `d2t` has what to add to a row's number for its id. `t2d` says the same.
fn reduced_vocabulary(
    weights: &mut Weights,
    sizes: &Config,
) -> Result<Option<RowsById>, LoadError> {
    if sizes.draft_vocab == sizes.vocab {
        // Files of the full vocabulary may carry both: every row is its own id.
        weights.skip_tensor("d2t");
        weights.skip_tensor("t2d");
        return Ok(None);
    }
    // As many numbers as the vocabulary are allocated below.
    let expected = vec![sizes.vocab as usize];
    if let Some(found) = weights.shape("t2d").filter(|found| *found != expected) {
        let (name, found) = ("t2d".into(), found.to_vec());
        return Err(LoadError::from(CheckpointError::Shape { name, found, expected }));
    }
    let offsets = weights.take_integers("d2t", &[sizes.draft_vocab])?;
    weights.skip_tensor("t2d");
    let wrong = |BadOffset { row, offset }| {
        let vocab = sizes.vocab;
        let what =
            format!("expected ids below {vocab}, each once, found {offset} for row {row} of d2t");
        LoadError::from(CheckpointError::Config { key: "draft_vocab_size".into(), what })
    };
    RowsById::of_offsets(&offsets, sizes.vocab).map(Some).map_err(wrong)
}

/// A loaded DSpark drafter.
pub(super) struct Dspark {
    backbone: Backbone<Layer>,
    lm_head: Linear,
    markov_head: Option<MarkovHead>,
    confidence_head: Option<ConfidenceHead>,
    reduced: Option<RowsById>,
    vocab: i32,
}

impl Dspark {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, head, .. } = files;
        let sizes = Config::read(config)?;
        let info = info(&sizes.backbone, dir, weight_bytes);
        let bits = quantize.bits();
        let mut weights = weights.with_prefix_of("model.", "fc.weight");
        let rotary = config::rotary(config)?;
        let backbone = Backbone::load(
            &mut weights,
            &rotary,
            info,
            sizes.backbone.clone(),
            bits,
            |weights, name, rule| Layer::load(weights, name, &sizes.backbone, rule, bits),
        )?;
        let lm_head = match head {
            Some(head) => {
                sizes.check_whole_vocabulary()?;
                head
            }
            None => {
                let hidden = sizes.backbone.hidden_size;
                Linear::load(&mut weights, "lm_head", sizes.draft_vocab, hidden, false)?
                    .quantized(bits)?
            }
        };
        let markov_head = match sizes.rank {
            0 => None,
            _ => Some(MarkovHead::load(&mut weights, &sizes, bits)?),
        };
        let estimates =
            sizes.confidence.unwrap_or_else(|| weights.has("confidence_head.proj.weight"));
        let confidence_head =
            estimates.then(|| ConfidenceHead::load(&mut weights, &sizes)).transpose()?;
        let reduced = reduced_vocabulary(&mut weights, &sizes)?;
        // Copies of the target's parts that training kept as they were. The rows of embeddings come
        // from the target, those of Gemma times its factor.
        for copy in ["embed_tokens", "verifier_lm_head", "verifier_norm"] {
            weights.skip(copy);
        }
        weights.finish()?;
        let vocab = sizes.vocab;
        Ok(Self { backbone, lm_head, markov_head, confidence_head, reduced, vocab })
    }

    /// Logits `[P, draft vocabulary]`, float32, of rows after the final norm.
    fn logits(&self, hidden: &Array) -> Result<Array> {
        let logits = self.lm_head.forward(hidden)?.as_dtype(Dtype::Float32)?;
        match self.backbone.config.logit_softcap {
            Some(cap) => softcap(&logits, cap),
            None => Ok(logits),
        }
    }

    /// The drafts of `blocks`, one place of all blocks after another. `hidden` has the rows that
    /// propose, block by block.
    fn chain(
        &self,
        hidden: &Array,
        blocks: &[(DraftPart, BlockRequest)],
    ) -> Result<Vec<TokenDraft>> {
        let logits = self.logits(hidden)?;
        let mut first = vec![0; blocks.len()];
        for at in 1..blocks.len() {
            first[at] = first[at - 1] + blocks[at - 1].1.rows - 1;
        }
        let parts: Vec<DraftPart> = blocks.iter().map(|(part, _)| *part).collect();
        let mut chains =
            Chains::new(&parts, self.vocab as u32, |_| true).among(self.reduced.as_ref());
        let bonus: Vec<u32> = blocks.iter().map(|(_, block)| block.bonus_id).collect();
        let mut before = Array::from_slice(&bonus, &[bonus.len() as i32]);
        let (mut rows, mut confidences) = (first.clone(), vec![]);
        loop {
            let places = Array::from_slice(&rows, &[rows.len() as i32]);
            let (hidden, logits) = (hidden.take_axis(&places, 0)?, logits.take_axis(&places, 0)?);
            let (logits, confidence) = self.link(&hidden, logits, &before)?;
            confidences.extend(confidence);
            let Some(next) = chains.choose(&logits)? else { break };
            rows = next.parts.iter().map(|block| first[*block] + next.drafts).collect();
            before = next.id_array();
        }
        let mut drafts = chains.finish(&confidences)?;
        cut(&mut drafts, &confidences)?;
        Ok(drafts)
    }

    /// Scores of n rows after the tokens `before` `[n]`: logits as `logits` `[n, draft
    /// vocabulary]`, float32, and confidence `[n]`, if the drafter estimates it. `hidden` `[n,
    /// hidden]`.
    fn link(
        &self,
        hidden: &Array,
        mut logits: Array,
        before: &Array,
    ) -> Result<(Array, Option<Array>)> {
        let pairs = self.markov_head.as_ref().map(|head| head.markov_w1.rows_of(before));
        let pairs = pairs.transpose()?;
        if let (Some(head), Some(pairs)) = (&self.markov_head, &pairs) {
            logits = logits.add(head.markov_w2.forward(pairs)?.as_dtype(Dtype::Float32)?)?;
        }
        let confidence =
            self.confidence_head.as_ref().map(|head| head.forward(hidden, pairs.as_ref()));
        Ok((logits, confidence.transpose()?))
    }
}

/// Ends each draft before the token that is too improbable. `confidences` has an array for each
/// place in the blocks, of the drafts that reach it; none if the drafter estimates nothing.
fn cut(drafts: &mut [TokenDraft], confidences: &[Array]) -> Result<()> {
    let mut reached = vec![1.0f32; drafts.len()];
    let mut ends: Vec<usize> = drafts.iter().map(|draft| draft.ids.len()).collect();
    for (place, confidence) in confidences.iter().enumerate() {
        let longer = (0..drafts.len()).filter(|at| drafts[*at].ids.len() > place);
        for (at, confidence) in longer.zip(confidence.try_as_slice::<f32>()?) {
            reached[at] *= confidence;
            // NaN fails too: such a row's draft is bad.
            let is_probable = reached[at] >= LEAST_CONFIDENCE;
            if !is_probable {
                ends[at] = ends[at].min(place);
            }
        }
    }
    for (draft, end) in drafts.iter_mut().zip(ends) {
        draft.ids.truncate(end);
    }
    Ok(())
}

impl Drafter for Dspark {
    fn facts(&self) -> &DraftFacts {
        &self.backbone.facts
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        self.backbone
            .propose_ids(batch, self.vocab, kv, |hidden, blocks| self.chain(hidden, blocks))
    }
}
