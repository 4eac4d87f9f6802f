//! Fourth phase: hidden states to the drafter, proposals from it.

use paceline_models::exact_lanes::set_exact_lanes;
use paceline_target_core::SequenceKey;

use super::{Engine, LaneForm};
use crate::drafting::{Border, DraftEvent, FeedInputs};
use crate::running::RunningRequest;

impl Engine {
    pub(super) fn border(&self) -> Border {
        Border { now: self.clock.now(), at_ns: self.mark_ns }
    }

    /// Takes in what arrived over the link.
    pub(super) fn receive_drafts(&mut self) {
        match self.drafting.receive(&self.border(), self.model.as_ref()) {
            Ok(events) => self.apply(&events),
            Err(error) => self.fail(&error),
        }
        self.log_cooldown();
        self.follow_feature_layers();
        self.follow_drafter();
    }

    /// Begins anew with what was measured of a drafter if another one is linked. The same one,
    /// started again, is no better at a load where its drafts did not pay.
    fn follow_drafter(&mut self) {
        let Some(linked) = self.drafting.fingerprint() else { return };
        if self.lanes == LaneForm::ExactOnceLinked {
            self.lanes = LaneForm::Exact;
            set_exact_lanes(true);
        }
        if self.measured_drafter.as_deref() != Some(linked) {
            let linked = linked.to_owned();
            self.collect_costs();
            self.scheduler.speculation.change_drafter(&self.cost_file.drafts(&linked));
            self.measured_drafter = Some(linked);
        }
    }

    /// Sends the drafter what was committed, and asks it for drafts.
    pub(super) fn request_drafts(&mut self) {
        let running = &self.running;
        let request = |key: SequenceKey| running.get(&key).map(|running| &running.request);
        let kv_pressed =
            self.scheduler.ledger().pressure() > self.scheduler.speculation.policy().kv_pressure;
        let inputs = FeedInputs { border: self.border(), kv_pressed, model: self.model.as_ref() };
        match self.drafting.feed(&mut self.scheduler, request, inputs) {
            Ok(events) => self.apply(&events),
            Err(error) => self.fail(&error),
        }
    }

    fn give_up_empty_draft(&mut self, key: SequenceKey) {
        self.scheduler.give_up_draft(key);
        self.scheduler.speculation.proposed_nothing(key);
    }

    /// Cuts a draft of ids before the first id that the sequence's constraint excludes: rows after it
    /// could not be accepted. Returns the tokens that are left. Hidden rows become ids in the step
    /// that verifies them, under the constraint.
    fn cut_draft(&mut self, key: SequenceKey, tokens: usize) -> usize {
        let Some(RunningRequest { constraint, .. }) = self.running.get(&key) else { return tokens };
        let Some(sequence) = self.scheduler.get(key) else { return tokens };
        let Some(ids) = self.drafting.proposed_ids(key) else { return tokens };
        if constraint.follow(&sequence.ids[sequence.prompt_len..], ids.len() + 1).is_none() {
            return tokens;
        }
        let allowed = constraint.allowed_drafts(ids);
        self.drafting.cut(key, allowed);
        allowed
    }

    /// Passes on to the scheduler what the link reported.
    pub(super) fn apply(&mut self, events: &[DraftEvent]) {
        for event in events {
            match *event {
                DraftEvent::Arrived { key, tokens } => match self.cut_draft(key, tokens) {
                    0 => self.give_up_empty_draft(key),
                    tokens => {
                        self.scheduler.proposed(key, tokens);
                    }
                },
                DraftEvent::Requested { key, tokens } => {
                    tracing::debug!(
                        request_id = self.request_id(key),
                        sequence = key.0,
                        draft_tokens = tokens,
                        "draft requested"
                    );
                }
                DraftEvent::NoDraft(key) => self.scheduler.give_up_draft(key),
                DraftEvent::EmptyDraft(key) => self.give_up_empty_draft(key),
                DraftEvent::Took(took) if took.tower => self.scheduler.speculation.answered(),
                DraftEvent::Took(took) => {
                    self.scheduler.speculation.drafted(
                        took.sequences,
                        took.rows,
                        took.us as f64,
                        took.steps,
                    );
                }
            }
        }
    }
}
