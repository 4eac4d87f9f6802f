//! Keys that an operator may change while the service runs, by the rules of the configuration.

use paceline_settings::{changes_at_once, policy_keys};

use super::known_keys::{all_keys, hint};
use super::layers::typed;
use super::{Config, ConfigError};

impl Config {
    /// These settings with `key` at the value written as `text`, in the configuration's form.
    ///
    /// # Errors
    /// A key that is not one of the routing policy, or a value the configuration would refuse.
    pub fn with_policy(&self, key: &str, text: &str) -> Result<Self, ConfigError> {
        let known = toml::Table::try_from(Config::default()).expect("the defaults are plain TOML");
        if !changes_at_once("routing", key) {
            let candidates: Vec<String> = policy_keys().map(str::to_owned).collect();
            return Err(match all_keys(&known).iter().any(|other| other == key) {
                true => ConfigError::value(
                    key,
                    format!("cannot be changed at run time; {} can", candidates.join(", ")),
                ),
                false => ConfigError::UnknownKey {
                    hint: hint(key, &candidates),
                    key: key.to_owned(),
                    place: "the policy".to_owned(),
                },
            });
        }
        let (section, word) = key.split_once('.').expect("all keys of the policy are in a section");
        let like = &known[section][word];
        let new = typed(text, like).ok_or_else(|| {
            ConfigError::value(key, format!("expected {}, found {text:?}", like.type_str()))
        })?;
        let mut table = toml::Table::try_from(self).expect("a configuration is plain TOML");
        table[section][word] = new;
        let config: Self = serde_path_to_error::deserialize(toml::Value::Table(table))
            .map_err(|error| ConfigError::value(key, error.inner().message().to_owned()))?;
        config.validate()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::Force;

    use super::*;
    use crate::config::Auto;

    #[test]
    fn a_policy_key_accepts_the_values_of_the_configuration() {
        let config = Config::default();
        let set = |key: &str, text: &str| config.with_policy(key, text).expect("accepted");
        assert_eq!(set("routing.force", "plain").routing.force, Force::Plain);
        let two = set("routing.max_concurrent", "2");
        assert_eq!(two.routing.max_concurrent, Auto::Is(2));
        let auto = two.with_policy("routing.max_concurrent", "auto").expect("accepted");
        assert_eq!(auto, config);
        assert_eq!(set("routing.max_context", "100").routing.max_context, Auto::Is(100));
        assert_eq!(set("routing.kv_pressure", "0.5").routing.kv_pressure, 0.5);
        assert_eq!(set("routing.kv_pressure", "1").routing.kv_pressure, 1.0);
    }

    #[test]
    fn other_keys_and_values_are_refused_by_name() {
        for (key, text, expected) in [
            ("routing.max_concurent", "2", "did you mean routing.max_concurrent?"),
            ("force", "plain", "did you mean routing.force?"),
            ("limits.queue", "2", "cannot be changed at run time"),
            ("routing.route_log", "x", "cannot be changed at run time"),
            ("routing.force", "sometimes", "routing.force: unknown variant"),
            ("routing.max_context", "-1", "routing.max_context: expected \"auto\" or a number"),
            ("routing.kv_pressure", "much", "routing.kv_pressure: expected float"),
            ("routing.kv_pressure", "NaN", "routing.kv_pressure: expected above 0"),
            ("routing.kv_pressure", "1.5", "routing.kv_pressure: expected above 0, at most 1"),
        ] {
            let error = Config::default().with_policy(key, text).expect_err("refused").to_string();
            assert!(error.contains(expected), "{key} = {text}: {error}");
        }
    }
}
