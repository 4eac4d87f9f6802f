//! Adaptive speculation: which sequences draft in the next cycle, and how many tokens, within the
//! permits.
//!
//! The algorithm: at a *cycle border*, when no draft is under way, the batch takes the draft
//! lengths with the largest expected throughput (`choose`). The throughput follows from what steps
//! and drafts cost on this machine (`costs`, `cost`, `machine_speed`) and from how far drafts
//! survive (`survival`). Survival is learned from drafts, from the target's certainty
//! (`target_entropy`) and from similar prompts of the same cache scope (`similar_prompts`,
//! `scopes`). The lengths of all sequences are decided together, because they share a step.
//!
//! The life of a sequence:
//!
//! ```text
//!         drafting pays                   drafting would not pay even alone
//! open ─────────────────▶ drafting ──────────────────────────────────────────▶ resting
//!  ▲                                                                               │
//!  └────────────────────────── one cycle of trial ◀────────────────────────────────┘
//! ```
//!
//! - An open sequence steps plainly while drafting would pay for it alone but not in this batch.
//! - The back-off before a trial doubles with each trial.
//! - A sequence without a cycle that is not chosen rests, too. Its first trial is due at once.
//!
//! The drafter is sent the hidden states of sequences that are to draft, and of no others. It reads
//! what it missed from their windows of hidden states. The cost of that reading counts against the
//! tokens that are still expected.
//!
//! [`Speculation`] has methods of three types:
//! - events: [`open`](Speculation::open), [`continue_past_end`](Speculation::continue_past_end),
//!   [`observe_entropy`](Speculation::observe_entropy), [`drafted`](Speculation::drafted),
//!   [`answered`](Speculation::answered), [`proposed_nothing`](Speculation::proposed_nothing),
//!   [`stepped`](Speculation::stepped),
//!   [`close`](Speculation::close), [`set_policy`](Speculation::set_policy),
//!   [`set_linked`](Speculation::set_linked);
//! - decisions: [`plan`](Speculation::plan), [`wants_entropy`](Speculation::wants_entropy);
//! - reports: [`route`](Speculation::route), [`figures`](Speculation::figures),
//!   [`policy`](Speculation::policy), [`read_us`](Speculation::read_us),
//!   [`take_lane_events`](Speculation::take_lane_events).
//!
//! Events of a sequence's life are in `lifecycle`, measurements in `measure`, decisions in `decide`
//! and `rest`.

pub mod choose;
pub mod cost;
pub mod costs;
mod decide;
mod figures;
mod lane_event;
mod lifecycle;
mod machine_speed;
mod measure;
mod rest;
mod scopes;
pub mod similar_prompts;
mod staleness;
mod state;
pub mod survival;
pub mod target_entropy;
pub mod trial;

use std::collections::BTreeMap;

use paceline_vocabulary::{Force, Lane, Route, RouteReason};

use super::{Sequence, SequenceKey};
use costs::Costs;
use figures::Ranges;
pub use lane_event::LaneEvent;
use lane_event::LaneEvents;
use measure::{PlainChecks, Silence};
use scopes::PromptMemories;
use staleness::StalenessGuard;
use state::{DraftCause, SequenceState};
use survival::TrafficClass;
use target_entropy::EntropyByKind;

/// Class of requests without a label.
const DEFAULT_CLASS: &str = "default";
/// Class of the text after the end of an answer, if the client ignores the end. If an operator uses
/// this label, too, both share what they learn.
const PAST_END_CLASS: &str = "behind the end";

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
    /// The context is longer than the drafter reads: it will not draft for the sequence any more.
    pub beyond_context: bool,
}

/// What to do at a step border.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftPlan {
    /// Sequences whose hidden states are sent to the drafter.
    pub feed: Vec<SequenceKey>,
    /// Sequences whose drafts are requested, with the number of tokens.
    pub ask: Vec<(SequenceKey, usize)>,
}

