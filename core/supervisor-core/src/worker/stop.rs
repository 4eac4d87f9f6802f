//! How a worker's process is ended in stages, and whether another start follows its end.

use paceline_vocabulary::{Exit, Millis};

use super::phase::UnexpectedEnd;
use super::refusal::{LOOK_MS, ModelFiles};
use super::restart::Restart;
use super::{Action, LastEnd, Phase, StopReason, StopStage, Worker, WorkerExit, WorkerKind};

/// A process that broke the link's protocol is killed at once, unless a kill can strand memory of
/// the machine.
fn first_stage(why: StopReason, kill_strands_memory: bool) -> StopStage {
    if why == StopReason::Condemned && !kill_strands_memory {
        StopStage::Killed
    } else {
        StopStage::Asked
    }
}

impl Worker {
    /// Begins to end the process there is.
    pub(super) fn end(&mut self, why: StopReason, now: Millis, out: &mut Vec<Action>) {
        let Some(epoch) = self.life.as_ref().map(|life| life.epoch) else { return };
        let cause = self.end_words(why);
        self.log_phase("ending", &cause, out);
        if let StopReason::Hung(_) = why {
            out.push(Action::Abandon { epoch, cause });
        }
        let stage = first_stage(why, self.settings.kill_strands_memory);
        self.escalate(why, stage, false, now, out);
    }

    /// Begins a stage.
    pub(super) fn escalate(
        &mut self,
        why: StopReason,
        stage: StopStage,
        answered: bool,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let Some(epoch) = self.life.as_ref().map(|life| life.epoch) else { return };
        // A process that does not read its messages is condemned as well.
        let hung = matches!(why, StopReason::Hung(_) | StopReason::Condemned);
        let wait_ms = match stage {
            StopStage::Asked if hung => self.settings.timeouts.quiet_ms,
            StopStage::Asked => self.settings.timeouts.ask_ms,
            StopStage::Terminated if hung || !answered => self.settings.timeouts.quiet_ms,
            StopStage::Terminated => self.settings.timeouts.term_ms,
            StopStage::Killed => self.settings.timeouts.kill_ms,
        };
        let (until, most) = (now + wait_ms, now + wait_ms.max(self.settings.timeouts.teardown_ms));
        self.phase = Phase::Ending { why, stage, answered, until, most };
        out.push(match stage {
            StopStage::Asked => Action::AskStop { epoch, cause: self.end_words(why) },
            StopStage::Terminated => Action::Terminate { epoch },
            StopStage::Killed => Action::Kill { epoch },
        });
    }

    /// A process that was being ended is gone.
    pub(super) fn ended(
        &mut self,
        why: StopReason,
        exit: WorkerExit,
        log: String,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        match why {
            StopReason::Hung(_) | StopReason::Condemned => {
                self.end_unexpectedly(UnexpectedEnd::Hung(self.end_words(why)), log, now, out)
            }
            StopReason::Asked(_) => {
                out.push(Action::Clear);
                self.enter(Phase::Stopped, &exit.to_string(), out);
                self.life = None;
            }
            StopReason::Foreign => {
                out.push(Action::Clear);
                // The drafters decide which drafter comes next, if any.
                match self.retired || self.kind == WorkerKind::Drafter {
                    false => self.spawn("the earlier one is gone", false, now, out),
                    true => {
                        self.life = None;
                        self.enter(Phase::Stopped, &exit.to_string(), out);
                    }
                }
            }
        }
    }

    /// A process ended unexpectedly: decides whether and when another start follows.
    pub(super) fn end_unexpectedly(
        &mut self,
        end: UnexpectedEnd,
        log: String,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let life = self.life.take();
        let epoch = life.as_ref().map(|life| life.epoch);
        let came_up = life.as_ref().is_some_and(|life| life.described.is_some());
        let failure = life.map(|life| life.failure).unwrap_or_default();
        let cause = match &end {
            UnexpectedEnd::Exited(exit) if failure.is_empty() => exit.to_string(),
            UnexpectedEnd::Exited(exit) => format!("{exit}: {failure}"),
            UnexpectedEnd::NotStarted(cause) | UnexpectedEnd::Hung(cause) => cause.clone(),
        };
        let exit = match &end {
            UnexpectedEnd::Exited(WorkerExit::Code(code)) => Exit::of(*code),
            _ => None,
        };
        self.files.refused = exit == Some(Exit::ModelRefused);
        let restart = match (&end, exit) {
            _ if self.files.refused => Some(Restart::Exhausted { retry: now + LOOK_MS }),
            // Another start would strand more memory.
            (_, Some(Exit::MemoryStranded)) => None,
            // Bad configuration, unreadable files or no program: an early start would fail again.
            (_, Some(Exit::Config | Exit::Unavailable)) | (UnexpectedEnd::NotStarted(_), _) => {
                Some(Restart::Exhausted { retry: self.budget.open(now) })
            }
            (UnexpectedEnd::Exited(_) | UnexpectedEnd::Hung(_), _) => {
                Some(self.budget.spend(came_up, now))
            }
        };
        // The words of a refusal are in the cause already.
        let is_told = self.files.refused && !failure.is_empty();
        let log = if is_told { String::new() } else { log };
        self.last_end = Some(LastEnd { epoch, cause: cause.clone(), log });
        if epoch.is_some() {
            out.push(Action::Clear);
        }
        match restart {
            _ if self.retired || self.once => self.enter(Phase::Stopped, &cause, out),
            Some(Restart::At(at)) if at <= now => self.restart(&cause, now, out),
            Some(Restart::At(until)) => self.enter(Phase::BackingOff { until }, &cause, out),
            Some(Restart::Exhausted { retry }) => {
                let wait = self.files.refused.then(|| format!("; {}", self.wait_for_files()));
                let told = cause.clone() + &wait.unwrap_or_default();
                self.enter(Phase::Failed { retry: Some(retry) }, &told, out)
            }
            None => self.enter(Phase::Failed { retry: None }, &cause, out),
        }
        // Last, so that the denial of running requests can name the next try.
        if let (Some(epoch), UnexpectedEnd::Exited(_)) = (epoch, end) {
            out.push(Action::Abandon { epoch, cause });
        }
    }

