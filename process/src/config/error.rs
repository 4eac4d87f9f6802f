//! Why a configuration is refused.

use std::path::PathBuf;

use paceline_settings::OutOfBounds;

/// Why a configuration is refused. Every one ends the process with exit code 64. Shown to a person
/// through [`crate::chain`].
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that was named cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The kept settings cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// Not TOML.
    #[error("{} is not valid TOML", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        cause: Box<toml::de::Error>,
    },
    /// A key that does not exist.
    #[error("unknown configuration key {key} ({place}); {hint}")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// File or environment variable.
        place: String,
        /// The nearest known key, or which there are.
        hint: String,
    },
    /// A value of the wrong type.
    #[error("configuration key {key}: {what}")]
    Value {
        /// The key.
        key: String,
        /// Expected and found.
        what: String,
    },
}

impl ConfigError {
    /// The value of `key` cannot work; `what` was expected and found.
    pub(super) fn value(key: &str, what: impl Into<String>) -> Self {
        Self::Value { key: key.to_owned(), what: what.into() }
    }
}

impl From<OutOfBounds> for ConfigError {
    fn from(OutOfBounds { key, what }: OutOfBounds) -> Self {
        Self::value(key, what)
    }
}
