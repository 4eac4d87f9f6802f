//! Adaptive speculation: who drafts in the next cycle and how far, inside the permits (design section 7). Pure.
//!
//! At a *cycle border*, when no draft is on its way, the lengths of all sequences are decided together, as they share a
//! step (`choose`), by what work costs here (`cost`) and how far drafts survive (`survival`). A sequence's course:
//!
//! ```text
//!           its drafts pay                its drafts would not pay even alone
//!   open ──────────────────▶ drafts ────────────────────────────────▶ resting
//!    ▲  where they pay alone, but not among so many: plain, and open       │ after a pause that doubles from one
//!    └──────────────────────── one cycle of trial ◀────────────────────────┘ trial to the next
//! ```
//!
//! Who is plain is not shown to the drafter either: it reads only sequences that are to draft (`Plan::feed`), and what they
//! missed it reads from their tap windows. What reading costs counts against the tokens still expected.

pub mod choose;
pub mod cost;
mod figures;
pub mod survival;

use std::collections::BTreeMap;

use paceline_proto::v1::{Lane, Route, RouteReason};

use super::{Draft, Part, Permit, Phase, Sequence, SequenceKey};
use choose::{Candidate, Costs, Load, best_cycle, gain_of_kind, pace_of, trial};
use cost::Size;
use figures::Ranges;
use survival::{Belief, Class, KINDS, MOST, Survival};

/// Drafting begins where it promises so much more than plain steps, and goes on while it promises no less than them.
const BEGIN: f64 = 1.04;
/// Other lengths than the last are taken where they promise so much more.
const OTHER_LENGTHS: f64 = 1.02;
/// Tokens between two trials of a sequence that does not pay: at first, and at most.
const FIRST_PAUSE: u32 = 32;
const LONGEST_PAUSE: u32 = 1_024;
/// Tokens until a trial that was not worth its price is thought of again.
const LATER: u32 = 16;
/// A trial must promise so many times its price.
const TRIAL: f64 = 2.0;
/// Trials of a sequence may cost this share of its time.
const TRIAL_SHARE: f64 = 0.015;
/// What may have changed in a resting sequence's text, a token.
const DRIFT: f64 = 0.002;
const MOST_DRIFT: f64 = 0.2;
/// As many tokens as a sequence has had, and so many more, are expected of it, if it may have them.
const EXPECTED: u32 = 64;
/// Cycles in a row that must pay before a sequence's pauses are short again.
const STEADY: u32 = 4;
/// Classes that are told apart; sequences of further ones count as the first's.
const CLASSES: usize = 32;

/// What an operator forces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Force {
    /// Nothing: it is decided here.
    #[default]
    Auto,
    /// Nobody drafts.
    Plain,
    /// Everybody drafts who may, as far as they may.
    Speculative,
}

/// The part of the routing policy that holds here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Of the supervisor it comes from; each counts its policies anew.
    pub term: u64,
    /// Counts up; an older one is dropped (I7).
    pub epoch: u64,
    /// See there.
    pub force: Force,
    /// Share of the KV budget above which nobody drafts.
    pub kv_pressure: f64,
}

impl Default for Policy {
    fn default() -> Self {
        // None was pushed yet; permits hold what was decided for them.
        Self { term: 0, epoch: 0, force: Force::Auto, kv_pressure: 1.0 }
    }
}

/// How far the drafter is with a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Rows it would have to read before it can draft.
    pub unread: usize,
    /// It can be asked now, and has little to read first.
    pub ready: bool,
    /// It can be asked now, though it may have to read for a while first.
    pub can: bool,
}

/// What to do at a step border.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Whose taps are sent.
    pub feed: Vec<SequenceKey>,
    /// Whose drafts are asked for, and how long.
    pub ask: Vec<(SequenceKey, usize)>,
}

/// Why a sequence drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Forced,
    Prior,
    Benefit,
    Probe,
}

