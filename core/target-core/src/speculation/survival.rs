//! How far drafts survive: the probability that the first i + 1 drafted tokens are all accepted.
//!
//! The algorithm: a Bayesian mixture of a few *kinds* of text. In kind k a drafted token after
//! accepted ones is accepted with probability `ACCEPTANCE[k]`, raised to the power of how hard its
//! position is. A traffic class is a mixture of kinds. It learns the mixture from its sequences,
//! and the hardness of positions from its drafts. A sequence is a belief over kinds: it starts as
//! the mixture of its class and each of its cycles sharpens it. One cycle in which nothing is
//! accepted already decides much, so this needs fewer cycles than a mean for each position. Text
//! changes within a sequence, so each cycle moves the belief a little back to the class.

use paceline_vocabulary::mean::moved;

/// Probability that a token is accepted, kind by kind. The steps become finer towards 1, because
/// there the expected length of an accepted draft changes fastest.
const ACCEPTANCE: [f64; KINDS] =
    [0.08, 0.22, 0.36, 0.48, 0.58, 0.67, 0.75, 0.82, 0.87, 0.91, 0.945, 0.97, 0.988];
/// Number of kinds of text.
pub const KINDS: usize = 13;
/// The kind that stands for text whose drafts cost more than they save on most machines.
pub const POOR_KIND: usize = 3;
/// Longest draft that is planned, in tokens. A block of 32 rows is a draft and its bonus token.
pub const LONGEST_DRAFT: usize = 31;
/// Share of the even mixture in every class. No kind ever becomes impossible.
const EVEN_SHARE: f64 = 0.06;
/// Least weight of one ended sequence in the mixture of its class. About the last twelve sequences
/// count.
const SEQUENCE_WEIGHT: f64 = 0.08;
/// Sequences that the even mixture counts as when the first ones of a class end.
const ASSUMED_SEQUENCES: f64 = 3.0;
/// Share of a belief that returns to its prior in each cycle, because text changes.
const CHANGE_PER_CYCLE: f64 = 0.04;
/// Cycles that the counts of a position remember.
const REMEMBERED_CYCLES: f64 = 500.0;
/// Rejections, expected and found, that every position starts with. With them a few cycles do not
/// change how hard a position is.
const ASSUMED_REJECTIONS: f64 = 8.0;
/// Bounds of how hard a position is. A few accidents cannot make it impossible or free.
const HARDNESS: Bounds = Bounds { least: 0.25, most: 4.0 };
/// Cycles of a class from one calculation of its survival tables to the next.
const TABLE_INTERVAL: u64 = 32;
/// Least probability of an observation. Above 0, so that one observation excludes no kind.
const LEAST_LIKELIHOOD: f64 = 1e-9;

struct Bounds {
    least: f64,
    most: f64,
}

/// Probabilities by drafted position.
pub type Survival = [f32; LONGEST_DRAFT];

/// The mixture and the survival tables of one traffic class.
#[derive(Clone, Debug)]
pub struct TrafficClass {
    mixture: [f64; KINDS],
    sequences: u64,
    cycles: u64,
    /// Drafts that reached this position: long enough, and accepted before it.
    tested: [f64; LONGEST_DRAFT],
    /// Those of them that were rejected at this position.
    rejected: [f64; LONGEST_DRAFT],
    /// Rejections that the beliefs predicted at this position.
    expected: [f64; LONGEST_DRAFT],
    /// Survival in each kind, with the hardness of positions.
    table: [Survival; KINDS],
}

impl Default for TrafficClass {
    fn default() -> Self {
        let zero = [0.0; LONGEST_DRAFT];
        let mixture = [1.0 / KINDS as f64; KINDS];
        let mut class = Self {
            mixture,
            sequences: 0,
            cycles: 0,
            tested: zero,
            rejected: zero,
            expected: zero,
            table: [[0.0; LONGEST_DRAFT]; KINDS],
        };
        class.tabulate();
        class
    }
}

impl TrafficClass {
    /// Probability of each kind for a new sequence.
    pub fn mixture(&self) -> [f64; KINDS] {
        self.mixture.map(|share| (1.0 - EVEN_SHARE) * share + EVEN_SHARE / KINDS as f64)
    }

    /// Survival in each kind.
    pub fn table(&self) -> &[Survival; KINDS] {
        &self.table
    }

    /// Cycles that were counted.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Share of drafts whose first i + 1 tokens were all accepted. Ends before the first position
    /// that no recent draft reached.
    pub fn measured(&self) -> Vec<f32> {
        let mut alive = 1.0;
        let mut all = vec![];
        for (tested, rejected) in self.tested.iter().zip(&self.rejected) {
            if *tested < 0.5 {
                break;
            }
            alive *= 1.0 - rejected / tested;
            all.push(alive as f32);
        }
        all
    }

