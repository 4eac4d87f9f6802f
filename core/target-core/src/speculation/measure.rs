//! What steps and drafts show: their times, and the tokens that were accepted.

use super::cost::Size;
use super::state::expected_survival;
use super::{LaneEvent, Speculation};
use crate::{SequenceKey, StepPart};

/// Cycles in a row that gain before a sequence's back-off starts again at its shortest.
const STEADY_CYCLES: u32 = 4;
/// What drafting gained a sequence may be lost again before it counts as a loss, up to the time of
/// so many tokens in plain steps. In text that gains, two blocks in a row without an accepted token
/// are common, and only a trial shows what follows them.
const CREDIT_TOKENS: f64 = 10.0;
/// Steps without a draft after which the cost of drafts is doubted for the first time since a
/// drafted sequence gained.
const FIRST_SILENCE: u32 = 64;
/// Largest number of such steps. It doubles with each doubt.
const LONGEST_SILENCE: u32 = 2_048;
/// Cycles in a row that gain, after which the cost of drafts is doubted soon again.
const SILENCE_RESET_CYCLES: u32 = 2;
/// Cycles from one check of plain steps to the next, until enough were measured at this number of
/// sequences.
const FIRST_CHECK: u32 = 3;
/// Cycles from one check to the next after that. Also the longest interval of the staleness guard.
pub(super) const CHECK_INTERVAL: u32 = 96;
/// Plain steps that are enough.
const ENOUGH_CHECKS: u32 = 3;
/// Plain steps that a check takes at most: the first one is not measured, and one more is taken if
/// the second cannot be measured.
const CHECK_STEPS: u32 = 3;
/// Numbers of sequences with a check of their own; the last one stands for all larger ones.
const LOADS: usize = 33;

/// Steps without a draft.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    steps: u32,
    /// Steps after which the cost of drafts is doubted.
    limit: u32,
}

impl Default for Silence {
    fn default() -> Self {
        Self { steps: 0, limit: FIRST_SILENCE }
    }
}

