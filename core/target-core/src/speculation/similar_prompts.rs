//! What a prompt predicts about the text that follows it. Requests whose prompts consist of the
//! same tokens are mostly answered by texts of one kind. So a sequence starts with what became of
//! the sequences with similar prompts. A traffic class with JSON and stories in it knows only the
//! mean of both; similar prompts tell the two apart before the first token.
//!
//! The algorithm: a prompt is the set of its tokens, hashed. The similarity of two prompts is the
//! cosine of their sets, where a rare token weighs more than one that every prompt has (TF-IDF).
//! The probabilities of kinds are the mean over the nearest ended prompts, weighted by similarity.
//! A prompt that is similar to none gets the probabilities of its class.

use std::collections::VecDeque;
use std::sync::LazyLock;

use super::survival::KINDS;

/// Buckets that token ids are hashed into. A power of two, and several times the tokens that a
/// remembered prompt has, so few of them collide.
const BUCKETS: usize = 8_192;
/// Tokens at the start of a prompt that count. They name the system prompt or the template.
const FIRST_TOKENS: usize = 32;
/// Tokens at the end of a prompt that count. They hold the question.
const LAST_TOKENS: usize = 96;
/// Ended prompts that are remembered. The oldest is forgotten first.
const MAX_PROMPTS: usize = 128;
/// Nearest prompts that count as evidence.
const NEAREST: usize = 6;
/// Exponent of the cosine: a prompt that is half similar predicts much less than half as much.
const SIMILARITY_POWER: i32 = 2;
/// Largest similarity. The very same prompt counts no more than this, because a client repeats it
/// to get another answer, and a benchmark repeats it always.
const MAX_SIMILARITY: f64 = 0.4;
/// Weight of the class's own probabilities beside the similar prompts, whose evidence is never
/// certain.
const CLASS_WEIGHT: f64 = 0.1;
/// Share of an ended prompt's weight that it loses when a sequence of similarity 1 ends without a
/// trial. Without this loss a kind of prompt that was judged poor once would never be tried again.
const UNTRIED_LOSS: f64 = 0.04;

/// Natural logarithms of whole numbers. Each request is compared with all remembered prompts, token
/// by token, so they are computed once.
static LN: LazyLock<[f64; MAX_PROMPTS + 3]> =
    LazyLock::new(|| std::array::from_fn(|number| (number as f64).ln()));

/// The set of a prompt's tokens, as ascending buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenSet(Vec<u16>);

impl TokenSet {
    /// The set of this prompt's first and last tokens.
    pub fn of(prompt: &[u32]) -> Self {
        let first = &prompt[..prompt.len().min(FIRST_TOKENS)];
        let last = &prompt[prompt.len().saturating_sub(LAST_TOKENS).max(first.len())..];
        let mut buckets: Vec<u16> = first.iter().chain(last).map(|id| bucket(*id)).collect();
        buckets.sort_unstable();
        buckets.dedup();
        Self(buckets)
    }
}

fn bucket(id: u32) -> u16 {
    // Fibonacci hashing: the upper bits of a product with 2^32 over the golden ratio.
    (id.wrapping_mul(0x9E37_79B9) >> (u32::BITS - BUCKETS.ilog2())) as u16
}

/// One prompt's part of the evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Neighbour {
    weight: f64,
    kinds: [f64; KINDS],
}

/// What became of the nearest prompts, the one with the largest weight first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence([Neighbour; NEAREST]);

impl Evidence {
    /// Adds a sequence of this similarity. `kinds` are the probabilities of its kinds, by
    /// `cycles` of its drafts.
    pub fn add(&mut self, similarity: f64, kinds: &[f64; KINDS], cycles: u64) {
        let weight = similarity * cycles as f64 / (cycles as f64 + 1.0);
        let at = self.0.partition_point(|other| other.weight >= weight);
        if at < NEAREST {
            self.0[at..].rotate_right(1);
            self.0[at] = Neighbour { weight, kinds: *kinds };
        }
    }

