//! The rule by which tokens are chosen, complete, and the ranges of its numbers.
//!
//! A model directory has one, each request that is submitted, and each sequence of the target.

/// How tokens are chosen. Every number is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRule {
    /// 0 always chooses the most probable token, and so does a temperature so low that the largest
    /// logit divided by it is no finite float32.
    pub temperature: f32,
    /// Number of most probable tokens that are candidates; 0: all.
    pub top_k: u32,
    /// Share of the probability that the candidates have.
    pub top_p: f32,
    /// Least probability of a candidate, as a share of the most probable one's.
    pub min_p: f32,
    /// Divides the logits of tokens that occurred; 1: off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that were generated; 0: off.
    pub presence_penalty: f32,
    /// The same, for each time they were generated; 0: off.
    pub frequency_penalty: f32,
}

/// A number that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfRange {
    /// Its field.
    pub name: &'static str,
    /// The range, in words.
    pub expected: &'static str,
    /// The number.
    pub found: f32,
}

impl Default for SamplingRule {
    fn default() -> Self {
        Self::GREEDY
    }
}

impl SamplingRule {
    /// The most probable token, always.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
    };

    /// The least repetition penalty. A logit that it divides stays far from infinity in float32,
    /// whatever a model returns.
    pub const LEAST_REPETITION_PENALTY: f32 = 0.01;

    /// Checks every number against its range in inference.proto.
    ///
    /// # Errors
    /// The first that is out of its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        // Written so that NaN is in no range.
        let within = |name, expected, found, is_within: bool| {
            if is_within { Ok(()) } else { Err(OutOfRange { name, expected, found }) }
        };
        let Self { temperature, top_k: _, top_p, min_p, .. } = *self;
        within(
            "temperature",
            "a number from 0 to 100",
            temperature,
            (0.0..=100.0).contains(&temperature),
        )?;
        within("top_p", "a number above 0, at most 1", top_p, top_p > 0.0 && top_p <= 1.0)?;
        within("min_p", "a number from 0 to 1", min_p, (0.0..=1.0).contains(&min_p))?;
        let repetition = self.repetition_penalty;
        within(
            "repetition_penalty",
            "a number from 0.01 to 10",
            repetition,
            (Self::LEAST_REPETITION_PENALTY..=10.0).contains(&repetition),
        )?;
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            within(name, "a number from -2 to 2", penalty, (-2.0..=2.0).contains(&penalty))?;
        }
        Ok(())
    }
}
