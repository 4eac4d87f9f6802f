//! Spans of a traced request. They are made of its figures when it ends: a step costs no span.

use paceline_process::telemetry::trace::{Kind, Span};
use paceline_system::clock::monotonic_ns;

use crate::running::RunningRequest;

/// Records the spans of a request that ends now: its wait for memory, its prompt, its answer. An
/// outcome that is an error is a failure.
pub(super) fn record_spans(running: &RunningRequest, outcome: Result<&'static str, &'static str>) {
    let (parent, figures) = (running.request.trace, &running.figures);
    if parent.is_none() {
        return;
    }
    let now_ns = monotonic_ns();
    let span = |name, from_ns: i64, to_ns: i64| {
        let mut span = Span::below(parent, Kind::Internal, name).from_ns(from_ns).to_ns(to_ns);
        span.set("paceline.request_id", running.id());
        span
    };
    let finish = |mut span: Span| {
        let (Ok(word) | Err(word)) = outcome;
        span.set("paceline.outcome", word);
        if outcome.is_err() {
            span.fail(word);
        }
    };
    let queue = span("queue", figures.arrived_ns, figures.started_ns.unwrap_or(now_ns));
    let Some(started_ns) = figures.started_ns else { return finish(queue) };
    drop(queue);
    let mut prefill = span("prefill", started_ns, figures.first_token_ns.unwrap_or(now_ns));
    prefill.set("paceline.prompt_tokens", running.request.scheduling.prompt.len());
    prefill.set("paceline.cached_tokens", figures.cached_tokens);
    prefill.set("paceline.prefill_ms", running.first_token.prefill_ms());
    prefill.set("paceline.tower_ms", running.first_token.tower_ms());
    let Some(first_token_ns) = figures.first_token_ns else { return finish(prefill) };
    drop(prefill);
    let mut decode = span("decode", first_token_ns, now_ns);
    decode.set("paceline.completion_tokens", figures.tokens);
    decode.set("paceline.cycles", figures.counts.cycles);
    decode.set("paceline.drafted", figures.counts.drafted);
    decode.set("paceline.accepted", figures.counts.accepted);
    decode.set("paceline.late_drafts", figures.late_drafts);
    decode.set("paceline.preemptions", figures.preemptions);
    decode.set("paceline.slowest_step_ms", figures.slowest_step_us as f64 / 1e3);
    finish(decode);
}
