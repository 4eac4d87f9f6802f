//! One log line and one record in the [`Metrics`] for each request, however the request ends.
//! Lengths and outcome, never text (I9).

use std::sync::Arc;

use paceline_process::telemetry::trace::Span;
use paceline_system::clock::monotonic_ns;
use paceline_text::stream::AnswerEnd;
use paceline_vocabulary::generation::FinishReason;
use paceline_vocabulary::{Reason, Route};

use crate::images::ImageTimes;
use crate::metrics::{EndedRequest, Metrics};

/// A request's method, as its front names it.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Name of the method.
    pub name: &'static str,
    /// The protocol's own word for a request that ended well (`None`) or for a reason, for the log.
    pub code: fn(Option<Reason>) -> String,
}

/// Facts of a request so far. They are logged and recorded when this value is dropped.
#[derive(Debug)]
pub struct Record {
    method: Method,
    request_id: String,
    arrived_ns: i64,
    /// Tokens of its prompt; 0 until they are known.
    pub prompt_tokens: usize,
    /// Images of the prompt.
    pub images: usize,
    /// How long the work on its images took, once it is done.
    pub image_times: Option<ImageTimes>,
    /// Tokens generated so far.
    completion_tokens: u32,
    ttft_ms: Option<f64>,
    outcome: Option<Result<(), Reason>>,
    /// The route of the sample that ended last.
    route: Option<Route>,
    /// Streams of its samples that broke and went on.
    resumed: u32,
    /// Tokens of the prompt that came from the prefix cache. Of several samples the fewest count:
    /// the others read what the first one has just stored.
    cached_tokens: Option<u32>,
    /// Drafted tokens of all samples, and those of them that were accepted.
    drafted: u64,
    accepted: u64,
    /// The end of the sample that ended last.
    finish_reason: Option<FinishReason>,
    /// The span of the request.
    pub span: Span,
    metrics: Option<Arc<Metrics>>,
}

impl Record {
    /// A request that arrived at `arrived_ns` of the monotonic clock.
    pub fn new(method: Method, request_id: &str, arrived_ns: i64) -> Self {
        Self {
            method,
            request_id: request_id.to_owned(),
            arrived_ns,
            prompt_tokens: 0,
            images: 0,
            image_times: None,
            completion_tokens: 0,
            ttft_ms: None,
            outcome: None,
            route: None,
            resumed: 0,
            cached_tokens: None,
            drafted: 0,
            accepted: 0,
            finish_reason: None,
            span: Span::NONE,
            metrics: None,
        }
    }

    /// With a span, which begins with the request and ends with this.
    pub fn traced(mut self, span: Span) -> Self {
        self.span = span.from_ns(self.arrived_ns);
        self
    }

    /// Has the request recorded in these metrics too.
    pub fn record_in(&mut self, metrics: &Arc<Metrics>) {
        self.metrics = Some(Arc::clone(metrics));
    }

    /// Milliseconds since it arrived.
    pub fn elapsed_ms(&self) -> f64 {
        monotonic_ns().saturating_sub(self.arrived_ns) as f64 / 1e6
    }

    /// Notes tokens of a sample. `last_ms` is when its tokens before these came, and becomes when
    /// these came. Returns the time since the request's arrival.
    pub fn tokens_came(&mut self, last_ms: &mut Option<f64>) -> f64 {
        let now = self.elapsed_ms();
        let before = last_ms.replace(now);
        if let Some(metrics) = &self.metrics {
            if self.ttft_ms.is_none() {
                metrics.first_token(now / 1e3);
            }
            if let Some(before) = before {
                metrics.gap((now - before) / 1e3);
            }
        }
        self.ttft_ms.get_or_insert(now);
        now
    }

    /// Notes that `tokens` of all samples are there now.
    pub fn generated(&mut self, tokens: u32) {
        let more = tokens.saturating_sub(self.completion_tokens);
        self.completion_tokens = tokens;
        if let Some(metrics) = &self.metrics {
            metrics.generated(more.into());
        }
    }

    /// Notes the end of a sample.
    pub fn sample_ended(&mut self, end: &AnswerEnd) {
        self.route = end.route.or(self.route);
        self.resumed = self.resumed.saturating_add(end.resumed);
        let cached = end.usage.cached_tokens;
        self.drafted += end.speculation.drafted;
        self.accepted += end.speculation.accepted;
        self.finish_reason = end.finish_reason;
        self.cached_tokens = Some(self.cached_tokens.map_or(cached, |known| known.min(cached)));
        if let Some(metrics) = &self.metrics {
            metrics.queued(end.timing.queue_ms / 1e3);
            metrics.resumed(end.resumed.into());
            metrics.drafts(end.speculation);
        }
    }

    /// Notes how the request ended.
    pub fn ended(&mut self, outcome: Result<(), Reason>) {
        self.outcome = Some(outcome);
    }

    /// Completes the request's span, with lengths and words of ours (I9).
    fn complete_span(&mut self, reason: Option<Reason>) {
        let ttft_ms = self.ttft_ms;
        let span = &mut self.span;
        span.set("paceline.request_id", self.request_id.as_str());
        span.set("paceline.method", self.method.name);
        span.set("paceline.prompt_tokens", self.prompt_tokens);
        span.set_some("paceline.cached_tokens", self.cached_tokens);
        span.set("paceline.completion_tokens", self.completion_tokens);
        span.set_some("paceline.images", (self.images > 0).then_some(self.images));
        span.set_some("paceline.ttft_ms", ttft_ms);
        span.set_some("paceline.lane", self.route.map(|route| route.lane.word()));
        span.set_some("paceline.reason", self.route.map(|route| route.reason.word()));
        span.set("paceline.drafted", self.drafted);
        span.set("paceline.accepted", self.accepted);
        span.set("paceline.resumed", self.resumed);
        let finish = self.finish_reason.map(|reason| match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        });
        span.set_some("paceline.finish_reason", finish);
        if let Some(reason) = reason {
            span.fail(reason.word());
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A request without an outcome is one whose client left.
        let outcome = self.outcome.unwrap_or(Err(Reason::Cancelled));
        let reason = outcome.err();
        self.complete_span(reason);
        if let Some(metrics) = &self.metrics {
            // A prompt whose tokens were only counted was not read.
            let prompt_tokens = if self.ttft_ms.is_some() { self.prompt_tokens as u64 } else { 0 };
            metrics.ended(&EndedRequest {
                outcome,
                route: self.route,
                seconds: self.elapsed_ms() / 1e3,
                prompt_tokens,
                cached_tokens: self.cached_tokens.unwrap_or(0).into(),
                completion_tokens: self.completion_tokens.into(),
            });
        }
        tracing::info!(
            request_id = self.request_id,
            method = self.method.name,
            code = %(self.method.code)(reason),
            reason = reason.map(Reason::word),
            prompt_tokens = self.prompt_tokens,
            images = (self.images > 0).then_some(self.images),
            decode_ms = self.image_times.map(|times| times.decode_ms),
            resize_ms = self.image_times.map(|times| times.resize_ms),
            completion_tokens = self.completion_tokens,
            resumed = (self.resumed > 0).then_some(self.resumed),
            ttft_ms = self.ttft_ms,
            total_ms = self.elapsed_ms(),
            "request"
        );
    }
}
