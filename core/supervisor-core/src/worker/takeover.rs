//! Taking over a process that an earlier supervisor left.

use paceline_vocabulary::{Epoch, Millis};

use super::{Action, Event, Phase, StopReason, Worker};

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

    /// A process that is started has a later epoch than all before it (I7). One that is found may
    /// have an earlier epoch than the last: it may have been left long ago.
    pub(super) fn assert_counts_up(&self, event: &Event) {
        if let Event::Spawned { epoch, .. } = event {
            let last = self.last_epoch;
            debug_assert!(*epoch > last, "expected an epoch after {last}, found {epoch} (I7)");
        }
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

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::super::{WorkerKind, WorkerSettings};
    use super::*;

    #[test]
    #[should_panic(expected = "expected an epoch after 7, found 7 (I7)")]
    fn a_process_that_is_started_with_the_epoch_of_another_is_noticed() {
        let mut worker = Worker::new(WorkerKind::Target, WorkerSettings::default());
        worker.on_event(Event::StartAsked { model: String::new() }, Millis(0));
        worker.last_epoch = Epoch(7);
        worker.on_event(Event::Spawned { epoch: Epoch(7), pid: 9 }, Millis(0));
    }
}
