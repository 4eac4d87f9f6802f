//! How far drafts survive. The algorithm: a text is a mixture of kinds with fixed acceptance; a
//! class learns its mixture and how hard each position is; a sequence starts as its class, is
//! sharpened by each cycle (Bayes) and forgets a share of each.

use paceline_vocabulary::mean::moved;

use super::load::{LOADS, load_range};

/// Number of kinds of text.
pub(crate) const KINDS: usize = 13;
/// Probability that a token after accepted ones is accepted, by kind. The steps become finer
/// towards 1, because the length of accepted drafts changes fastest there.
const ACCEPTANCE: [f64; KINDS] =
    [0.08, 0.22, 0.36, 0.48, 0.58, 0.67, 0.75, 0.82, 0.87, 0.91, 0.945, 0.97, 0.988];
/// Longest draft, in tokens: no published drafter has a block of more than 32 rows.
pub(super) const LONGEST_DRAFT: usize = 31;
/// Share of the even mixture in every class, so that no kind becomes impossible; set by
/// `poor_text_becomes_plain_within_a_few_cycles_and_trials_become_rarer`.
const EVEN_SHARE: f64 = 0.06;
/// Least weight of an ended sequence in its class: the last twelve count. Set by the table of
/// recorded texts.
const SEQUENCE_WEIGHT: f64 = 0.08;
/// Share of a belief that returns to its class in each cycle, because text changes; set by
/// `a_trial_finds_text_that_becomes_predictable`.
pub(super) const CHANGE_PER_CYCLE: f64 = 0.04;
/// Rejections, expected and found, that each position starts with, so that a few cycles do not
/// make it hard; set by `survival_never_rises_and_a_hard_position_is_learned`.
const ASSUMED_REJECTIONS: f64 = 8.0;
/// Cycles that the counts of a position remember; set by the same test.
const REMEMBERED_CYCLES: f64 = 500.0;

/// Weight of the newest draft in [`Offered`]: about the last twenty count.
const OFFERED_WEIGHT: f64 = 0.05;

/// Probability that the first i + 1 drafted tokens are all accepted.
pub(crate) type Survival = [f32; LONGEST_DRAFT];

/// Of the drafts that are asked for and do not come to be accepted, the share that is offered: each costs
/// a row. The others are left out, because a drafter ends a block where its drafts are probably wrong.
/// By the range of load, because a drafter leaves out more where rows cost more.
#[derive(Clone, Debug)]
pub(super) struct Offered([[f64; LONGEST_DRAFT]; LOADS]);

impl Default for Offered {
    fn default() -> Self {
        Self([[1.0; LONGEST_DRAFT]; LOADS])
    }
}

impl Offered {
    /// A draft came out like this, with this number of sequences in the engine.
    pub(super) fn observe(&mut self, sequences: usize, draft: DraftResult) {
        let DraftResult { asked, offered, accepted } = draft;
        let shares = self.0[load_range(sequences)].iter_mut().take(asked);
        for (at, share) in shares.enumerate().skip(accepted) {
            *share = moved(*share, f64::from(u8::from(at < offered)), OFFERED_WEIGHT);
        }
    }

    /// The share for each place in a block.
    pub(super) fn shares(&self, sequences: usize) -> Survival {
        let mut least = 1.0f64;
        // A drafter that leaves a place out leaves out those behind it.
        self.0[load_range(sequences)].map(|share| {
            least = least.min(share);
            least as f32
        })
    }
}

/// What came of a draft, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftResult {
    pub(super) asked: usize,
    /// Those that came, and were verified.
    pub(super) offered: usize,
    pub(super) accepted: usize,
}

/// Drafts that reached a position.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    tested: f64,
    rejected: f64,
    /// Rejections that the beliefs predicted.
    expected: f64,
}

/// Acceptance that a traffic class has learned.
#[derive(Clone, Debug)]
pub(crate) struct TrafficClass {
    mixture: [f64; KINDS],
    sequences: u64,
    pub(crate) cycles: u64,
    positions: [Position; LONGEST_DRAFT],
    /// Survival in each kind.
    pub(crate) table: [Survival; KINDS],
}

impl Default for TrafficClass {
    fn default() -> Self {
        let (mixture, positions) = ([1.0 / KINDS as f64; KINDS], Default::default());
        let table = [[0.0; LONGEST_DRAFT]; KINDS];
        let mut class = Self { mixture, sequences: 0, cycles: 0, positions, table };
        class.tabulate();
        class
    }
}

impl TrafficClass {
    /// Probability of each kind for a sequence that begins.
    pub(crate) fn mixture(&self) -> [f64; KINDS] {
        self.mixture.map(|share| moved(share, 1.0 / KINDS as f64, EVEN_SHARE))
    }