/// One sequence's course.
#[derive(Clone, Debug)]
struct Course {
    class: usize,
    belief: Belief,
    survival: Survival,
    /// It rests until it has so many tokens; `None`: it is open.
    rests: Option<u32>,
    pause: u32,
    /// What its cycles cost beyond what plain steps would have, microseconds, never below 0.
    lost_us: f64,
    /// Of the cycle under way: why, its share of the time, and what a token costs plainly.
    cycle: Option<(Why, f64, f64)>,
    /// Last length.
    length: usize,
    /// Cycles that paid, in a row.
    steady: u32,
    /// Tokens it had when its belief was last brought up to date.
    as_of: u32,
    /// The drafter is shown its taps.
    fed: bool,
    /// It was chosen to draft, whether or not a draft came of it.
    chosen: bool,
    /// Its cycles by `Why`.
    cycles: [u32; 4],
}

/// A sequence that may draft, as a decision sees it.
struct Eligible {
    key: SequenceKey,
    /// Most drafted tokens.
    most: usize,
    /// Tokens it has, and that are still expected.
    had: u32,
    expected: f64,
    context: f64,
    reading: Reading,
    decodes: bool,
}

/// The state of speculation in the engine.
#[derive(Clone, Debug)]
pub struct Speculation {
    costs: Costs,
    classes: Vec<(String, Class)>,
    courses: BTreeMap<SequenceKey, Course>,
    policy: Policy,
    pressed: bool,
    /// There is a drafter.
    linked: bool,
    /// The last decision was to draft.
    drafts: bool,
    ranges: Ranges,
}

impl Default for Speculation {
    fn default() -> Self {
        Self {
            costs: Costs::default(),
            classes: vec![("default".into(), Class::default())],
            courses: BTreeMap::new(),
            policy: Policy::default(),
            pressed: false,
            linked: false,
            drafts: false,
            ranges: Ranges::default(),
        }
    }
}

impl Speculation {
    /// A sequence of this class begins.
    pub fn open(&mut self, key: SequenceKey, class: &str) {
        let known = self.classes.iter().position(|(name, _)| name == class);
        let class = known.unwrap_or_else(|| {
            if class.is_empty() || self.classes.len() >= CLASSES {
                return 0;
            }
            self.classes.push((class.to_owned(), Class::default()));
            self.classes.len() - 1
        });
        let belief = Belief::new(&self.classes[class].1);
        let survival = belief.survival(&self.classes[class].1);
        let course = Course {
            class,
            belief,
            survival,
            rests: None,
            pause: 0,
            lost_us: 0.0,
            cycle: None,
            length: 0,
            steady: 0,
            as_of: 0,
            fed: false,
            chosen: false,
            cycles: [0; 4],
        };
        self.courses.insert(key, course);
    }

    /// A sequence is over: its class learns of it.
    pub fn close(&mut self, key: SequenceKey) {
        if let Some(course) = self.courses.remove(&key) {
            course.belief.end(&mut self.classes[course.class].1);
        }
    }

    /// Another policy. An older one than the one in force is dropped; says whether it is taken.
    pub fn set_policy(&mut self, policy: Policy) -> bool {
        let newer = (policy.term, policy.epoch) >= (self.policy.term, self.policy.epoch);
        if newer {
            self.policy = policy;
        }
        newer
    }

