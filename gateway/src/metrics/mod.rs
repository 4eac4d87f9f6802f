//! Figures for Prometheus: those of requests, recorded where they arise, and those of the service
//! behind the gateway ([`service`]), asked for at each scrape. docs/monitoring.md lists them all.
//! Samples of some of them are kept for ten minutes ([`history`]).
//!
//! Every label has a fixed set of values: no name of a client, key or model is one.

pub mod history;
pub mod service;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use paceline_proto::convert::service::ServiceStatus;
use paceline_vocabulary::generation::Speculation;
use paceline_vocabulary::{Millis, Reason, Route};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::Mutex;

use history::{History, RecentFigures, Throughput, Totals};
use service::ServiceMetrics;

use crate::lock::lock;

/// The media type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Labels and their values.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The label's value where there is none.
const NONE: &str = "none";

/// All figures of a gateway.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels<3>, Counter>,
    first_token: Histogram,
    gap: Histogram,
    queue: Histogram,
    request: Histogram,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    prefix_hits: Counter,
    completion_tokens: Counter,
    /// Tokens that came, those of running requests included.
    generated: AtomicU64,
    /// Cycles of drafting and verifying, of samples that ended.
    cycles: AtomicU64,
    drafted: Counter,
    resumed: Counter,
    accepted: Counter,
    open_requests: Gauge,
    can_serve: Gauge,
    body_bytes: Family<Labels<1>, Gauge>,
    bodies_waiting: Gauge,
    service: ServiceMetrics,
    /// Held from the first figure that a scrape sets to the last one it writes.
    scrape: Mutex<()>,
    history: std::sync::Mutex<History>,
}

/// The budget of bodies and whole answers at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteFigures {
    /// `limits.body_bytes`.
    pub limit: u64,
    /// Bytes of bodies.
    pub bodies: u64,
    /// Bytes of whole answers.
    pub answers: u64,
    /// Bodies that wait.
    pub waiting: usize,
}

/// Figures of a gateway at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayFigures {
    /// Requests inside the gateway.
    pub requests: usize,
    /// Whether a request would be served.
    pub can_serve: bool,
    /// Bytes of bodies and whole answers.
    pub bytes: ByteFigures,
}

/// A request that is over.
#[derive(Clone, Copy, Debug)]
pub struct EndedRequest {
    /// How it ended.
    pub outcome: Result<(), Reason>,
    /// The route of the sample that ended last.
    pub route: Option<Route>,
    /// From its arrival to its end.
    pub seconds: f64,
    /// Tokens of its prompt, if it had a first token; else 0.
    pub prompt_tokens: u64,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of all its samples.
    pub completion_tokens: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("paceline");
        let metrics = Self {
            requests: Family::default(),
            // 5 ms to 82 s.
            first_token: Histogram::new(exponential_buckets(0.005, 2.0, 15)),
            // 1 ms to 8 s.
            gap: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            // 1 ms to 16 s; requests wait 10 s by default.
            queue: Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            // 50 ms to 820 s; requests have 600 s by default.
            request: Histogram::new(exponential_buckets(0.05, 2.0, 15)),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            prefix_hits: Counter::default(),
            completion_tokens: Counter::default(),
            generated: AtomicU64::new(0),
            cycles: AtomicU64::new(0),
            drafted: Counter::default(),
            resumed: Counter::default(),
            accepted: Counter::default(),
            open_requests: Gauge::default(),
            can_serve: Gauge::default(),
            body_bytes: Family::default(),
            bodies_waiting: Gauge::default(),
            service: ServiceMetrics::register(&mut registry),
            scrape: Mutex::default(),
            history: std::sync::Mutex::default(),
            registry: Registry::default(),
        };
        metrics.register(&mut registry);
        Self { registry, ..metrics }
    }
}

