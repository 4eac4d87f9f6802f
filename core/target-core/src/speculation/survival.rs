//! How far drafts survive: P(the first i + 1 drafted tokens are all accepted).
//!
//! A few *kinds* of text are held against what is seen: in kind k a drafted token behind accepted
//! ones is accepted with probability `ACCEPT[k]`, to the power of how hard its position is. A class
//! of traffic is a mixture of kinds, learnt from its sequences and with a shape over positions; a
//! sequence is a belief over kinds that begins as its class and is sharpened by each of its cycles.
//! One cycle with nothing accepted says nearly all there is to say: that is why it is not a mean
//! per position, which would need many. Text changes within a sequence, so a little of the class is
//! mixed in at every cycle.

/// Acceptance of a token, kind by kind.
const ACCEPT: [f64; KINDS] =
    [0.08, 0.22, 0.36, 0.48, 0.58, 0.67, 0.75, 0.82, 0.87, 0.91, 0.945, 0.97, 0.988];
/// Kinds of text.
pub const KINDS: usize = 13;
/// The kind that stands for text whose drafts cost more than they bring on most machines.
pub const POOR: usize = 3;
/// Longest draft that is planned.
pub const MOST: usize = 31;
/// Share of the even mixture in every class: nothing is ever held to be impossible.
const EVEN: f64 = 0.06;
/// Weight of one sequence's end in its class.
const NEWEST: f64 = 0.08;
/// Share of a belief that goes back to its class at every cycle: text changes.
const CHANGE: f64 = 0.04;
/// Figures of a position decay so that about this many cycles count.
const CYCLES: f64 = 500.0;
/// Rejections that are assumed at every position, where they were expected.
const ASSUMED: f64 = 8.0;

/// Probabilities by drafted position.
pub type Survival = [f32; MOST];

/// What is known of a class of traffic.
#[derive(Clone, Debug)]
pub struct Class {
    mixture: [f64; KINDS],
    sequences: u64,
    cycles: u64,
    /// Drafts that were as long as this position and accepted before it, those of them that were
    /// rejected at it, and how many were expected to be.
    tested: [f64; MOST],
    rejected: [f64; MOST],
    expected: [f64; MOST],
    /// Survival of each kind, from the shape.
    table: [Survival; KINDS],
}

impl Default for Class {
    fn default() -> Self {
        let zero = [0.0; MOST];
        let mixture = [1.0 / KINDS as f64; KINDS];
        let mut class = Self {
            mixture,
            sequences: 0,
            cycles: 0,
            tested: zero,
            rejected: zero,
            expected: zero,
            table: [[0.0; MOST]; KINDS],
        };
        class.tabulate();
        class
    }
}

impl Class {
    /// How likely a new sequence is of each kind.
    pub fn mixture(&self) -> [f64; KINDS] {
        self.mixture.map(|share| (1.0 - EVEN) * share + EVEN / KINDS as f64)
    }

    /// Survival in each kind.
    pub fn table(&self) -> &[Survival; KINDS] {
        &self.table
    }

    /// Cycles seen.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Share of drafts whose first i + 1 tokens were all accepted, where there were any of that
    /// length.
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

    /// A cycle of one of its sequences, which was believed to be as `belief` says.
    fn saw(&mut self, belief: &[f64; KINDS], drafted: usize, accepted: usize) {
        self.cycles += 1;
        let reject: f64 =
            belief.iter().zip(ACCEPT).map(|(share, accept)| share * (1.0 - accept)).sum();
        for at in 0..drafted.min(accepted + 1).min(MOST) {
            let keep = 1.0 - 1.0 / CYCLES;
            self.tested[at] = keep * self.tested[at] + 1.0;
            self.rejected[at] = keep * self.rejected[at] + if at == accepted { 1.0 } else { 0.0 };
            self.expected[at] = keep * self.expected[at] + reject;
        }
        if self.cycles.is_multiple_of(32) {
            self.tabulate();
        }
    }

