//! Third phase: one step on the model, and its tokens.

use std::collections::HashMap;

use paceline_models::sample::Logprobs;
use paceline_models::vision::ImageForm;
use paceline_models::{ModelError, SequenceId};
use paceline_proto::internal::v1::{TokenBatch, WorkerPhase};
use paceline_system::clock::monotonic_ns;
use paceline_target_core::{Chosen, Emission, SequenceKey, Step, StepPart};

use super::{Engine, RequestEnd, trace};
use crate::pass::{self, StepInputs, StepOutcome};
use crate::wire;

/// When a step ran.
#[derive(Clone, Copy)]
struct StepTime {
    /// Duration of the step itself.
    took_us: u64,
    /// Time since the end of the step before, or of the wait after it.
    since_mark_us: u64,
    ended_ns: i64,
}

impl Engine {
    /// Runs a step. Tokens of streams that end are sent, others in the last phase.
    pub(super) fn run_step(&mut self, step: &Step) {
        // Rows need the fewest products in the order of the store.
        let mut parts = step.parts.clone();
        parts.sort_by_key(|part| self.kv.order(SequenceId(part.key.0)));
        let prefills = parts.iter().any(|part| part.prefill);
        if prefills {
            self.flush_all();
        }
        self.progress.set_phase(if prefills { WorkerPhase::Prefill } else { WorkerPhase::Decode });
        self.is_trimmed = false;
        let span = trace::step_span(&parts, &self.running);
        let started_ns = monotonic_ns();
        let Self { model, kv, scheduler, drafting, running, features, .. } = self;
        let form = model.vision().map_or(ImageForm::Indexed, |vision| vision.info().form);
        let inputs = StepInputs { scheduler, running, features, form, parts: &parts };
        match span.in_scope(|| pass::run(model.as_ref(), kv, drafting, inputs)) {
            Ok(outcome) => {
                let ended_ns = monotonic_ns();
                let us_since = |before: i64| ((ended_ns - before) / 1000) as u64;
                let time = StepTime {
                    took_us: us_since(started_ns),
                    since_mark_us: us_since(self.mark_ns),
                    ended_ns,
                };
                self.mark_ns = ended_ns;
                trace::log_step(&span, &outcome.chosen, time.took_us);
                self.finish_step(&parts, outcome, time);
            }
            Err(error) => self.step_failed(&parts, &error),
        }
    }

    fn finish_step(&mut self, parts: &[StepPart], outcome: StepOutcome, time: StepTime) {
        let StepOutcome { chosen, faulty, logprobs } = outcome;
        self.count_step(parts, &chosen, time);
        self.send_tokens(parts, chosen, logprobs, time);
        // The tokens that were chosen before the fault come first. One of them may have ended the
        // sequence well.
        faulty.into_iter().for_each(|key| self.end_faulty(key));
        self.note_snapshots(parts);
    }

    fn step_failed(&mut self, parts: &[StepPart], error: &ModelError) {
        let text = paceline_process::chain(error);
        let requests = trace::request_ids(parts.iter().map(|part| part.key), &self.running);
        tracing::error!(error = text, requests, sequences = parts.len(), "step failed");
        self.broken = matches!(error, ModelError::Mlx(_));
        if self.broken {
            return;
        }
        let message = "the engine failed on this request; the log has the reason";
        parts.iter().for_each(|part| self.end_with_bug(part.key, message));
    }

    /// Adds a step to the figures: rows and times, and what became of its drafts.
    fn count_step(&mut self, parts: &[StepPart], chosen: &[Chosen], time: StepTime) {
        let rows = |of_prefill: bool| {
            parts.iter().filter(|part| part.prefill == of_prefill).map(|part| part.rows).sum()
        };
        self.progress.step_done(rows(true), rows(false), time.took_us);
        for part in parts {
            let Some(running) = self.running.get_mut(&part.key) else { continue };
            let figures = &mut running.figures;
            if figures.first_token_ns.is_some() {
                figures.slowest_step_us = time.since_mark_us.max(figures.slowest_step_us);
            }
            if part.prefill {
                running.first_token.add_prefill(time.took_us);
            }
        }
        let is_plain = parts.iter().all(|part| !part.prefill && part.rows == 1);
        self.drafting.stepped(is_plain.then_some(time.took_us as f64 / 1e3));
        for part in parts.iter().filter(|part| part.drafted > 0) {
            let chosen = chosen.iter().find(|chosen| chosen.key == part.key);
            self.totals.cycles += 1;
            self.totals.drafted += part.drafted as u64;
            self.totals.accepted += chosen.map_or(0, |chosen| chosen.tokens.len() - 1) as u64;
        }
    }

    fn send_tokens(
        &mut self,
        parts: &[StepPart],
        chosen: Vec<Chosen>,
        mut logprobs: HashMap<SequenceKey, Vec<Logprobs>>,
        time: StepTime,
    ) {
        let (linked, late) = (self.drafting.is_linked(), self.drafting.is_late());
        self.scheduler.speculation.set_linked(linked, late);
        for emission in self.scheduler.on_step(parts, chosen, time.since_mark_us) {
            let logprobs = logprobs.remove(&emission.key).unwrap_or_default();
            self.send(emission, logprobs, time.ended_ns);
        }
    }

    fn send(&mut self, emission: Emission, logprobs: Vec<Logprobs>, step_end_ns: i64) {
        let Some(running) = self.running.get_mut(&emission.key) else { return };
        running.first_token.set_first_token();
        let figures = &mut running.figures;
        figures.first_token_ns.get_or_insert(step_end_ns);
        figures.tokens = emission.index + emission.tokens.len() as u32;
        figures.counts = emission.served.counts;
        figures.cached_tokens = emission.served.cached_tokens;
        let batch = wire::token_batch(&emission, logprobs, &running.request, running.first_token);
        running.outlet.add(TokenBatch { step_end_ns, ..batch });
        if let Some(end) = emission.end {
            self.retain_all(emission.key, &end.ids);
            self.end(emission.key, RequestEnd::Finished);
        }
    }
}
