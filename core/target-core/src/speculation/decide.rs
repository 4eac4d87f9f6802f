//! The decision at a cycle border: who drafts now, who rests, who is tried again.

use std::collections::BTreeMap;

use paceline_vocabulary::{Permit, RouteReason};

use super::choose::{Candidate, Load, best_cycle, choice_of, trial};
use super::survival::{self, KINDS, MOST};
use super::{
    Course, DraftPlan, DrafterReadiness, Force, LOADS, LaneEvent, Policy, Speculation, Why,
    expected,
};
use crate::{Draft, Phase, Sequence, SequenceKey};

/// Drafting begins where it promises so much more than plain steps, and goes on while it promises
/// no less than them.
const BEGIN: f64 = 1.02;
/// Other lengths than the last are taken where they promise so much more.
const OTHER_LENGTHS: f64 = 1.02;
/// Blocks accepted to their end after which one is drafted twice as long: how far drafts survive
/// there, and what they cost, is known only by trying.
const STRETCH: u32 = 5;
/// Cycles behind which plain steps of all are taken, so that what drafting is held against is known
/// as well: until it was measured a few times at that load, and then. The first of them is not
/// measured, and one more is taken if the second cannot be.
const FIRST_CHECK: u32 = 3;
const CHECK: u32 = 96;
const CHECKED: u32 = 3;
const STEPS_OF_CHECK: u32 = 3;
/// Blocks from one look at plain steps to the next where drafting promises less than `CLEAR` times
/// them: at first, and twice as many each time that they take what was expected. From blocks alone
/// a machine that is slower and blocks that are dearer look the same, and what plain steps cost
/// goes by the first: behind fifty blocks they were taken for 1.6 times what they took.
const LOOK: u32 = 8;
const CLEAR: f64 = 2.0;
/// Plain steps of such a look at most, if they go on taking something else than was expected.
const STEPS_OF_LOOK: u32 = 6;
/// A plain step that took so many times what was expected, at least and at most, says that it was
/// known.
const AS_EXPECTED: (f64, f64) = (0.8, 1.25);
/// Tokens between two trials of a sequence that does not pay: at first, and at most.
const FIRST_PAUSE: u32 = 10;
const LONGEST_PAUSE: u32 = 1_024;
/// Tokens until a trial that was not worth its price is thought of again.
const LATER: u32 = 8;
/// Gain by what the target's doubt says at which a sequence does not rest any longer.
const AGAIN: f64 = 1.1;
/// A trial must promise so many times its price.
const TRIAL: f64 = 2.0;
/// Of those that are due one in so many is tried for others like it, and what one must say of
/// another to be that.
const TRIED: usize = 4;
const ALIKE: f64 = 0.03;
/// Trials of a sequence may cost this share of its time, and so many tokens' time at once: one
/// cycle with nothing accepted is common in text that pays, and short answers would have no second.
const TRIAL_SHARE: f64 = 0.015;
const TRIAL_TOKENS: f64 = 2.0;
/// What drafting may have cost a sequence, as a share of its time so far and expected, before more
/// than a small gain is needed to go on.
const LOSS_SHARE: f64 = 0.02;
const SURE: f64 = 1.25;
/// Borders from one decision to the next as long as nobody drafts: beside a small model a decision
/// costs some hundredths of a step.
const EVERY: u32 = 4;
/// What may have changed in a resting sequence's text, a token.
const DRIFT: f64 = 0.002;
const MOST_DRIFT: f64 = 0.2;
/// As many tokens as a sequence has had, and so many more, are expected of it, if it may have them.
const EXPECTED: u32 = 64;

/// A sequence that may draft, as a decision sees it.
struct Eligible {
    key: SequenceKey,
    /// Most drafted tokens.
    most: usize,
    /// Tokens it has, and that are still expected.
    had: u32,
    expected: f64,
    context: f64,
    /// What reading the drafter in costs, microseconds.
    read_us: f64,
    /// It can be asked now, and what it has to read first takes it no longer than a plain step:
    /// more is read beside plain steps first.
    ready: bool,
}

/// How long nothing but blocks was seen, and when plain steps are looked at for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blind {
    /// Blocks since a plain step took what was expected.
    blocks: u32,
    /// So many of them are too many.
    look: u32,
    /// Plain steps that were taken to see.
    steps: u32,
}

