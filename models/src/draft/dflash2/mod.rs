//! DFlash 2 drafter: DFlash's backbone with a short convolution around attention and feed-forward,
//! and a selector that chooses the drafts left to right among the best candidates of each row.
//! Convolution → layer → selector → drafter. P proposing rows · L block rows, of all parts one
//! after another · K taps of a kernel · G groups of channels · C candidates of a row · r rank.
//! Field names are the checkpoint's tensor names. Source of the arithmetic: mlx-vlm 0.7.10,
//! `drafters/dflash2/dflash2.py`.

mod config;

use std::path::Path;

use mlx_rs::ops::indexing::{TryIndexOp, take_along_axis};
use mlx_rs::ops::{argpartition_axis, broadcast_to, concatenate, zeros_dtype};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};
use paceline_vocabulary::link::ProposalKind;

use config::{Config, Convolution as ConvolutionSizes};

use super::block_diffusion::{self, Attention, Backbone, BlockLayer, Layer, Step};
use super::{
    BlockRequest, Borrows, DraftBatch, DraftFacts, DraftInfo, DraftPart, Drafter, DrafterFiles,
    Kind, Proposal, TokenDraft, all_tensors,
};
use crate::error::Result;
use crate::kv::KvStore;
use crate::layers::{Embedding, Linear};
use crate::load::{CheckpointError, LoadError, Weights};
use crate::sample::{draw, softcap};

/// How DFlash 2 drafters are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "dflash2",
    is_config_of: config::is_dflash2,
    info: |config, dir, weight_bytes| Ok(info(&Config::read(config)?.backbone, dir, weight_bytes)),
    of_target: None,
    own_tensors: all_tensors,
    borrows: |_| Borrows::Head,
    floats: &["predecessor_codebook", "successor_codebook"],
    load: |files| Ok(Box::new(Dflash2::load(files)?)),
};

/// Inputs and proposals of a drafter with this config.
fn info(sizes: &block_diffusion::Config, dir: &Path, weight_bytes: u64) -> DraftInfo {
    sizes.info(KIND.name, ProposalKind::Tokens, dir, weight_bytes)
}

/// Two causal convolutions over the rows of a block, before and after a module. The kernel of a
/// channel is a constant, plus what the row computes for the channel's group.
struct Convolution {
    /// `[1, 2, K, G, channels of a group]`: of the convolution before, and after.
    base_kernel: Array,
    kernel_projection: Linear,
    sizes: ConvolutionSizes,
}

impl Convolution {
    fn load(
        weights: &mut Weights,
        name: &str,
        hidden: i32,
        sizes: ConvolutionSizes,
        bits: Option<i32>,
    ) -> Result<Self, LoadError> {
        let ConvolutionSizes { kernel, group } = sizes;
        let groups = hidden / group;
        let base = weights.take(&format!("{name}.base_kernel"), &[2, kernel, hidden])?;
        let (projection, numbers) = (format!("{name}.kernel_projection"), 2 * kernel * groups);
        let projection = Linear::load(weights, &projection, numbers, hidden, false)?;
        Ok(Self {
            base_kernel: base.reshape(&[1, 2, kernel, groups, group])?,
            kernel_projection: projection.quantized(bits)?,
            sizes,
        })
    }

    /// `module` of `rows` `[L, hidden]` between the two convolutions → the same shape. The kernels
    /// of both are computed from `rows`.
    fn around(
        &self,
        rows: &Array,
        earlier: &[Array],
        module: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        let (length, hidden) = (rows.dim(0), rows.dim(1));
        let ConvolutionSizes { kernel, group } = self.sizes;
        let own = self.kernel_projection.forward(rows)?;
        let own = own.reshape(&[length, 2, kernel, hidden / group, 1])?;
        let kernels = self.base_kernel.add(own)?.reshape(&[length, 2 * kernel, hidden])?;
        let (before, after) =
            (kernels.try_index((.., ..kernel, ..))?, kernels.try_index((.., kernel.., ..))?);
        convolve(&module(&convolve(rows, &before, earlier)?)?, &after, earlier)
    }
}

/// Σ kernel of the tap · row so far before, of each row of `rows` `[L, hidden]`; `kernels`
/// `[L, K, hidden]`. Rows before a block's first are 0. They are gathered rather than masked, so
/// that no number of one session reaches another one.
fn convolve(rows: &Array, kernels: &Array, earlier: &[Array]) -> Result<Array> {
    let kernel = |tap: i32| kernels.try_index((.., tap, ..));
    let mut sum = rows.multiply(kernel(0)?)?;
    if earlier.is_empty() {
        return Ok(sum);
    }
    let nothing = zeros_dtype(&[1, rows.dim(1)], rows.dtype())?;
    let padded = concatenate(&[&nothing, rows], 0)?;
    for (tap, places) in (1..).zip(earlier) {
        sum = sum.add(padded.take_axis(places, 0)?.multiply(kernel(tap)?)?)?;
    }
    Ok(sum)
}