    /// Counts a cycle of one of its sequences, whose kinds were believed to be `kinds`.
    fn count(&mut self, kinds: &[f64; KINDS], drafted: usize, accepted: usize) {
        self.cycles += 1;
        let reject: f64 =
            kinds.iter().zip(ACCEPTANCE).map(|(share, accept)| share * (1.0 - accept)).sum();
        for at in 0..drafted.min(accepted + 1).min(LONGEST_DRAFT) {
            let keep = 1.0 - 1.0 / REMEMBERED_CYCLES;
            self.tested[at] = keep * self.tested[at] + 1.0;
            self.rejected[at] = keep * self.rejected[at] + if at == accepted { 1.0 } else { 0.0 };
            self.expected[at] = keep * self.expected[at] + reject;
        }
        if self.cycles.is_multiple_of(TABLE_INTERVAL) {
            self.tabulate();
        }
    }

    /// Learns from a sequence that ended, with these probabilities of its kinds.
    fn learn(&mut self, kinds: &[f64; KINDS]) {
        self.sequences += 1;
        // Until the least weight is reached all sequences count the same.
        let weight = (1.0 / (self.sequences as f64 + ASSUMED_SEQUENCES)).max(SEQUENCE_WEIGHT);
        self.mixture
            .iter_mut()
            .zip(kinds)
            .for_each(|(mean, newest)| *mean = moved(*mean, *newest, weight));
    }

    fn tabulate(&mut self) {
        for (accept, survival) in ACCEPTANCE.iter().zip(&mut self.table) {
            let mut alive = 0.0;
            for (at, place) in survival.iter_mut().enumerate() {
                let hard = (self.rejected[at] + ASSUMED_REJECTIONS)
                    / (self.expected[at] + ASSUMED_REJECTIONS);
                alive += hard.clamp(HARDNESS.least, HARDNESS.most) * accept.ln();
                *place = alive.exp() as f32;
            }
        }
    }
}

/// The belief about one sequence: the probability of each kind before the sequence was observed,
/// times the likelihood of the observations.
#[derive(Clone, Debug, PartialEq)]
pub struct Belief {
    prior: [f64; KINDS],
    /// Likelihood of the observations in each kind.
    likelihood: [f64; KINDS],
    /// Prior times likelihood, with the sum 1.
    kinds: [f64; KINDS],
    cycles: u64,
}

impl Belief {
    /// The belief about a sequence without observations.
    pub fn new(prior: [f64; KINDS]) -> Self {
        let mut belief = Self { prior, likelihood: [1.0; KINDS], kinds: prior, cycles: 0 };
        belief.combine();
        belief
    }

    /// Probability of each kind.
    pub fn kinds(&self) -> &[f64; KINDS] {
        &self.kinds
    }

    /// Cycles that were observed.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Replaces the prior. The observations stay.
    pub fn set_prior(&mut self, prior: [f64; KINDS]) {
        self.prior = prior;
        self.combine();
    }

    /// Observes a cycle: of `drafted` tokens the first `accepted` were accepted. The class counts
    /// it, too.
    pub fn observe(&mut self, class: &mut TrafficClass, drafted: usize, accepted: usize) {
        if drafted > 0 {
            class.count(&self.kinds, drafted, accepted);
            self.observe_uncounted(class, drafted, accepted);
        }
    }

    /// [`Belief::observe`] of a cycle that the class has already counted.
    pub fn observe_uncounted(&mut self, class: &TrafficClass, drafted: usize, accepted: usize) {
        self.drift(CHANGE_PER_CYCLE);
        let before = |length: usize| {
            move |survival: &Survival| match length.min(LONGEST_DRAFT) {
                0 => 1.0,
                length => f64::from(survival[length - 1]),
            }
        };
        let table = &class.table;
        for (kind, likelihood) in self.likelihood.iter_mut().enumerate() {
            let reached = before(accepted)(&table[kind]);
            let chance = if accepted < drafted {
                reached - before(accepted + 1)(&table[kind])
            } else {
                reached
            };
            *likelihood *= chance.max(LEAST_LIKELIHOOD);
        }
        self.combine();
        self.cycles += 1;
    }

    /// How far the belief is from the mixture of the class, by relative entropy: 0 is equal, 1 is
    /// as far as possible.
    pub fn distance_from(&self, class: &TrafficClass) -> f64 {
        let of_class = class.mixture();
        let nats: f64 = self
            .kinds
            .iter()
            .zip(of_class)
            .filter(|(own, _)| **own > 0.0)
            .map(|(own, of)| own * (own / of).ln())
            .sum();
        1.0 - (-2.0 * nats.max(0.0)).exp()
    }

    /// Observes evidence with this likelihood in each kind.
    pub fn multiply(&mut self, likelihoods: &[f64; KINDS]) {
        self.likelihood.iter_mut().zip(likelihoods).for_each(|(own, times)| *own *= times);
        self.combine();
    }

