//! Keys that an operator may change while the service runs, by the rules of the configuration.

use super::known_keys::{all_keys, hint};
use super::layers::typed;
use super::source::text as text_of;
use super::{Config, ConfigError, RoutingConfig};

/// The keys of the routing policy.
pub const POLICY_KEYS: [&str; 4] =
    ["routing.force", "routing.max_concurrent", "routing.max_context", "routing.kv_pressure"];

impl RoutingConfig {
    /// These settings with `key` at the value written as `text`, in the configuration's form.
    ///
    /// # Errors
    /// A key that is none of [`POLICY_KEYS`], or a value the configuration would refuse.
    pub fn with(&self, key: &str, text: &str) -> Result<Self, ConfigError> {
        let known = toml::Table::try_from(Config::default()).expect("the defaults are plain TOML");
        if !POLICY_KEYS.contains(&key) {
            let candidates = POLICY_KEYS.map(str::to_owned).to_vec();
            return Err(match all_keys(&known).iter().any(|other| other == key) {
                true => ConfigError::value(
                    key,
                    format!("cannot be changed at run time; {} can", POLICY_KEYS.join(", ")),
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
        let config = Config { routing: self.clone(), ..Config::default() };
        let mut table = toml::Table::try_from(config).expect("a configuration is plain TOML");
        table[section][word] = new;
        let config: Config = serde_path_to_error::deserialize(toml::Value::Table(table))
            .map_err(|error| ConfigError::value(key, error.inner().message().to_owned()))?;
        config.validate()?;
        Ok(config.routing)
    }

    /// The policy's keys and their values, in the configuration's form.
    pub fn policy(&self) -> [(&'static str, String); 4] {
        let config = Config { routing: self.clone(), ..Config::default() };
        let table = toml::Table::try_from(config).expect("a configuration is plain TOML");
        POLICY_KEYS.map(|key| {
            let (section, word) =
                key.split_once('.').expect("all keys of the policy are in a section");
            (key, text_of(&table[section][word]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Auto, Force};

    #[test]
    fn a_policy_key_accepts_the_values_of_the_configuration() {
        let routing = RoutingConfig::default();
        let set = |key: &str, text: &str| routing.with(key, text).expect("accepted");
        assert_eq!(set("routing.force", "plain").force, Force::Plain);
        assert_eq!(set("routing.max_concurrent", "2").max_concurrent, Auto::Is(2));
        assert_eq!(
            set("routing.max_concurrent", "2")
                .with("routing.max_concurrent", "auto")
                .expect("accepted"),
            routing
        );
        assert_eq!(set("routing.max_context", "100").max_context, Auto::Is(100));
        assert_eq!(set("routing.kv_pressure", "0.5").kv_pressure, 0.5);
        assert_eq!(set("routing.kv_pressure", "1").kv_pressure, 1.0);
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
            let error = RoutingConfig::default().with(key, text).expect_err("refused").to_string();
            assert!(error.contains(expected), "{key} = {text}: {error}");
        }
    }

    #[test]
    fn values_are_shown_as_they_are_written() {
        let routing = RoutingConfig { max_context: Auto::Is(9), ..RoutingConfig::default() };
        let shown = routing.policy().map(|(key, text)| format!("{key}={text}")).join(" ");
        assert_eq!(
            shown,
            "routing.force=auto routing.max_concurrent=auto routing.max_context=9 routing.kv_pressure=0.85"
        );
        for (key, text) in routing.policy() {
            assert_eq!(routing.with(key, &text).expect("its own form"), routing);
        }
    }
}
