//! The decision at a cycle border: which sequences draft now, and how many tokens.

use std::collections::BTreeMap;

use paceline_vocabulary::{Force, Permit, RouteReason};

use super::choose::{BatchLoad, Candidate, Choice, best_cycle, choice_of};
use super::staleness::CLEAR_GAIN;
use super::state::{DraftCause, PendingCycle, SequenceState};
use super::survival::{self, LONGEST_DRAFT};
use super::{DraftPlan, DrafterReadiness, LaneEvent, Policy, Speculation};
use crate::{Draft, Phase, Sequence, SequenceKey};

/// Gain over plain steps from which on drafting begins. It continues while the gain is above 1, so
/// that noise does not switch it on and off.
const BEGIN_GAIN: f64 = 1.02;
/// Gain over the last lengths from which on other lengths are taken.
const OTHER_LENGTHS_GAIN: f64 = 1.02;
/// Fully accepted blocks after which one draft is twice as long. Only such a try shows how far
/// drafts survive there, and what they cost.
const STRETCH_BLOCKS: u32 = 5;
/// Borders from one decision to the next while no sequence drafts. Beside a small model a decision
/// costs some hundredths of a step.
const IDLE_BORDERS: u32 = 4;
/// A sequence is expected to have as many further tokens as it has, and so many more, if its limit
/// allows them.
const EXPECTED_TOKENS: u32 = 64;

/// A sequence that may draft, as a decision considers it.
pub(super) struct Eligible {
    pub(super) key: SequenceKey,
    /// Most drafted tokens.
    pub(super) most: usize,
    /// Tokens that it has.
    pub(super) had: u32,
    /// Tokens that are still expected.
    pub(super) expected: f64,
    /// Positions of its context.
    pub(super) context: f64,
    /// What it costs that the drafter reads its context, in microseconds.
    pub(super) read_us: f64,
    /// A draft may be requested now, and the drafter first reads no longer than a plain step takes.
    /// More is read beside plain steps before that.
    pub(super) ready: bool,
    /// The drafter has nothing to propose at this moment.
    pub(super) has_nothing: bool,
}

/// A draft that a decision requests.
struct Asked<'a> {
    one: &'a Eligible,
    length: usize,
    cause: DraftCause,
}

impl Speculation {
    /// What to do at this step border. `readiness` returns how far the drafter is with a sequence.
    /// `pressed`: the KV memory is above the policy's pressure.
    pub fn plan(
        &mut self,
        sequences: &BTreeMap<SequenceKey, Sequence>,
        pressed: bool,
        readiness: impl Fn(SequenceKey, &Sequence) -> Option<DrafterReadiness>,
    ) -> DraftPlan {
        self.pressed = pressed;
        let plan = self.planned(sequences, &readiness);
        let only_read =
            plan.feed.iter().filter(|key| !plan.ask.iter().any(|(asked, _)| asked == *key));
        self.drafter_reads = only_read.into_iter().any(|key| {
            sequences
                .get(key)
                .and_then(|sequence| readiness(*key, sequence))
                .is_some_and(|readiness| readiness.unread_rows > 0)
        });
        plan
    }

    fn planned(
        &mut self,
        sequences: &BTreeMap<SequenceKey, Sequence>,
        readiness: impl Fn(SequenceKey, &Sequence) -> Option<DrafterReadiness>,
    ) -> DraftPlan {
        let mut plan = DraftPlan::default();
        let (mut eligible, mut at_border) = (vec![], true);
        for (key, sequence) in sequences {
            let readiness = || readiness(*key, sequence).unwrap_or_default();
            if let Some(one) = self.eligible(*key, sequence, readiness, &mut plan) {
                at_border &= sequence.draft == Draft::None;
                eligible.push(one);
            }
        }
        let context = sequences.values().map(|sequence| sequence.committed).sum::<usize>() as f64;
        let load = BatchLoad { sequences: sequences.len(), context };
        if !at_border {
            self.prepare_new(load, &eligible);
            self.keep_feeding(&eligible, &mut plan);
        } else if !eligible.is_empty() {
            if self.is_unchanged(&eligible) {
                self.keep_feeding(&eligible, &mut plan);
            } else {
                self.decide(load, &eligible, &mut plan);
            }
        }
        plan
    }

