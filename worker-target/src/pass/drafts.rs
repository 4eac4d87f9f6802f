//! Token ids of the drafts that a step verifies. Hidden rows go through the target's own head.

use paceline_models::sample::{Block, Drafts, propose, softcap};
use paceline_models::{Array, Dtype, ModelError, Target, transfer};
use paceline_vocabulary::TensorType;

use super::rows::StepRows;
use crate::core::StepPart;
use crate::drafting::{Drafting, Proposed};

/// The drafted ids of all parts that verify a draft.
///
/// # Errors
/// A draft is missing; MLX's own.
pub(super) fn of_step(
    model: &dyn Target,
    drafting: &mut Drafting,
    parts: &[StepPart],
    rows: &StepRows<'_>,
) -> Result<Drafts, ModelError> {
    let proposals = parts.iter().filter(|part| part.drafted > 0).map(|part| {
        let missing =
            || ModelError::Batch(format!("the draft of sequence {} is not there", part.key.0));
        drafting.take(part.key).ok_or_else(missing)
    });
    let proposals = proposals.collect::<Result<Vec<_>, _>>()?;
    let blocks: Vec<Block<'_>> =
        rows.blocks.iter().filter(|block| block.drafted > 0).copied().collect();
    let is_hidden = |proposed: &Proposed| matches!(proposed, Proposed::Hidden { .. });
    if !proposals.is_empty() && proposals.iter().all(is_hidden) {
        return of_hidden_rows(model, &proposals, &blocks);
    }
    // Ids, or both kinds when drafters change: the hidden rows of an earlier drafter become ids
    // first.
    let mut ids = vec![];
    for (proposed, block) in proposals.iter().zip(&blocks) {
        match proposed {
            Proposed::Ids(proposed) => ids.extend_from_slice(proposed),
            Proposed::Hidden { .. } => {
                let chosen = propose(&model.head(&hidden_rows(model, proposed)?)?, &[*block])?;
                ids.extend(chosen.on_host()?);
            }
        }
    }
    Ok(Drafts::OnHost(ids))
}

fn of_hidden_rows(
    model: &dyn Target,
    proposals: &[Proposed],
    blocks: &[Block<'_>],
) -> Result<Drafts, ModelError> {
    let rows = proposals
        .iter()
        .map(|proposed| hidden_rows(model, proposed))
        .collect::<Result<Vec<_>, _>>()?;
    let rows = if let [one] = rows.as_slice() { one.clone() } else { transfer::stack(&rows)? };
    // All proposals are of one drafter, so they have one cap.
    let cap = proposals.iter().find_map(|proposed| match proposed {
        Proposed::Hidden { softcap, .. } => *softcap,
        Proposed::Ids(_) => None,
    });
    let logits = model.head(&rows)?;
    propose(&cap.map(|cap| softcap(&logits, cap)).unwrap_or(Ok(logits))?, blocks)
}

fn hidden_rows(model: &dyn Target, proposed: &Proposed) -> Result<Array, ModelError> {
    let Proposed::Hidden { bytes, rows, element, .. } = proposed else {
        return Err(ModelError::Batch("expected hidden rows, found ids".into()));
    };
    let dtype = match element {
        TensorType::F32 => Dtype::Float32,
        TensorType::F16 => Dtype::Float16,
        TensorType::Bf16 => Dtype::Bfloat16,
    };
    let rows = transfer::from_bytes(bytes, &[*rows as i32, model.info().hidden], dtype)?;
    Ok(rows.as_dtype(model.dtype())?)
}
