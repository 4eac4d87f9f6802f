//! Which tokens a block drafts, from the draft's logits. Greedy drafts are settled inside the graph
//! of the verification, so that a cycle has one evaluation. Sampled ones use the target's own
//! noise, which is integer arithmetic that MLX's bindings cannot do in a graph: each row's best
//! candidates come to the host, where the penalty can follow the drafted path.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{argpartition_axis, indexing::take_along_axis};
use mlx_rs::transforms::eval;

use super::largest::Largest;
use super::processors::LogitProcessors;
use super::{Block, RowRule};
use crate::error::{ModelError, Result};

/// Candidates of a row that can be drafted. What the target would choose is outside of them once in
/// thousands of tokens at usual temperatures, and then it only ends a block early.
const CANDIDATES: i32 = 64;

/// Drafted ids of all blocks, one after another.
#[derive(Clone, Debug)]
pub enum DraftedIds {
    /// Known on the host.
    OnHost(Vec<u32>),
    /// `[ids]`, part of the graph that verifies them.
    InGraph(Array),
}

impl DraftedIds {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            DraftedIds::OnHost(ids) => ids.len(),
            DraftedIds::InGraph(ids) => ids.dim(0) as usize,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids, computed where that has not been done.
    ///
    /// # Errors
    /// MLX's own.
    pub fn on_host(&self) -> Result<Vec<u32>> {
        if let DraftedIds::InGraph(ids) = self {
            ids.eval()?;
        }
        self.ids().map(<[u32]>::to_vec)
    }

    /// The array of ids that are part of a graph.
    pub(crate) fn in_graph(&self) -> Option<&Array> {
        match self {
            DraftedIds::OnHost(_) => None,
            DraftedIds::InGraph(ids) => Some(ids),
        }
    }

    /// The ids; those of a graph must have been evaluated.
    pub(super) fn ids(&self) -> Result<&[u32]> {
        match self {
            DraftedIds::OnHost(ids) => Ok(ids),
            DraftedIds::InGraph(ids) => Ok(ids.try_as_slice()?),
        }
    }
}

/// Caps draft logits as some drafters were trained: tanh(l / cap) · cap.
///
/// # Errors
/// MLX's own.
pub fn softcap(logits: &Array, cap: f32) -> Result<Array> {
    let cap = Array::from_f32(cap);
    Ok(mlx_rs::ops::tanh(logits.divide(&cap)?)?.multiply(&cap)?)
}

