//! Repetition penalty of one sequence's rows (arXiv 1909.05858, section 4.1): a row's logits of ids in its own history are
//! divided by the factor, negative ones multiplied. Each id counts once.

use super::RowRule;

pub(super) struct Penalty {
    factor: f32,
    /// Bit per id: is in the history.
    seen: Vec<u64>,
    /// The ids whose bit is set.
    ids: Vec<u32>,
    /// How many ids of the path are in the history already.
    path: usize,
    row: Vec<f32>,
}

impl Penalty {
    /// The penalty of `rule`, with its history; nothing is kept where it is off.
    pub(super) fn new(rule: &RowRule<'_>, vocab: usize) -> Self {
        let factor = rule.sampling.repetition_penalty;
        let mut penalty = Self { factor, seen: vec![], ids: vec![], path: 0, row: vec![] };
        if factor != 1.0 {
            penalty.seen = vec![0; vocab.div_ceil(64)];
            rule.history.iter().for_each(|id| penalty.add(*id));
        }
        penalty
    }

    /// Takes in what `path`, the ids drafted behind the history, has more than the last time.
    pub(super) fn extend(&mut self, path: &[u32]) {
        if self.factor != 1.0 {
            path[self.path..].iter().for_each(|id| self.add(*id));
            self.path = path.len();
        }
    }

    fn add(&mut self, id: u32) {
        let (word, bit) = (id as usize / 64, 1u64 << (id % 64));
        if let Some(word) = self.seen.get_mut(word)
            && *word & bit == 0
        {
            *word |= bit;
            self.ids.push(id);
        }
    }

    /// One logit.
    pub(super) fn of(&self, id: u32, logit: f32) -> f32 {
        let seen = self.seen.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1);
        if seen { self.weigh(logit) } else { logit }
    }

    fn weigh(&self, logit: f32) -> f32 {
        if logit > 0.0 { logit / self.factor } else { logit * self.factor }
    }

    /// A whole row, as it is where the penalty is off.
    pub(super) fn apply<'a>(&'a mut self, row: &'a [f32]) -> &'a [f32] {
        if self.factor == 1.0 {
            return row;
        }
        self.row.clear();
        self.row.extend_from_slice(row);
        for id in &self.ids {
            if let Some(logit) = self.row.get_mut(*id as usize) {
                *logit = if *logit > 0.0 { *logit / self.factor } else { *logit * self.factor };
            }
        }
        &self.row
    }
}
