//! Work of a step, and the tokens that the target chose in it.

use crate::{EndReason, SequenceKey, TowerSlice};

/// One sequence's rows in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPart {
    /// The sequence.
    pub key: SequenceKey,
    /// Place of the first row in its ids.
    pub start: usize,
    /// Rows.
    pub rows: usize,
    /// The last row is the newest id: the target chooses a token after it.
    pub chooses: bool,
    /// Prompt (or continuation) rows, not a decode step.
    pub prefill: bool,
    /// Last rows that are drafted and not in its ids.
    pub drafted: usize,
}

/// Work of the next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Rows to compute; empty when there is nothing to do.
    pub parts: Vec<StepPart>,
    /// Work for the vision tower. The step has no rows then.
    pub tower: Option<TowerSlice>,
    /// Sequences that ended without a step: their deadline passed.
    pub ended: Vec<(SequenceKey, EndReason)>,
    /// Sequences whose draft was late. They step plainly.
    pub late: Vec<SequenceKey>,
    /// Sequences whose draft was dropped for want of memory. They step plainly.
    pub dropped_drafts: Vec<SequenceKey>,
    /// Prompts without a row in this step, and the number of such steps in a row.
    pub skipped: Vec<(SequenceKey, u32)>,
    /// Sequences that lost memory to others.
    pub preempted: Preempted,
}

/// Sequences that lost memory to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preempted {
    /// Sequences that lost their hidden states.
    pub lost_hidden: Vec<SequenceKey>,
    /// Sequences that lost all memory. Their rows are recomputed from their tokens when there is
    /// room.
    pub sequences: Vec<SequenceKey>,
}

/// A token that the target chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Id of the token.
    pub id: u32,
    /// Deciding margin.
    pub margin: f32,
}

/// Tokens that the target chose for one sequence in a step: one token, or the accepted drafts and
/// one more.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The sequence.
    pub key: SequenceKey,
    /// In order.
    pub tokens: Vec<Token>,
}
