//! The core's bounds, from the configuration and from what the system we run on needs.

use paceline_process::{Config, platform};

use crate::core::Settings;
use crate::core::drafter::Plan;
use crate::core::route::Policy;
use crate::core::worker::Patience;

/// The core's settings.
pub fn settings(config: &Config) -> Settings {
    settings_where(platform::KILL_STRANDS_MEMORY, config)
}

/// Those of a system where a kill strands memory, so that a teardown gets all the time it uses, or
/// of another.
pub(crate) fn settings_where(kill_strands_memory: bool, config: &Config) -> Settings {
    let hang_ms = config.supervisor.hang_s.saturating_mul(1_000);
    let patience = Patience {
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
    Settings {
        places: config.limits.queue as usize,
        queue_wait_ms: config.limits.queue_wait_s.saturating_mul(1_000),
        streams_per_key: config.limits.streams_per_key as usize,
        restarts: config.supervisor.restarts,
        restart_period_ms: config.supervisor.restart_period_s.saturating_mul(1_000),
        patience,
        drain_ms: 30_000,
        orphan_drain_ms: 5_000,
        cancel_ms: 5_000,
        late_ms: 1_000,
        policy: Policy::of(&config.routing),
        log_routes: !config.routing.route_log.is_empty(),
    }
}

/// The configured drafter. A directory that is not there is the drafter's own trouble, told by its
/// state: it must not keep the service from starting (I3).
pub fn plan(config: &Config) -> Plan {
    let model = config.drafter_dir().map(|dir| dir.display().to_string()).unwrap_or_default();
    Plan {
        model,
        start: config.drafter.start,
        idle_stop_ms: config.drafter.idle_stop_s.saturating_mul(1_000),
    }
}

#[cfg(test)]
mod tests {
    use paceline_process::lifecycle::supervisor_stop;

    use super::*;

    #[test]
    fn a_stop_takes_no_longer_than_whoever_orders_it_waits() {
        for kill_strands_memory in [false, true] {
            let Settings { patience, drain_ms, cancel_ms, .. } =
                settings_where(kill_strands_memory, &Config::default());
            let Patience { ask_ms, term_ms, quiet_ms, teardown_ms, kill_ms, .. } = patience;
            let rungs =
                [ask_ms, term_ms, kill_ms].map(|rung_ms| rung_ms.max(quiet_ms).max(teardown_ms));
            // The last look comes up to a pause between two kills late.
            let workers_ms = rungs.iter().sum::<u64>() + kill_ms;
            let longest_ms = drain_ms + cancel_ms + workers_ms + crate::FAREWELL.as_millis() as u64;
            assert!(
                u128::from(longest_ms) <= supervisor_stop(kill_strands_memory).as_millis(),
                "{longest_ms}"
            );
        }
    }
}
