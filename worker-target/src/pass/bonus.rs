//! Embeddings of bonus tokens for a drafter that takes them. They are a part of the graph of the step
//! that chooses the tokens, so that the next request for a draft waits for no evaluation.
//!
//! Which of a block's tokens is the bonus token is known after its verification. So the graph embeds
//! every id that it chooses, and the host picks a row. Tokens that the host chooses are embedded when
//! their draft is requested.

use paceline_models::sample::{TokenSelection, VerifiedBlock};
use paceline_models::{Array, ModelError, Target, transfer};
use paceline_target_core::StepPart;

use super::StepInputs;
use super::rows::StepRows;
use crate::drafting::Drafting;

/// Embeddings of the ids that the graph of a step chooses `[rows, hidden]`, if the drafter takes
/// embeddings and a sequence of the step may draft. Lazy.
///
/// # Errors
/// MLX's own.
pub(super) fn of_step(
    model: &dyn Target,
    drafting: &Drafting,
    inputs: StepInputs<'_>,
    selection: &TokenSelection,
) -> Result<Option<Array>, ModelError> {
    let may_draft =
        |part: &StepPart| part.chooses && inputs.scheduler.keeps_hidden_states(part.key);
    if !drafting.takes_embeddings() || !inputs.parts.iter().any(may_draft) {
        return Ok(None);
    }
    selection.ids_of_graph()?.map(|ids| model.embed_chosen(&ids)).transpose()
}

/// Hands the rows of the bonus tokens to `drafting`. `embedded` is evaluated.
///
/// # Errors
/// MLX's own.
pub(super) fn keep(
    drafting: &mut Drafting,
    inputs: StepInputs<'_>,
    rows: &StepRows<'_>,
    step: VerifiedStep<'_>,
    embedded: &Array,
) -> Result<(), ModelError> {
    let bytes = transfer::to_bytes(embedded)?;
    let width = bytes.len() / embedded.dim(0).max(1) as usize;
    let mut first_row = 0;
    for ((key, block), verdict) in rows.keys.iter().zip(&rows.blocks).zip(step.verdicts) {
        let may_draft = inputs.scheduler.keeps_hidden_states(*key) && !verdict.faulty;
        if let Some(bonus) = verdict.choices.last()
            && may_draft
            && step.selection.chooses_in_graph(block)
        {
            let row = first_row + verdict.choices.len() - 1;
            drafting.embedded(*key, bonus.token, &bytes[row * width..][..width]);
        }
        first_row += 1 + block.drafted;
    }
    Ok(())
}

/// Choices of a step.
#[derive(Clone, Copy)]
pub(super) struct VerifiedStep<'a> {
    pub(super) selection: &'a TokenSelection,
    /// One for each block of the step.
    pub(super) verdicts: &'a [VerifiedBlock],
}
