//! Adaptive speculation: who drafts in the next cycle and how far, inside the permits. Pure.
//!
//! At a *cycle border*, when no draft is on its way, the lengths of all sequences are decided
//! together, as they share a step (`choose`), by what work costs here (`cost`) and how far drafts
//! survive (`survival`), which shows in drafts and in the target's own doubt (`target_entropy`). A
//! sequence's course:
//!
//! ```text
//!           its drafts pay                its drafts would not pay even alone
//!   open ──────────────────▶ drafts ────────────────────────────────▶ resting
//!    ▲  where they pay alone, but not among so many: plain, and open       │ after a pause that doubles from one
//!    └──────────────────────── one cycle of trial ◀────────────────────────┘ trial to the next
//! ```
//!
//! A sequence begins with what its class of traffic makes of it, and those with prompts like its
//! own (`similar_prompts`), of which one that is tried teaches the others. Only prompts of its own cache
//! scope count (`scopes`).
//!
//! Who is plain is not shown to the drafter either: it reads only sequences that are to draft
//! (`DraftPlan::feed`), and what they missed it reads from their hidden-state windows. What reading costs counts
//! against the tokens still expected.

pub mod choose;
pub mod cost;
mod decide;
mod figures;
mod lane_event;
mod scopes;
pub mod similar_prompts;
pub mod survival;
pub mod target_entropy;

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_vocabulary::{Force, Lane, Route, RouteReason};

use super::{Request, Sequence, SequenceKey, StepPart};
use choose::{Costs, gain_of_kind};
use cost::Size;
use decide::Blind;
use figures::Ranges;
pub use lane_event::LaneEvent;
use lane_event::LaneEvents;
use scopes::{ScopeOfClass, SimilarPrompts};
use similar_prompts::{Evidence, Words};
use survival::{Belief, Class, Survival};
use target_entropy::{Seen, Signs};

/// In its first cycles a sequence is taken for worse than its class makes it, by this share of poor
/// text as long as nothing is known of itself: a class is a mean over texts that pay a lot and
/// texts that cost, and each of them is to be served well.
const CAUTION: f32 = 0.25;
const CAUTIOUS: u64 = 3;
/// Tokens of a sequence whose every sign is read, and how often one is read then.
const FIRST_SIGNS: u32 = 12;
const SIGN_EVERY: u32 = 8;
/// Cycles after which drafts have told a sequence's kind well enough to learn signs from.
const TOLD: u64 = 1;
/// Cycles in a row that must pay before a sequence's pauses are short again.
const STEADY: u32 = 4;
/// Of what drafting has won a sequence it may lose so much again, in tokens' plain time, before it
/// counts as a loss: in text that pays two blocks in a row of which nothing is accepted are common,
/// and what comes behind them is known only by a trial.
const CREDIT_TOKENS: f64 = 10.0;
/// Steps without a draft after which what drafts cost is doubted, for the first time since one
/// paid, and at most: each time it takes twice as long.
const QUIET: u32 = 64;
const LONGEST_QUIET: u32 = 2_048;
/// Cycles in a row that paid, after which it is soon doubted again.
const PAID: u32 = 2;
/// Classes that are told apart; sequences of further ones count as the first's.
const CLASSES: usize = 32;
/// Class of what comes behind the end of an answer. An operator's class of that name, should there
/// be one, learns with it.
const BEHIND_END: &str = "behind the end";

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
    /// Positions behind which a sequence does not draft any more unless it is forced, where an
    /// operator set them.
    pub max_context: Option<u32>,
}

impl Default for Policy {
    fn default() -> Self {
        // None was pushed yet; permits hold what was decided for them.
        Self { term: 0, epoch: 0, force: Force::Auto, kv_pressure: 1.0, max_context: None }
    }
}

/// How far the drafter is with a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrafterReadiness {
    /// Rows it would have to read before it can draft.
    pub unread: usize,
    /// It can be asked now, though it may have to read for a while first.
    pub can: bool,
    /// The sequence is longer than what it reads: it will not draft for it any more.
    pub beyond: bool,
}

