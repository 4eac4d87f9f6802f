//! A drafter that an earlier supervisor left. It goes on whatever `drafter.start` says, because
//! it had been started on purpose. Until it has described itself, what was wanted without it is
//! kept.

use super::{Drafters, Takeover, Wanted};
use crate::ids::WorkerSlot;
use crate::worker::{Phase, StopReason};

impl Drafters {
    /// A process was found in this place before anything was started.
    pub(super) fn found(&mut self, slot: WorkerSlot) {
        let worker = |slot: WorkerSlot| &self.slots[slot.idx()];
        let Phase::Starting { .. } = worker(slot).phase() else { return };
        match &self.takeover {
            // Two drafters: a swap was under way, and its order ended with the earlier supervisor.
            // The older drafter served.
            Some(other) if worker(other.slot).last_epoch() < worker(slot).last_epoch() => {}
            Some(_) => self.current = slot,
            None => {
                let model = self.model.clone();
                self.takeover = Some(Takeover { slot, wanted: self.wanted, model });
                self.current = slot;
                self.wanted = Wanted::Yes;
            }
        }
        if let Some(takeover) = &mut self.takeover {
            takeover.slot = self.current;
        }
        // Without its name it cannot be started again.
        self.slots[self.current.idx()].live_once(true);
    }

    /// Whether the drafter that was found has described itself.
    pub(super) fn judge_takeover(&mut self) {
        let Some(takeover) = self.takeover.take() else { return };
        let worker = &mut self.slots[takeover.slot.idx()];
        match worker.phase() {
            Phase::Ready { .. } | Phase::Suspect { .. } => {
                worker.live_once(false);
                self.model = worker.model().to_owned();
                self.candidates.adopt(&self.model);
            }
            Phase::Starting { .. } | Phase::Loading { .. } => self.takeover = Some(takeover),
            Phase::Stopped
            | Phase::Ending { why: StopReason::Foreign | StopReason::Hung(_), .. } => {
                (self.wanted, self.model) = (takeover.wanted, takeover.model);
            }
            // It was suspended before it described itself: without its model it cannot be started.
            _ if self.model.is_empty() => self.wanted = takeover.wanted,
            // An operator, or the service's end, was faster: what they want holds.
            _ => {}
        }
    }
}
