//! Evidence from the target's own certainty. Where the target's likeliest token is nearly certain,
//! token after token, drafts are accepted far; where it is not, they are rejected early. The target
//! computes this certainty for every token that it chooses, drafted or not, at nearly no cost.
//!
//! The algorithm: count, for each kind of text, how often each bin of entropy occurs. The counts
//! come from sequences whose drafts showed their kind. The bin of a new token multiplies the
//! probability of each kind by the bin's likelihood in that kind. Before anything is learned each
//! likelihood is 1.

use super::survival::KINDS;

/// Upper ends of the bins, in nats: -ln of the probability of the likeliest token. The last bin has
/// no upper end. The bins are finer near certainty, because there most of the tokens are.
const BIN_ENDS: [f32; BINS - 1] = [0.001, 0.01, 0.05, 0.15, 0.4, 0.9, 1.6];
/// Number of bins.
pub const BINS: usize = 8;
/// Tokens with the distribution of all kinds together that are added to the counts of each kind.
/// With them a kind with few counted tokens has likelihoods near 1.
const PRIOR_TOKENS: f64 = 30.0;
/// Exponent of each likelihood, because neighbouring tokens are not independent: the second one
/// repeats a part of what the first one showed.
const TOKEN_WEIGHT: f64 = 0.85;
/// Tokens that the counts of one kind hold at most. Older ones fade, so a change is followed.
const MAX_TOKENS_PER_KIND: f64 = 4_000.0;
/// Tokens that one sequence adds to the counts at most. A long sequence is still one text.
const MAX_TOKENS_PER_SEQUENCE: f64 = 100.0;

/// Tokens of one sequence by bin.
pub type EntropyHistogram = [u32; BINS];

/// How often each kind of text has which entropy, for this pair of models.
#[derive(Clone, Debug)]
pub struct EntropyByKind {
    counts: [[f64; BINS]; KINDS],
}

impl Default for EntropyByKind {
    fn default() -> Self {
        Self { counts: [[0.0; BINS]; KINDS] }
    }
}

/// The bin of an entropy. A value that is not a number goes into the last bin: it is no certainty.
pub fn bin(nats: f32) -> usize {
    if nats.is_nan() { BINS - 1 } else { BIN_ENDS.partition_point(|end| *end < nats) }
}

impl EntropyByKind {
    /// By how many times each kind has this bin more often than all kinds together.
    pub fn likelihoods(&self, bin: usize) -> [f64; KINDS] {
        let total: f64 = self.counts.iter().flatten().sum();
        let share =
            (self.counts.iter().map(|kind| kind[bin]).sum::<f64>() + 1.0) / (total + BINS as f64);
        std::array::from_fn(|kind| {
            let of_kind: f64 = self.counts[kind].iter().sum();
            let own = (self.counts[kind][bin] + PRIOR_TOKENS * share) / (of_kind + PRIOR_TOKENS);
            (own / share).powf(TOKEN_WEIGHT)
        })
    }

    /// Learns from a sequence with this histogram. `kinds` are the probabilities of its kinds by
    /// its drafts alone.
    pub fn learn(&mut self, kinds: &[f64; KINDS], histogram: &EntropyHistogram) {
        let tokens = f64::from(histogram.iter().sum::<u32>());
        let weight = (MAX_TOKENS_PER_SEQUENCE / tokens.max(1.0)).min(1.0);
        for (counts, share) in self.counts.iter_mut().zip(kinds) {
            counts
                .iter_mut()
                .zip(histogram)
                .for_each(|(count, tokens)| *count += weight * share * f64::from(*tokens));
            let sum: f64 = counts.iter().sum();
            if sum > MAX_TOKENS_PER_KIND {
                counts.iter_mut().for_each(|count| *count *= MAX_TOKENS_PER_KIND / sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(kind: usize) -> [f64; KINDS] {
        std::array::from_fn(|one| if one == kind { 1.0 } else { 0.0 })
    }

    #[test]
    fn the_bin_follows_the_entropy_and_nan_goes_last() {
        assert_eq!(
            [0.0, 0.001, 0.02, 0.5, 9.0, f32::INFINITY, f32::NAN].map(bin),
            [0, 0, 2, 5, 7, 7, 7]
        );
    }

    #[test]
    fn likelihoods_are_one_before_learning_and_tell_kinds_apart_after_it() {
        let mut entropy = EntropyByKind::default();
        assert!(entropy.likelihoods(3).iter().all(|times| (times - 1.0).abs() < 1e-12));
        for _ in 0..5 {
            entropy.learn(&all_of(11), &[90, 8, 2, 0, 0, 0, 0, 0]);
            entropy.learn(&all_of(2), &[30, 10, 10, 10, 10, 10, 10, 10]);
        }
        let (certain, uncertain) = (entropy.likelihoods(0), entropy.likelihoods(6));
        assert!(certain[11] > 1.1 && certain[2] < 0.9, "{certain:?}");
        assert!(uncertain[2] > 1.2 && uncertain[11] < 0.4, "{uncertain:?}");
        // A kind that was never met has a likelihood of 1 for every bin.
        assert!((certain[5] - 1.0).abs() < 1e-9 && (uncertain[5] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_long_sequence_counts_as_one_text() {
        let mut entropy = EntropyByKind::default();
        entropy.learn(&all_of(2), &[0, 0, 0, 0, 0, 0, 0, 100_000]);
        entropy.learn(&all_of(2), &[100, 0, 0, 0, 0, 0, 0, 0]);
        entropy.learn(&all_of(11), &[50, 0, 0, 0, 0, 0, 0, 50]);
        let certain = entropy.likelihoods(0);
        assert!((certain[2] - 1.0).abs() < 0.05, "{certain:?}");
    }
}