impl Default for Blind {
    fn default() -> Self {
        Self { blocks: 0, look: LOOK, steps: 0 }
    }
}

impl Blind {
    /// A step with blocks.
    pub(super) fn block(&mut self) {
        self.blocks += 1;
    }

    /// A plain step behind another took so many times what was expected; whether that says that
    /// what was known is old.
    pub(super) fn plain(&mut self, ratio: f64) -> bool {
        let is_known = (AS_EXPECTED.0..=AS_EXPECTED.1).contains(&ratio);
        let was_long = self.blocks >= self.look;
        if is_known {
            self.seen();
        } else if was_long {
            self.look = LOOK;
        }
        was_long && !is_known
    }

    fn seen(&mut self) {
        if self.blocks >= self.look {
            self.look = (2 * self.look).min(CHECK);
        }
        (self.blocks, self.steps) = (0, 0);
    }
}

impl Speculation {
    /// What to do at this step border. `reading` says how far the drafter is with a sequence;
    /// `pressed`: the ledger is above the policy's pressure.
    pub fn plan(
        &mut self,
        sequences: &BTreeMap<SequenceKey, Sequence>,
        pressed: bool,
        reading: impl Fn(SequenceKey, &Sequence) -> Option<DrafterReadiness>,
    ) -> DraftPlan {
        self.pressed = pressed;
        let plan = self.planned(sequences, &reading);
        let only_read =
            plan.feed.iter().filter(|key| !plan.ask.iter().any(|(asked, _)| asked == *key));
        self.reads = only_read.into_iter().any(|key| {
            sequences
                .get(key)
                .and_then(|sequence| reading(*key, sequence))
                .is_some_and(|reading| reading.unread > 0)
        });
        plan
    }

    fn planned(
        &mut self,
        sequences: &BTreeMap<SequenceKey, Sequence>,
        reading: impl Fn(SequenceKey, &Sequence) -> Option<DrafterReadiness>,
    ) -> DraftPlan {
        let mut plan = DraftPlan::default();
        let (mut eligible, mut at_border) = (vec![], true);
        for (key, sequence) in sequences {
            let Some(course) = self.courses.get_mut(key) else { continue };
            if !sequence.permit.may_draft() || self.pressed || self.policy.force == Force::Plain {
                course.fed = false;
                continue;
            }
            let reading = reading(*key, sequence).unwrap_or_default();
            let (most, decodes) = (sequence.draft_most(), sequence.phase == Phase::Decoding);
            let forced = is_forced(&sequence.permit, &self.policy);
            let longest = self.policy.max_context.filter(|_| !forced);
            course.beyond = reading.beyond
                || longest.is_some_and(|longest| sequence.committed > longest as usize);
            if course.beyond {
                course.fed = false;
                continue;
            }
            if forced {
                (course.fed, course.chosen) = (true, true);
                plan.feed.push(*key);
                if sequence.draft == Draft::None && decodes && reading.can && most > 0 {
                    course.cycle = Some((Why::Forced, 0.0, 0.0));
                    plan.ask.push((*key, most));
                }
                continue;
            }
            at_border &= sequence.draft == Draft::None;
            let had = sequence.generated();
            let read_us = self.costs.read_us(reading.unread);
            let soon = read_us <= self.costs.step_us(1.0, 1.0, 0.0);
            eligible.push(Eligible {
                key: *key,
                most: most.min(MOST),
                had,
                expected: f64::from(sequence.left().min(had + EXPECTED)),
                context: sequence.committed as f64,
                read_us: if soon { read_us } else { self.costs.read_beside_us(reading.unread) },
                ready: decodes && reading.can && soon,
            });
        }
        let context = sequences.values().map(|sequence| sequence.committed).sum::<usize>() as f64;
        let load = Load { sequences: sequences.len(), context };
        if !at_border {
            self.welcome(load, &eligible);
            plan.feed
                .extend(eligible.iter().map(|one| one.key).filter(|key| self.courses[key].fed));
            return plan;
        }
        if !eligible.is_empty() {
            if self.nothing_new(&eligible) {
                plan.feed
                    .extend(eligible.iter().map(|one| one.key).filter(|key| self.courses[key].fed));
            } else {
                self.decide(load, &eligible, &mut plan);
            }
        }
        plan
    }

