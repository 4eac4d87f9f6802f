//! Adaptive speculation: which sequences draft in the next cycle, and how many tokens. The
//! algorithm: when no draft is under way, `controller` chooses the widths of all sequences by the
//! costs that `step_cost` measured and the survival of drafts that `acceptance` learned. `parking`
//! does without a drafter at a load where the drafts of a class have not paid. `report` counts for
//! heartbeats.
//!
//! ```text
//!         drafting pays                   drafting would not pay even alone
//! open ─────────────────▶ drafting ──────────────────────────────────────────▶ resting
//!  ▲                                                                               │
//!  └────────────────────────── one cycle of trial ◀────────────────────────────────┘
//! ```

mod acceptance;
mod controller;
mod load;
mod parking;
mod report;
mod step_cost;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, mem, sync::Arc};

use paceline_vocabulary::{Force, Lane, Route, RouteReason, report::SpeculationFigures};

pub use step_cost::{CostCell, Size};

use crate::draft_plan::{DecisionLog, LaneEvent, Policy};
use crate::{Phase, Request, Sequence, SequenceKey, StepPart};
use acceptance::{Belief, DraftResult, Offered, TrafficClass};
use controller::RESUME_TOKENS;
use parking::Parking;
use report::Ranges;
use step_cost::{Beside, Costs, Table};

/// Class of requests without a label.
const DEFAULT_CLASS: &str = "default";
/// Class of the text after the end of an answer, if the client ignores the end. Without it recorded
/// texts took 2 % longer.
const AFTER_EOS_CLASS: &str = "after_eos";
/// Most classes. Sequences of further classes count as the default one.
const MAX_CLASSES: usize = 32;

/// Why a sequence drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DraftCause {
    /// The client or the operator asked for it.
    Forced,
    /// Drafts of the sequence itself promise a gain.
    Benefit,
    /// The traffic class promises a gain.
    Prior,
    /// A trial after a back-off.
    Probe,
}

/// State of one sequence in the controller.
#[derive(Clone, Debug, Default)]
struct State {
    /// Number of its traffic class.
    class: usize,
    belief: Belief,
    /// The sequence rests until it has this number of tokens; `None`: it is open.
    rests_until: Option<u32>,
    /// Tokens of the last back-off.
    backoff: u32,
    /// The range of load at which not even a trial was worth its cost. Until one is, no hidden states
    /// are collected for the sequence.
    asleep_at: Option<usize>,
    /// It does not draft before it has this number of tokens, because it was parked.
    resumes_at: u32,
    /// Why the draft under way was requested.
    cause: Option<DraftCause>,
    /// Length of its last draft.
    length: usize,
    /// Hidden states of the sequence are sent to the drafter.
    fed: bool,
    /// A decision chose it to draft, whether or not a draft came.
    chosen: bool,
    /// It is too long to draft, for the drafter or by the policy.
    beyond_context: bool,
    /// Cycles of the sequence by cause.
    cycles: [u32; 4],
}

impl State {
    /// Whether it rests until it has more than this number of tokens.
    fn rests_beyond(&self, tokens: u32) -> bool {
        self.rests_until.is_some_and(|until| until > tokens)
    }

    /// Whether a sequence of `had` tokens need not be considered yet. One that fell asleep in another
    /// range of load is considered at once.
    fn rests_on(&mut self, had: u32, range: usize) -> bool {
        if self.asleep_at.is_some_and(|asleep_at| asleep_at != range) {
            (self.rests_until, self.backoff) = (Some(had), 0);
        }
        self.rests_beyond(had + if self.asleep_at.is_some() { 0 } else { RESUME_TOKENS })
    }
}

