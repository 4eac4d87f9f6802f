//! How a life ends: the ladder by which it is ended, and whether another begins.

use paceline_process::platform;
use paceline_vocabulary::Millis;

use super::{Action, EndWhy, Exit, Kind, LastEnd, Phase, Rung, Worker};
use crate::core::restart::Restart;

/// Ends nobody asked for.
pub(super) enum Fall {
    Exited(Exit),
    Hung(String),
    Unstartable(String),
}

/// Whoever breaks a protocol is not asked politely, unless a kill can cost the machine more than
/// its crime.
fn first_rung(why: EndWhy, kill_strands_memory: bool) -> Rung {
    if why == EndWhy::Condemned && !kill_strands_memory { Rung::Killed } else { Rung::Asked }
}

impl Worker {
    /// Begins to end the process there is.
    pub(super) fn end(&mut self, why: EndWhy, now: Millis, out: &mut Vec<Action>) {
        self.end_from(first_rung(why, platform::KILL_STRANDS_MEMORY), why, now, out);
    }

    fn end_from(&mut self, rung: Rung, why: EndWhy, now: Millis, out: &mut Vec<Action>) {
        let Some(epoch) = self.life.as_ref().map(|life| life.epoch) else { return };
        let cause = self.end_words(why);
        self.log_phase("ending", &cause, out);
        if let EndWhy::Hung(_) = why {
            out.push(Action::Abandon { epoch, cause });
        }
        self.climb(why, rung, false, now, out);
    }

    pub(super) fn climb(
        &mut self,
        why: EndWhy,
        rung: Rung,
        answered: bool,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        let Some(epoch) = self.life.as_ref().map(|life| life.epoch) else { return };
        // Who does not read what it is sent is condemned as well.
        let hung = matches!(why, EndWhy::Hung(_) | EndWhy::Condemned);
        let wait_ms = match rung {
            Rung::Asked if hung => self.patience.quiet_ms,
            Rung::Asked => self.patience.ask_ms,
            Rung::Terminated if hung || !answered => self.patience.quiet_ms,
            Rung::Terminated => self.patience.term_ms,
            Rung::Killed => self.patience.kill_ms,
        };
        let (until, most) = (now + wait_ms, now + wait_ms.max(self.patience.teardown_ms));
        self.phase = Phase::Ending { why, rung, answered, until, most };
        out.push(match rung {
            Rung::Asked => Action::AskStop { epoch, cause: self.end_words(why) },
            Rung::Terminated => Action::Terminate { epoch },
            Rung::Killed => Action::Kill { epoch },
        });
    }

    /// A process we were ending is gone.
    pub(super) fn ended(
        &mut self,
        why: EndWhy,
        exit: Exit,
        log: String,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        match why {
            EndWhy::Hung(_) | EndWhy::Condemned => {
                self.fall(Fall::Hung(self.end_words(why)), log, now, out)
            }
            EndWhy::Asked(_) => {
                out.push(Action::Clear);
                self.enter(Phase::Stopped, &exit.to_string(), out);
                self.life = None;
            }
            EndWhy::Foreign => {
                out.push(Action::Clear);
                // Which drafter comes next, if any, is for others to say.
                match self.retired || self.kind == Kind::Drafter {
                    false => self.spawn("the earlier one is gone", false, now, out),
                    true => {
                        self.life = None;
                        self.enter(Phase::Stopped, &exit.to_string(), out);
                    }
                }
            }
        }
    }

