//! The parameters by which tokens are chosen: each is declared once, in
//! [`with_sampling_parameters!`], with its range and its value when it is off.
//!
//! A model directory has a complete rule, each request that is submitted, and each sequence of the
//! target. A client's request has a [`SamplingWish`], in which any number may be absent.

/// Calls another macro with all parameters: documentation, name, type, value when it is off, range
/// in words, and whether a number is in the range. NaN is in no range.
#[macro_export]
macro_rules! with_sampling_parameters {
    ($then:ident) => {
        $then! {
            /// 0 always chooses the most probable token, and so does a temperature so low that the
            /// largest logit divided by it is no finite float32.
            temperature: f32 = 0.0, "a number from 0 to 100", |x: f32| (0.0..=100.0).contains(&x);
            /// Number of most probable tokens that are candidates; 0: all.
            top_k: u32 = 0, "a whole number", |_: u32| true;
            /// Share of the probability that the candidates have.
            top_p: f32 = 1.0, "a number above 0, at most 1", |x: f32| x > 0.0 && x <= 1.0;
            /// Least probability of a candidate, as a share of the most probable one's.
            min_p: f32 = 0.0, "a number from 0 to 1", |x: f32| (0.0..=1.0).contains(&x);
            /// Least probability of a candidate, as a multiple of the square of the most probable
            /// one's; 0: off.
            top_a: f32 = 0.0, "a number from 0 to 1", |x: f32| (0.0..=1.0).contains(&x);
            /// Divides the logits of tokens that occurred; 1: off.
            repetition_penalty: f32 = 1.0, "a number from 0.01 to 10",
                |x: f32| (SamplingRule::LEAST_REPETITION_PENALTY..=10.0).contains(&x);
            /// Subtracted from the logits of tokens that were generated; 0: off.
            presence_penalty: f32 = 0.0, "a number from -2 to 2", |x: f32| (-2.0..=2.0).contains(&x);
            /// Subtracted once for each time that a token was generated; 0: off.
            frequency_penalty: f32 = 0.0, "a number from -2 to 2", |x: f32| (-2.0..=2.0).contains(&x);
        }
    };
}

macro_rules! define {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $off:expr, $range:literal, $is_within:expr;)*) => {
        /// How tokens are chosen. Every number is set.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct SamplingRule { $($(#[$doc])* pub $name: $type,)* }

        /// How tokens are chosen, as far as a client sets it.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct SamplingWish { $($(#[$doc])* pub $name: Option<$type>,)* }

        impl SamplingRule {
            /// The most probable token, always.
            pub const GREEDY: Self = Self { $($name: $off,)* };

            /// Checks every number against its range.
            ///
            /// # Errors
            /// The first that is out of its range.
            pub fn check(&self) -> Result<(), OutOfRange> {
                $(if !($is_within)(self.$name) {
                    let (name, expected, found) = (stringify!($name), $range, self.$name as f32);
                    return Err(OutOfRange { name, expected, found });
                })*
                Ok(())
            }
        }

        impl SamplingWish {
            /// The client's numbers, with the model's `own` where the client gives none.
            pub fn completed(&self, own: &SamplingRule) -> SamplingRule {
                SamplingRule { $($name: self.$name.unwrap_or(own.$name),)* }
            }
        }

        impl From<SamplingRule> for SamplingWish {
            fn from(rule: SamplingRule) -> Self {
                Self { $($name: Some(rule.$name),)* }
            }
        }
    };
}
with_sampling_parameters!(define);

/// A number that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfRange {
    /// Field of the number.
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
    /// The least repetition penalty. A logit that it divides stays far from infinity in float32,
    /// whatever a model returns.
    pub const LEAST_REPETITION_PENALTY: f32 = 0.01;

    /// The rule without penalties: what a drafter can apply, because it does not know what they
    /// count.
    #[must_use]
    pub fn without_penalties(self) -> Self {
        let Self { repetition_penalty, presence_penalty, frequency_penalty, .. } = Self::GREEDY;
        Self { repetition_penalty, presence_penalty, frequency_penalty, ..self }
    }
}

/// Number that is added to one token's logit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogitBias {
    /// The token.
    pub token_id: u32,
    /// The number.
    pub bias: f32,
}
