//! What a prompt says of the text behind it: requests whose prompts are made of the same words are
//! mostly answered by texts of one kind, and so a sequence begins with what its neighbours turned
//! out to be. In one class of traffic there is JSON beside stories; the class knows only the mean
//! of both, the neighbours know which is which before the first token.
//!
//! A prompt is kept as the set of its tokens, hashed; how alike two are is the cosine between their
//! sets, a rare token counting for more than one that every prompt has. Nothing is said of texts
//! that are like none before.

use std::sync::LazyLock;

use super::survival::KINDS;

/// Buckets of tokens.
const WORDS: usize = 8_192;
/// Tokens of a prompt that are looked at: its first, which say in whose name is asked, and its
/// last, which say what.
const FIRST: usize = 32;
const LAST: usize = 96;
/// Ended sequences of a class that are remembered.
const REMEMBERED: usize = 128;
/// So many of the nearest are heard.
const NEAREST: usize = 6;
/// Alikeness counts to this power: half alike is much less than alike.
const POWER: i32 = 2;
/// And the very same prompt counts no more than this: it is asked again for another answer, or by a
/// benchmark.
const SAME: f64 = 0.4;
/// What is believed of the class counts as so much beside neighbours: what they say is never
/// certain.
const OF_CLASS: f64 = 0.1;
/// What one that is not tried takes from what made it so, if that was its like in all: else who is
/// taken for poor once stays it for ever.
const FADES: f64 = 0.04;

/// Natural logarithms of whole numbers: a request is held against all that are remembered, word by
/// word.
static LN: LazyLock<[f64; REMEMBERED + 3]> =
    LazyLock::new(|| std::array::from_fn(|number| (number as f64).ln()));

/// The words of a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Words(Vec<u16>);

impl Words {
    /// Of a prompt.
    pub fn of(prompt: &[u32]) -> Self {
        let first = &prompt[..prompt.len().min(FIRST)];
        let last = &prompt[prompt.len().saturating_sub(LAST).max(first.len())..];
        let mut words: Vec<u16> = first.iter().chain(last).map(|id| bucket(*id)).collect();
        words.sort_unstable();
        words.dedup();
        Self(words)
    }
}

fn bucket(id: u32) -> u16 {
    // Fibonacci hashing: the upper bits of a product with 2^32 over the golden ratio.
    (id.wrapping_mul(0x9E37_79B9) >> (u32::BITS - WORDS.ilog2())) as u16
}

/// What the nearest turned out to be, the one that says most first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence([(f64, [f64; KINDS]); NEAREST]);

impl Evidence {
    /// One that is so much alike is believed to be of these kinds, by so many cycles.
    pub fn add(&mut self, alike: f64, kinds: &[f64; KINDS], cycles: u64) {
        let weight = alike * cycles as f64 / (cycles as f64 + 1.0);
        let at = self.0.partition_point(|(other, _)| *other >= weight);
        if at < NEAREST {
            self.0[at..].rotate_right(1);
            self.0[at] = (weight, *kinds);
        }
    }

    /// With what is so for any sequence of the class.
    pub fn with(&self, class: &[f64; KINDS]) -> [f64; KINDS] {
        let all = OF_CLASS + self.0.iter().map(|(weight, _)| weight).sum::<f64>();
        std::array::from_fn(|kind| {
            (OF_CLASS * class[kind]
                + self.0.iter().map(|(weight, kinds)| weight * kinds[kind]).sum::<f64>())
                / all
        })
    }
}

#[derive(Clone, Debug)]
struct EndedPrompt {
    words: Words,
    kinds: [f64; KINDS],
    cycles: u64,
    /// Falls from 1 with each that was not tried on its word.
    fresh: f64,
}

/// The sequences of a class that have ended.
#[derive(Clone, Debug)]
pub struct Neighbours {
    ended: std::collections::VecDeque<EndedPrompt>,
    /// In how many of them each word is.
    with: Vec<u16>,
}

impl Default for Neighbours {
    fn default() -> Self {
        Self { ended: std::collections::VecDeque::new(), with: vec![0; WORDS] }
    }
}

impl Neighbours {
    /// What those with like prompts turned out to be.
    pub fn of(&self, words: &Words) -> Evidence {
        let mut evidence = Evidence::default();
        // Of two that are as near the newer one is heard.
        for one in self.ended.iter().rev() {
            evidence.add(one.fresh * self.alike(words, &one.words), &one.kinds, one.cycles);
        }
        evidence
    }

    /// How much one prompt says of another, 0 to [`SAME`].
    pub fn alike(&self, one: &Words, other: &Words) -> f64 {
        let weight = |words: &[u16]| words.iter().map(|word| self.rare(*word)).sum::<f64>();
        let (mut both, mut rest) = (0.0, other.0.as_slice());
        for word in &one.0 {
            let at = rest.partition_point(|other| other < word);
            rest = &rest[at..];
            if rest.first() == Some(word) {
                both += self.rare(*word);
            }
        }
        let all = weight(&one.0) * weight(&other.0);
        if all > 0.0 { (both / all.sqrt()).powi(POWER).min(SAME) } else { 0.0 }
    }

    fn rare(&self, word: u16) -> f64 {
        LN[self.ended.len() + 2] - LN[usize::from(self.with[usize::from(word)]) + 1]
    }

