//! Messages between the shell and the controller of speculation: policy and readiness on the way
//! in; plans, and decisions for the log, on the way out.

use std::mem;

use paceline_vocabulary::{Force, Permit, RouteReason};

use super::SequenceKey;

/// The part of the routing policy that holds in the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Term of the supervisor that sent it. Each supervisor counts its policies from 1.
    pub term: u64,
    /// Number of the policy. An older one is dropped (I7).
    pub epoch: u64,
    /// The operator's override.
    pub force: Force,
    /// Share of the KV budget above which no sequence drafts.
    pub kv_pressure: f64,
    /// Longest context, in positions, that drafts unless it is forced; `None`: no limit is set.
    pub max_context: Option<u32>,
}

impl Default for Policy {
    fn default() -> Self {
        // Before the first policy the permits carry what the supervisor decided.
        Self { term: 0, epoch: 0, force: Force::Auto, kv_pressure: 1.0, max_context: None }
    }
}

impl Policy {
    /// Whether a sequence drafts whatever it costs.
    pub fn forces(&self, permit: &Permit) -> bool {
        self.force == Force::Speculative || permit.reason == RouteReason::Forced
    }
}

/// How far the drafter is with a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrafterReadiness {
    /// Rows that it has to read before it can draft.
    pub unread_rows: usize,
    /// A draft may be requested now, even if the drafter has to read for a while first.
    pub can_draft: bool,
    /// The drafter has proposed nothing for the sequence, or has nothing to propose now. Its context
    /// may be read all the same.
    pub has_nothing: bool,
    /// Most tokens of a draft; `None`: as many as are asked for.
    pub longest: Option<usize>,
    /// The context is longer than the drafter reads: it will not draft for the sequence any more.
    pub beyond_context: bool,
}

/// Plan at a step border: sequences to feed to the drafter, and drafts to request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftPlan {
    /// Sequences whose hidden states are sent to the drafter.
    pub feed: Vec<SequenceKey>,
    /// Sequences whose drafts are requested, with the number of tokens.
    pub ask: Vec<(SequenceKey, usize)>,
    /// Survival of a draft from which on it is worth verifying.
    pub least_survival: f32,
}

/// A decision about the lane of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEvent {
    /// Drafts of a sequence do not pay: no draft is requested before its next probe.
    BackoffBegan {
        /// The sequence that rests.
        key: SequenceKey,
        /// Generated tokens at which a probe is considered.
        until_tokens: u32,
    },
    /// A draft is requested in order to measure whether drafts pay now.
    Probed {
        /// The sequence that is tried.
        key: SequenceKey,
        /// Length of the draft.
        draft_tokens: usize,
    },
    /// A probe was verified: the next decision is open.
    BackoffEnded {
        /// The sequence whose draft was verified.
        key: SequenceKey,
    },
}

/// The start of a pause of drafts, because they have not paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Traffic class whose sequences do without the drafter.
    pub class: String,
    /// Sequences in the engine: the pause holds for loads of about this size.
    pub sequences: usize,
    /// Steps of the pause.
    pub steps: u64,
}

/// A decision about the widths of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WidthDecision {
    /// Sequences in the engine.
    pub sequences: usize,
    /// Positions of context of all of them.
    pub context: f64,
    /// Expected tokens per microsecond of plain steps.
    pub plain_rate: f64,
    /// The best cycle for each number of drafting sequences that was compared, the best of all last.
    pub ranking: Vec<RankedCycle>,
    /// The widths that were chosen: drafted tokens of each sequence that drafts.
    pub chosen: Vec<(SequenceKey, usize)>,
}

/// Most events that wait for the shell, which takes them at every step border.
pub(crate) const MAX_EVENTS: usize = 256;

/// Decisions that the shell has not logged yet.
#[derive(Clone, Debug, Default)]
pub struct DecisionLog {
    events: Vec<LaneEvent>,
    parked: Vec<Parked>,
    pub(crate) decision: Option<WidthDecision>,
}

impl DecisionLog {
    /// Adds an event. If too many wait it is dropped: only log lines and their counts use it.
    pub(crate) fn add(&mut self, event: LaneEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        }
    }

    /// Adds the start of a pause, in the same way.
    pub(crate) fn add_parked(&mut self, parked: Parked) {
        if self.parked.len() < MAX_EVENTS {
            self.parked.push(parked);
        }
    }

    /// Pauses that began since the last call.
    pub fn take_parked(&mut self) -> Vec<Parked> {
        mem::take(&mut self.parked)
    }

    /// Decisions about single sequences since the last call.
    pub fn take_events(&mut self) -> Vec<LaneEvent> {
        mem::take(&mut self.events)
    }

    /// The last decision about widths, once.
    pub fn take_decision(&mut self) -> Option<WidthDecision> {
        self.decision.take()
    }
}

/// A cycle that a decision compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedCycle {
    /// Sequences that draft.
    pub drafting: usize,
    /// Drafted tokens of all of them.
    pub drafted: usize,
    /// Expected tokens per microsecond.
    pub rate: f64,
}
