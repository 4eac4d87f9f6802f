//! Resting sequences: drafting does not pay for them, and they are tried again after a back-off.

use super::choose::BatchLoad;
use super::decide::Eligible;
use super::state::expected_survival;
use super::survival::{KINDS, LONGEST_DRAFT};
use super::trial::{Trial, TrialGroup, trial};
use super::{LaneEvent, Speculation};

/// Tokens until the first trial of a sequence that does not pay.
const FIRST_BACKOFF: u32 = 10;
/// Most tokens from one trial to the next. The back-off doubles with each trial.
const LONGEST_BACKOFF: u32 = 1_024;
/// Tokens until a trial that was not worth its cost is considered again.
const RETRY_TOKENS: u32 = 8;
/// Gain, by the target's entropy or by similar sequences, from which on a sequence rests no longer.
const REOPEN_GAIN: f64 = 1.1;
/// Value of a trial over its cost from which on it is made.
const TRIAL_VALUE: f64 = 2.0;
/// Of the similar sequences that are due, one in so many is tried first.
const TRIED_SHARE: usize = 4;
/// Similarity from which on a sequence's trial also teaches another sequence.
const SIMILAR: f64 = 0.03;
/// Share of a sequence's time that its trials may cost.
const TRIAL_SHARE: f64 = 0.015;
/// Tokens' time that its trials may cost in addition. One cycle without an accepted token is common
/// in text that gains, and a short answer would have no second trial without it.
const TRIAL_TOKENS: f64 = 2.0;
/// Share of a sequence's time, past and expected, that drafting may have lost before a clear gain
/// is needed to continue.
const LOSS_SHARE: f64 = 0.02;
/// That gain.
const SURE_GAIN: f64 = 1.25;
/// Share of the belief that returns to its prior per token while a sequence rests, because its text
/// may change.
const DRIFT_PER_TOKEN: f64 = 0.002;
/// Largest such share for one trial.
const MAX_DRIFT: f64 = 0.2;

/// Sequences that are due for a trial, in sum.
struct Due {
    /// Mean probabilities of their kinds.
    kinds: [f64; KINDS],
    expected_tokens: f64,
    /// Longest draft that all of them may have.
    most: usize,
}

impl Speculation {
    /// Opens a resting sequence again if new evidence promises a gain, unless drafting has already
    /// lost too much.
    pub(super) fn reconsider(&mut self, one: &Eligible, token_us: f64) {
        let state = &self.states[&one.key];
        let opens = state.rests_until.is_some()
            && state.new_evidence
            && state.lost_us <= TRIAL_TOKENS * token_us
            && one.most > 0
            && self.pays_alone(one, REOPEN_GAIN);
        let state = self.state(one);
        state.new_evidence = false;
        if opens {
            state.rests_until = None;
            self.lane_events.push(LaneEvent::BackoffEnded { key: one.key });
        }
    }

    /// Lets a sequence rest for its next back-off. One without a cycle is due at once.
    pub(super) fn rest(&mut self, one: &Eligible) {
        let state = self.state(one);
        if state.belief.cycles() > 0 {
            state.backoff = (2 * state.backoff).clamp(FIRST_BACKOFF, LONGEST_BACKOFF);
        }
        let until_tokens = one.had + state.backoff;
        state.rests_until = Some(until_tokens);
        self.lane_events.push(LaneEvent::BackoffBegan { key: one.key, until_tokens });
    }

    /// Whether drafting has lost a sequence time, and is not expected to gain enough to make up for
    /// it.
    pub(super) fn disappoints(&self, one: &Eligible, token_us: f64) -> bool {
        let may_us = LOSS_SHARE * (f64::from(one.had) + one.expected) * token_us;
        self.states[&one.key].lost_us > may_us && !self.pays_alone(one, SURE_GAIN)
    }

    /// Resting sequences whose back-off is over, if one cycle of trial is worth its cost, with the
    /// length of their drafts. Of many that are similar a few are tried first and teach the others.
    /// Those that are not similar are tried at once, because they share the cost.
    pub(super) fn trials<'a>(
        &mut self,
        load: BatchLoad,
        eligible: &'a [Eligible],
    ) -> Vec<(&'a Eligible, usize)> {
        let due: Vec<&Eligible> = eligible
            .iter()
            .filter(|one| {
                let until = self.states[&one.key].rests_until;
                one.most > 0 && until.is_some_and(|until| one.had >= until)
            })
            .collect();
        let Some(first) = due.first() else { return vec![] };
        let table = *self.classes[self.states[&first.key].class].1.table();
        let Due { kinds, expected_tokens, most } = self.drifted(&due);
        let tried = self.tried_first(&due);
        let token_us = 1.0 / load.plain(&self.costs).rate();
        let group = TrialGroup {
            drafting: tried.len(),
            learning: due.len(),
            kinds: &kinds,
            table: &table,
            most,
            expected_tokens,
            read_us: tried.iter().map(|one| one.read_us).sum(),
        };
        let Some(Trial { length, cost_us, .. }) = trial(&self.costs, load, group)
            .filter(|trial| trial.value_us > TRIAL_VALUE * trial.cost_us)
        else {
            due.iter().for_each(|one| self.retry_later(one));
            return vec![];
        };
        let share_us = cost_us.max(0.0) / tried.len() as f64;
        let (tried, dear): (Vec<_>, Vec<_>) = tried.into_iter().partition(|one| {
            let state = &self.states[&one.key];
            let may_us = (TRIAL_SHARE * f64::from(one.had) + TRIAL_TOKENS) * token_us;
            state.belief.cycles() == 0 || state.lost_us + share_us <= may_us
        });
        dear.into_iter().for_each(|one| self.retry_later(one));
        tried.into_iter().map(|one| (one, length)).collect()
    }

    /// Lets the beliefs about sequences that are due drift, and sums them up.
    fn drifted(&mut self, due: &[&Eligible]) -> Due {
        let mut sum = Due { kinds: [0.0; KINDS], expected_tokens: 0.0, most: LONGEST_DRAFT };
        for one in due {
            let state = self.states.get_mut(&one.key).expect("each eligible one has a state");
            let class = &self.classes[state.class].1;
            let tokens = one.had - state.drifted_at.min(one.had);
            state.belief.drift((DRIFT_PER_TOKEN * f64::from(tokens)).min(MAX_DRIFT));
            state.survival = expected_survival(&state.belief, class);
            state.drifted_at = one.had;
            sum.kinds
                .iter_mut()
                .zip(state.belief.kinds())
                .for_each(|(sum, share)| *sum += share / due.len() as f64);
            sum.expected_tokens += one.expected;
            sum.most = sum.most.min(one.most);
        }
        sum
    }

    /// Of sequences that are due, those to be tried first: a share of each similar group.
    fn tried_first<'a>(&self, due: &[&'a Eligible]) -> Vec<&'a Eligible> {
        let mut tried: Vec<&Eligible> = vec![];
        for one in due {
            let similar = &self.states[&one.key].similar;
            let is_similar = |other: &&&Eligible| {
                similar.iter().any(|near| near.key == other.key && near.similarity >= SIMILAR)
            };
            if tried.iter().filter(is_similar).count() < due.len().div_ceil(TRIED_SHARE) {
                tried.push(one);
            }
        }
        tried
    }

    /// Considers a trial of this sequence again after a few tokens.
    fn retry_later(&mut self, one: &Eligible) {
        self.state(one).rests_until = Some(one.had + RETRY_TOKENS);
    }
}