/// What to do at a step border.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftPlan {
    /// Whose hidden states are sent.
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
    /// Cache scope of the request.
    scope: Arc<str>,
    words: Words,
    /// What those like it turned out to be that were over when it began, or are since.
    ended: Evidence,
    /// Those that run beside it, and how alike they are.
    near: Vec<(SequenceKey, f64)>,
    belief: Belief,
    /// What its drafts alone say, from which the meaning of signs is learnt.
    by_drafts: Belief,
    seen: Seen,
    /// Something else than its own drafts spoke of it since the last decision: a sign, or one like
    /// it.
    news: bool,
    survival: Survival,
    /// It rests until it has so many tokens; `None`: it is open.
    rests: Option<u32>,
    pause: u32,
    /// What its cycles cost beyond what plain steps would have, microseconds; below 0 what they
    /// won, up to `CREDIT_TOKENS`.
    lost_us: f64,
    /// Of the cycle under way: why, its share of the time, and what a token costs plainly.
    cycle: Option<(Why, f64, f64)>,
    /// Last length.
    length: usize,
    /// Blocks that were accepted to their end.
    whole: u32,
    /// Cycles that paid, in a row.
    steady: u32,
    /// Tokens it had when its belief was last brought up to date.
    as_of: u32,
    /// The drafter is shown its hidden states.
    fed: bool,
    /// It was thought of whether it is to be.
    decided: bool,
    /// It was chosen to draft, whether or not a draft came of it.
    chosen: bool,
    /// It is too long to draft: for the drafter, or by the policy.
    beyond: bool,
    /// Its cycles by `Why`.
    cycles: [u32; 4],
}

impl Course {
    /// Whether others learn from it. Who was told to draft teaches its class alone: benchmarks and
    /// self-tests ask the same prompt in every lane, and the one that is decided here is to be
    /// measured by what it finds out itself.
    fn teaches(&self) -> bool {
        self.cycles[Why::Forced as usize] == 0
    }
}

/// The state of speculation in the engine.
#[derive(Clone, Debug)]
pub struct Speculation {
    costs: Costs,
    classes: Vec<(String, Class)>,
    similar: SimilarPrompts,
    courses: BTreeMap<SequenceKey, Course>,
    signs: Signs,
    policy: Policy,
    pressed: bool,
    /// There is a drafter.
    linked: bool,
    /// The drafter was sent rows to read since the last step.
    reads: bool,
    /// Sequences of the last step, if it was plain and the drafter rested.
    settled: Option<usize>,
    /// The last decision was to draft.
    drafts: bool,
    /// For whom it was decided last, and whether they could be asked then.
    last: Vec<(SequenceKey, bool)>,
    /// Borders since, that one counted.
    borders: u32,
    /// A block was verified since.
    seen: bool,
    /// By sequences: plain steps behind others that were measured, and cycles since the last.
    plain: [(u32, u32); LOADS],
    /// How long nothing but blocks was seen.
    blind: Blind,
    ranges: Ranges,
    /// A draft was verified since the last decision, from which others learn.
    taught: bool,
    /// Steps since a draft came, and after how many what drafts cost is doubted.
    quiet: (u32, u32),
    lane_events: LaneEvents,
}

/// Sequences that are told apart.
const LOADS: usize = 33;

impl Default for Speculation {
    fn default() -> Self {
        Self {
            costs: Costs::default(),
            classes: ["default", BEHIND_END].map(|name| (name.to_owned(), Class::default())).into(),
            similar: SimilarPrompts::default(),
            courses: BTreeMap::new(),
            signs: Signs::default(),
            policy: Policy::default(),
            pressed: false,
            linked: false,
            reads: false,
            settled: None,
            drafts: false,
            last: vec![],
            borders: 0,
            seen: false,
            plain: [(0, 0); LOADS],
            blind: Blind::default(),
            ranges: Ranges::default(),
            taught: false,
            quiet: (0, QUIET),
            lane_events: LaneEvents::default(),
        }
    }
}

