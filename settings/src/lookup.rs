//! Declarations by key.

use crate::applies::Applies;
use crate::table::DECLARED;

impl Applies {
    /// What is needed for a change of `key` to be in force.
    pub fn of(key: &str) -> Self {
        if key.starts_with("classes.") {
            return Self::Gateway;
        }
        let declared = DECLARED.iter().find(|declared| declared.key == key);
        declared.map_or(Self::Service, |declared| declared.applies)
    }
}

/// Whether `key` is in this section and the running service uses a change at once.
pub fn changes_at_once(section: &str, key: &str) -> bool {
    let own = key.split_once('.').is_some_and(|(own, _)| own == section);
    own && Applies::of(key) == Applies::AtOnce
}

/// The keys of the routing policy.
pub fn policy_keys() -> impl Iterator<Item = &'static str> {
    DECLARED.iter().map(|declared| declared.key).filter(|key| changes_at_once("routing", key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_the_reader_that_its_line_names() {
        for (key, expected) in [
            ("limits.queue", Applies::AtOnce),
            ("drafter.idle_stop_s", Applies::AtOnce),
            ("target.threads", Applies::Supervisor),
            ("target.products", Applies::OtherTarget),
            ("routing.route_log", Applies::Supervisor),
            ("gateway.http", Applies::Service),
            ("log.prompts", Applies::Gateway),
            ("classes.alice", Applies::Gateway),
            ("log.level", Applies::Service),
            ("no.such", Applies::Service),
        ] {
            assert_eq!(Applies::of(key), expected, "{key}");
        }
    }

    #[test]
    fn the_policy_is_what_changes_at_once_in_its_section() {
        let keys: Vec<_> = policy_keys().collect();
        let expected = ["max_concurrent", "max_context", "kv_pressure", "force"];
        assert_eq!(keys, expected.map(|word| format!("routing.{word}")));
        assert!(changes_at_once("limits", "limits.queue"));
        assert!(!changes_at_once("limits", "limits.deadline_s"));
        assert!(!changes_at_once("limit", "limits.queue"));
    }
}