    /// Whether there is a drafter; another one may be another drafter, with prices of its own, which are learnt.
    pub fn set_linked(&mut self, linked: bool) {
        self.linked = linked;
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// What reading so many rows in is expected to cost the drafter, microseconds.
    pub fn read_us(&self, rows: usize) -> f64 {
        self.costs.read_us(rows)
    }

    /// A draft for `sequences` of them, with `rows` of blocks and context, came so long after it was asked for; the target
    /// did `steps` steps meanwhile.
    pub fn drafted(&mut self, sequences: usize, rows: usize, us: f64, steps: u32) {
        let size = Size { rows: rows as f64, sequences: sequences as f64, context: 0.0 };
        match steps {
            0 => self.costs.draft.observe(size, us),
            _ => self.costs.draft_was_beside(size, us, steps),
        }
    }

    /// A step took so long; `beside`: a draft was on its way meanwhile. `accepted` says what became of its blocks.
    pub fn stepped(&mut self, parts: &[Part], accepted: &[(SequenceKey, usize)], us: f64, beside: bool) {
        for part in parts.iter().filter(|part| part.drafted > 0) {
            let Some((_, accepted)) = accepted.iter().find(|(key, _)| *key == part.key) else { continue };
            self.verified(part.key, part.start, part.drafted, *accepted);
        }
        if parts.is_empty() || parts.iter().any(|part| part.prefill) {
            return;
        }
        let size = Size {
            rows: parts.iter().map(|part| part.rows).sum::<usize>() as f64,
            sequences: parts.len() as f64,
            context: parts.iter().map(|part| part.start).sum::<usize>() as f64,
        };
        if beside {
            self.costs.step_was_beside(size, us);
        } else {
            self.costs.step.observe(size, us);
        }
        self.ranges.stepped(self.courses.len(), size.context / size.sequences);
    }

    fn verified(&mut self, key: SequenceKey, context: usize, drafted: usize, accepted: usize) {
        let Some(course) = self.courses.get_mut(&key) else { return };
        let class = &mut self.classes[course.class].1;
        course.belief.saw(class, drafted, accepted);
        course.survival = course.belief.survival(class);
        self.ranges.saw(context as f64, course.belief.kinds());
        let Some((why, share_us, plain_us)) = course.cycle.take() else { return };
        course.cycles[why as usize] += 1;
        let lost_us = share_us - (1 + accepted) as f64 * plain_us;
        course.lost_us = (course.lost_us + lost_us).max(0.0);
        course.steady = if lost_us < 0.0 { course.steady + 1 } else { 0 };
        if course.steady >= STEADY {
            course.pause = 0;
        }
        // By what was seen it is decided anew.
        course.rests = None;
    }

    /// What to do at this step border. `reading` says how far the drafter is with a sequence; `pressed`: the ledger is above
    /// the policy's pressure.
    pub fn plan(
        &mut self,
        sequences: &BTreeMap<SequenceKey, Sequence>,
        pressed: bool,
        reading: impl Fn(SequenceKey) -> Option<Reading>,
    ) -> Plan {
        let mut plan = Plan::default();
        self.pressed = pressed;
        let (mut eligible, mut at_border) = (vec![], true);
        for (key, sequence) in sequences {
            let Some(course) = self.courses.get_mut(key) else { continue };
            if !sequence.permit.may_draft() || pressed || self.policy.force == Force::Plain {
                course.fed = false;
                continue;
            }
            let reading = reading(*key).unwrap_or_default();
            let (most, decodes) = (sequence.draft_most(), sequence.phase == Phase::Decoding);
            if is_forced(&sequence.permit, &self.policy) {
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
            eligible.push(Eligible {
                key: *key,
                most: most.min(MOST),
                had,
                expected: f64::from(sequence.left().min(had + EXPECTED)),
                context: sequence.committed as f64,
                reading,
                decodes,
            });
        }
        if !at_border {
            plan.feed.extend(eligible.iter().map(|one| one.key).filter(|key| self.courses[key].fed));
            return plan;
        }
        if !eligible.is_empty() {
            let context = sequences.values().map(|sequence| sequence.committed).sum::<usize>() as f64;
            self.decide(Load { sequences: sequences.len(), context }, &eligible, &mut plan);
        }
        plan
    }

    fn decide(&mut self, load: Load, eligible: &[Eligible], plan: &mut Plan) {
        let open: Vec<&Eligible> = eligible.iter().filter(|one| self.courses[&one.key].rests.is_none()).collect();
        let lengths = self.lengths(load, &open);
        self.drafts = lengths.iter().any(|length| *length > 0);
        let mut fed = vec![];
        let ready = |one: &Eligible| one.decodes && one.reading.ready;
        let chosen: Vec<&Eligible> = open.iter().zip(&lengths).filter(|(_, length)| **length > 0).map(|(one, _)| *one).collect();
        let mut asked: Vec<(&Eligible, usize, Why)> = vec![];
        if self.drafts {
            // Where some have to be read in first, it must pay for the others meanwhile.
            let now: Vec<&Eligible> = chosen.iter().copied().filter(|one| ready(one)).collect();
            let lengths = if now.len() < chosen.len() {
                self.lengths(load, &now)
            } else {
                lengths.iter().copied().filter(|length| *length > 0).collect()
            };
            for (one, length) in now.into_iter().zip(lengths).filter(|(_, length)| *length > 0) {
                let why = if self.courses[&one.key].belief.cycles() == 0 { Why::Prior } else { Why::Benefit };
                asked.push((one, length, why));
            }
            fed.extend(chosen.iter().map(|one| one.key));
        }
        for (one, length) in open.iter().zip(&lengths) {
            if *length == 0 && one.most > 0 && !self.pays_alone(one) {
                let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
                if course.belief.cycles() > 0 {
                    course.pause = (2 * course.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                }
                course.rests = Some(one.had + course.pause);
            }
        }
        for (one, length) in self.trials(load, eligible) {
            fed.push(one.key);
            if ready(one) {
                asked.push((one, length, Why::Probe));
            }
        }
        for one in eligible {
            let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
            course.fed = fed.contains(&one.key);
            course.chosen |= course.fed;
            course.length = asked.iter().find(|(other, ..)| other.key == one.key).map_or(0, |(_, length, _)| *length);
        }
        self.account(load, &asked);
        plan.feed.extend(fed);
        plan.ask.extend(asked.into_iter().map(|(one, length, _)| (one.key, length)));
    }

    fn candidate<'a>(&'a self, one: &Eligible) -> Candidate<'a> {
        let read_us = self.costs.read_us(one.reading.unread) / one.expected.max(1.0);
        Candidate { survival: &self.courses[&one.key].survival, most: one.most, read_us }
    }

    /// The lengths for these sequences; all 0 where plain steps are better.
    fn lengths(&self, load: Load, some: &[&Eligible]) -> Vec<usize> {
        let candidates: Vec<Candidate<'_>> = some.iter().map(|one| self.candidate(one)).collect();
        let plain = load.plain(&self.costs).rate();
        let needed = if self.drafts { plain } else { BEGIN * plain };
        match best_cycle(&self.costs, load, &candidates) {
            Some(best) if best.pace.rate() > needed => {
                let last: Vec<usize> = some.iter().map(|one| self.courses[&one.key].length.min(one.most)).collect();
                let same_set = last.iter().zip(&best.lengths).all(|(one, other)| (*one > 0) == (*other > 0));
                let enough = || OTHER_LENGTHS * pace_of(&self.costs, load, &candidates, &last).rate() >= best.pace.rate();
                if same_set && enough() { last } else { best.lengths }
            }
            _ => vec![0; some.len()],
        }
    }

    /// Whether drafting would pay for a sequence that had the machine for itself.
    fn pays_alone(&self, one: &Eligible) -> bool {
        let load = Load { sequences: 1, context: one.context };
        let best = best_cycle(&self.costs, load, &[self.candidate(one)]);
        best.is_some_and(|best| best.pace.rate() > load.plain(&self.costs).rate())
    }

    /// Resting sequences whose pause is over, where one cycle of trial is worth its price. All of them at once: they
    /// share what it costs, and often are of one kind.
    fn trials<'a>(&mut self, load: Load, eligible: &'a [Eligible]) -> Vec<(&'a Eligible, usize)> {
        let due: Vec<&Eligible> = eligible
            .iter()
            .filter(|one| one.most > 0 && self.courses[&one.key].rests.is_some_and(|until| one.had >= until))
            .collect();
        let Some(first) = due.first() else { return vec![] };
        let table = *self.classes[self.courses[&first.key].class].1.table();
        let (mut kinds, mut left, mut read_us, mut most) = ([0.0; KINDS], 0.0, 0.0, MOST);
        for one in &due {
            let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
            let class = &self.classes[course.class].1;
            let drift = (DRIFT * f64::from(one.had - course.as_of.min(one.had))).min(MOST_DRIFT);
            course.belief.drift(class, drift);
            (course.survival, course.as_of) = (course.belief.survival(class), one.had);
            kinds.iter_mut().zip(course.belief.kinds()).for_each(|(sum, share)| *sum += share / due.len() as f64);
            left += one.expected;
            read_us += self.costs.read_us(one.reading.unread);
            most = most.min(one.most);
        }
        let token_us = 1.0 / load.plain(&self.costs).rate();
        let worth = trial(&self.costs, load, due.len(), &kinds, &table, most, (left, read_us))
            .filter(|trial| trial.value_us > TRIAL * trial.cost_us);
        let mut tried = vec![];
        for one in due {
            let course = self.courses.get_mut(&one.key).expect("each eligible one has a course");
            let affords = |cost_us: f64| {
                let may_us = TRIAL_SHARE * f64::from(one.had) * token_us;
                course.belief.cycles() == 0 || course.lost_us + cost_us <= may_us
            };
            match worth {
                Some(trial) if affords(trial.cost_us.max(0.0) / tried.len().max(1) as f64) => tried.push((one, trial.length)),
                _ => course.rests = Some(one.had + LATER),
            }
        }
        tried
    }