    /// The sequence, if this decision is to consider it. A forced one is put into the plan at once.
    fn eligible(
        &mut self,
        key: SequenceKey,
        sequence: &Sequence,
        readiness: impl FnOnce() -> DrafterReadiness,
        plan: &mut DraftPlan,
    ) -> Option<Eligible> {
        let state = self.states.get_mut(&key)?;
        if !sequence.permit.may_draft() || self.pressed || self.policy.force == Force::Plain {
            state.fed = false;
            return None;
        }
        let readiness = readiness();
        let (most, decodes) = (sequence.draft_most(), sequence.phase == Phase::Decoding);
        let forced = is_forced(&sequence.permit, &self.policy);
        let longest = self.policy.max_context.filter(|_| !forced);
        state.beyond_context = readiness.beyond_context
            || longest.is_some_and(|longest| sequence.committed > longest as usize);
        if state.beyond_context {
            state.fed = false;
            return None;
        }
        if forced {
            state.fed = true;
            state.chosen |= !readiness.has_nothing;
            plan.feed.push(key);
            if sequence.draft == Draft::None && decodes && readiness.can_draft && most > 0 {
                let cause = DraftCause::Forced;
                state.cycle = Some(PendingCycle { cause, share_us: 0.0, token_us: 0.0 });
                plan.ask.push((key, most));
            }
            return None;
        }
        let had = sequence.generated();
        let unread = readiness.unread_rows;
        let read_us = self.costs.read_us(unread);
        let soon = read_us <= self.costs.one_row_us();
        Some(Eligible {
            key,
            most: most.min(LONGEST_DRAFT),
            had,
            expected: f64::from(sequence.left().min(had + EXPECTED_TOKENS)),
            context: sequence.committed as f64,
            read_us: if soon { read_us } else { self.costs.read_beside_us(unread) },
            ready: decodes && readiness.can_draft && soon,
            has_nothing: readiness.has_nothing,
        })
    }

    fn keep_feeding(&self, eligible: &[Eligible], plan: &mut DraftPlan) {
        plan.feed.extend(eligible.iter().map(|one| one.key).filter(|key| self.states[key].fed));
    }

    /// Whether the last decision was not to draft and nothing that could change it happened since.
    /// Entropy, costs and ended back-offs are considered again after [`IDLE_BORDERS`].
    fn is_unchanged(&mut self, eligible: &[Eligible]) -> bool {
        let now = || eligible.iter().map(|one| (one.key, one.ready));
        let is_same = now().eq(self.last_eligible.iter().copied());
        let unchanged =
            !self.drafts && !self.verified_since && is_same && self.borders < IDLE_BORDERS;
        if unchanged {
            self.borders += 1;
        } else {
            (self.borders, self.verified_since) = (1, false);
            self.last_eligible.clear();
            self.last_eligible.extend(now());
        }
        unchanged
    }