impl Silence {
    /// Counts a step. Returns true if the cost of drafts is to be doubted.
    fn step(&mut self, linked: bool) -> bool {
        self.steps += 1;
        let is_long = linked && self.steps >= self.limit;
        if is_long {
            *self = Self { steps: 0, limit: (2 * self.limit).min(LONGEST_SILENCE) };
        }
        is_long
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct PlainCheck {
    /// Plain steps that were measured.
    measured: u32,
    /// Cycles since the last one.
    cycles: u32,
}

/// Whether plain steps are due, by number of sequences. Cycles are compared with plain steps, so
/// the cost of these must be known as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainChecks([PlainCheck; LOADS]);

impl Default for PlainChecks {
    fn default() -> Self {
        Self([PlainCheck::default(); LOADS])
    }
}

impl PlainChecks {
    fn of(&mut self, sequences: usize) -> &mut PlainCheck {
        &mut self.0[sequences.min(LOADS - 1)]
    }

    fn measured(&mut self, sequences: usize) {
        let check = self.of(sequences);
        *check = PlainCheck { measured: check.measured.saturating_add(1), cycles: 0 };
    }

    /// Counts a cycle. Returns true if a plain step is to be taken in its place.
    pub(super) fn is_due(&mut self, sequences: usize) -> bool {
        let check = self.of(sequences);
        check.cycles += 1;
        let interval = if check.measured < ENOUGH_CHECKS { FIRST_CHECK } else { CHECK_INTERVAL };
        if check.cycles > interval + CHECK_STEPS {
            // None of the plain steps could be measured, because sequences began or ended, or draft
            // all the time. That counts as a measured one, so that the check ends.
            *check = PlainCheck { measured: check.measured.saturating_add(1), cycles: 0 };
            return false;
        }
        check.cycles > interval
    }
}

impl Speculation {
    /// A draft for `sequences` sequences, with `rows` rows of blocks and context, arrived `us`
    /// microseconds after its request. The target did `steps` steps meanwhile.
    pub fn drafted(&mut self, sequences: usize, rows: usize, us: f64, steps: u32) {
        let size = Size { rows: rows as f64, sequences: sequences as f64, context: 0.0 };
        self.answered();
        self.silence.steps = 0;
        self.costs.observe_draft(size, us, steps);
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
            let Some((_, accepted)) = accepted.iter().find(|(key, _)| *key == part.key) else {
                continue;
            };
            self.verified(part, *accepted);
        }
        let beside = beside || self.drafter_reads;
        let plain = parts.iter().all(|part| part.rows == 1 && !part.prefill);
        // The first plain step after a block finds the processor's caches full of what the block
        // needed, and takes up to a quarter longer. The first step of another number of sequences
        // does, too. Neither shows what plain steps cost.
        let rested = (plain && !beside).then_some(parts.len());
        let before = std::mem::replace(&mut self.settled_sequences, rested);
        let settled = before == Some(parts.len());
        if parts.is_empty() || parts.iter().any(|part| part.prefill) {
            return;
        }
        if self.silence.step(self.linked) {
            self.costs.doubt_draft_cost();
        }
        let size = size_of(parts);
        if !plain {
            self.staleness.count_block();
        } else if settled && !beside {
            let ratio = us / self.costs.plain_us(size.sequences, size.context);
            if self.staleness.observe_plain(ratio) {
                self.costs.mark_speed_stale();
            }
        }
        if settled && plain && !beside && parts.len() == self.states.len() {
            self.plain_checks.measured(parts.len());
        }
        if beside {
            self.costs.observe_step_beside(size, us);
        } else if settled || !plain {
            self.costs.observe_step(size, us);
        }
        self.ranges.count_step(self.states.len(), size.context / size.sequences);
    }

    /// The drafter answered a request with no token. The draft took its time, so it counts as one
    /// whose only token was wrong: a drafter that often has nothing is asked ever more rarely.
    pub fn proposed_nothing(&mut self, key: SequenceKey) {
        let (start, rows, chooses, prefill, drafted) = (0, 2, true, false, 1);
        self.verified(&StepPart { key, start, rows, chooses, prefill, drafted }, 0);
    }

    pub(super) fn verified(&mut self, block: &StepPart, accepted: usize) {
        let Some(state) = self.states.get_mut(&block.key) else { return };
        let drafted = block.drafted;
        self.verified_since = true;
        let class = &mut self.classes[state.class].1;
        if drafted > 0 {
            state.draft_belief.observe_uncounted(class, drafted, accepted);
            self.has_lessons = true;
        }
        state.belief.observe(class, drafted, accepted);
        state.survival = expected_survival(&state.belief, class);
        state.fully_accepted += u32::from(accepted == drafted);
        self.ranges.count_cycle(block.start as f64, state.belief.kinds());
        let Some(cycle) = state.cycle.take() else { return };
        state.cycles_by_cause[cycle.cause as usize] += 1;
        let lost_us = cycle.share_us - (1 + accepted) as f64 * cycle.token_us;
        state.lost_us = (state.lost_us + lost_us).max(-CREDIT_TOKENS * cycle.token_us);
        state.gains_in_row = if lost_us < 0.0 { state.gains_in_row + 1 } else { 0 };
        if state.gains_in_row >= SILENCE_RESET_CYCLES {
            self.silence.limit = FIRST_SILENCE;
        }
        if state.gains_in_row >= STEADY_CYCLES {
            state.backoff = 0;
        }
        // The next decision considers the sequence with what this cycle showed.
        if state.rests_until.take().is_some() {
            self.lane_events.push(LaneEvent::BackoffEnded { key: block.key });
        }
    }
}

fn size_of(parts: &[StepPart]) -> Size {
    Size {
        rows: parts.iter().map(|part| part.rows).sum::<usize>() as f64,
        sequences: parts.len() as f64,
        context: parts.iter().map(|part| part.start).sum::<usize>() as f64,
    }
}
