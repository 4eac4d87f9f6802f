//! Constraint of a sequence's rows: its grammar, and the budget of its thought. A row that the budget
//! forces allows the ids of the thought's end, as far as the grammar allows them.
//!
//! Must not know: steps, the link, arrays.

mod thought;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use paceline_models::sample::{Constraint, IdSet};
use paceline_vocabulary::generation::ThoughtBudget;

use crate::grammar::GrammarState;

/// Constraint of one sequence.
#[derive(Debug, Default)]
pub(crate) struct AnswerConstraint {
    grammar: Option<GrammarState>,
    thought: Option<BoundedThought>,
}

/// A thought with a budget.
#[derive(Debug)]
struct BoundedThought {
    budget: ThoughtBudget,
    /// Every id, for rows that nothing constrains.
    all: Arc<IdSet>,
    /// Ids after the prompt, while the budget's end is near.
    answer: RefCell<Option<Vec<u32>>>,
    /// No later row can be a forced one. Only ever set near the budget's end.
    is_over: Cell<bool>,
}

impl AnswerConstraint {
    /// The constraint of these parts; `vocab` is the number of ids.
    pub(crate) fn new(
        grammar: Option<GrammarState>,
        budget: Option<ThoughtBudget>,
        vocab: u32,
    ) -> Self {
        let all = || Arc::new(IdSet::of_words(vec![u32::MAX; vocab as usize / 32 + 1]));
        let thought = |budget| {
            let (answer, is_over) = Default::default();
            BoundedThought { budget, all: all(), answer, is_over }
        };
        Self { grammar, thought: budget.map(thought) }
    }

    /// Goes to the place after these ids, all that the sequence has after its prompt. Returns the
    /// constraint of the next `rows` rows, if they have one: a budget without a grammar costs nothing
    /// until its end is near.
    pub(crate) fn follow(&self, answer: &[u32], rows: usize) -> Option<&dyn Constraint> {
        if let Some(grammar) = &self.grammar {
            grammar.follow(answer);
        }
        let mut is_held = self.grammar.is_some();
        if let Some(thought) = self.thought.as_ref().filter(|thought| !thought.is_over.get()) {
            let is_near = thought::is_near(&thought.budget, answer, rows);
            thought.is_over.set(is_near && thought::is_over(&thought.budget, answer));
            let is_near = is_near && !thought.is_over.get();
            *thought.answer.borrow_mut() = is_near.then(|| answer.to_vec());
            is_held |= is_near;
        }
        is_held.then_some(self as &dyn Constraint)
    }

    /// How many of these drafted ids are allowed, from the first one on, after the ids that were
    /// followed last.
    pub(crate) fn allowed_drafts(&self, drafts: &[u32]) -> usize {
        let allowed = match &self.grammar {
            Some(grammar) => grammar.allowed_drafts(drafts),
            None => drafts.len(),
        };
        let is_free = |at: &usize| match self.forced(&drafts[..*at]) {
            Some(ids) => ids.contains(&drafts[*at]),
            None => true,
        };
        (0..allowed).take_while(is_free).count()
    }

    /// Why no further token can be chosen, if that is so.
    pub(crate) fn failure(&self) -> Option<String> {
        self.grammar.as_ref()?.failure()
    }

    /// Ids that the budget allows after the followed ids and `path`; `None` if it allows all.
    fn forced(&self, path: &[u32]) -> Option<&[u32]> {
        let thought = self.thought.as_ref()?;
        let mut answer = thought.answer.borrow_mut();
        let answer = answer.as_mut()?;
        let followed = answer.len();
        answer.extend_from_slice(path);
        let forced = thought::forced(&thought.budget, answer);
        answer.truncate(followed);
        forced
    }
}

impl Constraint for AnswerConstraint {
    fn allowed(&self, path: &[u32]) -> Arc<IdSet> {
        match (self.forced(path), &self.grammar, &self.thought) {
            (None, Some(grammar), _) => grammar.allowed(path),
            (Some(ids), None, _) => Arc::new(IdSet::of_ids(ids)),
            (Some(ids), Some(grammar), _) => {
                let allowed = grammar.allowed(path);
                let ids = ids.iter().copied().filter(|id| allowed.contains(*id));
                let ids: Vec<u32> = ids.collect();
                // A text of the grammar can be ended elsewhere than inside of a character.
                if ids.is_empty() { allowed } else { Arc::new(IdSet::of_ids(&ids)) }
            }
            (None, None, Some(thought)) => Arc::clone(&thought.all),
            (None, None, None) => Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests;