    fn decide(&mut self, load: BatchLoad, eligible: &[Eligible], plan: &mut DraftPlan) {
        let token_us = 1.0 / load.plain(&self.costs).rate();
        self.share_lessons();
        for one in eligible {
            self.reconsider(one, token_us);
        }
        let (mut open, poor): (Vec<&Eligible>, Vec<&Eligible>) = eligible
            .iter()
            .filter(|one| self.states[&one.key].rests_until.is_none())
            .partition(|one| !self.disappoints(one, token_us));
        poor.into_iter().for_each(|one| self.rest(one));
        open.retain(|one| one.most > 0);
        let lengths = self.lengths(load, &open);
        self.drafts = lengths.iter().any(|length| *length > 0);
        if self.takes_plain_step(load, &open, &lengths)
            || self.drafts && self.plain_checks.is_due(load.sequences)
        {
            return;
        }
        let chosen: Vec<&Eligible> = open
            .iter()
            .zip(&lengths)
            .filter(|(_, length)| **length > 0)
            .map(|(one, _)| *one)
            .collect();
        let mut asked = if self.drafts { self.ask(load, &chosen, &lengths) } else { vec![] };
        let mut fed: Vec<SequenceKey> = chosen.iter().map(|one| one.key).collect();
        for (one, length) in open.iter().zip(&lengths) {
            // A sequence without a cycle rests as well, and is tried, if its class does not make it
            // pay in this batch: its class is a mean.
            let unseen = self.states[&one.key].belief.cycles() == 0;
            if *length == 0 && (unseen || !self.pays_alone(one, 1.0)) {
                self.rest(one);
            }
        }
        for (one, length) in self.trials(load, eligible) {
            fed.push(one.key);
            if one.ready {
                self.lane_events.push(LaneEvent::Probed { key: one.key, draft_tokens: length });
                asked.push(Asked { one, length, cause: DraftCause::Probe });
            }
        }
        for one in eligible {
            let length = asked.iter().find(|asked| asked.one.key == one.key);
            let length = length.map_or(0, |asked| asked.length);
            let state = self.state(one);
            (state.fed, state.considered) = (fed.contains(&one.key), true);
            state.chosen |= state.fed && !one.has_nothing;
            state.length = length;
        }
        self.expect_cycle(load, &asked);
        plan.feed.extend(fed);
        plan.ask.extend(asked.into_iter().map(|asked| (asked.one.key, asked.length)));
    }