impl Speculation {
    /// The sequence of a request begins.
    pub fn open(&mut self, key: SequenceKey, request: &Request) {
        let class = self.class(&request.class);
        let scope = ScopeOfClass { class, scope: request.cache_scope.as_str().into() };
        let course = self.begin(key, scope, Words::of(&request.prompt));
        self.courses.insert(key, course);
    }

    /// The number of a class.
    fn class(&mut self, class: &str) -> usize {
        let known = self.classes.iter().position(|(name, _)| name == class);
        known.unwrap_or_else(|| {
            if class.is_empty() || self.classes.len() >= CLASSES {
                return 0;
            }
            self.classes.push((class.to_owned(), Class::default()));
            self.classes.len() - 1
        })
    }

    fn begin(&mut self, key: SequenceKey, scope: ScopeOfClass, words: Words) -> Course {
        let neighbours = self.similar.of(&scope);
        let ScopeOfClass { class, scope } = scope;
        let of_class = &self.classes[class].1;
        let ended = neighbours.of(&words);
        let mut near = vec![];
        for (other, course) in
            self.courses.iter_mut().filter(|(_, one)| one.class == class && one.scope == scope)
        {
            let alike = neighbours.alike(&words, &course.words);
            near.push((*other, alike));
            course.near.push((key, alike));
        }
        self.taught |= !near.is_empty();
        let belief = Belief::new(ended.with(&of_class.mixture()));
        let survival = expected(&belief, of_class);
        Course {
            class,
            scope,
            words,
            ended,
            near,
            by_drafts: Belief::new(of_class.mixture()),
            belief,
            seen: Seen::default(),
            news: false,
            survival,
            rests: None,
            pause: 0,
            lost_us: 0.0,
            cycle: None,
            length: 0,
            whole: 0,
            steady: 0,
            as_of: 0,
            fed: false,
            decided: false,
            chosen: false,
            beyond: false,
            cycles: [0; 4],
        }
    }

    /// The answer of a sequence has come to its end, with so many tokens, and the client has it go
    /// on. What follows is another text: its class has learnt what the answer was, and of the rest
    /// it is known what became of others that went on.
    pub fn continues_past_end(&mut self, key: SequenceKey, had: u32) {
        let Some(course) = self.courses.remove(&key) else { return };
        let Course { fed, decided, chosen, cycles, .. } = course;
        let (words, scope, lost_us) =
            (course.words.clone(), course.scope.clone(), course.lost_us.max(0.0));
        self.learn(key, course);
        let scope = ScopeOfClass { class: self.class(BEHIND_END), scope };
        let begun = self.begin(key, scope, words);
        self.courses
            .insert(key, Course { fed, decided, chosen, cycles, lost_us, as_of: had, ..begun });
    }

    /// A sequence is over: its class learns of it.
    pub fn close(&mut self, key: SequenceKey) {
        if let Some(course) = self.courses.remove(&key) {
            self.learn(key, course);
        }
    }

    /// What became of a text that is over.
    fn learn(&mut self, key: SequenceKey, course: Course) {
        let drafts = &course.by_drafts;
        course.belief.end(&mut self.classes[course.class].1);
        if drafts.cycles() >= TOLD {
            self.signs.learn(drafts.kinds(), &course.seen);
        }
        let teaches = course.teaches();
        for other in self.courses.values_mut() {
            let Some(at) = other.near.iter().position(|(near, _)| *near == key) else { continue };
            let (_, alike) = other.near.swap_remove(at);
            if teaches {
                other.ended.add(alike, drafts.kinds(), drafts.cycles());
            }
        }
        // One that nobody might try says nothing of those like it.
        if teaches && (course.decided || drafts.cycles() > 0) {
            let scope = ScopeOfClass { class: course.class, scope: course.scope };
            self.similar.of(&scope).learn(course.words, drafts.kinds(), drafts.cycles());
        }
    }

