//! The load of the service, as answers to a router and as records that are pushed to it.
//!
//! A stream of records has no changes of the prefix cache: smg places conversations as well without
//! them (`docs/routers.md` has the figures).

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use jiff::Timestamp;
use paceline_proto::smg::grpc::common;
use paceline_proto::vllm::grpc::engine as vllm;
use paceline_protocols::inference::error::InferenceError;
use paceline_system::clock::unix_ns;
use paceline_vocabulary::Reason;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::facts::signed;
use crate::inference::Inference;
use crate::inference::loads::Loads;

/// Time between two looks at the load. A router counts its own requests at once, so records are for
/// the requests of others.
const INTERVAL: Duration = Duration::from_millis(500);
/// Looks after which a load that has not changed is sent again, 5 s in all: smg asks by itself when
/// no record came for 10 s.
const UNCHANGED: u32 = 10;

/// The answer to a router that asks.
pub(super) fn answer(loads: &Loads) -> vllm::GetLoadsResponse {
    vllm::GetLoadsResponse {
        timestamp: stamp(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dp_rank_count: 1,
        loads: vec![scheduler_load(loads)],
    }
}

/// The time now, as ISO 8601.
fn stamp() -> String {
    Timestamp::from_nanosecond(unix_ns().into()).map(|now| now.to_string()).unwrap_or_default()
}

/// The error for a router that asks while no supervisor answers.
pub(super) fn unknown() -> InferenceError {
    let message = "the supervisor does not answer, so the load is not known; ask again shortly";
    InferenceError::new(Reason::Restarting, message)
}

fn scheduler_load(loads: &Loads) -> vllm::SchedulerLoad {
    let utilization = match loads.most_running {
        0 => 0.0,
        most => f64::from(loads.running) / f64::from(most),
    };
    vllm::SchedulerLoad {
        dp_rank: 0,
        num_running_reqs: signed(loads.running),
        num_waiting_reqs: signed(loads.waiting),
        num_total_reqs: signed(loads.running.saturating_add(loads.waiting)),
        num_used_tokens: positions(loads.used_tokens),
        max_total_num_tokens: positions(loads.most_tokens),
        token_usage: loads.usage,
        gen_throughput: loads.tokens_per_s,
        cache_hit_rate: loads.cached_share,
        utilization,
        max_running_requests: signed(loads.most_running),
        num_waiting_uncached_tokens: positions(loads.waiting_tokens),
    }
}

fn positions(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn record(loads: &Loads, sample: u64) -> common::KvEventBatch {
    let load = common::EngineLoad {
        running_requests: loads.running,
        waiting_requests: loads.waiting,
        waiting_uncached_tokens: Some(u32::try_from(loads.waiting_tokens).unwrap_or(u32::MAX)),
        token_usage: loads.usage,
        active_token_usage: Some(loads.usage),
        gen_throughput: loads.tokens_per_s,
        max_running_requests: loads.most_running,
        sample,
        load_only: true,
        cache_hit_rate: Some(loads.cached_share),
        num_used_tokens: Some(positions(loads.used_tokens)),
        max_total_num_tokens: Some(positions(loads.most_tokens)),
        speculative: loads.speculation.map(|drafts| common::EngineSpeculative {
            accept_length: drafts.accept_length,
            accept_rate: drafts.accept_rate,
        }),
        ..Default::default()
    };
    common::KvEventBatch {
        timestamp: unix_ns() as f64 / 1e9,
        load: Some(load),
        dp_rank: Some(0),
        ..Default::default()
    }
}

/// What a router decides by. Rates change with each look.
fn decides_alike(one: &Loads, other: &Loads) -> bool {
    let of =
        |loads: &Loads| (loads.running, loads.waiting, loads.waiting_tokens, loads.used_tokens);
    of(one) == of(other)
}

/// Streams of loads, as many as there are places for ([`crate::front::connection::places`]).
#[derive(Clone, Debug)]
pub(super) struct LoadStreams {
    closing: CancellationToken,
}

/// The loads that one router is sent, until it leaves or the gateway does.
struct LoadStream {
    inference: Arc<Inference>,
    closing: CancellationToken,
    looks: tokio::time::Interval,
    last: Option<Loads>,
    /// Looks since the last record.
    unchanged: u32,
    sample: u64,
}

impl LoadStreams {
    /// None yet. They end when `closing` is cancelled.
    pub(super) fn new(closing: CancellationToken) -> Self {
        Self { closing }
    }

    /// One more stream. A subscriber that does not read records without changes gets none.
    pub(super) fn open(
        &self,
        inference: Arc<Inference>,
        reads_records: bool,
    ) -> impl Stream<Item = common::KvEventBatch> + Send + 'static {
        let mut looks = tokio::time::interval(INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stream = LoadStream {
            inference,
            closing: self.closing.clone(),
            looks,
            last: None,
            unchanged: 0,
            sample: 0,
        };
        futures::stream::unfold(stream, move |mut stream| async move {
            if !reads_records {
                stream.closing.cancelled().await;
                return None;
            }
            Some((stream.next().await?, stream))
        })
    }
}

impl LoadStream {
    async fn next(&mut self) -> Option<common::KvEventBatch> {
        loop {
            tokio::select! {
                () = self.closing.cancelled() => return None,
                _ = self.looks.tick() => {}
            }
            let Some(loads) = self.inference.loads().await else { continue };
            self.unchanged += 1;
            let is_known = self.last.as_ref().is_some_and(|last| decides_alike(last, &loads));
            if is_known && self.unchanged < UNCHANGED {
                continue;
            }
            (self.last, self.unchanged) = (Some(loads), 0);
            self.sample += 1;
            return Some(record(&loads, self.sample));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::loads::SpeculationLoad;

    fn loads() -> Loads {
        Loads {
            running: 3,
            waiting: 5,
            waiting_tokens: 200,
            used_tokens: 25,
            most_tokens: 1 << 40,
            usage: 0.25,
            tokens_per_s: 40.0,
            cached_share: 0.75,
            most_running: 32,
            speculation: Some(SpeculationLoad { accept_length: 2.5, accept_rate: 0.5 }),
        }
    }

    #[test]
    fn an_answer_and_a_record_have_the_same_figures() {
        let asked = scheduler_load(&loads());
        let pushed = record(&loads(), 7).load.expect("a load");
        assert_eq!(
            (asked.num_running_reqs, asked.num_waiting_reqs, asked.num_total_reqs),
            (3, 5, 8)
        );
        assert_eq!((pushed.running_requests, pushed.waiting_requests), (3, 5));
        assert_eq!((asked.token_usage, pushed.token_usage), (0.25, 0.25));
        assert_eq!(asked.max_total_num_tokens, i32::MAX, "more than the field can hold");
        assert_eq!(asked.num_waiting_uncached_tokens, 200);
        assert_eq!(pushed.waiting_uncached_tokens, Some(200));
        assert_eq!((asked.utilization, asked.max_running_requests), (3.0 / 32.0, 32));
        let drafts = pushed.speculative.expect("drafts");
        assert_eq!((drafts.accept_length, drafts.accept_rate), (2.5, 0.5));
        assert_eq!((pushed.load_only, pushed.sample), (true, 7));
        assert_eq!(scheduler_load(&Loads::default()).utilization, 0.0);
        assert_eq!(record(&Loads::default(), 1).load.expect("a load").speculative, None);
    }

    #[test]
    fn a_rate_alone_is_no_change() {
        assert!(decides_alike(&loads(), &Loads { tokens_per_s: 41.0, ..loads() }));
        assert!(!decides_alike(&loads(), &Loads { waiting: 6, ..loads() }));
        assert!(!decides_alike(&loads(), &Loads { used_tokens: 26, ..loads() }));
    }
}