    /// An end nobody asked for: what now?
    pub(super) fn fall(&mut self, fall: Fall, log: String, now: Millis, out: &mut Vec<Action>) {
        let life = self.life.take();
        let epoch = life.as_ref().map(|life| life.epoch);
        let came_up = life.as_ref().is_some_and(|life| life.described.is_some());
        let failure = life.map(|life| life.failure).unwrap_or_default();
        let cause = match &fall {
            Fall::Exited(exit) if failure.is_empty() => exit.to_string(),
            Fall::Exited(exit) => format!("{exit}: {failure}"),
            Fall::Unstartable(cause) | Fall::Hung(cause) => cause.clone(),
        };
        let restart = match fall {
            // Starting again would make it worse.
            Fall::Exited(Exit::Code(78)) => None,
            // Bad model files or configuration, or no program: no quick start heals that.
            Fall::Exited(Exit::Code(64 | 69)) | Fall::Unstartable(_) => {
                Some(Restart::Exhausted { retry: self.budget.open(now) })
            }
            Fall::Exited(_) | Fall::Hung(_) => Some(self.budget.spend(came_up, now)),
        };
        self.last_end = Some(LastEnd { epoch, cause: cause.clone(), log });
        if epoch.is_some() {
            out.push(Action::Clear);
        }
        match restart {
            _ if self.retired || self.once => self.enter(Phase::Stopped, &cause, out),
            Some(Restart::At(at)) if at <= now => self.restart(&cause, now, out),
            Some(Restart::At(until)) => self.enter(Phase::BackingOff { until }, &cause, out),
            Some(Restart::Exhausted { retry }) => {
                self.enter(Phase::Failed { retry: Some(retry) }, &cause, out)
            }
            None => self.enter(Phase::Failed { retry: None }, &cause, out),
        }
        // Last, so that whoever is told is told when to try again.
        if let (Some(epoch), Fall::Exited(_)) = (epoch, fall) {
            out.push(Action::Abandon { epoch, cause });
        }
    }

    pub(super) fn restart(&mut self, cause: &str, now: Millis, out: &mut Vec<Action>) {
        self.restarts = self.restarts.saturating_add(1);
        self.spawn(cause, true, now, out);
    }

    pub(super) fn spawn(&mut self, cause: &str, unasked: bool, now: Millis, out: &mut Vec<Action>) {
        self.life = None;
        self.budget.started(unasked, now);
        self.log_phase("starting", cause, out);
        self.phase = Phase::Starting { since: now };
        out.push(Action::Spawn { model: self.model.clone() });
    }
}

#[cfg(test)]
mod tests {
    use paceline_process::Config;
    use paceline_proto::internal::v1::{Heartbeat, WorkerPhase};
    use paceline_vocabulary::Epoch;

    use super::super::{Event, Hang};
    use super::*;
    use crate::config::settings_where;

    /// A worker whose first process has just been started.
    fn started(kind: Kind, kill_strands_memory: bool) -> Worker {
        let patience = settings_where(kill_strands_memory, &Config::default()).patience;
        let mut worker = Worker::new(kind, patience, 5, 60_000);
        worker.on_event(Event::StartAsked { model: String::new() }, Millis(0));
        worker.on_event(Event::Spawned { epoch: Epoch(1), pid: 7 }, Millis(0));
        worker
    }

    #[test]
    fn one_that_broke_the_protocol_is_killed_at_once_and_where_that_strands_memory_has_time_for_its_teardown()
     {
        for (kill_strands_memory, expected) in [
            (false, vec![(0, "kill")]),
            // It shows itself ending at 15 s, and then no more.
            (true, vec![(0, "ask"), (10_000, "terminate"), (25_000, "kill")]),
        ] {
            let mut worker = started(Kind::Drafter, kill_strands_memory);
            let mut out = vec![];
            worker.end_from(
                first_rung(EndWhy::Condemned, kill_strands_memory),
                EndWhy::Condemned,
                Millis(0),
                &mut out,
            );
            let mut seen = vec![];
            for ms in (0..=25_000).step_by(1_000) {
                let now = Millis(ms);
                if ms == 15_000 {
                    let beat = Heartbeat {
                        epoch: 1,
                        phase: WorkerPhase::Stopping.into(),
                        ..Default::default()
                    };
                    out.extend(worker.on_event(Event::Beat(Box::new(beat)), now));
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
            seen.dedup_by_key(|(_, rung)| *rung);
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn one_that_is_hung_or_not_wanted_is_asked_first_everywhere() {
        for why in
            [EndWhy::Hung(Hang::Silent), EndWhy::Foreign, EndWhy::Asked("an operator stops it")]
        {
            for kill_strands_memory in [false, true] {
                assert_eq!(first_rung(why, kill_strands_memory), Rung::Asked, "{why:?}");
            }
        }
    }

    #[test]
    fn one_that_gave_its_engine_up_has_crashed_and_one_that_is_set_wrong_is_not_started_again_at_once()
     {
        for (code, again) in
            [(paceline_process::Exit::Bug, true), (paceline_process::Exit::Config, false)]
        {
            let mut worker = started(Kind::Target, false);
            let exited = Event::Exited {
                epoch: Epoch(1),
                exit: Exit::Code(code as i32),
                log: String::new(),
            };
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
