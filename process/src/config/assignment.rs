//! `KEY=VALUE`: a setting as flags and `paceline config set` write it.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::ConfigError;

/// Environment variable with the settings of the flags of `paceline serve`, for the processes that
/// it starts: TOML, a text for each key. They win over all other settings.
pub const FLAGS_VAR: &str = "PACELINE_FLAGS";

/// A key and its value in the form of the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Key as the configuration writes it: `routing.max_concurrent`.
    pub key: String,
    /// Value without quotes: `2`, `auto`, an empty text.
    pub value: String,
}

impl Assignment {
    /// The setting `key` with this value.
    pub fn new(key: &str, value: impl Into<String>) -> Self {
        Self { key: key.to_owned(), value: value.into() }
    }

    /// Section and key within it; `None` if the key has no section.
    pub(super) fn place(&self) -> Option<(&str, &str)> {
        self.key.split_once('.')
    }
}

impl FromStr for Assignment {
    type Err = NoAssignment;

    fn from_str(text: &str) -> Result<Self, NoAssignment> {
        match text.split_once('=') {
            Some((key, value)) if key.trim().contains('.') => {
                Ok(Self::new(key.trim(), value.trim()))
            }
            _ => Err(NoAssignment(text.to_owned())),
        }
    }
}

/// A text that is no `KEY=VALUE`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected KEY=VALUE as routing.max_concurrent=2, found {0:?}")]
pub struct NoAssignment(String);

/// The value of [`FLAGS_VAR`]. A later assignment of a key wins.
pub fn flags_text(flags: &[Assignment]) -> String {
    let texts: BTreeMap<&str, &str> =
        flags.iter().map(|flag| (flag.key.as_str(), flag.value.as_str())).collect();
    toml::to_string(&texts).expect("a table of texts is TOML")
}

/// The assignments in the value of [`FLAGS_VAR`].
///
/// # Errors
/// It was not made by [`flags_text`].
pub(super) fn flags_of(text: &str) -> Result<Vec<Assignment>, ConfigError> {
    let texts: BTreeMap<String, String> = toml::from_str(text).map_err(|error| {
        let what = format!(
            "expected TOML with a text for each key, found {text:?} ({}); unset it",
            error.message()
        );
        ConfigError::value(FLAGS_VAR, what)
    })?;
    Ok(texts.into_iter().map(|(key, value)| Assignment { key, value }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_has_a_key_with_a_section_and_any_value() {
        let read = |text: &str| text.parse::<Assignment>();
        assert_eq!(read("routing.force=plain"), Ok(Assignment::new("routing.force", "plain")));
        assert_eq!(read("target.model="), Ok(Assignment::new("target.model", "")));
        assert_eq!(
            read(" gateway.cors_origins = https://a=b "),
            Ok(Assignment::new("gateway.cors_origins", "https://a=b"))
        );
        for bad in ["", "routing.force", "force=plain", "=x"] {
            let error = read(bad).expect_err("refused").to_string();
            assert!(error.contains("expected KEY=VALUE"), "{error}");
        }
    }

    #[test]
    fn flags_are_read_back_as_they_were_with_the_last_of_a_key() {
        let flags = [
            Assignment::new("target.model", "/a \"b\"\\\n#c"),
            Assignment::new("routing.force", "auto"),
            Assignment::new("routing.force", "plain"),
        ];
        let read = flags_of(&flags_text(&flags)).expect("our own text");
        assert_eq!(read, [flags[2].clone(), flags[0].clone()]);
        assert_eq!(flags_of("").expect("no flags"), []);
        assert!(
            flags_of("routing.force=plain").expect_err("refused").to_string().contains("unset")
        );
    }
}