/// Chooses the drafts of `blocks` from `logits` `[drafted ids, vocab]`, float32, the blocks' rows
/// one after another. A block's rule is that of its first row: the first draft stands at its
/// position, after its history. Every draft is an id below the limit of its rule, also where a row
/// has NaN or infinite logits: such a draft is bad and is not accepted, which is all.
///
/// # Errors
/// MLX's own.
pub fn propose(logits: &Array, blocks: &[Block<'_>]) -> Result<DraftedIds> {
    let wanted: usize = blocks.iter().map(|block| block.drafted).sum();
    if logits.dim(0) as usize != wanted {
        return Err(ModelError::Batch(format!(
            "expected logits of {wanted} drafts, found {}",
            logits.dim(0)
        )));
    }
    if are_greedy(blocks) {
        let vocab = logits.dim(1);
        let limit =
            blocks.iter().map(|block| block.rule.limit(vocab)).min().unwrap_or(vocab as usize);
        return Ok(DraftedIds::InGraph(Largest::of(logits, limit)?.ids()?));
    }
    sampled(logits, blocks).map(DraftedIds::OnHost)
}

/// Whether [`propose`] leaves the drafts of these blocks in the graph.
pub(crate) fn are_greedy(blocks: &[Block<'_>]) -> bool {
    // Margins and log-probabilities are reported of the target's choices, not of drafts.
    blocks
        .iter()
        .all(|block| RowRule { wants_margin: false, logprobs: None, ..block.rule }.in_graph())
}

/// Log-probabilities `[rows]`, float32, of the drafts `columns` by their `logits` `[rows, columns]`,
/// one draft for each of `blocks`, at the temperature of its rule. Lazy.
///
/// # Errors
/// MLX's own.
pub(crate) fn logprobs(
    logits: &Array,
    columns: &DraftedIds,
    blocks: &[Block<'_>],
) -> Result<Array> {
    let rows = blocks.len() as i32;
    let temperature = |block: &Block<'_>| match block.rule.sampling.temperature {
        0.0 => 1.0,
        temperature => temperature,
    };
    let temperatures: Vec<f32> = blocks.iter().map(temperature).collect();
    let logits = match temperatures.iter().all(|temperature| *temperature == 1.0) {
        true => logits.clone(),
        false => logits.divide(Array::from_slice(&temperatures, &[rows, 1]))?,
    };
    let columns = match columns {
        DraftedIds::InGraph(columns) => columns.reshape(&[rows, 1])?,
        DraftedIds::OnHost(columns) => Array::from_slice(columns, &[rows, 1]),
    };
    let chosen = take_along_axis(&logits, columns, -1)?.reshape(&[rows])?;
    Ok(chosen.subtract(logits.logsumexp_axis(-1, false)?)?)
}

/// The place of the largest of some logits, and its log-probability. Some place, of which nothing is
/// known, if one is not a number.
#[cfg(target_os = "linux")]
pub(crate) fn largest_on_host(logits: &[f32]) -> (u32, f32) {
    let mut found = [0.0; 2];
    paceline_cpu::rows::largest(|_| logits, logits.len(), &mut found);
    let place = found[0].to_bits();
    let most = logits.get(place as usize).copied().unwrap_or(f32::NAN);
    let mass: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
    (place, -mass.ln())
}

/// The drafts of `blocks` by their sampling rules, chosen on the host from each row's best
/// candidates.
fn sampled(logits: &Array, blocks: &[Block<'_>]) -> Result<Vec<u32>> {
    let vocab = logits.dim(1);
    // A logit that a rule raises may not be among the best before it is raised: then whole rows
    // are read.
    let whole = vocab <= CANDIDATES || blocks.iter().any(|block| raises(&block.rule));
    let count = if whole { vocab } else { CANDIDATES };
    let ids = match whole {
        true => None,
        false => Some(
            argpartition_axis(logits.negative()?, count - 1, -1)?
                .try_index((.., ..count))?
                .contiguous()?,
        ),
    };
    let values = match &ids {
        Some(ids) => take_along_axis(logits, ids, -1)?,
        None => logits.contiguous()?,
    };
    eval(ids.iter().chain([&values]))?;
    let values: &[f32] = values.try_as_slice()?;
    let ids: Option<&[u32]> = ids.as_ref().map(|ids| ids.try_as_slice()).transpose()?;
    let (mut drafts, mut row) = (vec![], 0);
    for block in blocks {
        let mut processors = LogitProcessors::new(&block.rule, vocab as usize);
        let first = drafts.len();
        for at in 0..block.drafted {
            let cells = row * count as usize..(row + 1) * count as usize;
            processors.extend(&drafts[first..]);
            let candidates = match ids {
                Some(ids) => ids[cells.clone()]
                    .iter()
                    .copied()
                    .zip(&values[cells])
                    .map(|(id, l)| (id, processors.of(id, *l)))
                    .collect(),
                None => (0..)
                    .zip(processors.apply(&values[cells]))
                    .map(|(id, logit)| (id, *logit))
                    .collect(),
            };
            drafts.push(draw(candidates, &block.rule, at as u32));
            row += 1;
        }
    }
    Ok(drafts)
}

/// Whether a rule makes any logit larger.
fn raises(rule: &RowRule<'_>) -> bool {
    let sampling = rule.sampling;
    let penalties = sampling.repetition_penalty < 1.0
        || sampling.presence_penalty < 0.0
        || sampling.frequency_penalty < 0.0;
    penalties || rule.bias.iter().any(|(_, bias)| *bias > 0.0)
}

/// The draft of one row among its best candidates, (id, adjusted logit). Like the target's choice,
/// with masses over the candidates alone. `rule` is that of the block's first draft, `at` the number
/// of drafts between it and this one. 0 if no candidate has a finite logit.
pub(crate) fn draw(candidates: Vec<(u32, f32)>, rule: &RowRule<'_>, at: u32) -> u32 {
    let sampling = rule.sampling;
    let mut sorted = candidates;
    sorted.retain(|(id, logit)| *id < rule.id_limit && logit.is_finite());
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if sorted.len() > CANDIDATES as usize {
        sorted.select_nth_unstable_by(CANDIDATES as usize, order);
        sorted.truncate(CANDIDATES as usize);
    }
    sorted.sort_unstable_by(order);
    let Some((best, top)) = sorted.first().copied() else { return 0 };
    if sampling.temperature == 0.0 {
        return best;
    }
    if sampling.top_k > 0 {
        sorted.truncate(sampling.top_k as usize);
    }
    let weight = |logit: f32| f64::from((logit - top) / sampling.temperature).exp();
    let total: f64 = sorted.iter().map(|(_, logit)| weight(*logit)).sum();
    let mut mass = 0.0;
    let kept = sorted.iter().position(|(_, logit)| {
        let is_cut =
            mass / total >= f64::from(sampling.top_p) || weight(*logit) < f64::from(sampling.min_p);
        mass += weight(*logit);
        is_cut
    });
    sorted.truncate(kept.unwrap_or(sorted.len()));
    let mass: f64 = sorted.iter().map(|(_, logit)| weight(*logit)).sum();
    let mut chosen = (f32::NEG_INFINITY, best);
    for (id, logit) in sorted {
        if weight(logit) * mass < f64::from(sampling.top_a) {
            break;
        }
        let score = logit / sampling.temperature + rule.noise.noise(rule.position + at, id);
        if score > chosen.0 {
            chosen = (score, id);
        }
    }
    chosen.1
}