    /// A sequence is over that was of these kinds by what became of so many of its drafts, of none
    /// if it was not tried.
    pub fn learn(&mut self, words: Words, kinds: &[f64; KINDS], cycles: u64) {
        if cycles == 0 {
            let alike: Vec<f64> =
                self.ended.iter().map(|one| self.alike(&words, &one.words)).collect();
            self.ended
                .iter_mut()
                .zip(alike)
                .for_each(|(one, alike)| one.fresh *= 1.0 - FADES * alike);
            return;
        }
        if self.ended.len() == REMEMBERED
            && let Some(oldest) = self.ended.pop_front()
        {
            oldest.words.0.iter().for_each(|word| self.with[usize::from(*word)] -= 1);
        }
        words.0.iter().for_each(|word| self.with[usize::from(*word)] += 1);
        self.ended.push_back(EndedPrompt { words, kinds: *kinds, cycles, fresh: 1.0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(kind: usize) -> [f64; KINDS] {
        std::array::from_fn(|one| if one == kind { 1.0 } else { 0.0 })
    }

    /// A template with something of its own in it.
    fn prompt(template: u32, own: u32) -> Words {
        let ids: Vec<u32> = (0..20)
            .map(|at| 7 * at)
            .chain((0..15).map(|at| template + at))
            .chain((0..5).map(|at| own + at))
            .collect();
        Words::of(&ids)
    }

    #[test]
    fn a_prompt_that_is_like_others_says_what_they_turned_out_to_be() {
        let mut neighbours = Neighbours::default();
        for own in 0..20 {
            neighbours.learn(prompt(1_000, 5_000 + 10 * own), &kind(11), 8);
            neighbours.learn(prompt(2_000, 7_000 + 10 * own), &kind(2), 2);
        }
        let class = [1.0 / KINDS as f64; KINDS];
        let good = neighbours.of(&prompt(1_000, 9_000)).with(&class);
        let poor = neighbours.of(&prompt(2_000, 9_100)).with(&class);
        assert!(good[11] > 0.8 && good[2] < 0.1, "{good:?}");
        assert!(poor[2] > 0.8 && poor[11] < 0.1, "{poor:?}");
        // Of another template only what is common to all is known: hardly anything.
        let other = neighbours.of(&prompt(3_000, 9_200)).with(&class);
        assert!(other.iter().all(|share| *share < 0.25), "{other:?}");
        for prior in [good, poor, other] {
            assert!(
                (prior.iter().sum::<f64>() - 1.0).abs() < 1e-9
                    && prior.iter().all(|share| *share > 0.0),
                "{prior:?}"
            );
        }
    }

    #[test]
    fn what_nothing_was_seen_of_says_nothing() {
        let mut neighbours = Neighbours::default();
        let class = [1.0 / KINDS as f64; KINDS];
        neighbours.learn(prompt(1_000, 0), &kind(3), 0);
        assert_eq!(neighbours.of(&prompt(1_000, 0)), Evidence::default());
        neighbours.learn(prompt(1_000, 0), &kind(3), 1);
        let empty = neighbours.of(&Words::of(&[])).with(&class);
        assert!(empty.iter().all(|share| (share - class[0]).abs() < 1e-12), "{empty:?}");
    }

    #[test]
    fn who_is_taken_for_poor_and_never_tried_is_less_and_less_so() {
        let mut neighbours = Neighbours::default();
        let class = [1.0 / KINDS as f64; KINDS];
        for own in 0..4 {
            neighbours.learn(prompt(1_000, 5_000 + 10 * own), &kind(1), 2);
        }
        let poor = |neighbours: &Neighbours| neighbours.of(&prompt(1_000, 9_000)).with(&class)[1];
        let before = poor(&neighbours);
        for own in 0..300 {
            neighbours.learn(prompt(1_000, 20_000 + 10 * own), &kind(1), 0);
        }
        assert!(poor(&neighbours) < 0.7 * before, "{before} before, {} behind", poor(&neighbours));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut neighbours = Neighbours::default();
        neighbours.learn(prompt(1_000, 0), &kind(3), 9);
        for own in 0..REMEMBERED as u32 {
            neighbours.learn(prompt(2_000, 10 * own), &kind(5), 9);
        }
        assert_eq!(neighbours.ended.len(), REMEMBERED);
        assert!(
            neighbours
                .of(&prompt(1_000, 0))
                .0
                .iter()
                .all(|(weight, kinds)| *weight > 0.0 && kinds[3] == 0.0)
        );
        let counted: usize = neighbours.with.iter().map(|with| usize::from(*with)).sum();
        assert_eq!(counted, neighbours.ended.iter().map(|one| one.words.0.len()).sum::<usize>());
    }

    #[test]
    fn of_a_long_prompt_the_ends_are_looked_at() {
        let ids: Vec<u32> = (0..4_000).collect();
        let words = Words::of(&ids);
        assert!(words.0.len() <= FIRST + LAST && words.0.len() > 100, "{}", words.0.len());
        // What lies between is not.
        let mut other = ids.clone();
        other[1_000..3_000].fill(9);
        assert_eq!(Words::of(&other), words);
        assert_eq!(Words::of(&[5, 5, 5]).0.len(), 1);
    }
}