    /// Whether nobody was to draft at the last decision, and nothing has changed since that speaks
    /// for another: what the target doubts, what steps cost and whose pause is over is looked at
    /// again after a few.
    fn nothing_new(&mut self, eligible: &[Eligible]) -> bool {
        let is_same = eligible.iter().map(|one| (one.key, one.ready)).eq(self.last.iter().copied());
        let old = !self.drafts && !self.seen && is_same && self.borders < EVERY;
        if old {
            self.borders += 1;
        } else {
            (self.borders, self.seen) = (1, false);
            self.last.clear();
            self.last.extend(eligible.iter().map(|one| (one.key, one.ready)));
        }
        old
    }

    fn decide(&mut self, load: Load, eligible: &[Eligible], plan: &mut DraftPlan) {
        let token_us = 1.0 / load.plain(&self.costs).rate();
        self.teach();
        for one in eligible {
            self.reconsider(one, token_us);
        }
        let (mut open, poor): (Vec<&Eligible>, Vec<&Eligible>) = eligible
            .iter()
            .filter(|one| self.courses[&one.key].rests.is_none())
            .partition(|one| !self.disappoints(one, token_us));
        poor.into_iter().for_each(|one| self.rest(one));
        open.retain(|one| one.most > 0);
        let lengths = self.lengths(load, &open);
        self.drafts = lengths.iter().any(|length| *length > 0);
        if self.looks(load, &open, &lengths) {
            return;
        }
        if self.drafts {
            let (measured, since) = &mut self.plain[load.sequences.min(LOADS - 1)];
            *since += 1;
            let due = if *measured < CHECKED { FIRST_CHECK } else { CHECK };
            if *since > due + STEPS_OF_CHECK {
                // None of them could be measured: others began or ended, or draft all the while.
                // That counts as one that was, else it would be tried for ever.
                (*measured, *since) = (measured.saturating_add(1), 0);
            } else if *since > due {
                return;
            }
        }
        let mut fed = vec![];
        let chosen: Vec<&Eligible> = open
            .iter()
            .zip(&lengths)
            .filter(|(_, length)| **length > 0)
            .map(|(one, _)| *one)
            .collect();
        let mut asked: Vec<(&Eligible, usize, Why)> = vec![];
        if self.drafts {
            // Where some have to be read in first, it must pay for the others meanwhile.
            let now: Vec<&Eligible> = chosen.iter().copied().filter(|one| one.ready).collect();
            let lengths = if now.len() < chosen.len() {
                self.lengths(load, &now)
            } else {
                lengths.iter().copied().filter(|length| *length > 0).collect()
            };
            for (one, length) in now.into_iter().zip(lengths).filter(|(_, length)| *length > 0) {
                let course =
                    self.courses.get_mut(&one.key).expect("each eligible one has a course");
                let why = if course.belief.cycles() == 0 { Why::Prior } else { Why::Benefit };
                asked.push((one, stretched(course, length, one.most), why));
            }
            fed.extend(chosen.iter().map(|one| one.key));
        }
        for (one, length) in open.iter().zip(&lengths) {
            // One of which nothing was seen is tried where it would not pay among so many by what
            // its class is, too: its class is a mean.
            let unseen = self.courses[&one.key].belief.cycles() == 0;
            if *length == 0 && (unseen || !self.pays_alone(one, 1.0)) {
                self.rest(one);
            }
        }
        for (one, length) in self.trials(load, eligible) {
            fed.push(one.key);
            if one.ready {
                let draft_tokens = length;
                self.lane_events.push(LaneEvent::Probed { key: one.key, draft_tokens });
                asked.push((one, length, Why::Probe));
            }
        }
        for one in eligible {
            let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
            (course.fed, course.decided) = (fed.contains(&one.key), true);
            course.chosen |= course.fed;
            course.length = lengths_of(&asked, one.key);
        }
        self.account(load, &asked);
        plan.feed.extend(fed);
        plan.ask.extend(asked.into_iter().map(|(one, length, _)| (one.key, length)));
    }

    /// Whether plain steps are taken first, to see what they cost now.
    fn looks(&mut self, load: Load, open: &[&Eligible], lengths: &[usize]) -> bool {
        if self.blind.blocks < self.blind.look {
            return false;
        }
        let candidates: Vec<Candidate<'_>> = open.iter().map(|one| self.candidate(one)).collect();
        let is_clear = self.drafts
            && choice_of(&self.costs, load, &candidates, lengths).rate
                > CLEAR / load.plain(&self.costs).us;
        if is_clear {
            return false;
        }
        if self.blind.steps >= STEPS_OF_LOOK {
            self.blind.seen();
            return false;
        }
        self.blind.steps += 1;
        true
    }

