//! Second phase: memory for sequences, and the next step.

use paceline_models::SequenceId;
use paceline_target_core::{SequenceKey, Step};

use super::{Engine, RequestEnd};
use crate::error;

impl Engine {
    /// Gives memory to waiting sequences, in the order of their admission.
    pub(super) fn start_sequences(&mut self) {
        let Self { scheduler, pages, .. } = self;
        let started = scheduler.start(|bytes| pages.evict(bytes));
        started.lost_hidden.iter().for_each(|key| self.drafting.drop_hidden_states(*key));
        self.bound_kv();
        for key in started.keys {
            self.log_started(key);
            self.open_in_store(key);
        }
    }

    /// A sequence has memory: its place in the store is as large as its share of the ledger.
    fn open_in_store(&mut self, key: SequenceKey) {
        let (sequence, positions) = (SequenceId(key.0), self.scheduler.ledger().room_of(key));
        let opened =
            self.kv.open(sequence).and_then(|()| self.kv.reserve(sequence, positions as i32));
        if let Err(error) = opened {
            let error = paceline_process::chain(&error);
            let request_id = self.request_id(key);
            tracing::error!(error, request_id, sequence = key.0, "no place in the store");
            self.end_with_bug(
                key,
                "the engine found no place for this request; the log has the reason",
            );
        }
    }

    /// The store retains freed places for later sequences, as far as the ledger has memory for
    /// them.
    pub(super) fn bound_kv(&mut self) {
        if let Err(error) = self.kv.set_limit(self.scheduler.ledger().for_kv()) {
            self.fail(&error);
        }
    }

    /// Asks the core for the next step. Ends the sequences whose deadlines passed, and counts the
    /// drafts that are late.
    pub(super) fn choose_step(&mut self) -> Step {
        let now = self.clock.now();
        let Self { scheduler, pages, .. } = self;
        let step = scheduler.next_step(now, |bytes| pages.evict(bytes));
        if let Some(late) = self.drafting.late(&step.late, &self.border()) {
            self.apply(&[late]);
        }
        self.log_late_drafts(&step.late);
        self.log_cooldown();
        for (key, ended) in &step.ended {
            let end = error::ended(*ended).map_or(RequestEnd::Finished, RequestEnd::Failed);
            self.end(*key, end);
        }
        step
    }

    /// Drops the drafts, hidden states and KV rows of sequences that lost them to others, as the
    /// scheduler decided.
    pub(super) fn apply_losses(&mut self, step: &Step) {
        for key in &step.dropped_drafts {
            self.drafting.take(*key);
        }
        for key in &step.preempted.lost_hidden {
            self.drafting.drop_hidden_states(*key);
        }
        for key in &step.preempted.sequences {
            self.preempt(*key);
        }
    }

    fn preempt(&mut self, key: SequenceKey) {
        self.log_preempted(key);
        self.drafting.drop_hidden_states(key);
        self.kv.free(SequenceId(key.0));
        if let Some(running) = self.running.get_mut(&key) {
            // A reader that has gone is noticed at the next step border.
            let _ = running.outlet.flush();
        }
    }
}
