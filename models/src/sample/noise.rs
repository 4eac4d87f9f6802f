//! The noise of sampling: a pure function of (seed, sample index; position; id), so that a stream
//! can be replayed from any place, in any lane, by any process.
//!
//! Philox4x32-10 (Salmon et al., SC 2011; Random123's constants): key = the seed's low and high
//! word; counter = (position, id / 4, sample index, 0); word id mod 4 of the result is r. All
//! integer up to here. v = min((r + 0.5) / 2³², 1 − 2⁻²⁴), noise = −ln(−ln(1 − v)) in float32:
//! standard Gumbel, finite for every r, fine-grained in the upper tail.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox4x32 with 10 rounds.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k0, mut k1]) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
        }
        let low = u64::from(MULTIPLIERS[0]) * u64::from(a);
        let high = u64::from(MULTIPLIERS[1]) * u64::from(c);
        (a, b, c, d) =
            ((high >> 32) as u32 ^ b ^ k0, high as u32, (low >> 32) as u32 ^ d ^ k1, low as u32);
    }
    [a, b, c, d]
}

/// The noise that a sample of a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseKey {
    /// The request's seed.
    pub seed: u64,
    /// Number of the sample in the request.
    pub sample: u32,
}

impl NoiseKey {
    /// The four words of ids 4·`quad` to 4·`quad` + 3 at `position`.
    pub fn words(self, position: u32, quad: u32) -> [u32; 4] {
        philox([position, quad, self.sample, 0], [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// The noise of `id` at `position`.
    pub fn noise(self, position: u32, id: u32) -> f32 {
        gumbel(self.words(position, id / 4)[(id % 4) as usize])
    }
}

/// Standard Gumbel noise of a word; decreasing in it, from 22.9 to −2.9.
pub fn gumbel(word: u32) -> f32 {
    let v = ((word as f32 + 0.5) * 2f32.powi(-32)).min(1.0 - 2f32.powi(-24));
    -(-(-v).ln_1p()).ln()
}

/// An upper bound of [`gumbel`], without logarithms: −ln(1 − v) ≥ v, and v ≥ 2^−(1 + leading
/// zeros).
pub fn gumbel_bound(word: u32) -> f32 {
    (word.leading_zeros() as f32 + 1.0) * std::f32::consts::LN_2 + 1e-3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_answers() {
        let f = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([f; 4], [f; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
        );
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn noise_is_finite_at_both_ends_and_below_its_bound() {
        assert!((gumbel(0) - 22.873_857).abs() < 1e-4);
        assert!((gumbel(u32::MAX) + 2.811_5).abs() < 1e-3);
        for step in 0..=100_000u64 {
            let word = (step * (u64::from(u32::MAX) / 100_000)) as u32;
            for word in [word, word >> 7, word >> 19, word >> 30] {
                let noise = gumbel(word);
                assert!(noise.is_finite() && noise <= gumbel_bound(word), "{word}");
            }
        }
    }

    #[test]
    fn gumbel_max_draws_from_softmax() {
        // Chi-square of 100,000 draws over 8 tokens: 7 degrees of freedom, 24.3 is the 0.1 % point.
        let logits = [0.0f32, 1.0, -1.0, 2.0, 0.5, -2.0, 1.5, 0.25];
        let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        let draws = 100_000u32;
        for (seed, sample) in [(0, 0), (1 << 40, 3), (u64::MAX, 7)] {
            let mut counts = [0u32; 8];
            for position in 0..draws {
                let score =
                    |id: usize| logits[id] + NoiseKey { seed, sample }.noise(position, id as u32);
                let best =
                    (0..8).max_by(|a, b| score(*a).total_cmp(&score(*b))).expect("eight tokens");
                counts[best] += 1;
            }
            let chi: f64 = (0..8)
                .map(|id| {
                    let expected = f64::from(draws) * f64::from(logits[id]).exp() / total;
                    (f64::from(counts[id]) - expected).powi(2) / expected
                })
                .sum();
            assert!(chi < 24.3, "seed {seed}: chi-square {chi}, counts {counts:?}");
        }
    }
}