    /// One that begins while a cycle is under way is read in meanwhile if it would be chosen for
    /// the next. (Not if drafting pays for it alone: among many that is no reason, and what the
    /// drafter reads slows all of them.)
    fn welcome(&mut self, load: Load, eligible: &[Eligible]) {
        let is_new = |course: &Course| !course.decided && !course.fed;
        if !eligible.iter().any(|one| is_new(&self.courses[&one.key])) {
            return;
        }
        self.teach();
        let open: Vec<&Eligible> = eligible
            .iter()
            .filter(|one| one.most > 0 && self.courses[&one.key].rests.is_none())
            .collect();
        for (one, length) in open.iter().zip(self.lengths(load, &open)) {
            let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
            if is_new(course) {
                (course.fed, course.decided) = (length > 0, true);
            }
        }
    }

    /// A sequence that rests, and of which the target's own words or one like it speak well
    /// meanwhile, is open again, unless drafting has cost it too much already.
    fn reconsider(&mut self, one: &Eligible, token_us: f64) {
        let course = &self.courses[&one.key];
        let again = course.rests.is_some()
            && course.news
            && course.lost_us <= TRIAL_TOKENS * token_us
            && one.most > 0
            && self.pays_alone(one, AGAIN);
        let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
        course.news = false;
        if again {
            course.rests = None;
            self.lane_events.push(LaneEvent::BackoffEnded { key: one.key });
        }
    }

    fn rest(&mut self, one: &Eligible) {
        let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
        if course.belief.cycles() > 0 {
            course.pause = (2 * course.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
        let until_tokens = one.had + course.pause;
        course.rests = Some(until_tokens);
        self.lane_events.push(LaneEvent::BackoffBegan { key: one.key, until_tokens });
    }

    fn candidate<'a>(&'a self, one: &Eligible) -> Candidate<'a> {
        let read_us = one.read_us / one.expected.max(1.0);
        Candidate { survival: &self.courses[&one.key].survival, most: one.most, read_us }
    }

    /// The lengths for these sequences; all 0 where plain steps are better.
    fn lengths(&self, load: Load, some: &[&Eligible]) -> Vec<usize> {
        let candidates: Vec<Candidate<'_>> = some.iter().map(|one| self.candidate(one)).collect();
        // Of one sequence.
        let plain = 1.0 / load.plain(&self.costs).us;
        let needed = if self.drafts { plain } else { BEGIN * plain };
        match best_cycle(&self.costs, load, &candidates) {
            Some(best) if best.rate > needed => {
                let last: Vec<usize> =
                    some.iter().map(|one| self.courses[&one.key].length.min(one.most)).collect();
                let same_set =
                    last.iter().zip(&best.lengths).all(|(one, other)| (*one > 0) == (*other > 0));
                let enough = || {
                    OTHER_LENGTHS * choice_of(&self.costs, load, &candidates, &last).rate
                        >= best.rate
                };
                if same_set && enough() { last } else { best.lengths }
            }
            _ => vec![0; some.len()],
        }
    }

    /// Whether a sequence has lost by drafting, and by what is believed of it would not win enough
    /// to make that good.
    fn disappoints(&self, one: &Eligible, token_us: f64) -> bool {
        let may_us = LOSS_SHARE * (f64::from(one.had) + one.expected) * token_us;
        self.courses[&one.key].lost_us > may_us && !self.pays_alone(one, SURE)
    }

    /// Whether drafting would pay so many times for a sequence that had the machine for itself.
    fn pays_alone(&self, one: &Eligible, times: f64) -> bool {
        let load = Load { sequences: 1, context: one.context };
        let best = best_cycle(&self.costs, load, &[self.candidate(one)]);
        best.is_some_and(|best| best.pace.rate() > times * load.plain(&self.costs).rate())
    }