    /// A sequence of it is over, and was of these kinds.
    fn ended(&mut self, belief: &[f64; KINDS]) {
        self.sequences += 1;
        // The first sequences count as much as later ones.
        let share = (1.0 / (self.sequences as f64 + 3.0)).max(NEWEST);
        self.mixture.iter_mut().zip(belief).for_each(|(old, new)| *old += share * (new - *old));
    }

    fn tabulate(&mut self) {
        for (accept, survival) in ACCEPT.iter().zip(&mut self.table) {
            let mut alive = 0.0;
            for (at, place) in survival.iter_mut().enumerate() {
                let hard = (self.rejected[at] + ASSUMED) / (self.expected[at] + ASSUMED);
                alive += hard.clamp(0.25, 4.0) * accept.ln();
                *place = alive.exp() as f32;
            }
        }
    }
}

/// What is believed of one sequence: how likely each kind was before anything of itself was seen,
/// times what was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Belief {
    prior: [f64; KINDS],
    /// How well each kind goes with what was seen.
    likely: [f64; KINDS],
    /// Both together, with the sum 1.
    kinds: [f64; KINDS],
    cycles: u64,
}

impl Belief {
    /// A sequence of which nothing was seen, and that is of each kind as likely as `prior` says.
    pub fn new(prior: [f64; KINDS]) -> Self {
        let mut belief = Self { prior, likely: [1.0; KINDS], kinds: prior, cycles: 0 };
        belief.combine();
        belief
    }

    /// How likely it is of each kind.
    pub fn kinds(&self) -> &[f64; KINDS] {
        &self.kinds
    }

    /// Cycles seen.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Something else is likely of such a sequence than was thought; what was seen of itself stays.
    pub fn expect(&mut self, prior: [f64; KINDS]) {
        self.prior = prior;
        self.combine();
    }

    /// Of a draft of `drafted` tokens the first `accepted` were accepted.
    pub fn saw(&mut self, class: &mut Class, drafted: usize, accepted: usize) {
        if drafted > 0 {
            class.saw(&self.kinds, drafted, accepted);
            self.told(class, drafted, accepted);
        }
    }

    /// As [`Belief::saw`], of which the class has heard already.
    pub fn told(&mut self, class: &Class, drafted: usize, accepted: usize) {
        self.drift(CHANGE);
        let before = |length: usize| {
            move |survival: &Survival| match length.min(MOST) {
                0 => 1.0,
                length => f64::from(survival[length - 1]),
            }
        };
        let table = &class.table;
        for (kind, likely) in self.likely.iter_mut().enumerate() {
            let reached = before(accepted)(&table[kind]);
            let chance = if accepted < drafted {
                reached - before(accepted + 1)(&table[kind])
            } else {
                reached
            };
            *likely *= chance.max(1e-9);
        }
        self.combine();
        self.cycles += 1;
    }

    /// How far this is from what is believed of any sequence of the class: 0 is not at all, 1 is as
    /// far as can be.
    pub fn is_own(&self, class: &Class) -> f64 {
        let of_class = class.mixture();
        let bits: f64 = self
            .kinds
            .iter()
            .zip(of_class)
            .filter(|(own, _)| **own > 0.0)
            .map(|(own, of)| own * (own / of).ln())
            .sum();
        1.0 - (-2.0 * bits.max(0.0)).exp()
    }

    /// Something speaks so many times for each kind.
    pub fn weigh(&mut self, times: &[f64; KINDS]) {
        self.likely.iter_mut().zip(times).for_each(|(likely, times)| *likely *= times);
        self.combine();
    }

    /// So much of what was believed may have changed: it is as likely again as before anything was
    /// seen.
    pub fn drift(&mut self, share: f64) {
        // What was seen is scaled to a mean of 1, weighed by the prior; so is nothing.
        self.likely.iter_mut().for_each(|likely| *likely += share * (1.0 - *likely));
        self.combine();
    }