/// A layer with its convolutions.
struct ConvolvedLayer {
    plain: Layer,
    attention_conv: Convolution,
    mlp_conv: Convolution,
}

impl BlockLayer for ConvolvedLayer {
    fn forward(&self, layer: usize, x: &Array, step: &Step, kv: &mut KvStore) -> Result<Array> {
        let Layer { input_layernorm, self_attn, post_attention_layernorm, mlp, .. } = &self.plain;
        let attended =
            self.attention_conv.around(&input_layernorm.forward(x)?, &step.earlier, |rows| {
                self_attn.forward(layer, rows, step, kv)
            })?;
        let x = x.add(attended)?;
        let fed = self.mlp_conv.around(
            &post_attention_layernorm.forward(&x)?,
            &step.earlier,
            |rows| mlp.forward(rows),
        )?;
        Ok(x.add(fed)?)
    }

    fn attention(&self) -> &Attention {
        &self.plain.self_attn
    }
}

/// Scores a candidate by its logit, and by how well it follows the token before it in this context.
struct CandidateSelector {
    predecessor_codebook: Embedding,
    successor_codebook: Embedding,
    hidden_projection: Linear,
    /// Candidates of a row (C).
    top_k: i32,
}

/// The candidates of all proposing rows, on the host.
struct Candidates<'a> {
    /// Candidates of each row: `[P, C]`.
    ids: &'a [u32],
    /// Logit of each candidate: `[P, C]`.
    logits: &'a [f32],
    /// Scores of pairs of neighbours: `[P, C, C]`, of each candidate of the row before with each of
    /// this row. Before the first row of a block the bonus token stands in all places.
    edges: &'a [f32],
    /// Candidates of a row (C).
    count: usize,
}

/// A table that publishers store with or without `.weight`, quantized only with it.
fn codebook(
    weights: &mut Weights,
    name: &str,
    vocab: i32,
    rank: i32,
) -> Result<Embedding, LoadError> {
    let name = format!("candidate_selector.{name}");
    if weights.has(&format!("{name}.weight")) {
        return Embedding::load(weights, &name, vocab, rank);
    }
    Embedding::new(weights.take(&name, &[vocab, rank])?)
}

impl CandidateSelector {
    fn load(weights: &mut Weights, config: &Config, bits: Option<i32>) -> Result<Self, LoadError> {
        let Config { rank, top_k, vocab, .. } = *config;
        let hidden = config.backbone.hidden_size;
        let projection = "candidate_selector.hidden_projection";
        Ok(Self {
            // Few rows of a codebook are read in a forward: fewer bits would save no time.
            predecessor_codebook: codebook(weights, "predecessor_codebook", vocab, rank)?,
            successor_codebook: codebook(weights, "successor_codebook", vocab, rank)?,
            hidden_projection: Linear::load(weights, projection, rank, hidden, false)?
                .quantized(bits)?,
            top_k,
        })
    }

    /// Rows of a codebook for `ids` `[P, C]` → `[P, C, r]`, float32.
    fn rows(codebook: &Embedding, ids: &Array) -> Result<Array> {
        let rows = codebook.rows_of(&ids.reshape(&[-1])?)?.as_dtype(Dtype::Float32)?;
        Ok(rows.reshape(&[ids.dim(0), ids.dim(1), -1])?)
    }

    /// [`Candidates::edges`] of `ids` `[P, C]`.
    fn edges(&self, hidden: &Array, ids: &Array, blocks: &[BlockRequest]) -> Result<Array> {
        let n_blocks = blocks.len() as i32;
        let bonus: Vec<u32> = blocks.iter().map(|block| block.bonus_id).collect();
        let bonus =
            broadcast_to(Array::from_slice(&bonus, &[n_blocks, 1]), &[n_blocks, self.top_k])?;
        // Each block's bonus row, else the row before.
        let (mut places, mut row) = (Vec::with_capacity(ids.dim(0) as usize), 0);
        for (block, request) in (0..).zip(blocks) {
            for at in 0..request.rows - 1 {
                places.push(if at == 0 { block } else { n_blocks + row - 1 });
                row += 1;
            }
        }
        let before = concatenate(&[&bonus, ids], 0)?
            .take_axis(Array::from_slice(&places, &[places.len() as i32]), 0)?;
        let gates = self.hidden_projection.forward(hidden)?.as_dtype(Dtype::Float32)?;
        let gated = Self::rows(&self.predecessor_codebook, &before)?
            .multiply(gates.reshape(&[gates.dim(0), 1, gates.dim(1)])?)?;
        let after = Self::rows(&self.successor_codebook, ids)?;
        Ok(gated.matmul(after.swap_axes(1, 2)?)?.contiguous()?)
    }