    /// Resting sequences whose pause is over, where one cycle of trial is worth its price. Of many
    /// that are alike a few are tried first, which tell what the others are; those that are not
    /// alike are tried at once, as they share what it costs.
    fn trials<'a>(&mut self, load: Load, eligible: &'a [Eligible]) -> Vec<(&'a Eligible, usize)> {
        let due: Vec<&Eligible> = eligible
            .iter()
            .filter(|one| {
                one.most > 0 && self.courses[&one.key].rests.is_some_and(|until| one.had >= until)
            })
            .collect();
        let Some(first) = due.first() else { return vec![] };
        let table = *self.classes[self.courses[&first.key].class].1.table();
        let (mut kinds, mut left, mut most) = ([0.0; KINDS], 0.0, MOST);
        for one in &due {
            let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
            let class = &self.classes[course.class].1;
            let drift = (DRIFT * f64::from(one.had - course.as_of.min(one.had))).min(MOST_DRIFT);
            course.belief.drift(drift);
            (course.survival, course.as_of) = (expected(&course.belief, class), one.had);
            kinds
                .iter_mut()
                .zip(course.belief.kinds())
                .for_each(|(sum, share)| *sum += share / due.len() as f64);
            left += one.expected;
            most = most.min(one.most);
        }
        let mut tried: Vec<&Eligible> = vec![];
        for one in &due {
            let near = &self.courses[&one.key].near;
            let like = |other: &&&Eligible| {
                near.iter().any(|(key, alike)| *key == other.key && *alike >= ALIKE)
            };
            if tried.iter().filter(like).count() < due.len().div_ceil(TRIED) {
                tried.push(one);
            }
        }
        let read_us = tried.iter().map(|one| one.read_us).sum();
        let token_us = 1.0 / load.plain(&self.costs).rate();
        let worth = trial(
            &self.costs,
            load,
            (tried.len(), due.len()),
            &kinds,
            &table,
            most,
            (left, read_us),
        )
        .filter(|trial| trial.value_us > TRIAL * trial.cost_us);
        let Some(trial) = worth else {
            due.iter().for_each(|one| self.later(one));
            return vec![];
        };
        let share_us = trial.cost_us.max(0.0) / tried.len() as f64;
        let (tried, dear): (Vec<_>, Vec<_>) = tried.into_iter().partition(|one| {
            let course = &self.courses[&one.key];
            let may_us = (TRIAL_SHARE * f64::from(one.had) + TRIAL_TOKENS) * token_us;
            course.belief.cycles() == 0 || course.lost_us + share_us <= may_us
        });
        dear.into_iter().for_each(|one| self.later(one));
        tried.into_iter().map(|one| (one, trial.length)).collect()
    }

    /// A trial is thought of again after a few tokens.
    fn later(&mut self, one: &Eligible) {
        self.courses.get_mut(&one.key).expect("each eligible one has a course").rests =
            Some(one.had + LATER);
    }

    /// Notes what the cycle that is asked for is expected to take, so that its end tells what it
    /// cost.
    fn account(&mut self, load: Load, asked: &[(&Eligible, usize, Why)]) {
        if asked.is_empty() {
            return;
        }
        let token_us = 1.0 / load.plain(&self.costs).rate();
        let candidates: Vec<Candidate<'_>> =
            asked.iter().map(|(one, ..)| self.candidate(one)).collect();
        let lengths: Vec<usize> = asked.iter().map(|(_, length, _)| *length).collect();
        let pace = choice_of(&self.costs, load, &candidates, &lengths).pace;
        let own: f64 = candidates
            .iter()
            .zip(&lengths)
            .map(|(one, length)| 1.0 + survival::accepted(one.survival, *length))
            .sum();
        let share_us = (pace.us - (pace.tokens - own) * token_us) / asked.len() as f64;
        for (one, _, why) in asked {
            self.courses.get_mut(&one.key).expect("each eligible one has a course").cycle =
                Some((*why, share_us, token_us));
        }
    }
}

fn lengths_of(asked: &[(&Eligible, usize, Why)], key: SequenceKey) -> usize {
    asked.iter().find(|(one, ..)| one.key == key).map_or(0, |(_, length, _)| *length)
}

/// A length, or now and then twice as much, where drafts of it are accepted to their end again and
/// again.
fn stretched(course: &mut Course, length: usize, most: usize) -> usize {
    if course.whole < STRETCH {
        return length;
    }
    course.whole = 0;
    (2 * length).min(most)
}

/// Whether a sequence drafts whatever it costs.
pub(super) fn is_forced(permit: &Permit, policy: &Policy) -> bool {
    policy.force == Force::Speculative || permit.reason == RouteReason::Forced
}