/// The state of speculation in the engine.
#[derive(Clone, Debug)]
pub struct Speculation {
    costs: Costs,
    /// Traffic classes by label. The first one is the default.
    classes: Vec<(String, TrafficClass)>,
    prompts: PromptMemories,
    states: BTreeMap<SequenceKey, SequenceState>,
    entropy: EntropyByKind,
    policy: Policy,
    /// The KV memory is above the policy's pressure.
    pressed: bool,
    /// A drafter is attached.
    linked: bool,
    /// The drafter was sent rows to read since the last step.
    drafter_reads: bool,
    /// Sequences of the last step, if it was plain and the drafter rested.
    settled_sequences: Option<usize>,
    /// The last decision was to draft.
    drafts: bool,
    /// Sequences of the last decision, and whether a draft of each could be requested.
    last_eligible: Vec<(SequenceKey, bool)>,
    /// Borders since the last decision, that one included.
    borders: u32,
    /// A block was verified since the last decision.
    verified_since: bool,
    plain_checks: PlainChecks,
    staleness: StalenessGuard,
    ranges: Ranges,
    /// A draft was verified since the last decision, and similar sequences can learn from it.
    has_lessons: bool,
    silence: Silence,
    lane_events: LaneEvents,
}

impl Default for Speculation {
    fn default() -> Self {
        Self {
            costs: Costs::default(),
            classes: [DEFAULT_CLASS, PAST_END_CLASS]
                .map(|name| (name.to_owned(), TrafficClass::default()))
                .into(),
            prompts: PromptMemories::default(),
            states: BTreeMap::new(),
            entropy: EntropyByKind::default(),
            policy: Policy::default(),
            pressed: false,
            linked: false,
            drafter_reads: false,
            settled_sequences: None,
            drafts: false,
            last_eligible: vec![],
            borders: 0,
            verified_since: false,
            plain_checks: PlainChecks::default(),
            staleness: StalenessGuard::default(),
            ranges: Ranges::default(),
            has_lessons: false,
            silence: Silence::default(),
            lane_events: LaneEvents::default(),
        }
    }
}

impl Speculation {
    /// Takes another policy and returns true, or drops one that is older than the one in force.
    pub fn set_policy(&mut self, policy: Policy) -> bool {
        let newer = (policy.term, policy.epoch) >= (self.policy.term, self.policy.epoch);
        if newer {
            self.policy = policy;
        }
        newer
    }

    /// A drafter was attached or detached. Another drafter may cost more or less; that is learned.
    pub fn set_linked(&mut self, linked: bool) {
        self.linked = linked;
        // A drafter that is gone reads nothing.
        self.drafter_reads &= linked;
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Expected time that the drafter needs to read so many rows, in microseconds.
    pub fn read_us(&self, rows: usize) -> f64 {
        self.costs.read_us(rows)
    }

    /// Decisions about single sequences since the last call, for the log.
    pub fn take_lane_events(&mut self) -> Vec<LaneEvent> {
        self.lane_events.take()
    }

    /// The lane that served a sequence, and why. The lane is speculative if any draft of it was
    /// verified.
    pub fn route(&self, key: SequenceKey, sequence: &Sequence) -> Route {
        if sequence.counts.cycles > 0 {
            Route { lane: Lane::Speculative, reason: self.reason_to_draft(key, sequence) }
        } else {
            Route { lane: Lane::Plain, reason: self.reason_against(key, sequence) }
        }
    }

    fn reason_to_draft(&self, key: SequenceKey, sequence: &Sequence) -> RouteReason {
        let permit = sequence.permit;
        let state = self.states.get(&key);
        let drafted_for = |cause| state.is_some_and(|state| state.cycles(cause) > 0);
        let is_forced = permit.may_draft() && permit.reason == RouteReason::Forced;
        if is_forced || drafted_for(DraftCause::Forced) {
            RouteReason::Forced
        } else if drafted_for(DraftCause::Benefit) {
            RouteReason::Benefit
        } else if drafted_for(DraftCause::Prior) {
            RouteReason::Prior
        } else {
            RouteReason::Probe
        }
    }

    fn reason_against(&self, key: SequenceKey, sequence: &Sequence) -> RouteReason {
        let permit = sequence.permit;
        let state = self.states.get(&key);
        if !permit.may_draft() {
            permit.reason
        } else if self.policy.force == Force::Plain {
            RouteReason::Forced
        } else if !self.linked {
            RouteReason::DrafterAbsent
        } else if self.pressed {
            RouteReason::KvPressure
        } else if state.is_some_and(|state| state.beyond_context) {
            RouteReason::Context
        } else if state.is_some_and(|state| state.chosen)
            || decide::is_forced(&permit, &self.policy)
        {
            // The drafter had not read the context yet, or its drafts arrived too late. A forced
            // sequence drafts whether or not it pays.
            RouteReason::Behind
        } else if permit.reason == RouteReason::DrafterSuspect {
            permit.reason
        } else {
            RouteReason::NotWorth
        }
    }
}

#[cfg(test)]
mod tests;
