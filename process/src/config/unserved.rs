//! Settings whose feature does not exist yet. Another value than the default is refused, or causes
//! a warning that names the key.

use super::{Config, ConfigError};

/// Returns warnings about settings without effect.
///
/// # Errors
/// The first key that is set and not served.
pub(super) fn check(config: &Config) -> Result<Vec<String>, ConfigError> {
    if config.log.prompts {
        let what = "this version does not serve it yet; leave it at its default".to_owned();
        return Err(ConfigError::Value { key: "log.prompts".to_owned(), what });
    }
    let no_keys = config.gateway.api_keys_file.is_empty();
    let warned = [(
        "classes",
        no_keys && !config.classes.is_empty(),
        "its names are those of API keys, and gateway.api_keys_file is not set",
    )];
    Ok(warned
        .iter()
        .filter(|(_, set, _)| *set)
        .map(|(key, _, what)| format!("{key} has no effect: {what}"))
        .collect())
}