    /// The evidence together with the probabilities of the class.
    pub fn with(&self, class: &[f64; KINDS]) -> [f64; KINDS] {
        let all = CLASS_WEIGHT + self.0.iter().map(|one| one.weight).sum::<f64>();
        std::array::from_fn(|kind| {
            (CLASS_WEIGHT * class[kind]
                + self.0.iter().map(|one| one.weight * one.kinds[kind]).sum::<f64>())
                / all
        })
    }
}

#[derive(Clone, Debug)]
struct EndedPrompt {
    tokens: TokenSet,
    kinds: [f64; KINDS],
    cycles: u64,
    /// Starts at 1 and falls with each similar sequence that ended without a trial.
    freshness: f64,
}

/// Ended prompts of one cache scope of one traffic class.
#[derive(Clone, Debug)]
pub struct PromptMemory {
    ended: VecDeque<EndedPrompt>,
    /// Number of ended prompts with a token of each bucket.
    prompts_with: Vec<u16>,
}

impl Default for PromptMemory {
    fn default() -> Self {
        Self { ended: VecDeque::new(), prompts_with: vec![0; BUCKETS] }
    }
}

impl PromptMemory {
    /// The evidence of the nearest ended prompts.
    pub fn of(&self, tokens: &TokenSet) -> Evidence {
        let mut evidence = Evidence::default();
        // Of two prompts with the same weight the newer one counts.
        for one in self.ended.iter().rev() {
            let weight = one.freshness * self.similarity(tokens, &one.tokens);
            evidence.add(weight, &one.kinds, one.cycles);
        }
        evidence
    }

    /// Similarity of two prompts, from 0 to `MAX_SIMILARITY`.
    pub fn similarity(&self, one: &TokenSet, other: &TokenSet) -> f64 {
        let weight = |tokens: &[u16]| tokens.iter().map(|token| self.rarity(*token)).sum::<f64>();
        let (mut both, mut rest) = (0.0, other.0.as_slice());
        for token in &one.0 {
            let at = rest.partition_point(|other| other < token);
            rest = &rest[at..];
            if rest.first() == Some(token) {
                both += self.rarity(*token);
            }
        }
        let all = weight(&one.0) * weight(&other.0);
        if all > 0.0 { (both / all.sqrt()).powi(SIMILARITY_POWER).min(MAX_SIMILARITY) } else { 0.0 }
    }

    /// Inverse document frequency of a token.
    fn rarity(&self, token: u16) -> f64 {
        LN[self.ended.len() + 2] - LN[usize::from(self.prompts_with[usize::from(token)]) + 1]
    }

