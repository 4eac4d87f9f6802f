//! Settings of the environment: `PACELINE_SECTION__KEY=value`.

use std::ffi::OsString;

use super::assignment::{Assignment, FLAGS_VAR};
use super::kept::SETTINGS_VAR;
use super::{CONFIG_VAR, ConfigError};

/// A setting, and the variable that sets it.
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) assignment: Assignment,
}

/// The settings among these variables.
pub(super) fn settings(environment: &[(String, String)]) -> impl Iterator<Item = Variable<'_>> {
    environment.iter().filter_map(|(name, value)| {
        let (section, word) = name.strip_prefix("PACELINE_")?.split_once("__")?;
        let section = section.to_lowercase();
        // Names of API keys are what they are.
        let word = if section == "classes" { word.to_owned() } else { word.to_lowercase() };
        let assignment = Assignment::new(&format!("{section}.{word}"), value.clone());
        Some(Variable { name, assignment })
    })
}

/// The value of a variable.
pub(super) fn value<'a>(environment: &'a [(String, String)], name: &str) -> Option<&'a str> {
    environment.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

/// The variables that are text. A variable of ours that is not UTF-8 is refused; foreign variables
/// may hold any bytes and are left out.
pub(super) fn text_variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut variables = Vec::new();
    for (name, value) in all {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => variables.push((name, value)),
            _ if [CONFIG_VAR, SETTINGS_VAR, FLAGS_VAR].contains(&shown.as_str())
                || (shown.starts_with("PACELINE_") && shown.contains("__")) =>
            {
                let what = "expected UTF-8 text, found other bytes in this environment variable; set it anew, or unset it";
                return Err(ConfigError::Value { key: shown, what: what.to_owned() });
            }
            _ => {}
        }
    }
    Ok(variables)
}