    /// What became of the drafts of some says what to expect of those like them.
    fn teach(&mut self) {
        if !std::mem::take(&mut self.taught) {
            return;
        }
        let mut taught = vec![];
        for (key, course) in &self.courses {
            // Who has shown itself what it is has nothing to learn from others.
            if course.belief.cycles() > TOLD {
                continue;
            }
            let mut evidence = course.ended;
            for (near, alike) in &course.near {
                if let Some(near) = self.courses.get(near).filter(|near| near.teaches()) {
                    evidence.add(*alike, near.by_drafts.kinds(), near.by_drafts.cycles());
                }
            }
            taught.push((*key, evidence));
        }
        for (key, evidence) in taught {
            let Some(course) = self.courses.get_mut(&key) else { continue };
            let class = &self.classes[course.class].1;
            course.belief.expect(evidence.with(&class.mixture()));
            course.survival = expected(&course.belief, class);
            course.news = true;
        }
    }

    /// Whether the target's doubt about a sequence's next tokens is of use, when it has had so
    /// many.
    pub fn wants_entropy(&self, key: SequenceKey, sequence: &Sequence, had: u32) -> bool {
        let often = had < FIRST_SIGNS || had.is_multiple_of(SIGN_EVERY);
        self.linked && often && sequence.permit.may_draft() && self.courses.contains_key(&key)
    }

    /// The target's doubt about tokens it chose for a sequence, in nats.
    pub fn observe_entropy(&mut self, key: SequenceKey, nats: &[f32]) {
        let Some(course) = self.courses.get_mut(&key) else { return };
        for nats in nats {
            let bin = target_entropy::bin(*nats);
            course.seen[bin] += 1;
            course.belief.weigh(&self.signs.says(bin));
        }
        course.news |= !nats.is_empty();
        course.survival = expected(&course.belief, &self.classes[course.class].1);
    }

    /// Another policy. An older one than the one in force is dropped; says whether it is taken.
    pub fn set_policy(&mut self, policy: Policy) -> bool {
        let newer = (policy.term, policy.epoch) >= (self.policy.term, self.policy.epoch);
        if newer {
            self.policy = policy;
        }
        newer
    }