/// The state of speculation in the engine.
#[derive(Clone, Debug, Default)]
pub struct Speculation {
    costs: Arc<Costs>,
    /// Traffic classes by label. The first one is the default.
    classes: Vec<(String, TrafficClass)>,
    states: BTreeMap<SequenceKey, State>,
    policy: Policy,
    /// The KV memory is above the policy's pressure.
    pressed: bool,
    /// A drafter is attached.
    linked: bool,
    /// Drafts of this drafter come too late, so few are requested.
    late: bool,
    /// The drafter was sent rows to read since the last step.
    drafter_reads: bool,
    /// Longest draft that was verified, in tokens.
    widest: usize,
    /// Sequences of the last step, if it was plain and the drafter rested.
    settled_sequences: Option<usize>,
    /// The last decision was to draft.
    drafts: bool,
    /// Cycles since plain steps were measured, by number of sequences, and cycles until then.
    checks: BTreeMap<usize, (u32, u32)>,
    offered: Offered,
    parking: Parking,
    ranges: Ranges,
    /// Decisions, for the log.
    pub log: DecisionLog,
}

/// Events.
impl Speculation {
    /// The sequence of a request begins.
    pub fn open(&mut self, key: SequenceKey, request: &Request) {
        let class = self.class(&request.class);
        self.begin(key, class);
    }

    fn begin(&mut self, key: SequenceKey, class: usize) {
        let belief = Belief::new(&self.classes[class].1);
        self.states.insert(key, State { class, belief, ..State::default() });
    }

    /// The number of a class. A new label gets a new class.
    fn class(&mut self, label: &str) -> usize {
        if self.classes.is_empty() {
            self.classes.push((DEFAULT_CLASS.into(), TrafficClass::default()));
        }
        let known = self.classes.iter().position(|(name, _)| name == label);
        if known.is_some() || label.is_empty() || self.classes.len() >= MAX_CLASSES {
            return known.unwrap_or(0);
        }
        self.classes.push((label.into(), TrafficClass::default()));
        self.classes.len() - 1
    }

    /// The answer of a sequence ended, and the client ignores the end. The text that follows is
    /// another one: its class learns what the answer was, and another class begins.
    pub fn continue_past_end(&mut self, key: SequenceKey) {
        let Some(before) = self.states.get(&key).cloned() else { return };
        self.close(key);
        let class = self.class(AFTER_EOS_CLASS);
        self.begin(key, class);
        let state = self.states.get_mut(&key).expect("it began");
        (state.fed, state.chosen, state.cycles) = (before.fed, before.chosen, before.cycles);
    }

    /// A sequence ended: its class learns from it.
    pub fn close(&mut self, key: SequenceKey) {
        if let Some(state) = self.states.remove(&key) {
            state.belief.end(&mut self.classes[state.class].1);
        }
    }

