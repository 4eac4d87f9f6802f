//! What has to be done for a changed setting to be in force.

/// What reads a changed setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// The running service uses it at once.
    AtOnce,
    /// The next gateway reads it.
    Gateway,
    /// The next supervisor reads it.
    Supervisor,
    /// The next target reads it.
    Target,
    /// The next target reads it, and running requests do not go on there.
    OtherTarget,
    /// The next drafter reads it.
    Drafter,
    /// It is read when the service starts.
    Service,
}

impl Applies {
    /// What is needed for a change of `key` to be in force.
    pub fn of(key: &str) -> Self {
        match key {
            "routing.force"
            | "routing.max_concurrent"
            | "routing.max_context"
            | "routing.kv_pressure"
            | "limits.queue"
            | "limits.queue_wait_s"
            | "limits.streams_per_key"
            | "drafter.model"
            | "drafter.start"
            | "drafter.idle_stop_s" => Self::AtOnce,
            // The listeners and the model are the service's.
            "gateway.grpc" | "gateway.http" | "target.model" => Self::Service,
            // A stream depends on it (I1).
            "target.products" => Self::OtherTarget,
            "log.prompts" => Self::Gateway,
            // The supervisor sets the threads of the processes that it starts.
            "target.threads" | "drafter.threads" | "routing.route_log" => Self::Supervisor,
            key => match key.split_once('.').map_or(key, |(section, _)| section) {
                "gateway" | "limits" | "classes" => Self::Gateway,
                "target" | "kv" => Self::Target,
                "drafter" => Self::Drafter,
                "drain" => Self::Supervisor,
                // `supervisor` and `log` are read by several processes.
                _ => Self::Service,
            },
        }
    }

    /// What an operator does, for a sentence that begins with the setting.
    pub fn what_to_do(self) -> &'static str {
        match self {
            Applies::AtOnce => "in force",
            Applies::Gateway => "in force after `paceline restart gateway`, which loses no request",
            Applies::Supervisor => {
                "in force after `paceline restart supervisor`; running requests pause and go on"
            }
            Applies::Target => {
                "in force after `paceline restart target`; running requests pause and go on"
            }
            Applies::OtherTarget => {
                "in force after `paceline restart target --drain`, which lets running requests end"
            }
            Applies::Drafter => "in force after `paceline restart drafter`",
            Applies::Service => "in force when the service is started again",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Loaded, POLICY_KEYS};

    #[test]
    fn each_setting_has_what_it_needs() {
        let loaded = Loaded::from_text("", &[]).expect("the defaults");
        let settings = loaded.settings();
        let of = |applies: Applies| {
            settings.iter().filter(|setting| Applies::of(&setting.key) == applies).count()
        };
        assert_eq!(of(Applies::AtOnce), 10);
        assert!(of(Applies::Gateway) > 10 && of(Applies::Target) > 5 && of(Applies::Drafter) > 3);
        for key in POLICY_KEYS {
            assert_eq!(Applies::of(key), Applies::AtOnce, "{key}");
        }
        // Each key that is named above exists.
        let known = toml::Table::try_from(Config::default()).expect("plain");
        for key in ["limits.queue", "drafter.idle_stop_s", "target.threads", "routing.route_log"] {
            let (section, word) = key.split_once('.').expect("a section");
            assert!(known[section].get(word).is_some(), "{key}");
        }
        assert_eq!(Applies::of("classes.alice"), Applies::Gateway);
        assert_eq!(Applies::of("log.level"), Applies::Service);
    }
}
