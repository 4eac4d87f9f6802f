//! Ids and numbers that cross processes, as types of their own so that none is taken for another.

use std::fmt;

/// Number of a worker's (or gateway's) life in a runtime directory; counts up, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Number of a supervisor's life in a runtime directory; the higher one is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// Whose request it is, for fair admission: a digest of the API key's name. All keys of one name
/// share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u64);

impl KeyId {
    /// Of every request where there are no API keys.
    pub const NONE: KeyId = KeyId(0);
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

/// A request's id: drawn by the gateway, the same in every process, log line and message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// A new id: ordered by time, random in its lower part.
    pub fn draw() -> Self {
        Self(uuid::Uuid::now_v7().simple().to_string())
    }

    /// An id that came in a message. Empty or overlong ids are refused: `None`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        (!text.is_empty() && text.len() <= 64 && text.bytes().all(plain))
            .then(|| Self(text.to_owned()))
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
    fn request_ids_are_plain_words() {
        assert!(RequestId::parse(RequestId::draw().as_str()).is_some());
        assert!(RequestId::parse("").is_none());
        assert!(RequestId::parse("a b").is_none());
        assert!(RequestId::parse(&"x".repeat(65)).is_none());
    }
}
