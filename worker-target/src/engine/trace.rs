//! Log lines and spans that name requests. `grep REQUEST_ID` of the log answers why a stream was
//! slow (docs/troubleshooting.md). A disabled level costs one comparison: no field is computed then.

use std::collections::HashMap;

use paceline_system::clock::monotonic_ns;
use paceline_target_core::{
    Chosen, LaneEvent, Parked, SequenceKey, StepPart, TowerSlice, WidthDecision,
};
use tracing::Span;
use tracing::field::Empty;

use super::Engine;
use crate::running::RunningRequest;

/// Kind of a step by its parts.
fn kind(parts: &[StepPart]) -> &'static str {
    let prefills = parts.iter().any(|part| part.prefill);
    match (prefills, parts.iter().all(|part| part.prefill)) {
        (true, true) => "prefill",
        (true, false) => "mixed",
        (false, _) if parts.iter().any(|part| part.drafted > 0) => "verify",
        (false, _) => "decode",
    }
}

/// Ids of the requests of these sequences, with commas between.
pub(super) fn request_ids(
    keys: impl Iterator<Item = SequenceKey>,
    running: &HashMap<SequenceKey, RunningRequest>,
) -> String {
    let ids: Vec<&str> = keys.filter_map(|key| Some(running.get(&key)?.id())).collect();
    ids.join(",")
}

/// The span of a step. `tokens` is recorded when they are chosen.
pub(super) fn step_span(
    parts: &[StepPart],
    running: &HashMap<SequenceKey, RunningRequest>,
) -> Span {
    tracing::debug_span!(
        "step",
        kind = kind(parts),
        rows = parts.iter().map(|part| part.rows).sum::<usize>(),
        sequences = parts.len(),
        tokens = Empty,
        requests = request_ids(parts.iter().map(|part| part.key), running),
    )
}

/// Logs the end of a step that chose these tokens.
pub(super) fn log_step(span: &Span, chosen: &[Chosen], took_us: u64) {
    if span.is_disabled() {
        return;
    }
    span.record("tokens", chosen.iter().map(|one| one.tokens.len()).sum::<usize>());
    span.in_scope(|| tracing::debug!(took_us, "step done"));
}

impl Engine {
    /// The id of a sequence's request; empty if it has ended.
    pub(super) fn request_id(&self, key: SequenceKey) -> &str {
        self.running.get(&key).map_or("", |running| running.id())
    }

    pub(super) fn log_admitted(&self, key: SequenceKey) {
        let Some(running) = self.running.get(&key) else { return };
        let scheduling = &running.request.scheduling;
        tracing::debug!(
            request_id = running.id(),
            sequence = key.0,
            prompt_tokens = scheduling.prompt.len(),
            max_tokens = scheduling.max_tokens,
            lane = %scheduling.permit.lane,
            reason = %scheduling.permit.reason,
            "request admitted"
        );
    }

    /// A sequence got memory. Recorded as the end of its time in the queue unless it was preempted
    /// before.
    pub(super) fn log_started(&mut self, key: SequenceKey) {
        let Some(running) = self.running.get_mut(&key) else { return };
        let now_ns = monotonic_ns();
        running.figures.started_ns.get_or_insert(now_ns);
        tracing::debug!(
            request_id = running.id(),
            sequence = key.0,
            queue_ms = running.figures.queue_ms(now_ns),
            preemptions = running.figures.preemptions,
            "request started"
        );
    }

    /// A slice of the vision tower is done.
    pub(super) fn log_slice(&self, slice: TowerSlice, waiting: &[SequenceKey], took_us: u64) {
        let span = tracing::debug_span!(
            "step",
            kind = "image",
            sequences = waiting.len(),
            requests = request_ids(waiting.iter().copied(), &self.running),
        );
        span.in_scope(|| tracing::debug!(took_us, blocks = slice.blocks, "step done"));
    }

