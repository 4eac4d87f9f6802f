//! One forward of the target for all sequences of a step. Drafts are chosen and verified in the
//! same graph, and the accepted rows stay in the store.

mod bonus;
mod drafts;
mod rows;

use std::collections::HashMap;

use paceline_models::sample::{DraftedIds, Logprobs, TokenSelection, VerifiedBlock};
use paceline_models::vision::ImageForm;
use paceline_models::{
    Array, Forward, HiddenStates, IdCell, KvStore, ModelError, PreparedStep, SequenceId, Target,
    prepare_next, take_prepared,
};
use paceline_target_core::{Chosen, Scheduler, SequenceKey, StepPart, Token};

use crate::drafting::Drafting;
use crate::features::ImageFeatures;
use crate::running::RunningRequest;
use bonus::VerifiedStep;
use rows::StepRows;

/// Inputs of a step, which it does not change.
#[derive(Clone, Copy)]
pub(crate) struct StepInputs<'a> {
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) running: &'a HashMap<SequenceKey, RunningRequest>,
    pub(crate) features: &'a ImageFeatures,
    /// Rows of images in prompts, and their positions.
    pub(crate) form: ImageForm,
    pub(crate) parts: &'a [StepPart],
}

/// Results of a step.
#[derive(Debug, Default)]
pub(crate) struct StepOutcome {
    /// The chosen tokens. A faulty sequence has the tokens that were chosen before its fault.
    pub(crate) chosen: Vec<Chosen>,
    /// Sequences of which no further token can be chosen, because the model's numbers are not
    /// finite.
    pub(crate) faulty: Vec<SequenceKey>,
    /// Log-probabilities, one for each chosen token, for requests that asked for them.
    pub(crate) logprobs: HashMap<SequenceKey, Vec<Logprobs>>,
}

/// A step's forward, and what is chosen from its logits, if anything is.
struct Computed {
    forward: Forward,
    selection: Option<TokenSelection>,
}

/// Runs a step. Afterwards the store holds the rows that stay, and `drafting` their hidden states.
///
/// A sequence of which no token can be chosen is named in the outcome and changes nothing for the
/// other sequences.
///
/// # Errors
/// MLX's own, after which the contents of the store are unknown; or a batch that contradicts
/// itself.
pub(crate) fn run(
    model: &dyn Target,
    kv: &mut KvStore,
    drafting: &mut Drafting,
    inputs: StepInputs<'_>,
) -> Result<StepOutcome, ModelError> {
    let rows = StepRows::of(inputs, drafting.feature_layers())?;
    let drafts = drafts::of_step(model, drafting, inputs.parts, &rows)?;
    let Computed { forward, selection } = compute(model, kv, &rows, &drafts)?;
    let mut outcome = StepOutcome::default();
    let mut is_next_prepared = false;
    match &selection {
        Some(selection) => {
            let bonus = bonus::of_step(model, drafting, inputs, selection)?;
            let hidden = forward.hidden_states.iter().flat_map(HiddenStates::arrays);
            let with: Vec<&Array> = hidden.chain(&bonus).collect();
            if let Some(next) = rows.next(inputs) {
                selection.begin(&with)?;
                is_next_prepared = true;
                prepare_step(model, kv, inputs.parts, &next, selection)?;
            }
            let constraints = rows.blocks.iter().filter_map(|block| block.rule.constraint);
            let mut constraints = constraints.peekable();
            if constraints.peek().is_some() {
                // The first row's ids are computed while the graph runs, and kept for its verdict.
                selection.begin(&with)?;
                constraints.for_each(|constraint| drop(constraint.allowed(&[])));
            }
            let verdicts = selection.verdicts(&rows.blocks, &drafts, &with)?;
            if let Some(bonus) = &bonus {
                let step = VerifiedStep { selection, verdicts: &verdicts };
                bonus::keep(drafting, inputs, &rows, step, bonus)?;
            }
            for (key, verdict) in rows.keys.iter().zip(verdicts) {
                outcome.add(*key, verdict);
            }
        }
        // Nothing is chosen. Only the rows that the store gets are computed, and nothing after the
        // last layer's keys and values.
        None => kv.evaluate()?,
    }
    commit(kv, drafting, inputs, &forward, &outcome, is_next_prepared)?;
    Ok(outcome)
}