    /// Moves the belief by `share` back to its prior, because the text may have changed.
    pub fn drift(&mut self, share: f64) {
        // Likelihoods are scaled to a mean of 1, weighted by the prior. No observation is 1, too.
        self.likelihood.iter_mut().for_each(|own| *own = moved(*own, 1.0, share));
        self.combine();
    }

    fn combine(&mut self) {
        let sum: f64 =
            self.prior.iter().zip(&self.likelihood).map(|(one, other)| one * other).sum();
        // Observations that no kind could make are dropped. With the least likelihood above this
        // does not happen in practice.
        if sum.is_normal() {
            self.likelihood.iter_mut().for_each(|own| *own /= sum);
        } else {
            self.likelihood = [1.0; KINDS];
        }
        for ((kind, prior), own) in self.kinds.iter_mut().zip(&self.prior).zip(&self.likelihood) {
            *kind = prior * own;
        }
    }

    /// The expected survival of the sequence's next draft.
    pub fn survival(&self, class: &TrafficClass) -> Survival {
        let mut survival = [0.0; LONGEST_DRAFT];
        for (share, of_kind) in self.kinds.iter().zip(&class.table) {
            survival.iter_mut().zip(of_kind).for_each(|(sum, alive)| *sum += *share as f32 * alive);
        }
        survival
    }

    /// The sequence ended: its class learns from it.
    pub fn end(&self, class: &mut TrafficClass) {
        if self.cycles > 0 {
            class.learn(&self.kinds);
        }
    }
}

/// Expected number of accepted tokens of a draft of `length`.
pub fn accepted(survival: &Survival, length: usize) -> f64 {
    survival[..length.min(LONGEST_DRAFT)].iter().map(|alive| f64::from(*alive)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepted tokens when each is accepted with probability `accept`.
    fn play(seed: &mut u64, accept: f64, drafted: usize) -> usize {
        let mut roll = || {
            *seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) as f64 / f64::from(1u32 << 31)
        };
        (0..drafted).take_while(|_| roll() < accept).count()
    }

    #[test]
    fn eight_cycles_tell_good_text_from_poor_text() {
        let mut seed = 5;
        for _ in 0..50 {
            for (accept, low, high) in [(0.45, 0.0, 3.0), (0.93, 3.0, 15.0)] {
                let mut class = TrafficClass::default();
                let mut belief = Belief::new(class.mixture());
                for _ in 0..8 {
                    let accepted = play(&mut seed, accept, 15);
                    belief.observe(&mut class, 15, accepted);
                }
                let expected = accepted(&belief.survival(&class), 15);
                assert!((low..high).contains(&expected), "{accept}: {expected} tokens expected");
            }
        }
    }

    #[test]
    fn a_sequence_starts_with_the_mixture_that_its_class_learned() {
        let (mut class, mut seed) = (TrafficClass::default(), 9);
        let begin = accepted(&Belief::new(class.mixture()).survival(&class), 15);
        for _ in 0..30 {
            let mut belief = Belief::new(class.mixture());
            for _ in 0..10 {
                belief.observe(&mut class, 15, play(&mut seed, 0.3, 15));
            }
            belief.end(&mut class);
        }
        let learned = accepted(&Belief::new(class.mixture()).survival(&class), 15);
        assert!(learned < begin / 2.0, "{begin} at first, {learned} after thirty that do not pay");
        // And is not stuck with it.
        let mut other = Belief::new(class.mixture());
        (0..3).for_each(|_| other.observe(&mut class, 7, 7));
        assert!(accepted(&other.survival(&class), 15) > 7.0);
        let measured = class.measured();
        assert!(
            (measured[0] - 0.3).abs() < 0.1 && measured.windows(2).all(|pair| pair[1] <= pair[0]),
            "{measured:?}"
        );
    }

    #[test]
    fn survival_never_rises_and_a_hard_position_is_learned() {
        let (mut class, mut seed) = (TrafficClass::default(), 3);
        for _ in 0..200 {
            let mut belief = Belief::new(class.mixture());
            for _ in 0..5 {
                // From the fifth position on nothing is ever accepted.
                let accepted = play(&mut seed, 0.9, 15).min(4);
                belief.observe(&mut class, 15, accepted);
            }
            belief.end(&mut class);
        }
        let survival = Belief::new(class.mixture()).survival(&class);
        assert!(survival.windows(2).all(|pair| pair[1] <= pair[0]), "{survival:?}");
        assert!(survival[4] < 0.6 * survival[3], "{survival:?}");
        assert_eq!(class.cycles(), 1000);
    }

    #[test]
    fn an_empty_draft_changes_nothing() {
        let mut class = TrafficClass::default();
        let mut belief = Belief::new(class.mixture());
        belief.observe(&mut class, 0, 0);
        assert_eq!((belief.cycles(), belief == Belief::new(class.mixture())), (0, true));
    }
}
