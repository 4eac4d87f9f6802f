//! Ids and numbers that cross processes, as types of their own so that none is taken for another.

use std::fmt;

/// Number of one life of a worker or gateway in a runtime directory. Counts up; never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Number of one life of the supervisor in a runtime directory. The supervisor with the higher term
/// is obeyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// Owner of a request, for fair admission: a digest of the API key's name. All keys of one name
/// share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u64);

impl KeyId {
    /// The owner of every request where no API keys are configured.
    pub const NONE: KeyId = KeyId(0);
}

/// A served model, for comparisons: the 64-bit FNV-1a hash of its directory's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelMark(pub u64);

impl ModelMark {
    /// The mark of the model in the directory of this path.
    pub fn of(path: &str) -> Self {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self(path.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request's id. The gateway draws it; every process, log line and message carries the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// An id that came in a message: 1 to 64 letters, digits, `-` or `_`. Any other text is
    /// refused: `None`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        let fits = !text.is_empty() && text.len() <= 64 && text.bytes().all(plain);
        fits.then(|| Self(text.to_owned()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::RequestId;

    #[test]
    fn request_ids_are_letters_digits_and_hyphens() {
        assert!(RequestId::parse("0195-abc_9").is_some());
        assert!(RequestId::parse("").is_none());
        assert!(RequestId::parse("a b").is_none());
        assert!(RequestId::parse(&"x".repeat(64)).is_some());
        assert!(RequestId::parse(&"x".repeat(65)).is_none());
    }
}
