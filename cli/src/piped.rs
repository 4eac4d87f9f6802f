//! Text of standard input, within a bound.

use std::io::Read;

use paceline_client::Failure;

/// Most bytes of a text from standard input. What the service takes is limits.max_message_bytes;
/// this only keeps an endless input from filling memory.
const MAX_BYTES: u64 = 64 << 20;

/// The text in this input, without the line ends after it; empty if there is none.
///
/// # Errors
/// It cannot be read, is too long, or is not UTF-8.
pub fn read(input: impl Read) -> Result<String, Failure> {
    let mut text = vec![];
    input
        .take(MAX_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| missing(&format!("that it cannot be read: {error}")))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(missing(&format!("more than {} MiB", MAX_BYTES >> 20)));
    }
    let mut text = String::from_utf8(text).map_err(|_| missing("bytes that are not UTF-8"))?;
    text.truncate(text.trim_end_matches(['\n', '\r']).len());
    Ok(text)
}

/// The failure of a question that is not on standard input.
pub fn missing(found: &str) -> Failure {
    Failure::usage(format!("expected a question on standard input, found {found}"))
}
