//! How many answers a request asks for, and the strings that end them.

use tonic::Status;

use crate::error::{invalid, quoted};

/// Answers of one request, at most.
const MAX_SAMPLES: u32 = 16;
/// Stop strings of one request, at most.
const MAX_STOPS: usize = 16;
/// Bytes of a stop string, at most: so much text may be held back.
const MAX_STOP_BYTES: usize = 256;

/// How many answers; 0 asks for one.
///
/// # Errors
/// More than may be.
pub(super) fn samples(asked: u32) -> Result<u32, Status> {
    match asked {
        0 => Ok(1),
        1..=MAX_SAMPLES => Ok(asked),
        _ => Err(invalid("samples", format!("at most {MAX_SAMPLES}"), asked)),
    }
}

/// Checks the strings that end an answer.
///
/// # Errors
/// The first that cannot be one, or too many of them.
pub(super) fn stops(stops: Vec<String>) -> Result<Vec<String>, Status> {
    const FIELD: &str = "limits.stop";
    if stops.len() > MAX_STOPS {
        return Err(invalid(FIELD, format!("at most {MAX_STOPS} strings"), stops.len()));
    }
    for (at, stop) in stops.iter().enumerate() {
        if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
            let found = format!("{} bytes, {}", stop.len(), quoted(stop));
            return Err(invalid(
                &format!("{FIELD}[{at}]"),
                format!("1 to {MAX_STOP_BYTES} bytes"),
                found,
            ));
        }
    }
    Ok(stops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_bounded() {
        assert_eq!([0, 1, 16].map(|asked| samples(asked).ok()), [Some(1), Some(1), Some(16)]);
        let of = |outcome: Result<Vec<String>, Status>| {
            outcome.map_err(|status| status.message().to_owned())
        };
        assert_eq!(
            samples(17).expect_err("too many").message(),
            "samples: expected at most 16, found 17"
        );
        assert_eq!(of(stops(vec!["a".into(), "é".repeat(128)])).map(|stops| stops.len()), Ok(2));
        assert_eq!(
            of(stops(vec!["a".into(); 17])),
            Err("limits.stop: expected at most 16 strings, found 17".into())
        );
        let empty = of(stops(vec!["a".into(), String::new()])).expect_err("empty");
        assert!(empty.starts_with("limits.stop[1]: expected 1 to 256 bytes, found 0"), "{empty}");
        assert!(of(stops(vec!["é".repeat(129)])).is_err());
    }
}
