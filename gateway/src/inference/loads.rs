//! The load of the service, by which a router in front of several services chooses one.
//!
//! The supervisor is asked at most once in 250 ms, however many routers ask. Rates and shares are
//! the gateway's own: of the last seconds and minutes.

use std::time::Duration;

use paceline_proto::convert::service::ServiceStatus;

use crate::metrics::history::RecentFigures;
pub use crate::metrics::history::SpeculationLoad;
use crate::shared_answer::SharedAnswer;

use super::Inference;

/// Age up to which the supervisor's figures are given again: the target reports to the supervisor
/// every 250 ms, so a younger answer would have little that is new.
const MAX_AGE: Duration = Duration::from_millis(250);

/// The load of the service at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loads {
    /// Requests of which the target has computed at least one row.
    pub running: u32,
    /// Requests that wait: in the supervisor's queue, or in the target for memory or for the
    /// prompts of others.
    pub waiting: u32,
    /// Tokens of `waiting` that the prefix cache is not expected to have. An estimate: all their
    /// tokens, less `cached_share`.
    pub waiting_tokens: u64,
    /// Positions of KV that running sequences hold, by the bytes of a position of a long sequence.
    pub used_tokens: u64,
    /// Positions of KV that all sequences together may hold, counted in the same way.
    pub most_tokens: u64,
    /// Share of the KV budget that running sequences hold, hidden states for a drafter included,
    /// evictable pages of the prefix cache excluded; 0 to 1. `routing.kv_pressure` bounds the same
    /// figure.
    pub usage: f64,
    /// Generated tokens per second of all requests, over four seconds that ended at most two
    /// seconds ago.
    pub tokens_per_s: f64,
    /// Share of prompt tokens that the prefix cache had, of the requests that ended in the last
    /// five minutes. If none ended: of all since the gateway's start, and 0 without one.
    pub cached_share: f64,
    /// Most requests that run at once; 0 until the target has loaded.
    pub most_running: u32,
    /// What came of drafts, of the samples that ended in the last five minutes; `None` if none of
    /// them had a draft.
    pub speculation: Option<SpeculationLoad>,
}

/// The question for the supervisor's figures, shared by all who ask for the load.
#[derive(Debug)]
pub struct LoadQuestion(SharedAnswer<Option<ServiceStatus>>);

impl Default for LoadQuestion {
    fn default() -> Self {
        Self(SharedAnswer::new(MAX_AGE))
    }
}

impl Inference {
    /// The load of the service now; `None` if no supervisor answers in time.
    pub async fn loads(&self) -> Option<Loads> {
        let service = self.load_question.0.get(self.upstream.service()).await?;
        Some(Loads::new(&service, self.metrics.recent()))
    }
}

impl Loads {
    fn new(service: &ServiceStatus, recent: RecentFigures) -> Self {
        let RecentFigures { tokens_per_s, cached_share, speculation } = recent;
        let ServiceStatus { requests, kv, model, .. } = service;
        let cached_share = cached_share.clamp(0.0, 1.0);
        let tokens = requests.queued_tokens.saturating_add(requests.unstarted_tokens);
        // A request that the target has begun since its last heartbeat may be counted as unstarted.
        let unstarted = requests.unstarted.min(requests.active);
        let position_bytes = model.as_ref().map_or(0, |model| model.position_bytes);
        let positions = |bytes: u64| bytes.checked_div(position_bytes).unwrap_or(0);
        Self {
            running: requests.active - unstarted,
            waiting: requests.queued.saturating_add(unstarted),
            waiting_tokens: (tokens as f64 * (1.0 - cached_share)).round() as u64,
            used_tokens: positions(kv.held_bytes),
            most_tokens: positions(kv.budget_bytes),
            usage: kv.pressure.clamp(0.0, 1.0),
            tokens_per_s,
            cached_share,
            most_running: requests.most_active,
            speculation,
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_proto::convert::service::{KvReport, RequestsStatus, ServedModel};

    use super::*;

    fn figures() -> ServiceStatus {
        ServiceStatus {
            kv: KvReport {
                budget_bytes: 1_000,
                held_bytes: 250,
                pressure: 0.25,
                ..Default::default()
            },
            model: Some(ServedModel { position_bytes: 10, ..Default::default() }),
            requests: RequestsStatus {
                active: 5,
                queued: 3,
                unstarted: 2,
                most_active: 32,
                queued_tokens: 600,
                unstarted_tokens: 200,
                ..Default::default()
            },
            ..Default::default()
        }
    }

    #[test]
    fn a_request_without_a_row_waits_and_memory_is_counted_in_positions() {
        let speculation = Some(SpeculationLoad { accept_length: 2.5, accept_rate: 0.5 });
        let recent = RecentFigures { tokens_per_s: 40.0, cached_share: 0.75, speculation };
        let expected = Loads {
            running: 3,
            waiting: 5,
            waiting_tokens: 200,
            used_tokens: 25,
            most_tokens: 100,
            usage: 0.25,
            tokens_per_s: 40.0,
            cached_share: 0.75,
            most_running: 32,
            speculation,
        };
        assert_eq!(Loads::new(&figures(), recent), expected);
    }

    #[test]
    fn a_service_that_has_not_loaded_has_no_load() {
        let loads = Loads::new(&ServiceStatus::default(), RecentFigures::default());
        assert_eq!(loads, Loads::default());
    }

    #[test]
    fn figures_that_contradict_each_other_stay_within_their_bounds() {
        let mut wrong = figures();
        (wrong.requests.unstarted, wrong.requests.queued) = (9, u32::MAX);
        (wrong.requests.queued_tokens, wrong.kv.pressure) = (u64::MAX, 1.5);
        let recent = RecentFigures { cached_share: 1.5, ..Default::default() };
        let loads = Loads::new(&wrong, recent);
        assert_eq!((loads.running, loads.waiting), (0, u32::MAX));
        assert_eq!((loads.usage, loads.cached_share), (1.0, 1.0));
        assert_eq!(loads.waiting_tokens, 0);
    }
}