    /// Learns from a sequence that ended. `kinds` are the probabilities of its kinds by `cycles` of
    /// its drafts; 0 cycles if it was never tried.
    pub fn learn(&mut self, tokens: TokenSet, kinds: &[f64; KINDS], cycles: u64) {
        if cycles == 0 {
            let similar: Vec<f64> =
                self.ended.iter().map(|one| self.similarity(&tokens, &one.tokens)).collect();
            self.ended
                .iter_mut()
                .zip(similar)
                .for_each(|(one, similarity)| one.freshness *= 1.0 - UNTRIED_LOSS * similarity);
            return;
        }
        if self.ended.len() == MAX_PROMPTS
            && let Some(oldest) = self.ended.pop_front()
        {
            let old = &oldest.tokens.0;
            old.iter().for_each(|token| self.prompts_with[usize::from(*token)] -= 1);
        }
        tokens.0.iter().for_each(|token| self.prompts_with[usize::from(*token)] += 1);
        self.ended.push_back(EndedPrompt { tokens, kinds: *kinds, cycles, freshness: 1.0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(kind: usize) -> [f64; KINDS] {
        std::array::from_fn(|one| if one == kind { 1.0 } else { 0.0 })
    }

    /// A template with something of its own in it.
    fn prompt(template: u32, own: u32) -> TokenSet {
        let ids: Vec<u32> = (0..20)
            .map(|at| 7 * at)
            .chain((0..15).map(|at| template + at))
            .chain((0..5).map(|at| own + at))
            .collect();
        TokenSet::of(&ids)
    }

    #[test]
    fn a_similar_prompt_predicts_the_kind_of_its_neighbours() {
        let mut memory = PromptMemory::default();
        for own in 0..20 {
            memory.learn(prompt(1_000, 5_000 + 10 * own), &kind(11), 8);
            memory.learn(prompt(2_000, 7_000 + 10 * own), &kind(2), 2);
        }
        let class = [1.0 / KINDS as f64; KINDS];
        let good = memory.of(&prompt(1_000, 9_000)).with(&class);
        let poor = memory.of(&prompt(2_000, 9_100)).with(&class);
        assert!(good[11] > 0.8 && good[2] < 0.1, "{good:?}");
        assert!(poor[2] > 0.8 && poor[11] < 0.1, "{poor:?}");
        // A prompt of another template shares only the tokens that all have: hardly any evidence.
        let other = memory.of(&prompt(3_000, 9_200)).with(&class);
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
    fn an_untried_sequence_is_no_evidence() {
        let mut memory = PromptMemory::default();
        let class = [1.0 / KINDS as f64; KINDS];
        memory.learn(prompt(1_000, 0), &kind(3), 0);
        assert_eq!(memory.of(&prompt(1_000, 0)), Evidence::default());
        memory.learn(prompt(1_000, 0), &kind(3), 1);
        let empty = memory.of(&TokenSet::of(&[])).with(&class);
        assert!(empty.iter().all(|share| (share - class[0]).abs() < 1e-12), "{empty:?}");
    }

    #[test]
    fn evidence_against_drafting_fades_while_nothing_is_tried() {
        let mut memory = PromptMemory::default();
        let class = [1.0 / KINDS as f64; KINDS];
        for own in 0..4 {
            memory.learn(prompt(1_000, 5_000 + 10 * own), &kind(1), 2);
        }
        let poor = |memory: &PromptMemory| memory.of(&prompt(1_000, 9_000)).with(&class)[1];
        let before = poor(&memory);
        for own in 0..300 {
            memory.learn(prompt(1_000, 20_000 + 10 * own), &kind(1), 0);
        }
        assert!(poor(&memory) < 0.7 * before, "{before} before, {} after", poor(&memory));
    }

    #[test]
    fn the_oldest_prompts_are_forgotten_first() {
        let mut memory = PromptMemory::default();
        memory.learn(prompt(1_000, 0), &kind(3), 9);
        for own in 0..MAX_PROMPTS as u32 {
            memory.learn(prompt(2_000, 10 * own), &kind(5), 9);
        }
        assert_eq!(memory.ended.len(), MAX_PROMPTS);
        assert!(
            memory
                .of(&prompt(1_000, 0))
                .0
                .iter()
                .all(|one| one.weight > 0.0 && one.kinds[3] == 0.0)
        );
        let counted: usize = memory.prompts_with.iter().map(|count| usize::from(*count)).sum();
        assert_eq!(counted, memory.ended.iter().map(|one| one.tokens.0.len()).sum::<usize>());
    }

    #[test]
    fn only_both_ends_of_a_long_prompt_count() {
        let ids: Vec<u32> = (0..4_000).collect();
        let tokens = TokenSet::of(&ids);
        assert!(
            tokens.0.len() <= FIRST_TOKENS + LAST_TOKENS && tokens.0.len() > 100,
            "{}",
            tokens.0.len()
        );
        // The tokens between do not.
        let mut other = ids.clone();
        other[1_000..3_000].fill(9);
        assert_eq!(TokenSet::of(&other), tokens);
        assert_eq!(TokenSet::of(&[5, 5, 5]).0.len(), 1);
    }
}