    pub(super) fn log_preempted(&mut self, key: SequenceKey) {
        let rows = self.scheduler.get(key).map_or(0, |sequence| sequence.ids.len());
        let Some(running) = self.running.get_mut(&key) else { return };
        running.figures.preemptions += 1;
        tracing::info!(
            request_id = running.id(),
            sequence = key.0,
            preemptions = running.figures.preemptions,
            recompute_rows = rows,
            "request preempted"
        );
    }

    pub(super) fn log_late_drafts(&mut self, late: &[SequenceKey]) {
        for key in late {
            let Some(running) = self.running.get_mut(key) else { continue };
            running.figures.late_drafts += 1;
            tracing::debug!(
                request_id = running.id(),
                sequence = key.0,
                late_drafts = running.figures.late_drafts,
                "draft late"
            );
        }
    }

    /// Logs the core's last decision about widths: inputs, ranking, choice.
    pub(super) fn log_decision(&mut self) {
        let Some(decision) = self.scheduler.speculation.log.take_decision() else { return };
        let WidthDecision { sequences, context, plain_rate, ranking, chosen } = decision;
        tracing::debug!(sequences, context, plain_rate, ?ranking, ?chosen, "draft widths");
    }

    /// Logs the pauses of drafts at loads where they have not paid.
    pub(super) fn log_parked(&mut self) {
        for Parked { class, sequences, steps } in self.scheduler.speculation.log.take_parked() {
            tracing::info!(class, sequences, steps, "drafts parked");
        }
    }

    /// Logs and counts what the core decided about single sequences since the last step.
    pub(super) fn log_lane_events(&mut self) {
        for event in self.scheduler.speculation.log.take_events() {
            let (LaneEvent::BackoffBegan { key, .. }
            | LaneEvent::BackoffEnded { key }
            | LaneEvent::Probed { key, .. }) = event;
            let Some(running) = self.running.get_mut(&key) else { continue };
            let sequence = key.0;
            match event {
                LaneEvent::BackoffBegan { until_tokens, .. } => {
                    running.figures.backoffs += 1;
                    let request_id = running.id();
                    tracing::debug!(request_id, sequence, until_tokens, "backoff began");
                }
                LaneEvent::BackoffEnded { .. } => {
                    tracing::debug!(request_id = running.id(), sequence, "backoff ended");
                }
                LaneEvent::Probed { draft_tokens, .. } => {
                    running.figures.probes += 1;
                    let request_id = running.id();
                    tracing::debug!(request_id, sequence, draft_tokens, "probe");
                }
            }
        }
    }

    /// Logs the begin and the end of a drafter's cool-down, with the requests that run without
    /// drafts meanwhile.
    pub(super) fn log_cooldown(&mut self) {
        let until = self.drafting.cooldown_until();
        if until == self.cooldown_until {
            return;
        }
        self.cooldown_until = until;
        let requests = || request_ids(self.running.keys().copied(), &self.running);
        match until {
            Some(until) => {
                let cooldown_ms = until - self.clock.now();
                tracing::info!(cooldown_ms, requests = requests(), "drafter cool-down began");
            }
            None => tracing::info!(requests = requests(), "drafter cool-down ended"),
        }
    }

    /// Logs the end of a request, with the figures that show where its time went.
    pub(super) fn log_end(&self, key: SequenceKey, running: &RunningRequest, outcome: &str) {
        let (figures, now_ns) = (&running.figures, monotonic_ns());
        tracing::info!(
            request_id = running.id(),
            sequence = key.0,
            outcome,
            queue_ms = figures.queue_ms(now_ns),
            tower_ms = running.first_token.tower_ms(),
            prefill_ms = running.first_token.prefill_ms(),
            decode_ms = figures.decode_ms(now_ns),
            tokens = figures.tokens,
            cached_tokens = figures.cached_tokens,
            cycles = figures.counts.cycles,
            drafted = figures.counts.drafted,
            accepted = figures.counts.accepted,
            late_drafts = figures.late_drafts,
            probes = figures.probes,
            backoffs = figures.backoffs,
            preemptions = figures.preemptions,
            slowest_step_ms = figures.slowest_step_us as f64 / 1e3,
            "request finished"
        );
    }
}