    /// The drafts of `parts` from their rows after the final norm `[P, hidden]` and logits
    /// `[P, vocab]`, float32. Evaluates once; the choice itself is on the host, because sampling's
    /// noise is.
    fn select(
        &self,
        hidden: &Array,
        logits: &Array,
        parts: &[(DraftPart, BlockRequest)],
    ) -> Result<Vec<TokenDraft>> {
        let blocks: Vec<BlockRequest> = parts.iter().map(|(_, block)| *block).collect();
        let ids = argpartition_axis(logits.negative()?, self.top_k - 1, -1)?
            .try_index((.., ..self.top_k))?
            .contiguous()?;
        let best = take_along_axis(logits, &ids, -1)?.contiguous()?;
        let edges = self.edges(hidden, &ids, &blocks)?;
        eval([&ids, &best, &edges])?;
        let candidates = Candidates {
            ids: ids.try_as_slice()?,
            logits: best.try_as_slice()?,
            edges: edges.try_as_slice()?,
            count: self.top_k as usize,
        };
        let mut first = 0;
        let drafts = parts.iter().map(|(part, block)| {
            let draft = candidates.walk(first, part, block);
            first += draft.ids.len();
            draft
        });
        Ok(drafts.collect())
    }
}

impl Candidates<'_> {
    /// The draft of a block whose rows begin at `first`, left to right.
    fn walk(&self, first: usize, part: &DraftPart, block: &BlockRequest) -> TokenDraft {
        let (rule, count) = (part.draft_rule(block), self.count);
        let (mut before, mut ids) = (0, vec![]);
        for at in 0..block.rows as usize - 1 {
            let row = first + at;
            let cells = row * count..(row + 1) * count;
            let edges = &self.edges[(row * count + before) * count..][..count];
            let scored = self.ids[cells.clone()].iter().zip(&self.logits[cells.clone()]).zip(edges);
            let scored = scored.map(|((id, logit), edge)| (*id, logit + edge)).collect();
            let id = draw(scored, &rule, at as u32);
            before = self.ids[cells].iter().position(|other| *other == id).unwrap_or(0);
            ids.push(id);
        }
        TokenDraft { ids, logprobs: vec![] }
    }
}

/// A loaded DFlash 2 drafter.
pub(super) struct Dflash2 {
    backbone: Backbone<ConvolvedLayer>,
    candidate_selector: CandidateSelector,
    lm_head: Linear,
    vocab: i32,
    /// On the logits; `None` is 1.
    output_multiplier: Option<f32>,
}

impl Dflash2 {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, head, .. } = files;
        let sizes = Config::read(config)?;
        let info = info(&sizes.backbone, dir, weight_bytes);
        let bits = quantize.bits();
        let lm_head = head.ok_or_else(|| {
            LoadError::from(CheckpointError::Missing { name: "lm_head.weight".into() })
        })?;
        let mut weights = weights.with_prefix_of("model.", "fc.weight");
        let layer = |weights: &mut Weights, name: &str, rule| {
            let hidden = sizes.backbone.hidden_size;
            let mut conv = |part: &str| {
                let name = format!("{name}.{part}");
                Convolution::load(weights, &name, hidden, sizes.convolution, bits)
            };
            let (attention_conv, mlp_conv) = (conv("attention_conv")?, conv("mlp_conv")?);
            let plain = Layer::load(weights, name, &sizes.backbone, rule, bits)?;
            Ok(ConvolvedLayer { plain, attention_conv, mlp_conv })
        };
        let backbone =
            Backbone::load(&mut weights, config, info, sizes.backbone.clone(), bits, layer)?;
        let candidate_selector = CandidateSelector::load(&mut weights, &sizes, bits)?;
        weights.finish()?;
        let Config { vocab, output_multiplier, .. } = sizes;
        Ok(Self { backbone, candidate_selector, lm_head, vocab, output_multiplier })
    }

    /// Logits `[P, vocab]`, float32, of rows after the final norm.
    fn logits(&self, hidden: &Array) -> Result<Array> {
        let mut logits = self.lm_head.forward(hidden)?.as_dtype(Dtype::Float32)?;
        if let Some(factor) = self.output_multiplier {
            logits = logits.multiply(Array::from_f32(factor))?;
        }
        match self.backbone.config.logit_softcap {
            Some(cap) => softcap(&logits, cap),
            None => Ok(logits),
        }
    }
}

impl Drafter for Dflash2 {
    fn facts(&self) -> &DraftFacts {
        &self.backbone.facts
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        self.backbone.propose_ids(batch, self.vocab, kv, |hidden, blocks| {
            self.candidate_selector.select(hidden, &self.logits(hidden)?, blocks)
        })
    }
}
