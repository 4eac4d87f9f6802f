//! Bounds on the number of samples of a request, on the strings that end them, and on the elements
//! of its lists.

use std::num::NonZero;

use super::error::{InferenceError, Result, quoted, refuse};

/// Most samples of one request.
pub const MAX_SAMPLES: u32 = 16;
/// Most prompts of one request. Clients that send a batch cut it into requests of 20 or so.
pub const MAX_PROMPTS: u32 = 128;
/// Most stop strings of one request.
const MAX_STOPS: usize = 16;
/// Most bytes of a stop string, and of the text that is held back for it.
const MAX_STOP_BYTES: usize = 256;

/// How many samples a request asks for, from 1 to [`MAX_SAMPLES`]. What a request needs once for
/// each sample is made by [`SampleCount::each`], so an unchecked number sizes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleCount(NonZero<u32>);

impl SampleCount {
    /// One sample.
    pub const ONE: Self = Self(NonZero::<u32>::MIN);

    /// The number that a client asks for; 0 asks for one.
    ///
    /// # Errors
    /// More than may be.
    pub fn checked(asked: u32) -> Result<Self> {
        if asked > MAX_SAMPLES {
            return refuse("samples", format!("at most {MAX_SAMPLES}"), asked);
        }
        Ok(NonZero::new(asked).map_or(Self::ONE, Self))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// The answers of a request with `prompts` prompts, each with this number of samples.
    ///
    /// # Errors
    /// More prompts than may be.
    pub fn of_prompts(self, prompts: usize) -> Result<Self> {
        check_elements("prompt", prompts, MAX_PROMPTS)?;
        let prompts = u32::try_from(prompts).ok().and_then(NonZero::new);
        Ok(Self(self.0.saturating_mul(prompts.unwrap_or(NonZero::<u32>::MIN))))
    }

    /// One value for each sample, made from the sample's index.
    pub fn each<T>(self, make: impl FnMut(u32) -> T) -> Vec<T> {
        (0..self.get()).map(make).collect()
    }
}

impl Default for SampleCount {
    fn default() -> Self {
        Self::ONE
    }
}

/// Checks the elements of a list of a request. The limits are those that the strict codec of gRPC
/// applies, from [`paceline_proto::limits`].
///
/// # Errors
/// More than `limit`.
pub fn check_elements(field: &str, found: usize, limit: u32) -> Result<()> {
    if found <= limit as usize {
        return Ok(());
    }
    let expected = format!("at most {limit} elements");
    let error = InferenceError::invalid(field, expected, format!("{found}; send fewer"));
    Err(error.fact("limit", limit).fact("found", found))
}

/// Checks the strings that end an answer.
///
/// # Errors
/// The first that cannot be one, or too many of them.
pub(super) fn stops(stops: &[String]) -> Result<()> {
    const FIELD: &str = "limits.stop";
    if stops.len() > MAX_STOPS {
        return refuse(FIELD, format!("at most {MAX_STOPS} strings"), stops.len());
    }
    for (at, stop) in stops.iter().enumerate() {
        if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
            let found = format!("{} bytes, {}", stop.len(), quoted(stop));
            return refuse(
                &format!("{FIELD}[{at}]"),
                format!("1 to {MAX_STOP_BYTES} bytes"),
                found,
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_bounded() {
        let samples = |asked| SampleCount::checked(asked).map(SampleCount::get);
        assert_eq!([0, 1, 16].map(|asked| samples(asked).ok()), [Some(1), Some(1), Some(16)]);
        assert_eq!(SampleCount::checked(3).expect("few").each(|index| index), [0, 1, 2]);
        let of = |list: Vec<String>| stops(&list).map_err(|error| error.message);
        assert_eq!(
            samples(17).expect_err("too many").message,
            "samples: expected at most 16, found 17"
        );
        assert_eq!(of(vec!["a".into(), "é".repeat(128)]), Ok(()));
        assert_eq!(
            of(vec!["a".into(); 17]),
            Err("limits.stop: expected at most 16 strings, found 17".into())
        );
        let empty = of(vec!["a".into(), String::new()]).expect_err("empty");
        assert!(empty.starts_with("limits.stop[1]: expected 1 to 256 bytes, found 0"), "{empty}");
        assert!(of(vec!["é".repeat(129)]).is_err());
    }
}
