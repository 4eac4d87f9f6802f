//! The known keys, and the one that an unknown key may have meant.

use super::ConfigError;

/// Former names of keys.
const RENAMED: &[(&str, &str)] = &[("kv.tap_window", "kv.hidden_window")];

/// Refuses sections and keys that the defaults do not have.
pub(super) fn refuse_unknown(
    table: &toml::Table,
    known: &toml::Table,
    place: &str,
) -> Result<(), ConfigError> {
    let unknown = |key: String, candidates: Vec<String>| ConfigError::UnknownKey {
        hint: hint(&key, &candidates),
        key,
        place: place.to_owned(),
    };
    for (section, value) in table {
        let Some(known_keys) = known.get(section).and_then(toml::Value::as_table) else {
            return Err(unknown(section.clone(), all_keys(known)));
        };
        let Some(keys) = value.as_table() else {
            let what = format!("expected a section [{section}], found {}", value.type_str());
            return Err(ConfigError::Value { key: section.clone(), what });
        };
        if section == "classes" {
            continue; // its keys are names of API keys
        }
        if let Some(key) = keys.keys().find(|key| !known_keys.contains_key(*key)) {
            return Err(unknown(format!("{section}.{key}"), all_keys(known)));
        }
    }
    Ok(())
}

pub(super) fn all_keys(known: &toml::Table) -> Vec<String> {
    let mut keys = Vec::new();
    for (section, value) in known {
        keys.push(section.clone());
        keys.extend(
            value
                .as_table()
                .into_iter()
                .flat_map(|table| table.keys())
                .map(|key| format!("{section}.{key}")),
        );
    }
    keys
}

/// The new name of a key; else the nearest known key; else the keys of that section, or all sections.
pub(super) fn hint(key: &str, candidates: &[String]) -> String {
    if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == key) {
        return format!("it is named {new} now");
    }
    if let Some(near) = nearest(key, candidates) {
        return format!("did you mean {near}?");
    }
    let inside = |candidate: &&String| {
        key.split_once('.').is_some_and(|(own, _)| section(candidate) == Some(own))
    };
    let mut there: Vec<&str> = candidates.iter().filter(inside).map(String::as_str).collect();
    if there.is_empty() {
        there = candidates
            .iter()
            .filter(|candidate| section(candidate).is_none())
            .map(String::as_str)
            .collect();
    }
    if there.is_empty() {
        there = candidates.iter().map(String::as_str).collect();
    }
    format!("expected one of {}", there.join(", "))
}

fn section(key: &str) -> Option<&str> {
    key.split_once('.').map(|(section, _)| section)
}

fn nearest<'a>(key: &str, candidates: &'a [String]) -> Option<&'a str> {
    let word = |text: &'_ str| text.rsplit('.').next().unwrap_or_default().to_owned();
    // A misspelt key is found by its distance, a key of another section by its last word.
    let distance = |candidate: &str| {
        let edits = strsim::damerau_levenshtein(&word(key), &word(candidate));
        match section(key) == section(candidate) {
            true => (edits <= 1 + word(key).len() / 3).then_some(edits),
            false => {
                (section(candidate).is_some() && edits <= word(key).len() / 4).then_some(edits + 1)
            }
        }
    };
    let near = candidates.iter().filter_map(|candidate| Some((distance(candidate)?, candidate)));
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate.as_str())
}