    /// Whether there is a drafter; another one may be another drafter, with prices of its own,
    /// which are learnt.
    pub fn set_linked(&mut self, linked: bool) {
        self.linked = linked;
        // One that is gone reads nothing.
        self.reads &= linked;
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// What reading so many rows in is expected to cost the drafter, microseconds.
    pub fn read_us(&self, rows: usize) -> f64 {
        self.costs.read_us(rows)
    }

    /// A draft for `sequences` of them, with `rows` of blocks and context, came so long after it
    /// was asked for; the target did `steps` steps meanwhile.
    pub fn drafted(&mut self, sequences: usize, rows: usize, us: f64, steps: u32) {
        let size = Size { rows: rows as f64, sequences: sequences as f64, context: 0.0 };
        self.answered();
        self.quiet.0 = 0;
        self.costs.drafted(size, us, steps);
    }

    /// A draft came, or was not waited for any more, and its time says nothing.
    pub fn answered(&mut self) {
        // It answers in order: what it was sent before it has read.
        self.reads = false;
    }

    /// A step took so long; `beside`: a draft was on its way meanwhile. `accepted` says what became
    /// of its blocks.
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
            self.verified(part.key, part.start, part.drafted, *accepted);
        }
        let beside = beside || self.reads;
        let plain = parts.iter().all(|part| part.rows == 1 && !part.prefill);
        // The first plain step behind another finds the processor's caches full of what that
        // needed, and is up to a quarter dearer, and so is the first of fewer or more sequences: it
        // says nothing of the steps that would go on plainly.
        let settled =
            std::mem::replace(&mut self.settled, (plain && !beside).then_some(parts.len()))
                == Some(parts.len());
        if parts.is_empty() || parts.iter().any(|part| part.prefill) {
            return;
        }
        let (quiet, doubt) = &mut self.quiet;
        *quiet += 1;
        if self.linked && *quiet >= *doubt {
            (*quiet, *doubt) = (0, (2 * *doubt).min(LONGEST_QUIET));
            self.costs.nothing_drafted();
        }
        let size = Size {
            rows: parts.iter().map(|part| part.rows).sum::<usize>() as f64,
            sequences: parts.len() as f64,
            context: parts.iter().map(|part| part.start).sum::<usize>() as f64,
        };
        if !plain {
            self.blind.block();
        } else if settled
            && !beside
            && self.blind.plain(us / self.costs.plain_us(size.sequences, size.context))
        {
            self.costs.speed_changed();
        }
        if settled && plain && !beside && parts.len() == self.courses.len() {
            let (measured, since) = &mut self.plain[parts.len().min(LOADS - 1)];
            (*measured, *since) = (measured.saturating_add(1), 0);
        }
        if beside {
            self.costs.step_was_beside(size, us);
        } else if settled || !plain {
            self.costs.stepped(size, us);
        }
        self.ranges.stepped(self.courses.len(), size.context / size.sequences);
    }

    fn verified(&mut self, key: SequenceKey, context: usize, drafted: usize, accepted: usize) {
        let Some(course) = self.courses.get_mut(&key) else { return };
        self.seen = true;
        let class = &mut self.classes[course.class].1;
        if drafted > 0 {
            course.by_drafts.told(class, drafted, accepted);
            self.taught = true;
        }
        course.belief.saw(class, drafted, accepted);
        course.survival = expected(&course.belief, class);
        course.whole += u32::from(accepted == drafted);
        self.ranges.saw(context as f64, course.belief.kinds());
        let Some((why, share_us, plain_us)) = course.cycle.take() else { return };
        course.cycles[why as usize] += 1;
        let lost_us = share_us - (1 + accepted) as f64 * plain_us;
        course.lost_us = (course.lost_us + lost_us).max(-CREDIT_TOKENS * plain_us);
        course.steady = if lost_us < 0.0 { course.steady + 1 } else { 0 };
        if course.steady >= PAID {
            self.quiet.1 = QUIET;
        }
        if course.steady >= STEADY {
            course.pause = 0;
        }
        // By what was seen it is decided anew.
        if course.rests.take().is_some() {
            self.lane_events.push(LaneEvent::BackoffEnded { key });
        }
    }

    /// Decisions about single sequences since this was last called.
    pub fn take_lane_events(&mut self) -> Vec<LaneEvent> {
        self.lane_events.take()
    }

    /// How a sequence was served: speculatively if a draft of it was ever verified, else plainly;
    /// and why.
    pub fn route(&self, key: SequenceKey, sequence: &Sequence) -> Route {
        let permit = sequence.permit;
        let course = self.courses.get(&key);
        let (lane, reason) = if sequence.counts.cycles > 0 {
            let did = |why: Why| course.is_some_and(|course| course.cycles[why as usize] > 0);
            let reason = match () {
                () if permit.may_draft() && permit.reason == RouteReason::Forced
                    || did(Why::Forced) =>
                {
                    RouteReason::Forced
                }
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
        } else if course.is_some_and(|course| course.beyond) {
            (Lane::Plain, RouteReason::Context)
        } else if course.is_some_and(|course| course.chosen)
            || decide::is_forced(&permit, &self.policy)
        {
            // The drafter had not read so far, or its drafts came too late. What was forced was not
            // asked whether it is worth it.
            (Lane::Plain, RouteReason::Behind)
        } else if permit.reason == RouteReason::DrafterSuspect {
            (Lane::Plain, permit.reason)
        } else {
            (Lane::Plain, RouteReason::NotWorth)
        };
        Route { lane, reason }
    }
}

/// What is expected of a sequence's next draft.
fn expected(belief: &Belief, class: &Class) -> Survival {
    let mut survival = belief.survival(class);
    if belief.cycles() < CAUTIOUS {
        let poor = &class.table()[survival::POOR];
        let caution = CAUTION * (1.0 - belief.is_own(class)) as f32;
        survival
            .iter_mut()
            .zip(poor)
            .for_each(|(alive, poor)| *alive += caution * (poor.min(*alive) - *alive));
    }
    survival
}

#[cfg(test)]
mod tests;