    /// The sequences with a state are these, which live.
    pub(crate) fn assert_sequences<'a>(
        &self,
        living: impl Iterator<Item = &'a SequenceKey> + Clone,
    ) {
        debug_assert!(
            self.states.keys().eq(living.clone()),
            "expected drafts of {:?}, found {:?}",
            living.collect::<Vec<_>>(),
            self.states.keys()
        );
    }

    /// Takes another policy and returns true, or drops one that is older than the one in force.
    pub fn set_policy(&mut self, policy: Policy) -> bool {
        let newer = (policy.term, policy.epoch) >= (self.policy.term, self.policy.epoch);
        if newer {
            self.policy = policy;
        }
        newer
    }

    /// A drafter was attached or detached, or its drafts began or ceased to come too late.
    pub fn set_linked(&mut self, linked: bool, late: bool) {
        self.linked = linked;
        self.late = linked && late;
        // A drafter that is gone reads nothing.
        self.drafter_reads &= linked;
    }

    /// A draft for `sequences` sequences, with `rows` rows of blocks and context, arrived `us`
    /// microseconds after its request. The target did `steps` steps meanwhile.
    pub fn drafted(&mut self, sequences: usize, rows: usize, us: f64, steps: u32) {
        let size = Size { rows: rows as f64, sequences: sequences as f64, context: 0.0 };
        self.answered();
        if steps == 0 {
            self.parking.waited(self.costs.counted_draft_us(size, us));
        }
        let others = self.states.len().saturating_sub(sequences);
        Arc::make_mut(&mut self.costs).observe_draft(size, us, Beside { steps, others });
    }

    /// A draft arrived, or is not waited for any more, and its time is not measured.
    pub fn answered(&mut self) {
        // The drafter works in order: it has read what it was sent before.
        self.drafter_reads = false;
    }

    /// A step took `us` microseconds. `beside`: a draft was under way meanwhile. `accepted` has the
    /// accepted tokens of each block.
    pub fn stepped(
        &mut self,
        parts: &[StepPart],
        accepted: &[(SequenceKey, usize)],
        us: f64,
        beside: bool,
    ) {
        for part in parts.iter().filter(|part| part.drafted > 0) {
            if let Some((_, accepted)) = accepted.iter().find(|(key, _)| *key == part.key) {
                self.verified(part, *accepted);
            }
        }
        let beside = beside || self.drafter_reads;
        let plain = parts.iter().all(|part| part.rows == 1 && !part.prefill);
        // The first plain step after a block, or of another number of sequences, finds other data
        // in the processor's caches and takes up to a quarter longer, so it is not measured.
        let rested = (plain && !beside).then_some(parts.len());
        let settled = mem::replace(&mut self.settled_sequences, rested) == Some(parts.len());
        if parts.is_empty() || parts.iter().any(|part| part.prefill) {
            self.parking.disturb();
            return;
        }
        let size = Size {
            rows: parts.iter().map(|part| part.rows).sum::<usize>() as f64,
            sequences: parts.len() as f64,
            context: parts.iter().map(|part| part.start).sum::<usize>() as f64,
        };
        let tokens = parts.len() + accepted.iter().map(|(_, accepted)| accepted).sum::<usize>();
        let counted_us = self.costs.counted_step_us(size, us, beside);
        self.parking.stepped(self.states.len(), tokens, counted_us);
        if plain && settled && !beside && parts.len() == self.states.len() {
            self.plain_measured(parts.len());
        }
        if beside || settled || !plain {
            Arc::make_mut(&mut self.costs).observe_step(size, us, beside);
        }
        self.ranges.count_step(self.states.len(), size.context / size.sequences);
    }

    /// The drafter answered a request with no token. The draft took its time and cost no row. Nothing of
    /// it was accepted, so a drafter that often has nothing is asked ever more rarely.
    pub fn proposed_nothing(&mut self, key: SequenceKey) {
        let (start, rows, chooses, prefill, drafted) = (0, 1, true, false, 0);
        self.verified(&StepPart { key, start, rows, chooses, prefill, drafted }, 0);
    }

    fn verified(&mut self, block: &StepPart, accepted: usize) {
        let load = self.states.len();
        let Some(state) = self.states.get_mut(&block.key) else { return };
        self.widest = self.widest.max(block.drafted);
        // What was left out counts as not accepted, and costs no row.
        let asked = match state.cause {
            Some(DraftCause::Forced) | None => block.drafted.max(1),
            Some(_) => state.length.max(block.drafted),
        };
        let offered = block.drafted;
        self.offered.observe(load, DraftResult { asked, offered, accepted });
        state.belief.observe(&mut self.classes[state.class].1, asked, accepted);
        self.ranges.count_cycle(block.start, &state.belief.kinds);
        let Some(cause) = state.cause.take() else { return };
        state.cycles[cause as usize] += 1;
        if cause == DraftCause::Benefit {
            state.backoff /= 2;
        }
        // The next decision considers the sequence with what this cycle showed.
        if state.rests_until.take().is_some() {
            self.log.add(LaneEvent::BackoffEnded { key: block.key });
        }
    }

    /// Begins with costs of steps that an earlier process measured on this machine with this model.
    pub fn restore_steps(&mut self, saved: &[CostCell]) {
        let costs = Arc::make_mut(&mut self.costs);
        costs.step = Table::restored(saved);
        self.widest = costs.longest_draft();
    }

    /// Another drafter is attached: what was learned of the last one does not hold for it. `saved`
    /// are costs of its drafts that were measured before, if there are any.
    pub fn change_drafter(&mut self, saved: &[CostCell]) {
        Arc::make_mut(&mut self.costs).restore_drafts(saved);
        self.classes.iter_mut().for_each(|(_, class)| *class = TrafficClass::default());
        self.offered = Offered::default();
        self.parking.end();
    }
}