    /// Share of drafts whose first i + 1 tokens were all accepted, up to the last position that a
    /// recent draft reached.
    pub(crate) fn measured(&self) -> Vec<f32> {
        let reached = self.positions.iter().take_while(|one| one.tested >= 0.5);
        let alive = reached.scan(1.0, |alive, one| {
            *alive *= 1.0 - one.rejected / one.tested;
            Some(*alive as f32)
        });
        alive.collect()
    }

    fn count(&mut self, kinds: &[f64; KINDS], drafted: usize, accepted: usize) {
        self.cycles += 1;
        let reject: f64 =
            kinds.iter().zip(ACCEPTANCE).map(|(share, accept)| share * (1.0 - accept)).sum();
        let reached = drafted.min(accepted + 1).min(LONGEST_DRAFT);
        for (at, one) in self.positions[..reached].iter_mut().enumerate() {
            let rejected = f64::from(u8::from(at == accepted));
            one.tested += 1.0 - one.tested / REMEMBERED_CYCLES;
            one.rejected += rejected - one.rejected / REMEMBERED_CYCLES;
            one.expected += reject - one.expected / REMEMBERED_CYCLES;
        }
        // The table takes four hundred exponentials, and changes slowly.
        if self.cycles.is_multiple_of(LONGEST_DRAFT as u64) {
            self.tabulate();
        }
    }

    fn tabulate(&mut self) {
        for (accept, survival) in ACCEPTANCE.iter().zip(&mut self.table) {
            let mut alive = 0.0;
            for (one, place) in self.positions.iter().zip(survival) {
                let hard =
                    (one.rejected + ASSUMED_REJECTIONS) / (one.expected + ASSUMED_REJECTIONS);
                alive += hard * accept.ln();
                *place = alive.exp() as f32;
            }
        }
    }
}

/// The belief about one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Belief {
    /// Probability of each kind when it began.
    prior: [f64; KINDS],
    /// Probability of each kind now.
    pub(super) kinds: [f64; KINDS],
    pub(super) cycles: u64,
    /// Expected survival of the next draft.
    pub(super) survival: Survival,
}

impl Belief {
    /// The belief about a sequence that begins.
    pub(super) fn new(class: &TrafficClass) -> Self {
        let prior = class.mixture();
        let mut belief = Self { prior, kinds: prior, cycles: 0, survival: [0.0; LONGEST_DRAFT] };
        belief.drift(class, 0.0);
        belief
    }

    /// Of `drafted` tokens the first `accepted` were accepted.
    pub(super) fn observe(&mut self, class: &mut TrafficClass, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return;
        }
        class.count(&self.kinds, drafted, accepted);
        self.cycles += 1;
        self.drift(class, CHANGE_PER_CYCLE);
        for (share, survival) in self.kinds.iter_mut().zip(&class.table) {
            let alive = |length: usize| match length.min(LONGEST_DRAFT) {
                0 => 1.0,
                length => survival[length - 1],
            };
            let rejected = if accepted < drafted { alive(accepted + 1) } else { 0.0 };
            // One observation excludes no kind.
            *share *= f64::from((alive(accepted) - rejected).max(f32::EPSILON));
        }
        let sum: f64 = self.kinds.iter().sum();
        self.kinds.iter_mut().for_each(|share| *share /= sum);
        self.drift(class, 0.0);
    }

    /// Moves the belief by `share` back to where it began.
    pub(super) fn drift(&mut self, class: &TrafficClass, share: f64) {
        self.survival = [0.0; LONGEST_DRAFT];
        for ((kind, prior), of_kind) in self.kinds.iter_mut().zip(self.prior).zip(&class.table) {
            *kind = moved(*kind, prior, share);
            let share = *kind as f32;
            self.survival.iter_mut().zip(of_kind).for_each(|(sum, alive)| *sum += share * alive);
        }
    }

    /// The sequence ended: its class learns from it.
    pub(super) fn end(&self, class: &mut TrafficClass) {
        if self.cycles > 0 {
            class.sequences += 1;
            // The even mixture at the start counts as three sequences.
            let weight = (1.0 / (class.sequences as f64 + 3.0)).max(SEQUENCE_WEIGHT);
            let means = class.mixture.iter_mut().zip(self.kinds);
            means.for_each(|(mean, kind)| *mean = moved(*mean, kind, weight));
        }
    }
}

/// Expected number of accepted tokens of a draft of `length`.
pub(super) fn accepted(survival: &Survival, length: usize) -> f64 {
    survival[..length.min(LONGEST_DRAFT)].iter().map(|alive| f64::from(*alive)).sum()
}