    fn combine(&mut self) {
        let sum: f64 =
            self.prior.iter().zip(&self.likely).map(|(prior, likely)| prior * likely).sum();
        // Never 0 in practice; what goes with nothing is forgotten.
        if sum.is_normal() {
            self.likely.iter_mut().for_each(|likely| *likely /= sum);
        } else {
            self.likely = [1.0; KINDS];
        }
        for ((kind, prior), likely) in self.kinds.iter_mut().zip(&self.prior).zip(&self.likely) {
            *kind = prior * likely;
        }
    }

    /// What is expected of its next draft.
    pub fn survival(&self, class: &Class) -> Survival {
        let mut survival = [0.0; MOST];
        for (share, of_kind) in self.kinds.iter().zip(&class.table) {
            survival.iter_mut().zip(of_kind).for_each(|(sum, alive)| *sum += *share as f32 * alive);
        }
        survival
    }

    /// It is over: its class learns of it.
    pub fn end(&self, class: &mut Class) {
        if self.cycles > 0 {
            class.ended(&self.kinds);
        }
    }
}

/// Accepted tokens of a draft of `length`.
pub fn accepted(survival: &Survival, length: usize) -> f64 {
    survival[..length.min(MOST)].iter().map(|alive| f64::from(*alive)).sum()
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
    fn a_few_cycles_tell_a_sequence_that_pays_from_one_that_does_not() {
        let mut seed = 5;
        for _ in 0..50 {
            for (accept, low, high) in [(0.45, 0.0, 3.0), (0.93, 3.0, 15.0)] {
                let mut class = Class::default();
                let mut belief = Belief::new(class.mixture());
                for _ in 0..8 {
                    let accepted = play(&mut seed, accept, 15);
                    belief.saw(&mut class, 15, accepted);
                }
                let expected = accepted(&belief.survival(&class), 15);
                assert!((low..high).contains(&expected), "{accept}: {expected} tokens expected");
            }
        }
    }

    #[test]
    fn a_class_learns_its_mixture_and_a_sequence_begins_with_it() {
        let (mut class, mut seed) = (Class::default(), 9);
        let begin = accepted(&Belief::new(class.mixture()).survival(&class), 15);
        for _ in 0..30 {
            let mut belief = Belief::new(class.mixture());
            for _ in 0..10 {
                belief.saw(&mut class, 15, play(&mut seed, 0.3, 15));
            }
            belief.end(&mut class);
        }
        let learnt = accepted(&Belief::new(class.mixture()).survival(&class), 15);
        assert!(learnt < begin / 2.0, "{begin} at first, {learnt} after thirty that do not pay");
        // And is not stuck with it.
        let mut other = Belief::new(class.mixture());
        (0..3).for_each(|_| other.saw(&mut class, 7, 7));
        assert!(accepted(&other.survival(&class), 15) > 7.0);
        let measured = class.measured();
        assert!(
            (measured[0] - 0.3).abs() < 0.1 && measured.windows(2).all(|pair| pair[1] <= pair[0]),
            "{measured:?}"
        );
    }

    #[test]
    fn survival_falls_and_a_hard_position_is_learnt() {
        let (mut class, mut seed) = (Class::default(), 3);
        for _ in 0..200 {
            let mut belief = Belief::new(class.mixture());
            for _ in 0..5 {
                // From the fifth position on nothing is ever accepted.
                let accepted = play(&mut seed, 0.9, 15).min(4);
                belief.saw(&mut class, 15, accepted);
            }
            belief.end(&mut class);
        }
        let survival = Belief::new(class.mixture()).survival(&class);
        assert!(survival.windows(2).all(|pair| pair[1] <= pair[0]), "{survival:?}");
        assert!(survival[4] < 0.6 * survival[3], "{survival:?}");
        assert_eq!(class.cycles(), 1000);
    }

    #[test]
    fn nothing_drafted_says_nothing() {
        let mut class = Class::default();
        let mut belief = Belief::new(class.mixture());
        belief.saw(&mut class, 0, 0);
        assert_eq!((belief.cycles(), belief == Belief::new(class.mixture())), (0, true));
    }
}
