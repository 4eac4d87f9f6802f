//! Blocks whose drafts are chosen one after another: each from the logits of the row before it. What
//! drafters of one token a forward share, whatever their forward is.

use mlx_rs::Array;
use mlx_rs::transforms::eval;

use super::vocabulary::RowsById;
use super::{BlockRequest, DraftPart, TokenDraft};
use crate::device::on_gpu;
use crate::error::Result;
use crate::sample::{self, Block, DraftedIds, RowRule};

/// A block of a part.
struct ChainBlock {
    /// Index of its part.
    part: usize,
    request: BlockRequest,
    /// Absolute position of the bonus token.
    position: i32,
    /// Drafts that are chosen for it.
    drafts: i32,
    /// Drafts that it keeps, at most.
    kept: usize,
    /// Logarithm of the probability that all of its drafts so far are right.
    survival: f32,
}

impl ChainBlock {
    /// Adds the draft at `place` with this log-probability. Returns whether the block goes on.
    fn survives(&mut self, place: usize, logprob: f32) -> bool {
        self.survival += logprob;
        let goes_on = self.survival >= self.request.least_survival.ln();
        if !goes_on {
            self.kept = self.kept.min(place);
        }
        goes_on
    }
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
    /// For each place the log-probabilities of its drafts `[drafts]`, if blocks may end early and
    /// they are not on the host yet.
    logprobs: Vec<Array>,
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
            let position = part.position + part.context;
            Some(ChainBlock {
                part: at,
                request,
                position,
                drafts,
                kept: usize::MAX,
                survival: 0.0,
            })
        };
        let chains = parts.iter().enumerate().filter_map(chain).collect();
        let (chosen, logprobs) = (vec![], vec![]);
        Self { chains, id_limit, proposed: None, chosen, logprobs }
    }

    /// The same, for logits of these ids alone; `None`: of all.
    pub(super) fn among(self, proposed: Option<&'a RowsById>) -> Self {
        Self { proposed, ..self }
    }

    /// Chains with more than `drafts` drafts.
    fn longer(&self, drafts: usize) -> impl Iterator<Item = &ChainBlock> {
        self.chains.iter().filter(move |chain| chain.drafts as usize > drafts)
    }

    /// The blocks that get a draft at this place, each with the rule of that draft.
    fn blocks(&self, place: usize) -> Vec<Block<'static>> {
        let block = |chain: &ChainBlock| {
            let rule = RowRule {
                sampling: chain.request.sampling,
                noise: chain.request.noise,
                position: (chain.position + 1) as u32 + place as u32,
                id_limit: self.id_limit,
                ..RowRule::greedy(&[], 0)
            };
            Block { rule, drafted: 1 }
        };
        self.longer(place).map(block).collect()
    }

    /// Whether a block may end with the draft at this place because it is probably wrong.
    fn may_end(&self, place: usize) -> bool {
        self.longer(place).any(|chain| chain.request.least_survival > 0.0)
    }

    /// Chooses the next draft of every block that is not complete, from `logits` `[such blocks,
    /// ids]`, float32: those of the newest row of each. Returns the drafts to be read next; `None`
    /// if every block is complete.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn choose(&mut self, logits: &Array) -> Result<Option<ChainRows>> {
        let place = self.chosen.len();
        let blocks = self.blocks(place);
        // The largest logit is the same among the rows alone.
        let (logits, rows) = match self.proposed {
            Some(rows) if !sample::are_greedy(&blocks) => (&rows.spread(logits)?, None),
            rows => (logits, rows),
        };
        let columns = sample::propose(logits, &blocks)?;
        let ids = rows.map(|rows| rows.ids_of(&columns)).transpose()?;
        self.chosen.push(ids.unwrap_or_else(|| columns.clone()));
        if self.may_end(place) {
            let logprobs = sample::logprobs(logits, &columns, &blocks)?;
            // On a GPU to wait for a draft costs more than the next one: see `finish`.
            if on_gpu() {
                self.logprobs.push(logprobs);
            } else {
                let ids = self.chosen.iter().filter_map(DraftedIds::in_graph);
                eval(ids.chain([&logprobs]))?;
                self.end_some(place, logprobs.try_as_slice()?);
            }
        }
        self.next_rows(place)
    }

    /// As [`Chains::choose`], from logits that are on the host.
    ///
    /// # Errors
    /// MLX's own, for drafts that are not greedy.
    #[cfg(target_os = "linux")]
    pub(super) fn choose_on_host(&mut self, logits: &[f32]) -> Result<Option<ChainRows>> {
        let place = self.chosen.len();
        let blocks = self.blocks(place);
        let columns = logits.len() / blocks.len().max(1);
        if !sample::are_greedy(&blocks) {
            let shape = [blocks.len() as i32, columns as i32];
            return self.choose(&Array::from_slice(logits, &shape));
        }
        let chosen: Vec<(u32, f32)> =
            logits.chunks_exact(columns.max(1)).map(sample::largest_on_host).collect();
        let ids = DraftedIds::OnHost(chosen.iter().map(|(column, _)| *column).collect());
        let ids = self.proposed.map_or(Ok(ids.clone()), |rows| rows.ids_of(&ids))?;
        self.chosen.push(ids);
        if self.may_end(place) {
            let logprobs: Vec<f32> = chosen.iter().map(|(_, logprob)| *logprob).collect();
            self.end_some(place, &logprobs);
        }
        self.next_rows(place)
    }

    /// The drafts at `place` that are read next.
    fn next_rows(&self, place: usize) -> Result<Option<ChainRows>> {
        let goes_on = |(row, chain): (i32, &ChainBlock)| {
            (chain.drafts as usize > place + 1).then_some((chain.part, row))
        };
        let (parts, rows): (Vec<usize>, Vec<i32>) =
            (0..).zip(self.longer(place)).filter_map(goes_on).unzip();
        if parts.is_empty() {
            return Ok(None);
        }
        let ids = match &self.chosen[place] {
            ids if rows.len() == ids.len() => ids.clone(),
            DraftedIds::OnHost(ids) => {
                DraftedIds::OnHost(rows.iter().map(|row| ids[*row as usize]).collect())
            }
            DraftedIds::InGraph(ids) => {
                let rows = Array::from_slice(&rows, &[rows.len() as i32]);
                DraftedIds::InGraph(ids.take_axis(rows, 0)?)
            }
        };
        Ok(Some(ChainRows { parts, rows, drafts: place as i32 + 1, ids }))
    }

    /// Ends the blocks whose drafts at `place` are probably wrong.
    fn end_some(&mut self, place: usize, logprobs: &[f32]) {
        let longer = self.chains.iter_mut().filter(|chain| chain.drafts as usize > place);
        for (chain, logprob) in longer.zip(logprobs) {
            if !chain.survives(place, *logprob) {
                chain.drafts = place as i32 + 1;
            }
        }
    }

    /// The drafts of all parts with a block, in their order. Evaluates what is not computed yet, with
    /// `with` in the same pass.
    ///
    /// # Errors
    /// MLX's own.
    pub(super) fn finish(mut self, with: &[Array]) -> Result<Vec<TokenDraft>> {
        // In one pass: each place depends on the one before it.
        let lazy = self.chosen.iter().filter_map(DraftedIds::in_graph);
        eval(lazy.chain(&self.logprobs).chain(with))?;
        for (place, logprobs) in self.logprobs.iter().enumerate() {
            let longer = self.chains.iter_mut().filter(|chain| chain.drafts as usize > place);
            for (chain, logprob) in longer.zip(logprobs.try_as_slice::<f32>()?) {
                chain.survives(place, *logprob);
            }
        }
        let mut drafts = vec![TokenDraft::default(); self.chains.len()];
        for (before, ids) in self.chosen.iter().enumerate() {
            let longer = self.chains.iter().zip(&mut drafts);
            let longer = longer.filter(|(chain, _)| chain.drafts as usize > before);
            for ((_, draft), id) in longer.zip(ids.on_host()?) {
                draft.ids.push(id);
            }
        }
        for (chain, draft) in self.chains.iter().zip(&mut drafts) {
            draft.ids.truncate(chain.kept);
        }
        Ok(drafts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceChoice, choose};
    use crate::segment::SequenceId;

    const IDS: usize = 32;
    /// The id that each draft chooses.
    const BEST: u32 = 3;
    /// For each block the probability of its drafts.
    const SHARES: [[f32; 3]; 4] = [[0.9; 3], [0.1, 0.9, 0.9], [0.9, 0.1, 0.9], [0.5; 3]];

    fn parts(least_survival: f32) -> Vec<DraftPart> {
        let block =
            BlockRequest::greedy(4, 1).map(|block| BlockRequest { least_survival, ..block });
        let part = |sequence| DraftPart {
            sequence: SequenceId(sequence),
            position: 0,
            context: 2,
            next_id: None,
            block,
        };
        (0..SHARES.len() as u64).map(part).collect()
    }

    /// Logits of a row in which one id has this probability.
    fn logits(share: f32) -> [f32; IDS] {
        let mut row = [((1.0 - share) / (IDS - 1) as f32).ln(); IDS];
        row[BEST as usize] = share.ln();
        row
    }

    fn draft(mut chains: Chains<'_>, on_host: bool) -> Vec<Vec<u32>> {
        let (mut going, mut place) = ((0..SHARES.len()).collect::<Vec<_>>(), 0);
        loop {
            let rows = going.iter().flat_map(|part| logits(SHARES[*part][place]));
            let rows: Vec<f32> = rows.collect();
            let next = match on_host {
                #[cfg(target_os = "linux")]
                true => chains.choose_on_host(&rows),
                _ => chains.choose(&Array::from_slice(&rows, &[going.len() as i32, IDS as i32])),
            };
            let Some(next) = next.expect("chosen") else { break };
            assert_eq!(next.ids.on_host().expect("ids").len(), next.parts.len());
            (going, place) = (next.parts, place + 1);
        }
        let drafts = chains.finish(&[]).expect("drafts");
        drafts.into_iter().map(|draft| draft.ids).collect()
    }

    #[test]
    fn a_block_ends_where_its_drafts_are_probably_wrong() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let ids: Vec<i32> = (10..10 + IDS as i32).rev().collect();
        let rows = RowsById::of_ids(&ids, 60);
        for (least, lengths) in [(0.0, [3; 4]), (0.2, [3, 0, 1, 2]), (0.6, [3, 0, 1, 0])] {
            for on_host in [false, true] {
                for (proposed, id) in [(None, BEST), (Some(&rows), 41 - BEST)] {
                    let parts = parts(least);
                    let drafts = draft(Chains::new(&parts, 60, |_| true).among(proposed), on_host);
                    let expected = lengths.map(|length| vec![id; length]);
                    assert_eq!(drafts, expected, "{least}, on the host: {on_host}");
                }
            }
        }
    }

    #[test]
    fn blocks_whose_probabilities_come_late_end_in_the_same_places() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let parts = parts(0.0);
        let mut chains = Chains::new(&parts, 60, |_| true);
        for place in 0..3 {
            let rows: Vec<f32> = SHARES.iter().flat_map(|shares| logits(shares[place])).collect();
            chains.choose(&Array::from_slice(&rows, &[4, IDS as i32])).expect("chosen");
            let logprobs = SHARES.map(|shares| shares[place].ln());
            chains.logprobs.push(Array::from_slice(&logprobs, &[4]));
        }
        chains.chains.iter_mut().for_each(|chain| chain.request.least_survival = 0.2);
        let drafts = chains.finish(&[]).expect("drafts");
        let lengths: Vec<usize> = drafts.iter().map(|draft| draft.ids.len()).collect();
        assert_eq!(lengths, [3, 0, 1, 2]);
    }
}
