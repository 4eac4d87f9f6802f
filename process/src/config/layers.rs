//! The layers of a configuration. Each is laid over the earlier ones, key by key: file, kept
//! settings, environment, flags.

use std::collections::BTreeMap;

use super::assignment::Assignment;
use super::known_keys::{all_keys, hint, refuse_unknown};
use super::source::{Setting, Source, text};
use super::{Config, ConfigError};

/// The section whose keys are names of API keys: any name is known.
const NAMES: &str = "classes";

/// The values of all layers so far, and where each is from.
#[derive(Debug)]
pub(super) struct Layers {
    known: toml::Table,
    table: toml::Table,
    sources: BTreeMap<String, Source>,
}

impl Layers {
    /// The defaults alone.
    pub(super) fn new() -> Self {
        let known = toml::Table::try_from(Config::default()).expect("the defaults are plain TOML");
        Self { known, table: toml::Table::new(), sources: BTreeMap::new() }
    }

    /// Lays the keys of a table over the earlier ones. `place` is the file, for errors.
    ///
    /// # Errors
    /// An unknown section or key.
    pub(super) fn lay(
        &mut self,
        layer: toml::Table,
        source: Source,
        place: &str,
    ) -> Result<(), ConfigError> {
        refuse_unknown(&layer, &self.known, place)?;
        for (section, keys) in layer {
            let toml::Value::Table(keys) = keys else { continue };
            for (key, value) in keys {
                self.put(&section, key, value, source);
            }
        }
        Ok(())
    }

    /// Lays one assignment over the earlier values. `place` is the variable or the flag.
    ///
    /// # Errors
    /// An unknown key, or a value of another type than that of the default.
    pub(super) fn assign(
        &mut self,
        assignment: &Assignment,
        source: Source,
        place: &str,
    ) -> Result<(), ConfigError> {
        let value = typed_value(&self.known, assignment, place)?;
        let (section, key) = assignment.place().expect("a known key is in a section");
        self.put(section, key.to_owned(), value, source);
        Ok(())
    }

    /// Replaces the value of a key and leaves its source: another form of the same value.
    pub(super) fn replace(&mut self, section: &str, key: &str, value: String) {
        let keys = self.table.entry(section).or_insert_with(|| toml::Table::new().into());
        if let Some(keys) = keys.as_table_mut() {
            keys.insert(key.to_owned(), value.into());
        }
    }

    /// The values of a section that layers set.
    pub(super) fn section(&self, name: &str) -> Option<&toml::Value> {
        self.table.get(name)
    }

    fn put(&mut self, section: &str, key: String, value: toml::Value, source: Source) {
        self.sources.insert(format!("{section}.{key}"), source);
        let keys = self.table.entry(section).or_insert_with(|| toml::Table::new().into());
        if let Some(keys) = keys.as_table_mut() {
            keys.insert(key, value);
        }
    }

    /// The configuration, not yet validated.
    ///
    /// # Errors
    /// A value of the wrong type.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        let table = toml::Value::Table(self.table.clone());
        serde_path_to_error::deserialize(table).map_err(|error| ConfigError::Value {
            key: error.path().to_string(),
            what: error.inner().message().to_owned(),
        })
    }

    /// All settings with their sources, by section and key. Values are
    /// those of `config`, which was made of these layers.
    pub(super) fn settings(&self, config: &Config) -> Vec<Setting> {
        let table = toml::Table::try_from(config).expect("a configuration is plain TOML");
        let sections = table.into_iter().filter_map(|(section, keys)| match keys {
            toml::Value::Table(keys) => Some((section, keys)),
            _ => None,
        });
        let setting = |section: &str, key: &str, value: &toml::Value| {
            let key = format!("{section}.{key}");
            let source = self.sources.get(&key).copied().unwrap_or_default();
            Setting { value: text(value), source, key }
        };
        sections
            .flat_map(|(section, keys)| {
                let settings: Vec<_> =
                    keys.iter().map(|(key, value)| setting(&section, key, value)).collect();
                settings
            })
            .collect()
    }
}

/// The value of an assignment in the type that the default of its key has.
///
/// # Errors
/// An unknown key, or a text that is no such value.
pub(super) fn typed_value(
    known: &toml::Table,
    assignment: &Assignment,
    place: &str,
) -> Result<toml::Value, ConfigError> {
    let Assignment { key, value } = assignment;
    let default = match assignment.place() {
        Some((NAMES, name)) if !name.is_empty() => return Ok(value.clone().into()),
        Some((section, word)) => known.get(section).and_then(|keys| keys.get(word)),
        None => None,
    };
    let Some(default) = default else { return Err(unknown(known, key, place)) };
    typed(value, default).ok_or_else(|| {
        let what = format!("expected {}, found {value:?} in {place}", default.type_str());
        ConfigError::value(key, what)
    })
}

/// Checks that an assignment's key is known.
///
/// # Errors
/// It is not; with the nearest one that is.
pub(super) fn check_known(
    known: &toml::Table,
    assignment: &Assignment,
    place: &str,
) -> Result<(), ConfigError> {
    let is_known = assignment.place().is_some_and(|(section, word)| {
        section == NAMES || known.get(section).is_some_and(|keys| keys.get(word).is_some())
    });
    if is_known { Ok(()) } else { Err(unknown(known, &assignment.key, place)) }
}

fn unknown(known: &toml::Table, key: &str, place: &str) -> ConfigError {
    let hint = hint(key, &all_keys(known));
    ConfigError::UnknownKey { hint, key: key.to_owned(), place: place.to_owned() }
}

/// `text` in the type of `like`; `None` if it is no such value.
pub(super) fn typed(text: &str, like: &toml::Value) -> Option<toml::Value> {
    Some(match like {
        toml::Value::Integer(_) => toml::Value::Integer(text.parse().ok()?),
        toml::Value::Float(_) => toml::Value::Float(text.parse().ok()?),
        toml::Value::Boolean(_) => toml::Value::Boolean(text.parse().ok()?),
        _ => toml::Value::String(text.to_owned()),
    })
}