    pub(super) fn restart(&mut self, cause: &str, now: Millis, out: &mut Vec<Action>) {
        if self.begin_check(cause, true, now, out) {
            return;
        }
        self.restarts = self.restarts.saturating_add(1);
        self.spawn(cause, true, now, out);
    }

    pub(super) fn spawn(&mut self, cause: &str, unasked: bool, now: Millis, out: &mut Vec<Action>) {
        (self.life, self.is_being_started, self.files) = (None, true, ModelFiles::default());
        self.host_memory.forget();
        self.budget.started(unasked, now);
        self.log_phase("starting", cause, out);
        self.phase = Phase::Starting { since: now };
        if self.settings.kill_strands_memory {
            out.push(Action::ReadWired);
        }
        out.push(Action::Spawn { model: self.model.clone() });
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::Epoch;
    use paceline_vocabulary::report::Heartbeat;
    use paceline_vocabulary::state::WorkerPhase;

    use super::super::{Event, HangKind, WorkerSettings};
    use super::*;

    /// A worker whose first process has just been started.
    fn started(kind: WorkerKind, kill_strands_memory: bool) -> Worker {
        let mut settings = WorkerSettings { kill_strands_memory, ..WorkerSettings::default() };
        if kill_strands_memory {
            (settings.timeouts.quiet_ms, settings.timeouts.teardown_ms) = (10_000, 180_000);
        }
        let mut worker = Worker::new(kind, settings);
        worker.on_event(Event::StartAsked { model: String::new() }, Millis(0));
        worker.on_event(Event::Spawned { epoch: Epoch(1), pid: 7 }, Millis(0));
        worker
    }

    #[test]
    fn a_protocol_violation_is_killed_at_once_unless_a_kill_strands_memory() {
        for (kill_strands_memory, expected) in [
            (false, vec![(0, "kill")]),
            // It reports its teardown at 15 s, and then no more.
            (true, vec![(0, "ask"), (10_000, "terminate"), (25_000, "kill")]),
        ] {
            let mut worker = started(WorkerKind::Drafter, kill_strands_memory);
            let mut out = vec![];
            worker.end(StopReason::Condemned, Millis(0), &mut out);
            let mut seen = vec![];
            for ms in (0..=25_000).step_by(1_000) {
                let now = Millis(ms);
                if ms == 15_000 {
                    let heartbeat = Heartbeat::new(Epoch(1), WorkerPhase::Stopping);
                    out.extend(worker.on_event(Event::Heartbeat(Box::new(heartbeat)), now));
                }
                out.extend(worker.on_time(now));
                seen.extend(out.drain(..).filter_map(|action| match action {
                    Action::AskStop { .. } => Some((ms, "ask")),
                    Action::Terminate { .. } => Some((ms, "terminate")),
                    Action::Kill { .. } => Some((ms, "kill")),
                    _ => None,
                }));
            }
            // A kill is repeated until it is done.
            seen.dedup_by_key(|(_, stage)| *stage);
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_hung_or_unwanted_process_is_asked_first_on_every_system() {
        for why in [
            StopReason::Hung(HangKind::Silent),
            StopReason::Foreign,
            StopReason::Asked("an operator stops it"),
        ] {
            for kill_strands_memory in [false, true] {
                assert_eq!(first_stage(why, kill_strands_memory), StopStage::Asked, "{why:?}");
            }
        }
    }

    #[test]
    fn an_internal_error_is_restarted_at_once_and_a_bad_configuration_is_not() {
        for (code, again) in [(Exit::Bug as i32, true), (Exit::Config as i32, false)] {
            let mut worker = started(WorkerKind::Target, false);
            let exited =
                Event::Exited { epoch: Epoch(1), exit: WorkerExit::Code(code), log: String::new() };
            let spawns = worker
                .on_event(exited, Millis(10))
                .iter()
                .any(|action| matches!(action, Action::Spawn { .. }));
            assert_eq!(
                (spawns, matches!(worker.phase(), Phase::Failed { .. })),
                (again, !again),
                "{code:?}"
            );
        }
    }
}
