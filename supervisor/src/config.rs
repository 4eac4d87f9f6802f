//! The core's settings, from the configuration and from what the system needs.

use paceline_process::Config;
use paceline_process::config::{
    Auto, ConfigError, DrafterChoice, DrafterStart, Force, RoutingConfig,
};
use paceline_supervisor_core::Settings;
use paceline_supervisor_core::drafter::{self, DrafterPlan};
use paceline_supervisor_core::routing::{Policy, PolicyChange};
use paceline_supervisor_core::worker::{WorkerSettings, WorkerTimeouts};
use paceline_system::platform;
use paceline_vocabulary::{self as vocabulary, Limit};

/// The core's settings.
pub fn settings(config: &Config) -> Settings {
    settings_where(platform::KILL_STRANDS_MEMORY, config)
}

/// The settings for a system where a kill strands memory, or for another. Where it does, a teardown
/// gets all the time that it uses.
pub(crate) fn settings_where(kill_strands_memory: bool, config: &Config) -> Settings {
    let hang_ms = config.supervisor.hang_s.saturating_mul(1_000);
    let timeouts = WorkerTimeouts {
        start_ms: hang_ms.max(30_000),
        // A file system may pause longer than an engine: a false kill here costs a whole load.
        load_ms: hang_ms.max(30_000),
        silent_ms: 2_000,
        hang_ms,
        ask_ms: 5_000,
        term_ms: 10_000,
        quiet_ms: if kill_strands_memory { 10_000 } else { 2_000 },
        teardown_ms: platform::teardown(kill_strands_memory).as_millis() as u64,
        kill_ms: 5_000,
    };
    let worker = WorkerSettings {
        timeouts,
        restarts: config.supervisor.restarts,
        restart_period_ms: config.supervisor.restart_period_s.saturating_mul(1_000),
        kill_strands_memory,
    };
    Settings {
        queue_places: config.limits.queue as usize,
        queue_wait_ms: config.limits.queue_wait_s.saturating_mul(1_000),
        streams_per_key: config.limits.streams_per_key as usize,
        worker,
        notice_ms: config.drain.notice_s.saturating_mul(1_000),
        drain_ms: 30_000,
        orphan_drain_ms: 5_000,
        cancel_ms: 5_000,
        late_ms: 1_000,
        policy: policy(&config.routing),
        log_routes: !config.routing.route_log.is_empty(),
    }
}

/// The configured drafters. A directory that is not there does not keep the service from starting:
/// the drafter's state reports it (I3).
pub fn plan(config: &Config) -> DrafterPlan {
    let models = config.drafter_choices().iter().map(DrafterChoice::name).collect();
    let start = match config.drafter.start {
        DrafterStart::Eager => drafter::DrafterStart::Eager,
        DrafterStart::Lazy => drafter::DrafterStart::Lazy,
        DrafterStart::Manual => drafter::DrafterStart::Manual,
    };
    let idle_stop_ms = config.drafter.idle_stop_s.saturating_mul(1_000);
    DrafterPlan { models, start, idle_stop_ms }
}

/// The configuration's policy.
pub fn policy(routing: &RoutingConfig) -> Policy {
    Policy {
        epoch: 0,
        force: force(routing.force),
        max_concurrent: limit(routing.max_concurrent),
        max_context: limit(routing.max_context),
        kv_pressure: routing.kv_pressure,
    }
}

/// A key of the policy and its value, both in the configuration's form.
///
/// # Errors
/// The configuration would refuse them.
pub fn policy_change(key: &str, value: &str) -> Result<PolicyChange, ConfigError> {
    let routing = RoutingConfig::default().with(key, value)?;
    let changes = policy(&routing).settings();
    let change = changes.into_iter().find(|change| change.key() == key);
    Ok(change.expect("`with` refuses every key that is not one of the policy's"))
}

fn force(force: Force) -> vocabulary::Force {
    match force {
        Force::Auto => vocabulary::Force::Auto,
        Force::Plain => vocabulary::Force::Plain,
        Force::Speculative => vocabulary::Force::Speculative,
    }
}

fn limit<T>(limit: Auto<T>) -> Limit<T> {
    match limit {
        Auto::Auto => Limit::Auto,
        Auto::Is(cap) => Limit::Is(cap),
    }
}

#[cfg(test)]
mod tests {
    use paceline_process::lifecycle::supervisor_stop;

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
    fn the_exit_codes_of_core_and_processes_are_the_same() {
        use paceline_supervisor_core::worker::exit_code;
        use paceline_system::Exit;
        assert_eq!(exit_code::BAD_CONFIGURATION, Exit::Config as i32);
        assert_eq!(exit_code::MODEL_REFUSED, Exit::ModelRefused as i32);
        assert_eq!(exit_code::UNAVAILABLE, Exit::Unavailable as i32);
        assert_eq!(exit_code::INTERNAL_ERROR, Exit::Bug as i32);
        assert_eq!(exit_code::MEMORY_STRANDED, Exit::MemoryStranded as i32);
    }

    #[test]
    fn the_core_shows_a_policy_in_the_configurations_form() {
        let routing = RoutingConfig {
            max_concurrent: Auto::Is(3),
            force: Force::Plain,
            kv_pressure: 1.0,
            ..RoutingConfig::default()
        };
        let settings = policy(&routing).settings();
        assert_eq!(settings.map(|change| (change.key(), change.value())), routing.policy());
    }

    #[test]
    fn a_change_takes_what_the_configuration_takes() {
        let change = |key, value| policy_change(key, value);
        let limit = PolicyChange::MaxConcurrent(Limit::Is(2));
        assert_eq!(change("routing.max_concurrent", "2").ok(), Some(limit));
        assert!(change("routing.force", "maybe").is_err());
        assert!(change("routing.max_concurrent", "many").is_err());
        assert!(change("routing.max_concurent", "2").is_err());
    }
}
