//! Interface of a drafter for the engine: a model with weights, or prompt lookup.

use paceline_drafter_core::{Step, StoreCommand};
use paceline_models::ModelError;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{DraftShape, DraftTokens};
use paceline_vocabulary::report::MemoryUse;

/// A drafter, with what it remembers of its sessions. A session is a slot of its store.
pub(crate) trait Proposer {
    /// Bytes of one position in the store.
    fn row_bytes(&self) -> u64;

    /// Bytes of what the store keeps of the end of a session alone; 0 if its rows are all that it
    /// continues from.
    fn end_bytes(&self) -> u64;

    /// Bytes of the store.
    fn store_bytes(&self) -> u64;

    /// Memory of its device.
    fn memory(&self) -> MemoryUse;

    /// Carries out the core's commands to the store.
    fn perform(&mut self, commands: &[StoreCommand]) -> Result<(), ModelError>;

    /// Reads the context of all sessions of a step, and drafts the blocks. `element` is the type of
    /// the target's rows, `mask` the mask token's embedding. Drafts are computed when this returns,
    /// and the step's progress says from where on there may be drafts, if the drafter knows.
    /// [`Proposer::settle`] computes context that was only read.
    fn propose(
        &mut self,
        step: &mut Step,
        element: TensorType,
        mask: &[u8],
    ) -> Result<Option<Proposed>, ModelError>;

    /// Computes context that was read and not needed for a draft.
    fn settle(&self) -> Result<(), ModelError>;

    /// Forgets every session and gives their memory back.
    fn clear(&mut self) -> Result<(), ModelError>;

    /// Gives freed memory of its device back to the system.
    fn drop_cache(&self);
}

/// The drafts of a step.
#[derive(Debug)]
pub(crate) enum Proposed {
    /// Hidden rows.
    Hidden {
        /// Whose rows they are, in their order.
        shapes: Vec<DraftShape>,
        /// `[rows, hidden size]`.
        bytes: Vec<u8>,
    },
    /// Token ids.
    Tokens(Vec<DraftTokens>),
}
