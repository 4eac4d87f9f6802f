//! Blocks whose drafts are chosen one after another: each from the logits of the row before it. What
//! drafters of one token a forward share, whatever their forward is.

use mlx_rs::Array;
use mlx_rs::transforms::eval;

use super::vocabulary::RowsById;
use super::{BlockRequest, DraftPart, TokenDraft};
use crate::error::Result;
use crate::sample::{self, Block, DraftedIds, RowRule};

/// A block of a part.
struct ChainBlock {
    /// Index of its part.
    part: usize,
    request: BlockRequest,
    /// Absolute position of the bonus token.
    position: i32,
    /// Drafts that it gets.
    drafts: i32,
}

/// The drafts of all blocks of one batch, as far as they are chosen.
pub(super) struct Chains<'a> {
    chains: Vec<ChainBlock>,
    /// Drafts are ids below this one.
    id_limit: u32,
    /// The ids of the logits; `None`: all.
    proposed: Option<&'a RowsById>,
    /// For each place in the blocks the drafts at it, of the chains that reach it, in their
    /// order.
    chosen: Vec<DraftedIds>,
}

/// The drafts of one place that are read for the next one.
pub(super) struct ChainRows {
    /// Indices of the parts whose blocks go on, ascending.
    pub(super) parts: Vec<usize>,
    /// Their rows among the logits of which the drafts were chosen.
    pub(super) rows: Vec<i32>,
    /// Drafts that each of the parts has now.
    pub(super) drafts: i32,
    /// Their newest drafts.
    pub(super) ids: DraftedIds,
}

impl ChainRows {
    /// The newest drafts `[parts]`, uint32.
    pub(super) fn id_array(&self) -> Array {
        match &self.ids {
            DraftedIds::InGraph(ids) => ids.clone(),
            DraftedIds::OnHost(ids) => Array::from_slice(ids, &[ids.len() as i32]),
        }
    }

    /// The rows of `x` `[all rows, …]` of which these drafts were chosen.
    pub(super) fn take(&self, x: &Array) -> Result<Array> {
        if self.rows.len() as i32 == x.dim(0) {
            return Ok(x.clone());
        }
        Ok(x.take_axis(Array::from_slice(&self.rows, &[self.rows.len() as i32]), 0)?)
    }
}

impl<'a> Chains<'a> {
    /// The blocks of `parts`. A part without a row to begin with (`begins` is false) gets no draft.
    /// Drafts are ids below `id_limit`.
    pub(super) fn new(parts: &[DraftPart], id_limit: u32, begins: impl Fn(usize) -> bool) -> Self {
        let chain = |(at, part): (usize, &DraftPart)| {
            let request = part.block?;
            let drafts = if begins(at) { request.rows - 1 } else { 0 };
            Some(ChainBlock { part: at, request, position: part.position + part.context, drafts })
        };
        let chains = parts.iter().enumerate().filter_map(chain).collect();
        Self { chains, id_limit, proposed: None, chosen: vec![] }
    }

    /// The same, for logits of these ids alone; `None`: of all.
    pub(super) fn among(self, proposed: Option<&'a RowsById>) -> Self {
        Self { proposed, ..self }
    }

    /// Chains with more than `drafts` drafts.
    fn longer(&self, drafts: usize) -> impl Iterator<Item = &ChainBlock> {
        self.chains.iter().filter(move |chain| chain.drafts as usize > drafts)
    }

    /// Chooses the next draft of every block that is not complete, from `logits` `[such blocks,
    /// ids]`, float32: those of the newest row of each. Returns the drafts to be read next; `None`
    /// if every block is complete.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn choose(&mut self, logits: &Array) -> Result<Option<ChainRows>> {
        let before = self.chosen.len();
        let block = |chain: &ChainBlock| {
            let rule = RowRule {
                sampling: chain.request.sampling,
                noise: chain.request.noise,
                position: (chain.position + 1) as u32 + before as u32,
                id_limit: self.id_limit,
                ..RowRule::greedy(&[], 0)
            };
            Block { rule, drafted: 1 }
        };
        let blocks: Vec<Block<'_>> = self.longer(before).map(block).collect();
        let ids = match self.proposed {
            None => sample::propose(logits, &blocks)?,
            // The largest logit is the same among the rows alone.
            Some(rows) if sample::are_greedy(&blocks) => {
                rows.ids_of(&sample::propose(logits, &blocks)?)?
            }
            Some(rows) => sample::propose(&rows.spread(logits)?, &blocks)?,
        };
        self.chosen.push(ids.clone());
        let goes_on = |(row, chain): (i32, &ChainBlock)| {
            (chain.drafts as usize > before + 1).then_some((chain.part, row))
        };
        let (parts, rows): (Vec<usize>, Vec<i32>) =
            (0..).zip(self.longer(before)).filter_map(goes_on).unzip();
        if parts.is_empty() {
            return Ok(None);
        }
        let ids = match ids {
            ids if rows.len() == ids.len() => ids,
            DraftedIds::OnHost(ids) => {
                DraftedIds::OnHost(rows.iter().map(|row| ids[*row as usize]).collect())
            }
            DraftedIds::InGraph(ids) => {
                let rows = Array::from_slice(&rows, &[rows.len() as i32]);
                DraftedIds::InGraph(ids.take_axis(rows, 0)?)
            }
        };
        Ok(Some(ChainRows { parts, rows, drafts: before as i32 + 1, ids }))
    }

    /// The drafts of all parts with a block, in their order. Evaluates what is not computed yet, with
    /// `with` in the same pass.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn finish(self, with: &[Array]) -> Result<Vec<TokenDraft>> {
        let in_graph = |ids: &DraftedIds| match ids {
            DraftedIds::InGraph(ids) => Some(ids.clone()),
            DraftedIds::OnHost(_) => None,
        };
        // In one pass: each place depends on the one before it.
        let lazy: Vec<Array> = self.chosen.iter().filter_map(in_graph).collect();
        eval(lazy.iter().chain(with))?;
        let mut drafts = vec![TokenDraft::default(); self.chains.len()];
        for (before, ids) in self.chosen.iter().enumerate() {
            let longer = self.chains.iter().zip(&mut drafts);
            let longer = longer.filter(|(chain, _)| chain.drafts as usize > before);
            for ((_, draft), id) in longer.zip(ids.on_host()?) {
                draft.ids.push(id);
            }
        }
        Ok(drafts)
    }
}
