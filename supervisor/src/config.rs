//! The core's settings, from the configuration and from what the system needs.

use paceline_process::Config;
use paceline_process::config::{ConfigError, DrafterChoice};
use paceline_supervisor_core::Settings;
use paceline_supervisor_core::admission::AdmissionBounds;
use paceline_supervisor_core::drafter::DrafterPlan;
use paceline_supervisor_core::routing::{Policy, PolicyChange};
use paceline_supervisor_core::worker::WorkerSettings;
use paceline_system::platform;

/// The core's settings.
pub fn settings(config: &Config) -> Settings {
    settings_where(platform::KILL_STRANDS_MEMORY, config)
}

/// The settings for a system where a kill strands memory, or for another. Where it does, a teardown
/// gets all the time that it uses.
pub(crate) fn settings_where(kill_strands_memory: bool, config: &Config) -> Settings {
    let teardown_ms = platform::teardown(kill_strands_memory).as_millis() as u64;
    let worker = WorkerSettings::of(&config.supervisor, kill_strands_memory, teardown_ms);
    Settings {
        admission: AdmissionBounds::of(&config.limits),
        worker,
        notice_ms: config.drain.notice_s.saturating_mul(1_000),
        policy: Policy::of(&config.routing),
        log_routes: !config.routing.route_log.is_empty(),
        ..Settings::default()
    }
}

/// The configured drafters. A directory that is not there does not keep the service from starting:
/// the drafter's state reports it (I3).
pub fn plan(config: &Config) -> DrafterPlan {
    let models = config.drafter_choices().iter().map(DrafterChoice::name).collect();
    let idle_stop_ms = config.drafter.idle_stop_s.saturating_mul(1_000);
    DrafterPlan { models, start: config.drafter.start, idle_stop_ms }
}

/// A key of the policy and its value, both in the configuration's form.
///
/// # Errors
/// The configuration would refuse them.
pub fn policy_change(key: &str, value: &str) -> Result<PolicyChange, ConfigError> {
    let config = Config::default().with_policy(key, value)?;
    let changes = Policy::of(&config.routing).settings();
    let change = changes.into_iter().find(|change| change.key() == key);
    Ok(change.expect("`with_policy` refuses every key that is not one of the policy's"))
}

#[cfg(test)]
mod tests {
    use paceline_process::config::{Auto, RoutingConfig, policy_keys};
    use paceline_process::lifecycle::supervisor_stop;
    use paceline_supervisor_core::worker::WorkerTimeouts;
    use paceline_vocabulary::Force;

    use super::*;

    #[test]
    fn a_stop_takes_no_longer_than_its_caller_waits() {
        for kill_strands_memory in [false, true] {
            let Settings { worker, drain_ms, cancel_ms, .. } =
                settings_where(kill_strands_memory, &Config::default());
            let WorkerTimeouts { ask_ms, term_ms, quiet_ms, teardown_ms, kill_ms, .. } =
                worker.timeouts;
            let stages =
                [ask_ms, term_ms, kill_ms].map(|stage_ms| stage_ms.max(quiet_ms).max(teardown_ms));
            // The last SIGKILL may come up to one pause between two kills late.
            let workers_ms = stages.iter().sum::<u64>() + kill_ms;
            let longest_ms =
                drain_ms + cancel_ms + workers_ms + crate::CLOSE_TIMEOUT.as_millis() as u64;
            assert!(
                u128::from(longest_ms) <= supervisor_stop(kill_strands_memory).as_millis(),
                "{longest_ms}"
            );
        }
    }

    #[test]
    fn the_defaults_of_core_and_configuration_are_the_same() {
        assert_eq!(settings_where(false, &Config::default()), Settings::default());
    }

    #[test]
    fn each_key_that_the_table_lets_change_is_one_of_the_core_in_the_same_form() {
        let routing = RoutingConfig {
            max_concurrent: Auto::Is(3),
            force: Force::Plain,
            kv_pressure: 1.0,
            ..RoutingConfig::default()
        };
        let changes = Policy::of(&routing).settings();
        for change in changes {
            assert_eq!(policy_change(change.key(), &change.value()).ok(), Some(change));
        }
        let mut keys = changes.map(PolicyChange::key);
        keys.sort_unstable();
        let mut declared: Vec<_> = policy_keys().collect();
        declared.sort_unstable();
        assert_eq!(declared, keys);
    }

    #[test]
    fn a_change_takes_what_the_configuration_takes() {
        let change = |key, value| policy_change(key, value);
        let limit = PolicyChange::MaxConcurrent(Auto::Is(2));
        assert_eq!(change("routing.max_concurrent", "2").ok(), Some(limit));
        assert!(change("routing.force", "maybe").is_err());
        assert!(change("routing.max_concurrent", "many").is_err());
        assert!(change("routing.max_concurent", "2").is_err());
    }
}