/// Takes the graph that the step before prepared, if it is for these rows; else builds one.
fn compute(
    model: &dyn Target,
    kv: &mut KvStore,
    rows: &StepRows<'_>,
    drafts: &DraftedIds,
) -> Result<Computed, ModelError> {
    let serves = |selection: &TokenSelection| selection.serve(&rows.blocks);
    let prepared = take_prepared(kv, &rows.segments, &rows.wants, &rows.ids, serves)?;
    if let Some(PreparedStep { forward, selection, .. }) = prepared {
        return Ok(Computed { forward, selection: Some(selection) });
    }
    let forward = model.forward(&rows.batch(drafts), kv, &rows.wants)?;
    let selection = forward
        .logits
        .as_ref()
        .map(|logits| TokenSelection::of(logits, &rows.blocks))
        .transpose()?;
    Ok(Computed { forward, selection })
}

impl StepOutcome {
    fn add(&mut self, key: SequenceKey, verdict: VerifiedBlock) {
        if verdict.faulty {
            self.faulty.push(key);
        }
        if verdict.choices.is_empty() {
            return;
        }
        let choices = verdict.choices.iter();
        let tokens = choices.map(|choice| Token { id: choice.token, margin: choice.margin });
        self.chosen.push(Chosen { key, tokens: tokens.collect() });
        if !verdict.logprobs.is_empty() {
            self.logprobs.insert(key, verdict.logprobs);
        }
    }

    /// Rows of a part that stay in the store: all of them. Of a verified block, the bonus token's
    /// row and those of the accepted drafts.
    fn staying_rows(&self, part: &StepPart) -> usize {
        if part.drafted == 0 {
            return part.rows;
        }
        let chosen = self.chosen.iter().find(|chosen| chosen.key == part.key);
        chosen.map_or(1, |chosen| chosen.tokens.len())
    }
}

/// Commits the rows that stay, unless preparing the next step has done it, and passes their hidden
/// states on to `drafting`.
fn commit(
    kv: &mut KvStore,
    drafting: &mut Drafting,
    inputs: StepInputs<'_>,
    forward: &Forward,
    outcome: &StepOutcome,
    is_committed: bool,
) -> Result<(), ModelError> {
    let hidden_states = forward.hidden_states.as_ref().map(HiddenStates::on_host).transpose()?;
    let mut at = 0;
    for part in inputs.parts {
        let stays = outcome.staying_rows(part);
        if !is_committed {
            kv.commit(SequenceId(part.key.0), (part.start + stays) as i32)?;
        }
        let is_kept = inputs.scheduler.keeps_hidden_states(part.key);
        if let Some(hidden_states) = hidden_states.as_ref().filter(|_| is_kept) {
            if !outcome.faulty.contains(&part.key) {
                drafting.committed(part.key, part.start, hidden_states, at..at + stays);
            }
            at += part.rows;
        }
    }
    Ok(())
}

/// Builds the graph of the next step while this one runs. All of this step's rows stay, because
/// none is drafted. The graph reads the tokens that `selection` chooses: as a part of itself if they
/// are chosen in the graph, else from a cell, because the host chooses them later.
fn prepare_step(
    model: &dyn Target,
    kv: &mut KvStore,
    parts: &[StepPart],
    next: &StepRows<'_>,
    selection: &TokenSelection,
) -> Result<(), ModelError> {
    for part in parts {
        kv.commit(SequenceId(part.key.0), (part.start + part.rows) as i32)?;
    }
    let (chosen, cell) = match selection.ids()? {
        Some(ids) => (ids, None),
        None => {
            let cell = IdCell::new(next.ids.len());
            (cell.ids().clone(), Some(cell))
        }
    };
    prepare_next(kv, &next.segments, &next.wants, |kv| {
        let forward = model.forward(&next.batch(&DraftedIds::InGraph(chosen)), kv, &next.wants)?;
        let logits = forward
            .logits
            .as_ref()
            .ok_or_else(|| ModelError::Batch("a plain step without logits".into()))?;
        let selection = TokenSelection::of(logits, &next.blocks)?;
        Ok(PreparedStep { forward, selection, ids: cell })
    })?;
    Ok(())
}

#[cfg(test)]
mod tests;