    /// The drafts to request of the chosen sequences. If the drafter has to read some contexts
    /// first, the lengths are computed for the others alone: it must pay for them meanwhile.
    fn ask<'a>(
        &mut self,
        load: BatchLoad,
        chosen: &[&'a Eligible],
        lengths: &[usize],
    ) -> Vec<Asked<'a>> {
        let now: Vec<&Eligible> = chosen.iter().copied().filter(|one| one.ready).collect();
        let lengths: Vec<usize> = if now.len() < chosen.len() {
            self.lengths(load, &now)
        } else {
            lengths.iter().copied().filter(|length| *length > 0).collect()
        };
        let mut asked = vec![];
        for (one, length) in now.into_iter().zip(lengths).filter(|(_, length)| *length > 0) {
            let state = self.state(one);
            let unseen = state.belief.cycles() == 0;
            let cause = if unseen { DraftCause::Prior } else { DraftCause::Benefit };
            asked.push(Asked { one, length: stretched(state, length, one.most), cause });
        }
        asked
    }

    /// The state of an eligible sequence.
    pub(super) fn state(&mut self, one: &Eligible) -> &mut SequenceState {
        self.states.get_mut(&one.key).expect("only sequences with a state are eligible")
    }

    /// Whether a plain step is taken first, because the cost of plain steps is stale.
    fn takes_plain_step(&mut self, load: BatchLoad, open: &[&Eligible], lengths: &[usize]) -> bool {
        if !self.staleness.is_stale() {
            return false;
        }
        let is_clear = self.drafts
            && self.choice(load, open.iter().copied(), lengths).rate
                > CLEAR_GAIN / load.plain(&self.costs).us;
        !is_clear && self.staleness.take_step()
    }

    /// Feeds the drafter a sequence that begins while a cycle is under way, if it would be chosen
    /// for the next one. That drafting would pay for it alone is not enough: in a large batch the
    /// drafter's reading slows all sequences.
    fn prepare_new(&mut self, load: BatchLoad, eligible: &[Eligible]) {
        let is_new = |state: &SequenceState| !state.considered && !state.fed;
        if !eligible.iter().any(|one| is_new(&self.states[&one.key])) {
            return;
        }
        self.share_lessons();
        let open: Vec<&Eligible> = eligible
            .iter()
            .filter(|one| one.most > 0 && self.states[&one.key].rests_until.is_none())
            .collect();
        for (one, length) in open.iter().zip(self.lengths(load, &open)) {
            let state = self.state(one);
            if is_new(state) {
                (state.fed, state.considered) = (length > 0, true);
            }
        }
    }

    fn candidate<'a>(&'a self, one: &Eligible) -> Candidate<'a> {
        let read_us = one.read_us / one.expected.max(1.0);
        Candidate { survival: &self.states[&one.key].survival, most: one.most, read_us }
    }

    fn choice<'a>(
        &self,
        load: BatchLoad,
        some: impl Iterator<Item = &'a Eligible>,
        lengths: &[usize],
    ) -> Choice {
        let candidates: Vec<Candidate<'_>> = some.map(|one| self.candidate(one)).collect();
        choice_of(&self.costs, load, &candidates, lengths)
    }

    /// The lengths for these sequences; all 0 if plain steps are better.
    fn lengths(&self, load: BatchLoad, some: &[&Eligible]) -> Vec<usize> {
        let candidates: Vec<Candidate<'_>> = some.iter().map(|one| self.candidate(one)).collect();
        // Of one sequence.
        let plain_rate = 1.0 / load.plain(&self.costs).us;
        let needed = if self.drafts { plain_rate } else { BEGIN_GAIN * plain_rate };
        match best_cycle(&self.costs, load, &candidates) {
            Some(best) if best.rate > needed => {
                let last: Vec<usize> =
                    some.iter().map(|one| self.states[&one.key].length.min(one.most)).collect();
                let same_set =
                    last.iter().zip(&best.lengths).all(|(one, other)| (*one > 0) == (*other > 0));
                let is_close = || {
                    OTHER_LENGTHS_GAIN * choice_of(&self.costs, load, &candidates, &last).rate
                        >= best.rate
                };
                if same_set && is_close() { last } else { best.lengths }
            }
            _ => vec![0; some.len()],
        }
    }

    /// Whether drafting would gain so many times for a sequence that had the machine for itself.
    pub(super) fn pays_alone(&self, one: &Eligible, times: f64) -> bool {
        let load = BatchLoad { sequences: 1, context: one.context };
        let best = best_cycle(&self.costs, load, &[self.candidate(one)]);
        best.is_some_and(|best| best.throughput.rate() > times * load.plain(&self.costs).rate())
    }

    /// Notes the expected time of the cycle, so that its end shows what it gained or lost.
    fn expect_cycle(&mut self, load: BatchLoad, asked: &[Asked<'_>]) {
        if asked.is_empty() {
            return;
        }
        let token_us = 1.0 / load.plain(&self.costs).rate();
        let lengths: Vec<usize> = asked.iter().map(|asked| asked.length).collect();
        let some = asked.iter().map(|asked| asked.one);
        let cycle = self.choice(load, some, &lengths).throughput;
        let own: f64 = asked
            .iter()
            .map(|asked| {
                let survival = &self.states[&asked.one.key].survival;
                1.0 + survival::accepted(survival, asked.length)
            })
            .sum();
        let share_us = (cycle.us - (cycle.tokens - own) * token_us) / asked.len() as f64;
        for Asked { one, cause, .. } in asked {
            self.state(one).cycle = Some(PendingCycle { cause: *cause, share_us, token_us });
        }
    }
}

/// A length, or twice the length for one draft after enough fully accepted ones.
fn stretched(state: &mut SequenceState, length: usize, most: usize) -> usize {
    if state.fully_accepted < STRETCH_BLOCKS {
        return length;
    }
    state.fully_accepted = 0;
    (2 * length).min(most)
}

/// Whether a sequence drafts whatever it costs.
pub(super) fn is_forced(permit: &Permit, policy: &Policy) -> bool {
    policy.force == Force::Speculative || permit.reason == RouteReason::Forced
}
