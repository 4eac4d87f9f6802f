//! API keys as they are written down: only their digests, one a line as `name:digest`. The gateway
//! reads such files, the command line makes the lines.
//!
//! ```text
//! # comments and empty lines are passed over
//! alice:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90
//! ```
//!
//! A name stands for a client: its traffic class (`[classes]`) and its limits go by it. It may
//! stand on several lines, so that a new key can be given out before the old one is taken away. A
//! digest may stand only once.

use std::collections::BTreeSet;
use std::fmt;

use sha2::{Digest as _, Sha256};

/// Longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// A key may be as short as this: shorter ones can be guessed.
pub const MIN_KEY_BYTES: usize = 16;
/// Longest key that is looked at.
pub const MAX_KEY_BYTES: usize = 512;
/// Most lines of a file.
const MAX_LINES: usize = 10_000;

/// SHA-256 of a key.
pub type Digest = [u8; 32];

/// The digest of a key.
pub fn digest(key: &str) -> Digest {
    Sha256::digest(key.as_bytes()).into()
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One line of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyLine {
    /// Whose key it is.
    pub name: String,
    /// The key's digest.
    pub digest: Digest,
}

impl KeyLine {
    /// The line for a key.
    ///
    /// # Errors
    /// The name or the key is none: expected and found. The key itself is not repeated.
    pub fn of(name: &str, key: &str) -> Result<Self, String> {
        check_name(name)?;
        if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&key.len())
            || !key.bytes().all(|byte| byte.is_ascii_graphic())
        {
            let expected = format!(
                "{MIN_KEY_BYTES} to {MAX_KEY_BYTES} printable ASCII characters without spaces"
            );
            return Err(format!("expected a key of {expected}, found {} bytes", key.len()));
        }
        Ok(Self { name: name.to_owned(), digest: digest(key) })
    }
}

impl fmt::Display for KeyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, hex(&self.digest))
    }
}

/// Only the name: what is known of a key is nobody's business.
impl fmt::Debug for KeyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyLine({})", self.name)
    }
}

/// Reads the lines of a file.
///
/// # Errors
/// The first line that is none, with its number, what was expected and what is wrong with it.
pub fn parse(text: &str) -> Result<Vec<KeyLine>, String> {
    let (mut keys, mut seen) = (Vec::new(), BTreeSet::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // A line is not repeated in the message: who put a key there by mistake does not want to
        // see it in a log.
        let wrong = |what: String| {
            format!(
                "line {number}: expected name:digest (as `paceline key new` prints it), found {what}"
            )
        };
        let (name, digest) = line.split_once(':').ok_or_else(|| wrong("no colon".into()))?;
        check_name(name).map_err(|what| format!("line {number}: {what}"))?;
        let found = || wrong(format!("no SHA-256 in 64 hexadecimal digits behind the name {name}"));
        let digest = unhex(digest).ok_or_else(found)?;
        if !seen.insert(digest) {
            return Err(format!(
                "line {number}: expected each key once, found that of {name} again"
            ));
        }
        keys.push(KeyLine { name: name.to_owned(), digest });
        if keys.len() > MAX_LINES {
            return Err(format!("expected at most {MAX_LINES} keys, found more"));
        }
    }
    if keys.is_empty() {
        return Err(
            "expected at least one key, found none; `paceline key new NAME` makes one".into()
        );
    }
    Ok(keys)
}

fn check_name(name: &str) -> Result<(), String> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_fine) {
        return Err(format!(
            "expected a name of 1 to {MAX_NAME_BYTES} letters, digits, '-', '_' and '.', found another"
        ));
    }
    Ok(())
}

fn unhex(text: &str) -> Option<Digest> {
    let digits = text.as_bytes();
    let mut digest = Digest::default();
    if digits.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_says_nothing_of_the_key() {
        let key = "pl_0123456789abcdef";
        let line = KeyLine::of("alice", key).expect("fine");
        let text = format!("# who\n\n  {line}  \r\nbob.2:{}\n", hex(&digest("another-key-of-bob")));
        let keys = parse(&text).expect("fine");
        assert_eq!(
            (keys[0].clone(), keys[1].name.as_str(), keys.len()),
            (line.clone(), "bob.2", 2)
        );
        assert!(!text.contains(key) && format!("{line:?}") == "KeyLine(alice)");
        // Known answer: FIPS 180-2, appendix B.1.
        assert_eq!(
            hex(&digest("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn what_is_no_line_is_told_by_its_number_and_never_repeated() {
        let good = KeyLine::of("a", "0123456789abcdef").expect("fine").to_string();
        let secret = "pl_secret_secret_secret";
        for (text, part) in [
            (String::new(), "at least one key"),
            ("# nothing\n".into(), "at least one key"),
            (secret.into(), "line 1: expected name:digest"),
            (format!("{good}\nalice:{secret}"), "line 2"),
            (format!("{good}\n{good}"), "line 2: expected each key once"),
            (format!(":{secret}"), "expected a name"),
            (format!("al ice:{}", hex(&[0; 32])), "expected a name"),
            (format!("{}:{}", "a".repeat(65), hex(&[0; 32])), "expected a name"),
            (format!("a:{}", hex(&[0; 31])), "64 hexadecimal digits"),
            (format!("a:{}é", hex(&[0; 31])), "64 hexadecimal digits"),
            (format!("a:+{}", &hex(&[0; 32])[1..]), "64 hexadecimal digits"),
        ] {
            let error = parse(&text).expect_err("no line");
            assert!(error.contains(part) && !error.contains("secret"), "{text:?}: {error}");
        }
        for key in ["short", "with space in the key", &"k".repeat(513), "0123456789abcdefé"] {
            assert!(KeyLine::of("a", key).is_err(), "{key}");
        }
    }
}
