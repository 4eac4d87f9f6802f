//! A step that is built while the step before it runs.
//!
//! A step in which each sequence has one row leaves all of its rows in the store. So the places of
//! the next step's rows are known before anything is computed. The ids that it reads stay in the
//! graph, or they come from a cell that is written when the prepared step is taken. The prepared step
//! lies beside the store, as staged rows ([`KvStore::stage`]): any change of the store drops it.

use crate::batch::{Forward, Wants};
use crate::error::Result;
use crate::id_cell::IdCell;
use crate::kv::KvStore;
use crate::sample::TokenSelection;
use crate::segment::Segment;

/// The graph of a step, not run yet.
#[derive(Debug)]
pub struct PreparedStep {
    /// Output of the model.
    pub forward: Forward,
    /// The tokens that are chosen from it.
    pub selection: TokenSelection,
    /// The ids that it reads, if they are not in the graph: [`take_prepared`] writes them.
    pub ids: Option<IdCell>,
}

/// A prepared step, and the forward it was built for.
struct StagedStep {
    segments: Vec<Segment>,
    wants: Wants,
    step: PreparedStep,
}

/// Lets `build` make the graph of a forward over `segments` that may come next, for
/// [`take_prepared`]. Returns whether it did: see [`KvStore::stage`].
///
/// # Errors
/// Those of `build`.
pub fn prepare_next(
    kv: &mut KvStore,
    segments: &[Segment],
    wants: &Wants,
    build: impl FnOnce(&mut KvStore) -> Result<PreparedStep>,
) -> Result<bool> {
    kv.stage(segments, |kv| {
        Ok(StagedStep { segments: segments.to_vec(), wants: wants.clone(), step: build(kv)? })
    })
}

/// The step that was prepared for exactly this forward, if the store has not changed since and
/// `serves` accepts its choice of tokens. It reads `ids`, the ids of its rows, unless they are in its
/// graph. The caller runs it next: its rows are the store's from now on. A step that was prepared
/// for anything else is dropped.
///
/// # Errors
/// The step has another number of rows than `ids`.
pub fn take_prepared(
    kv: &mut KvStore,
    segments: &[Segment],
    wants: &Wants,
    ids: &[u32],
    serves: impl FnOnce(&TokenSelection) -> bool,
) -> Result<Option<PreparedStep>> {
    let taken = kv.take_staged(|prepared: &StagedStep| {
        prepared.segments == segments
            && prepared.wants == *wants
            && serves(&prepared.step.selection)
    });
    let Some(StagedStep { mut step, .. }) = taken else { return Ok(None) };
    if let Some(cell) = step.ids.take() {
        cell.write(ids)?;
    }
    Ok(Some(step))
}

#[cfg(test)]
mod tests;
