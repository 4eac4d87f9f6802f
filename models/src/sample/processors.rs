//! Changes of one sequence's logits before temperature, row by row along its drafted path:
//! repetition, frequency and presence penalty, bias, ids that would end it too early, and ids that
//! its constraint excludes. Each row has a history of its own; nothing here depends on which rows
//! come together.

use std::collections::HashMap;
use std::sync::Arc;

use super::{IdSet, RowRule, counts_ids};

/// The processors of one block; rows are processed in order.
pub(super) struct LogitProcessors<'a> {
    rule: RowRule<'a>,
    /// Bit per id: is in the history. Empty where repetition is not penalized.
    seen: Vec<u64>,
    /// The ids whose bit is set.
    seen_ids: Vec<u32>,
    /// How often ids were generated; empty where that changes nothing.
    counts: HashMap<u32, u32>,
    /// How many ids of the drafted path are in the history already.
    path: usize,
    /// Ids that the constraint allows in the next row; `None` without a constraint.
    allowed: Option<Arc<IdSet>>,
    row: Vec<f32>,
}

impl<'a> LogitProcessors<'a> {
    /// The processors of `rule`, with its history; nothing is kept for those that are off.
    pub(super) fn new(rule: &RowRule<'a>, vocab: usize) -> Self {
        let mut processors = Self {
            rule: *rule,
            seen: vec![],
            seen_ids: vec![],
            counts: HashMap::new(),
            path: 0,
            allowed: None,
            row: vec![],
        };
        if rule.sampling.repetition_penalty != 1.0 {
            processors.seen = vec![0; vocab.div_ceil(64)];
            rule.history.iter().for_each(|id| processors.see(*id));
        }
        rule.generated().iter().for_each(|id| processors.count(*id));
        processors
    }

    /// Adds the new ids of `path`, the ids drafted after the history: the next row follows them.
    pub(super) fn extend(&mut self, path: &[u32]) {
        self.allowed = self.rule.constraint.map(|constraint| constraint.allowed(path));
        for id in &path[self.path..] {
            self.see(*id);
            self.count(*id);
        }
        self.path = path.len();
    }

    fn see(&mut self, id: u32) {
        let (word, bit) = (id as usize / 64, 1u64 << (id % 64));
        if let Some(word) = self.seen.get_mut(word)
            && *word & bit == 0
        {
            *word |= bit;
            self.seen_ids.push(id);
        }
    }

    fn count(&mut self, id: u32) {
        if counts_ids(&self.rule.sampling) {
            *self.counts.entry(id).or_default() += 1;
        }
    }

    /// Ids that may not be chosen yet.
    fn barred(&self) -> &'a [u32] {
        let index = self.rule.generated().len() + self.path;
        if index < self.rule.min_tokens as usize { self.rule.stop_ids } else { &[] }
    }

    /// Whether a row is as it was.
    fn is_off(&self) -> bool {
        self.seen.is_empty()
            && !counts_ids(&self.rule.sampling)
            && self.rule.bias.is_empty()
            && self.barred().is_empty()
            && self.allowed.is_none()
    }

    /// One logit.
    pub(super) fn of(&self, id: u32, logit: f32) -> f32 {
        let excluded = self.allowed.as_ref().is_some_and(|allowed| !allowed.contains(id));
        if excluded || self.barred().contains(&id) {
            return f32::NEG_INFINITY;
        }
        let seen = self.seen.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1);
        let mut logit =
            if seen { repeated(logit, self.rule.sampling.repetition_penalty) } else { logit };
        if let Some(count) = self.counts.get(&id) {
            logit = self.counted(logit, *count);
        }
        match self.rule.bias.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => logit + self.rule.bias[at].1,
            Err(_) => logit,
        }
    }

    fn counted(&self, logit: f32, count: u32) -> f32 {
        logit
            - self.rule.sampling.frequency_penalty * count as f32
            - self.rule.sampling.presence_penalty
    }

    /// A whole row, each logit as [`Self::of`] gives it.
    pub(super) fn apply<'b>(&'b mut self, row: &'b [f32]) -> &'b [f32] {
        if self.is_off() {
            return row;
        }
        let mut changed = std::mem::take(&mut self.row);
        changed.clear();
        changed.extend_from_slice(row);
        let mut set = |id: u32, new: &dyn Fn(f32) -> f32| {
            // Ids from the limit on are padding; no row has them.
            if let Some(logit) = changed.get_mut(id as usize) {
                *logit = new(*logit);
            }
        };
        for id in &self.seen_ids {
            set(*id, &|logit| repeated(logit, self.rule.sampling.repetition_penalty));
        }
        for (id, count) in &self.counts {
            set(*id, &|logit| self.counted(logit, *count));
        }
        for (id, bias) in self.rule.bias {
            set(*id, &|logit| logit + bias);
        }
        for id in self.barred() {
            set(*id, &|_| f32::NEG_INFINITY);
        }
        if let Some(allowed) = &self.allowed {
            allowed.mask(&mut changed);
        }
        self.row = changed;
        &self.row
    }
}

fn repeated(logit: f32, factor: f32) -> f32 {
    if logit > 0.0 { logit / factor } else { logit * factor }
}