impl Metrics {
    fn register(&self, to: &mut Registry) {
        to.register("requests", "Requests that ended", self.requests.clone());
        let mut seconds = |name: &str, help: &str, histogram: &Histogram| {
            to.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        seconds("time_to_first_token", "From arrival to the first token", &self.first_token);
        seconds("token_gap", "Between two deliveries of tokens of one sample", &self.gap);
        seconds("queue", "Waiting in the queue", &self.queue);
        seconds("request", "From arrival to end", &self.request);
        let mut counter = |name: &str, help: &str, counter: &Counter| {
            to.register(name, help, counter.clone());
        };
        counter("prompt_tokens", "Tokens of prompts that were read", &self.prompt_tokens);
        counter("cached_tokens", "Those from the prefix cache", &self.cached_tokens);
        counter("prefix_hits", "Requests that found a prefix", &self.prefix_hits);
        counter("completion_tokens", "Generated tokens", &self.completion_tokens);
        counter("drafted_tokens", "Tokens that the drafter proposed", &self.drafted);
        counter("accepted_tokens", "Proposed tokens that the target accepted", &self.accepted);
        counter("resumed", "Streams that went on after a process had ended", &self.resumed);
        to.register("calls", "Requests inside the gateway", self.open_requests.clone());
        to.register("can_serve", "1 if a request would be served now", self.can_serve.clone());
        let help = "The budget of bodies and whole answers";
        to.register_with_unit("body", help, Unit::Bytes, self.body_bytes.clone());
        let help = "Bodies that wait for room in the budget";
        to.register("bodies_waiting", help, self.bodies_waiting.clone());
    }

    /// Records the first token of a request.
    pub fn first_token(&self, seconds: f64) {
        self.first_token.observe(seconds);
    }

    /// Records the time between two deliveries of one sample.
    pub fn gap(&self, seconds: f64) {
        self.gap.observe(seconds);
    }

    /// Records the time that a sample waited.
    pub fn queued(&self, seconds: f64) {
        self.queue.observe(seconds);
    }

    /// Records tokens that came for a request that runs.
    pub fn generated(&self, tokens: u64) {
        self.generated.fetch_add(tokens, Ordering::Relaxed);
    }

    fn totals(&self) -> Totals {
        Totals {
            generated: self.generated.load(Ordering::Relaxed),
            prompt_tokens: self.prompt_tokens.get(),
            cached_tokens: self.cached_tokens.get(),
            cycles: self.cycles.load(Ordering::Relaxed),
            drafted: self.drafted.get(),
            accepted: self.accepted.get(),
        }
    }

    /// Takes a sample for the history, every [`history::INTERVAL`]. `requests` are inside the
    /// gateway now.
    pub fn sample(&self, requests: usize, now: Millis) {
        lock(&self.history).take(self.totals(), requests, now);
    }

    /// The throughput of the last ten minutes.
    pub fn throughput(&self) -> Throughput {
        lock(&self.history).throughput()
    }

    /// Figures of the last seconds and minutes.
    pub fn recent(&self) -> RecentFigures {
        lock(&self.history).recent(self.totals())
    }

    /// Records streams that broke and went on.
    pub fn resumed(&self, streams: u64) {
        self.resumed.inc_by(streams);
    }

    /// Records what became of a sample's drafts.
    pub fn drafts(&self, drafts: Speculation) {
        let Speculation { cycles, drafted, accepted } = drafts;
        self.cycles.fetch_add(cycles, Ordering::Relaxed);
        self.drafted.inc_by(drafted);
        self.accepted.inc_by(accepted);
    }

    /// Records a request that was refused before it was opened.
    pub fn refused(&self, reason: Reason) {
        self.count(Err(reason), None);
    }

    /// Records a request that is over.
    pub fn ended(&self, request: &EndedRequest) {
        self.count(request.outcome, request.route);
        self.request.observe(request.seconds);
        self.prompt_tokens.inc_by(request.prompt_tokens);
        self.cached_tokens.inc_by(request.cached_tokens);
        self.prefix_hits.inc_by(u64::from(request.cached_tokens > 0));
        self.completion_tokens.inc_by(request.completion_tokens);
    }

    fn count(&self, outcome: Result<(), Reason>, route: Option<Route>) {
        let labels = [
            ("status", outcome.err().map_or("OK", Reason::word)),
            ("lane", route.map_or(NONE, |route| route.lane.word())),
            ("reason", route.map_or(NONE, |route| route.reason.word())),
        ];
        self.requests.get_or_create(&labels).inc();
    }

    fn set(&self, own: GatewayFigures) {
        let GatewayFigures { requests, can_serve, bytes } = own;
        self.open_requests.set(i64::try_from(requests).unwrap_or(i64::MAX));
        self.can_serve.set(can_serve.into());
        for (kind, bytes) in
            [("limit", bytes.limit), ("bodies", bytes.bodies), ("answers", bytes.answers)]
        {
            let gauge = self.body_bytes.get_or_create(&[("kind", kind)]);
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        self.bodies_waiting.set(i64::try_from(bytes.waiting).unwrap_or(i64::MAX));
    }

    /// All figures in the text format of Prometheus. `service` asks for those behind the gateway.
    /// It is awaited for one scrape at a time, so that many scrapes are no load on the supervisor.
    pub async fn text(
        &self,
        own: GatewayFigures,
        service: impl Future<Output = Option<ServiceStatus>>,
    ) -> String {
        let _alone = self.scrape.lock().await;
        let service = service.await;
        self.set(own);
        self.service.set(service.as_ref());
        let mut text = String::new();
        // Writing to a String does not fail; what it had until then would be sent.
        let _ = prometheus_text::encode(&mut text, &self.registry);
        text
    }
}
