//! API keys as they are written down: only their digests, one a line as `name:digest`. The gateway
//! reads such files, the command line makes the lines.
//!
//! ```text
//! # comments and empty lines are passed over
//! alice:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90
//! ```
//!
//! A name stands for a client, which has a traffic class (`[classes]`) and limits. Several lines
//! may have the same name, so that a new key can be given out before the old one is taken away. A
//! digest may occur only once.

use std::collections::BTreeSet;
use std::fmt;

use paceline_checkpoint::digest::hex;
use sha2::{Digest as _, Sha256};

/// Longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// A key may be as short as this: shorter ones can be guessed.
const MIN_KEY_BYTES: usize = 16;
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

/// Why a file of keys, or one of its lines, is refused. No text repeats a key, or a line: who put a
/// key there by mistake does not want to find it in a log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// A name that a key cannot have.
    #[error(transparent)]
    Name(#[from] BadName),
    /// A key that is too short or too long, or has other characters.
    #[error(
        "expected a key of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} printable ASCII characters without spaces, found {found_bytes} bytes"
    )]
    Key {
        /// Length of the key.
        found_bytes: usize,
    },
    /// A line of the file.
    #[error("line {number}")]
    Line {
        /// Number of the line, from 1.
        number: usize,
        /// Fault of the line.
        #[source]
        cause: LineError,
    },
    /// More lines than a file may have.
    #[error("expected at most {MAX_LINES} keys, found more")]
    TooMany,
    /// No key.
    #[error("expected at least one key, found none; `paceline key new NAME` makes one")]
    Empty,
}

/// Fault of a line of a file of keys.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// No colon.
    #[error("expected name:digest (as `paceline key new` prints it), found no colon")]
    NoColon,
    /// A name that a key cannot have.
    #[error(transparent)]
    Name(#[from] BadName),
    /// No digest.
    #[error(
        "expected name:digest (as `paceline key new` prints it), found no SHA-256 in 64 hexadecimal digits after the name {name}"
    )]
    NoDigest {
        /// The line's name.
        name: String,
    },
    /// A key that an earlier line has.
    #[error("expected each key once, found that of {name} again")]
    Repeated {
        /// The line's name.
        name: String,
    },
}

/// A name that a key cannot have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a name of 1 to {MAX_NAME_BYTES} letters, digits, '-', '_' and '.', found another"
)]
pub struct BadName;

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
    /// The name or the key is none.
    pub fn of(name: &str, key: &str) -> Result<Self, KeysError> {
        check_name(name)?;
        if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&key.len())
            || !key.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(KeysError::Key { found_bytes: key.len() });
        }
        Ok(Self { name: name.to_owned(), digest: digest(key) })
    }
}

impl fmt::Display for KeyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, hex(&self.digest))
    }
}

/// Shows the name alone, so that no digest reaches a log.
impl fmt::Debug for KeyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyLine({})", self.name)
    }
}

/// Reads the lines of a file.
///
/// # Errors
/// The first line that is none, with its number; no key, or too many.
pub fn parse(text: &str) -> Result<Vec<KeyLine>, KeysError> {
    let (mut keys, mut digests) = (Vec::new(), BTreeSet::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |cause| KeysError::Line { number, cause };
        let key = parse_line(line).map_err(wrong)?;
        if !digests.insert(key.digest) {
            return Err(wrong(LineError::Repeated { name: key.name }));
        }
        keys.push(key);
        if keys.len() > MAX_LINES {
            return Err(KeysError::TooMany);
        }
    }
    if keys.is_empty() { Err(KeysError::Empty) } else { Ok(keys) }
}

fn parse_line(line: &str) -> Result<KeyLine, LineError> {
    let (name, digest) = line.split_once(':').ok_or(LineError::NoColon)?;
    check_name(name)?;
    let name = name.to_owned();
    match unhex(digest) {
        Some(digest) => Ok(KeyLine { name, digest }),
        None => Err(LineError::NoDigest { name }),
    }
}

fn check_name(name: &str) -> Result<(), BadName> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    if fits && name.bytes().all(is_fine) { Ok(()) } else { Err(BadName) }
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
    use crate::chain;

    #[test]
    fn a_line_is_read_as_it_was_written_and_never_shows_the_key() {
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
    fn a_bad_line_is_refused_by_its_number_and_never_repeated() {
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
            let error = chain(&parse(&text).expect_err("no line"));
            assert!(error.contains(part) && !error.contains("secret"), "{text:?}: {error}");
        }
        for key in ["short", "with space in the key", &"k".repeat(513), "0123456789abcdefé"] {
            assert!(KeyLine::of("a", key).is_err(), "{key}");
        }
    }
}
