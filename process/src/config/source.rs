//! Where the value of a setting is from.

use std::fmt;

/// Origin of a value, weakest first: a later one wins over an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Nothing sets it.
    #[default]
    Default,
    /// The configuration file.
    File,
    /// The file of kept settings, which `paceline config set` writes.
    Kept,
    /// A variable of the environment, as `PACELINE_ROUTING__FORCE`.
    Environment,
    /// A flag of `paceline serve`.
    Flag,
}

impl Source {
    /// All sources, weakest first.
    pub const ALL: [Self; 5] =
        [Self::Default, Self::File, Self::Kept, Self::Environment, Self::Flag];

    /// The word for operators.
    pub fn word(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::File => "file",
            Source::Kept => "config set",
            Source::Environment => "environment",
            Source::Flag => "flag",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A setting with its value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Key as the configuration writes it: `routing.max_concurrent`.
    pub key: String,
    /// Value in the form of the environment: a text without quotes, `auto`, `["a"]`.
    pub value: String,
    /// Where the value is from.
    pub source: Source,
}

/// A value in the form of the environment.
pub(super) fn text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
