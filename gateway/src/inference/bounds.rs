//! Bounds on the number of samples of a request, and on the strings that end them.

use super::error::{InferenceError, quoted};

/// Most samples of one request.
const MAX_SAMPLES: u32 = 16;
/// Most stop strings of one request.
const MAX_STOPS: usize = 16;
/// Most bytes of a stop string: so much text may be held back.
const MAX_STOP_BYTES: usize = 256;

/// The number of samples; 0 asks for one.
///
/// # Errors
/// More than may be.
pub(super) fn samples(asked: u32) -> Result<u32, InferenceError> {
    match asked {
        0 => Ok(1),
        1..=MAX_SAMPLES => Ok(asked),
        _ => Err(InferenceError::invalid("samples", format!("at most {MAX_SAMPLES}"), asked)),
    }
}

/// Checks the strings that end an answer.
///
/// # Errors
/// The first that cannot be one, or too many of them.
pub(super) fn stops(stops: &[String]) -> Result<(), InferenceError> {
    const FIELD: &str = "limits.stop";
    if stops.len() > MAX_STOPS {
        return Err(InferenceError::invalid(
            FIELD,
            format!("at most {MAX_STOPS} strings"),
            stops.len(),
        ));
    }
    for (at, stop) in stops.iter().enumerate() {
        if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
            let found = format!("{} bytes, {}", stop.len(), quoted(stop));
            return Err(InferenceError::invalid(
                &format!("{FIELD}[{at}]"),
                format!("1 to {MAX_STOP_BYTES} bytes"),
                found,
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_bounded() {
        assert_eq!([0, 1, 16].map(|asked| samples(asked).ok()), [Some(1), Some(1), Some(16)]);
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
