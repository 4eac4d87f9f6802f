//! Taking over a process that an earlier supervisor left.

use paceline_vocabulary::{Epoch, Millis};

use super::{Action, Phase, StopReason, Worker};

impl Worker {
    /// A process of an earlier supervisor is ours from now on, if it is what it should be.
    pub(super) fn take_over(&mut self, epoch: Epoch, pid: u32, now: Millis, out: &mut Vec<Action>) {
        self.begin(epoch, pid, now);
        self.host_memory.forget();
        if let Some(life) = &mut self.life {
            life.earlier = true;
        }
        self.enter(Phase::Starting { since: now }, "an earlier supervisor left it", out);
    }

    pub(super) fn is_taken_over(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.earlier)
    }

    pub(super) fn refuse(&mut self, cause: String, now: Millis, out: &mut Vec<Action>) {
        if let Some(life) = &mut self.life {
            life.failure = cause;
        }
        self.end(StopReason::Foreign, now, out);
    }
}