    /// Notes what the cycle that is asked for is expected to take, so that its end tells what it cost.
    fn account(&mut self, load: Load, asked: &[(&Eligible, usize, Why)]) {
        if asked.is_empty() {
            return;
        }
        let token_us = 1.0 / load.plain(&self.costs).rate();
        let candidates: Vec<Candidate<'_>> = asked.iter().map(|(one, ..)| self.candidate(one)).collect();
        let lengths: Vec<usize> = asked.iter().map(|(_, length, _)| *length).collect();
        let pace = pace_of(&self.costs, load, &candidates, &lengths);
        let own: f64 = candidates.iter().zip(&lengths).map(|(one, length)| 1.0 + survival::accepted(one.survival, *length)).sum();
        let share_us = (pace.us - (pace.tokens - own) * token_us) / asked.len() as f64;
        for (one, _, why) in asked {
            self.courses.get_mut(&one.key).expect("each eligible one has a course").cycle = Some((*why, share_us, token_us));
        }
    }

    /// How a sequence was served: speculatively if a draft of it was ever verified, else plainly; and why.
    pub fn route(&self, key: SequenceKey, sequence: &Sequence) -> Route {
        let permit = sequence.permit;
        let course = self.courses.get(&key);
        let (lane, reason) = if sequence.counts.cycles > 0 {
            let did = |why: Why| course.is_some_and(|course| course.cycles[why as usize] > 0);
            let reason = match () {
                () if permit.may_draft() && permit.reason == RouteReason::Forced || did(Why::Forced) => RouteReason::Forced,
                () if did(Why::Benefit) => RouteReason::Benefit,
                () if did(Why::Prior) => RouteReason::Prior,
                () => RouteReason::Probe,
            };
            (Lane::Speculative, reason)
        } else if !permit.may_draft() {
            (Lane::Plain, permit.reason)
        } else if self.policy.force == Force::Plain {
            (Lane::Plain, RouteReason::Forced)
        } else if !self.linked {
            (Lane::Plain, RouteReason::DrafterAbsent)
        } else if self.pressed {
            (Lane::Plain, RouteReason::KvPressure)
        } else if course.is_some_and(|course| course.chosen) {
            // The drafter had not read so far, or its drafts came too late.
            (Lane::Plain, RouteReason::Behind)
        } else {
            (Lane::Plain, RouteReason::NotWorth)
        };
        Route { lane: lane.into(), reason: reason.into() }
    }
}

/// Whether a sequence drafts whatever it costs.
fn is_forced(permit: &Permit, policy: &Policy) -> bool {
    policy.force == Force::Speculative || permit.reason == RouteReason::Forced
}

#[cfg(test)]
mod tests;
