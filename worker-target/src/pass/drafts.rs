//! Token ids of the drafts that a step verifies. Hidden rows go through the target's own head.

use paceline_models::sample::{Block, DraftedIds, propose};
use paceline_models::{Array, Dtype, ModelError, Target, transfer};
use paceline_target_core::StepPart;
use paceline_vocabulary::TensorType;

use super::rows::StepRows;
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
) -> Result<DraftedIds, ModelError> {
    let proposals = parts.iter().filter(|part| part.drafted > 0).map(|part| {
        let missing =
            || ModelError::Batch(format!("the draft of sequence {} is not there", part.key.0));
        drafting.take(part.key).ok_or_else(missing)
    });
    let proposals = proposals.collect::<Result<Vec<_>, _>>()?;
    let blocks: Vec<Block<'_>> =
        rows.blocks.iter().filter(|block| block.drafted > 0).copied().collect();
    of_proposals(model, &proposals, &blocks)
}

/// The drafted ids of `blocks`, one proposal each.
fn of_proposals(
    model: &dyn Target,
    proposals: &[Proposed],
    blocks: &[Block<'_>],
) -> Result<DraftedIds, ModelError> {
    // `None` for ids.
    let cap_of = |proposed: &Proposed| match proposed {
        Proposed::Hidden { softcap, .. } => Some(*softcap),
        Proposed::Ids(_) => None,
    };
    if let Some(cap) = proposals.first().and_then(cap_of)
        && proposals.iter().all(|proposed| cap_of(proposed) == Some(cap))
    {
        let rows = proposals
            .iter()
            .map(|proposed| hidden_rows(model, proposed))
            .collect::<Result<Vec<_>, _>>()?;
        let rows = if let [one] = rows.as_slice() { one.clone() } else { transfer::stack(&rows)? };
        return propose(&model.draft_logits(&rows, cap)?, blocks);
    }
    // Ids; or, while drafters change, proposals of two kinds or with two caps. Hidden rows then
    // become ids one sequence after another.
    let mut ids = vec![];
    for (proposed, block) in proposals.iter().zip(blocks) {
        match proposed {
            Proposed::Ids(proposed) => ids.extend_from_slice(proposed),
            Proposed::Hidden { softcap, .. } => {
                let rows = hidden_rows(model, proposed)?;
                let chosen = propose(&model.draft_logits(&rows, *softcap)?, &[*block])?;
                ids.extend(chosen.on_host()?);
            }
        }
    }
    Ok(DraftedIds::OnHost(ids))
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

#[cfg(test)]
mod tests {
    use paceline_models::sample::{RowRule, SamplingRule};

    use super::*;
    use crate::engine::tests::fixture;

    #[test]
    fn hidden_rows_are_capped_alone_and_beside_proposals_of_another_drafter() {
        let model = fixture::load();
        let (rows, width) = (4, model.info().hidden as usize);
        let numbers =
            (0..rows * width).flat_map(|at| ((at as f32 * 0.37).sin() * 3.0).to_ne_bytes());
        let bytes: Vec<u8> = numbers.collect();
        let element = TensorType::F32;
        let hidden = |softcap| Proposed::Hidden { bytes: bytes.clone(), rows, element, softcap };
        let sampling = SamplingRule { temperature: 1.0, ..SamplingRule::GREEDY };
        let block = Block { rule: RowRule { sampling, ..RowRule::greedy(&[], 0) }, drafted: rows };
        let one_id = Block { rule: RowRule::greedy(&[], 0), drafted: 1 };
        let ids = |proposals: &[Proposed], blocks: &[Block<'_>]| {
            let drafts = of_proposals(&*model, proposals, blocks).expect("drafts");
            drafts.on_host().expect("ids")
        };
        let (capped, free) = (ids(&[hidden(Some(0.1))], &[block]), ids(&[hidden(None)], &[block]));
        assert_ne!(capped, free, "the cap changes these drafts");
        let other = || Proposed::Ids(vec![5]);
        assert_eq!(ids(&[other(), hidden(Some(0.1))], &[one_id, block])[1..], capped);
        assert_eq!(ids(&[hidden(None), other()], &[block, one_id])[..rows], free);
        let both = ids(&[hidden(Some(0.1)), hidden(None)], &[block, block]);
        assert_eq!(both, [capped, free].concat());
    }
}
