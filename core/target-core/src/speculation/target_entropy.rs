//! What the target's own doubt says of a text. Where the likeliest token is all but certain, token
//! after token, drafts survive far; where it is not they do not; and the target knows this of every
//! token it chooses, drafted or not, for next to nothing. How often each kind of text has which
//! doubt is learnt from sequences whose drafts told their kind. Until something is learnt a sign
//! says nothing.

use super::survival::KINDS;

/// Upper ends of the bins, in nats (−ln of the likeliest token's probability); the last bin is what
/// is beyond.
const ENDS: [f32; BINS - 1] = [0.001, 0.01, 0.05, 0.15, 0.4, 0.9, 1.6];
/// Bins.
pub const BINS: usize = 8;
/// Tokens' worth of what is so for all kinds, mixed into what is known of each: few figures say
/// little.
const ASSUMED: f64 = 30.0;
/// Neighbouring tokens say in part the same: each counts as this part of one.
const WEIGHT: f64 = 0.85;
/// Tokens that a kind remembers.
const REMEMBERED: f64 = 4_000.0;
/// Tokens of a sequence that count at most: a long one is one text all the same.
const OF_SEQUENCE: f64 = 100.0;

/// What a sequence showed so far.
pub type Seen = [u32; BINS];

/// What is known of this pair.
#[derive(Clone, Debug)]
pub struct Signs {
    kinds: [[f64; BINS]; KINDS],
}

impl Default for Signs {
    fn default() -> Self {
        Self { kinds: [[0.0; BINS]; KINDS] }
    }
}

/// The bin of a doubt; what is no number is no certainty.
pub fn bin(nats: f32) -> usize {
    if nats.is_nan() { BINS - 1 } else { ENDS.partition_point(|end| *end < nats) }
}

impl Signs {
    /// How much more, or less, likely each kind shows this sign than all together.
    pub fn says(&self, bin: usize) -> [f64; KINDS] {
        let total: f64 = self.kinds.iter().flatten().sum();
        let share =
            (self.kinds.iter().map(|kind| kind[bin]).sum::<f64>() + 1.0) / (total + BINS as f64);
        std::array::from_fn(|kind| {
            let of_kind: f64 = self.kinds[kind].iter().sum();
            let own = (self.kinds[kind][bin] + ASSUMED * share) / (of_kind + ASSUMED);
            (own / share).powf(WEIGHT)
        })
    }

    /// A sequence that is believed to be of these kinds, by its drafts alone, showed this.
    pub fn learn(&mut self, kinds: &[f64; KINDS], seen: &Seen) {
        let tokens = f64::from(seen.iter().sum::<u32>());
        let weight = (OF_SEQUENCE / tokens.max(1.0)).min(1.0);
        for (counts, share) in self.kinds.iter_mut().zip(kinds) {
            counts
                .iter_mut()
                .zip(seen)
                .for_each(|(count, seen)| *count += weight * share * f64::from(*seen));
            let sum: f64 = counts.iter().sum();
            if sum > REMEMBERED {
                counts.iter_mut().for_each(|count| *count *= REMEMBERED / sum);
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
    fn bins_are_by_doubt() {
        assert_eq!(
            [0.0, 0.001, 0.02, 0.5, 9.0, f32::INFINITY, f32::NAN].map(bin),
            [0, 0, 2, 5, 7, 7, 7]
        );
    }

    #[test]
    fn nothing_learnt_says_nothing_and_what_was_learnt_tells_kinds_apart() {
        let mut signs = Signs::default();
        assert!(signs.says(3).iter().all(|times| (times - 1.0).abs() < 1e-12));
        for _ in 0..5 {
            signs.learn(&all_of(11), &[90, 8, 2, 0, 0, 0, 0, 0]);
            signs.learn(&all_of(2), &[30, 10, 10, 10, 10, 10, 10, 10]);
        }
        let (sure, doubts) = (signs.says(0), signs.says(6));
        assert!(sure[11] > 1.1 && sure[2] < 0.9, "{sure:?}");
        assert!(doubts[2] > 1.2 && doubts[11] < 0.4, "{doubts:?}");
        // Of what was never met no kind is thought worse for any sign.
        assert!((sure[5] - 1.0).abs() < 1e-9 && (doubts[5] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_long_sequence_is_one_text() {
        let mut signs = Signs::default();
        signs.learn(&all_of(2), &[0, 0, 0, 0, 0, 0, 0, 100_000]);
        signs.learn(&all_of(2), &[100, 0, 0, 0, 0, 0, 0, 0]);
        signs.learn(&all_of(11), &[50, 0, 0, 0, 0, 0, 0, 50]);
        assert!((signs.says(0)[2] - 1.0).abs() < 0.05, "{:?}", signs.says(0));
    }
}
