//! Settings of the environment, laid over those of the file.

use super::ConfigError;
use super::known_keys::{all_keys, hint};

/// Lays `PACELINE_SECTION__KEY=value` over the file's table, each value in the type its default
/// has.
pub(super) fn overlay(
    table: &mut toml::Table,
    known: &toml::Table,
    environment: &[(String, String)],
) -> Result<(), ConfigError> {
    for (name, text) in environment {
        let Some((section, key)) =
            name.strip_prefix("PACELINE_").and_then(|rest| rest.split_once("__"))
        else {
            continue;
        };
        let (section, mut key) = (section.to_lowercase(), key.to_lowercase());
        let default = known.get(&section).and_then(|keys| keys.get(&key));
        let value = match default {
            _ if section == "classes" => {
                key = name
                    .split_once("__")
                    .map_or_else(String::new, |(_, original)| original.to_owned());
                toml::Value::String(text.clone())
            }
            None => {
                let full = format!("{section}.{key}");
                return Err(ConfigError::UnknownKey {
                    hint: hint(&full, &all_keys(known)),
                    key: full,
                    place: name.clone(),
                });
            }
            Some(default) => typed(text, default).ok_or_else(|| ConfigError::Value {
                key: format!("{section}.{key}"),
                what: format!("expected {}, found {text:?} in {name}", default.type_str()),
            })?,
        };
        let entry = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(keys) = entry.as_table_mut() {
            keys.insert(key, value);
        }
    }
    Ok(())
}

pub(super) fn typed(text: &str, like: &toml::Value) -> Option<toml::Value> {
    Some(match like {
        toml::Value::Integer(_) => toml::Value::Integer(text.parse().ok()?),
        toml::Value::Float(_) => toml::Value::Float(text.parse().ok()?),
        toml::Value::Boolean(_) => toml::Value::Boolean(text.parse().ok()?),
        _ => toml::Value::String(text.to_owned()),
    })
}
