//! Digests of a file's content as the hub gives them, and their comparison with the bytes.

use paceline_checkpoint::digest::hex;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// A digest as the hub gives it, in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// SHA-256 of the content: of files in Git LFS.
    Sha256(String),
    /// Name of the git blob: of files in git itself.
    GitBlob(String),
    /// Nothing: the size alone is checked.
    Unknown,
}

/// Computes the digest of a file of known size while its bytes come.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
    Unknown,
}

impl Hasher {
    /// For a file of `size` bytes.
    pub(crate) fn new(expected: &Expected, size: u64) -> Self {
        match expected {
            Expected::Sha256(_) => Self::Sha256(Sha256::new()),
            Expected::GitBlob(_) => {
                // Git hashes a header before the content.
                Self::GitBlob(Sha1::new().chain_update(format!("blob {size}\0")))
            }
            Expected::Unknown => Self::Unknown,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::GitBlob(hasher) => hasher.update(bytes),
            Self::Unknown => {}
        }
    }

    /// Compares the digest of the bytes with what was expected. The error has both.
    pub(crate) fn check(self, expected: &Expected) -> Result<(), String> {
        let (kind, expected, found) = match (self, expected) {
            (Self::Sha256(hasher), Expected::Sha256(expected)) => {
                ("SHA-256", expected, hex(&hasher.finalize()))
            }
            (Self::GitBlob(hasher), Expected::GitBlob(expected)) => {
                ("git blob", expected, hex(&hasher.finalize()))
            }
            _ => return Ok(()),
        };
        match found == *expected {
            true => Ok(()),
            false => Err(format!("expected {kind} {expected}, found {found}")),
        }
    }
}

/// Whether a text is a digest of `bytes` bytes in lower-case hexadecimal.
pub(crate) fn is_hex(text: &str, bytes: usize) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 2 * bytes && text.bytes().all(digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_git_and_of_sha256sum() {
        // printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha256sum
        let blob = Expected::GitBlob("ce013625030ba8dba906f756967f9e9ca394464a".into());
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        for expected in [blob, Expected::Sha256(sha.into()), Expected::Unknown] {
            let mut hasher = Hasher::new(&expected, 6);
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            assert_eq!(hasher.check(&expected), Ok(()));
            let mut hasher = Hasher::new(&expected, 6);
            hasher.update(b"hallo\n");
            let refused = hasher.check(&expected);
            assert_eq!(refused.is_err(), expected != Expected::Unknown, "{expected:?}");
        }
        assert!(is_hex(sha, 32) && !is_hex(sha, 20) && !is_hex(&sha.to_uppercase(), 32));
    }
}