/// Reports.
impl Speculation {
    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Measured costs of steps, for [`Speculation::restore_steps`].
    pub fn step_cells(&self) -> Vec<CostCell> {
        self.costs.step.cells()
    }

    /// Measured costs of drafts, for [`Speculation::change_drafter`].
    pub fn draft_cells(&self) -> Vec<CostCell> {
        self.costs.draft.cells()
    }

    /// Whether a sequence does without the drafter for now, so that no hidden states of it are
    /// collected: its class is parked at this load, or it rests for longer than a drafter needs to
    /// start with. Those of a prompt are collected even then, because the prefix cache stores them
    /// for later requests.
    pub fn is_parked(&self, key: SequenceKey, sequence: &Sequence) -> bool {
        let load = self.states.len();
        let had = sequence.generated();
        let parks = |state: &State| {
            let rests = state.asleep_at.is_some() || state.rests_beyond(had + RESUME_TOKENS);
            let rests = rests && sequence.phase == Phase::Decoding;
            rests || self.parking.is_parked(state.class, load)
        };
        let may_park = self.linked && !self.policy.forces(&sequence.permit);
        may_park && self.states.get(&key).is_some_and(parks)
    }

    /// Expected time that the drafter needs to read `rows` rows, in microseconds.
    pub fn read_us(&self, rows: usize) -> f64 {
        self.costs.read_us(rows)
    }

    /// The lane that served a sequence, and why. The lane is speculative if any draft of it was
    /// verified.
    pub fn route(&self, key: SequenceKey, sequence: &Sequence) -> Route {
        let permit = sequence.permit;
        let fresh = State::default();
        let state = self.states.get(&key).unwrap_or(&fresh);
        let may_draft = permit.may_draft();
        // The first one that holds is the reason.
        let first = |reasons: &[(bool, RouteReason)], last| {
            reasons.iter().find(|(holds, _)| *holds).map_or(last, |(_, reason)| *reason)
        };
        if sequence.counts.cycles > 0 {
            let of = |cause: DraftCause| state.cycles[cause as usize] > 0;
            let is_forced = may_draft && permit.reason == RouteReason::Forced;
            let reasons = [
                (is_forced || of(DraftCause::Forced), RouteReason::Forced),
                (of(DraftCause::Benefit), RouteReason::Benefit),
                (of(DraftCause::Prior), RouteReason::Prior),
            ];
            return Route { lane: Lane::Speculative, reason: first(&reasons, RouteReason::Probe) };
        }
        let reasons = [
            (!may_draft, permit.reason),
            (self.policy.force == Force::Plain, RouteReason::Forced),
            (!self.linked, RouteReason::DrafterAbsent),
            (self.pressed, RouteReason::KvPressure),
            (state.beyond_context, RouteReason::Context),
            (self.late || permit.reason == RouteReason::DrafterLate, RouteReason::DrafterLate),
            // The drafter had not read the context yet, or one draft arrived too late.
            (state.chosen || self.policy.forces(&permit), RouteReason::DrafterBehind),
        ];
        Route { lane: Lane::Plain, reason: first(&reasons, RouteReason::NotWorth) }
    }

    /// Everything for a heartbeat.
    pub fn figures(&self) -> SpeculationFigures {
        self.ranges.figures(&self.costs, &self.offered, &self.classes)
    }
}
