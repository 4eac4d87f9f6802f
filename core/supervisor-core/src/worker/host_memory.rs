//! The check of the machine's wired memory between a hard kill of a worker and its next start.
//!
//! On macOS a process that held much memory of the GPU and was killed, or crashed, can leave that
//! memory wired in the kernel. Only a restart of the machine returns it, and each further start of
//! the worker takes more. So the wired bytes are read before each start, and compared after a hard
//! end:
//!
//! ```text
//!  hard end ─▶ Due ── next start ─▶ Waiting ── memory came back ─▶ the start goes on
//!                                      └────── 10 s have passed ─▶ Stranded: no start by itself
//! ```
//! Other programs wire memory as well, and so do our other workers. The growth since the start
//! counts as stranded under three conditions:
//! - It is larger than 2 % of the machine's memory, without what the other workers hold more
//!   than then.
//! - The process held more than that by its last report. It cannot strand what it did not hold.
//! - It is at most what the process held, or more than our other workers can explain. A target that
//!   was idle at the start of its drafter may have wired all of its memory since.
//!
//! A process that was taken over from an earlier supervisor is not checked, because the wired bytes
//! before its start are not known. On systems where a kill strands no memory nothing is read.

use paceline_vocabulary::{Epoch, Millis, Reason};

use super::process_memory::ProcessMemory;
use super::wired::{WiredReading, stranded_sentence};
use super::{Action, LastEnd, Phase, Worker, WorkerExit};

/// Longest wait for the memory of a killed process. Users of other servers report that it comes back
/// within seconds, or never. Not measured on a Mac yet.
const WAIT_MS: u64 = 10_000;
/// Interval between two readings. Reading costs microseconds; half a second is short beside a load.
const INTERVAL_MS: u64 = 500;

/// Where the check stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Check {
    /// The last process left nothing to check.
    #[default]
    None,
    /// The last process ended hard; the next start is preceded by the check.
    Due(HardEnd),
    /// The next start waits for the memory.
    Waiting {
        end: HardEnd,
        until: Millis,
        /// The start follows an unexpected end.
        unasked: bool,
    },
    /// The memory did not come back.
    Stranded { end: HardEnd, stranded_bytes: u64 },
}

/// A hard end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HardEnd {
    /// The reading before the start of the process.
    before: WiredReading,
    /// Bytes that the process held by its last report.
    held_bytes: u64,
}

/// The check of one worker.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    /// The reading before the start of the present process; `None`: not known.
    before: Option<WiredReading>,
    check: Check,
}

impl HostMemory {
    /// A process is being started: the earlier one counts no more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// The present process ended.
    pub(super) fn process_ended(&mut self, exit: WorkerExit, held_bytes: u64) {
        let Some(before) = self.before.take() else { return };
        let is_hard = matches!(exit, WorkerExit::Signal(_));
        if is_hard && held_bytes > before.tolerance_bytes() {
            self.check = Check::Due(HardEnd { before, held_bytes });
        }
    }

    /// Whether the next start waits for memory.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.check, Check::Waiting { .. })
    }
}

impl Worker {
    /// The present process ended.
    pub(super) fn note_end(&mut self, exit: WorkerExit) {
        let held_bytes = self.life.as_ref().map_or(0, |life| ProcessMemory::of(life).all());
        self.host_memory.process_ended(exit, held_bytes);
    }

    /// Begins the check before a start, if the last process ended hard; returns whether it did. The
    /// start follows when the memory is back. `unasked`: the start follows an unexpected end.
    pub(super) fn begin_check(
        &mut self,
        cause: &str,
        unasked: bool,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> bool {
        let end = match self.host_memory.check {
            Check::None => return false,
            Check::Due(end) | Check::Waiting { end, .. } | Check::Stranded { end, .. } => end,
        };
        let until = now + WAIT_MS;
        self.host_memory.check = Check::Waiting { end, until, unasked };
        let cause = format!("{cause}; the machine's wired memory is checked first");
        self.enter(Phase::BackingOff { until: now + INTERVAL_MS }, &cause, out);
        out.push(Action::ReadWired);
        true
    }

    /// The pause between two readings is over; returns whether the check goes on.
    pub(super) fn continue_check(&mut self, now: Millis, out: &mut Vec<Action>) -> bool {
        let waits = self.host_memory.is_waiting();
        if waits {
            self.phase = Phase::BackingOff { until: now + INTERVAL_MS };
            out.push(Action::ReadWired);
        }
        waits
    }

    /// A reading of wired memory; `None`: the system does not say.
    pub(super) fn on_wired_read(
        &mut self,
        reading: Option<WiredReading>,
        now: Millis,
        out: &mut Vec<Action>,
    ) {
        match (self.phase, self.host_memory.check) {
            (Phase::Starting { .. }, _) if self.life.is_none() => self.host_memory.before = reading,
            (Phase::BackingOff { .. }, Check::Waiting { end, until, unasked }) => {
                let stranded_bytes = reading
                    .map_or(0, |reading| end.before.stranded_bytes(end.held_bytes, &reading));
                if stranded_bytes == 0 {
                    self.host_memory.forget();
                    let cause = "the memory of the killed process has come back";
                    match unasked {
                        true => self.restart(cause, now, out),
                        false => self.spawn(cause, false, now, out),
                    }
                } else if now >= until {
                    self.host_memory.check = Check::Stranded { end, stranded_bytes };
                    self.fail_stranded(stranded_bytes, out);
                }
            }
            // Its start was called off, or has been made.
            _ => {}
        }
    }

    /// The memory does not come back: no start follows by itself.
    fn fail_stranded(&mut self, stranded_bytes: u64, out: &mut Vec<Action>) {
        let reason = Reason::HostMemoryStranded.word();
        let sentence = format!("{reason}: {}", stranded_sentence(stranded_bytes));
        let end = self.last_end.take();
        self.last_end = Some(match end {
            Some(end) => LastEnd { cause: format!("{}; {sentence}", end.cause), ..end },
            None => LastEnd {
                epoch: (self.last_epoch != Epoch(0)).then_some(self.last_epoch),
                cause: sentence.clone(),
                log: String::new(),
            },
        });
        let phase = match self.retired || self.once {
            true => Phase::Stopped,
            false => Phase::Failed { retry: None },
        };
        self.enter(phase, &sentence, out);
    }

    /// Bytes of the machine that the last process left wired; `None`: none are known.
    pub fn stranded_bytes(&self) -> Option<u64> {
        match self.host_memory.check {
            Check::Stranded { stranded_bytes, .. } => Some(stranded_bytes),
            _ => None,
        }
    }

    /// Wired bytes of the machine above which memory of the last process is still stranded;
    /// `None`: none is.
    pub fn stranded_above_bytes(&self) -> Option<u64> {
        match self.host_memory.check {
            Check::Stranded { end: HardEnd { before, .. }, .. } => {
                Some(before.wired_bytes.saturating_add(before.tolerance_bytes()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::report::{Heartbeat, MemoryUse};
    use paceline_vocabulary::state::WorkerPhase;

    use super::super::wired::{GIB, reading};
    use super::super::{Event, WorkerKind, WorkerSettings};
    use super::*;

    #[test]
    fn only_a_hard_end_of_a_process_that_held_memory_is_checked() {
        let due = |before: Option<WiredReading>, exit, held: u64| {
            let mut memory = HostMemory { before, ..HostMemory::default() };
            memory.process_ended(exit, held * GIB);
            matches!(memory.check, Check::Due(_))
        };
        let before = Some(reading(5, 0));
        assert!(due(before, WorkerExit::Signal(9), 40));
        assert!(due(before, WorkerExit::Signal(11), 40));
        assert!(!due(before, WorkerExit::Code(70), 40), "an ordinary exit");
        assert!(!due(before, WorkerExit::Signal(9), 1), "it held too little");
        assert!(!due(None, WorkerExit::Signal(9), 40), "it was taken over");
    }

    /// A worker whose process held 350 bytes and was killed, asked to end, at 1 s.
    fn killed_on_order() -> Worker {
        let settings = WorkerSettings { kill_strands_memory: true, ..WorkerSettings::default() };
        let mut worker = Worker::new(WorkerKind::Drafter, settings);
        let memory = MemoryUse { active_bytes: 300, cache_bytes: 50, ..MemoryUse::default() };
        let heartbeat =
            Heartbeat { memory: Some(memory), ..Heartbeat::new(Epoch(1), WorkerPhase::Idle) };
        let (exit, log) = (WorkerExit::Signal(9), String::new());
        for event in [
            Event::StartAsked { model: "/d".to_owned() },
            wired(100),
            Event::Spawned { epoch: Epoch(1), pid: 7 },
            Event::Heartbeat(Box::new(heartbeat)),
            Event::EndAsked { cause: "an operator stops it" },
            Event::Exited { epoch: Epoch(1), exit, log },
        ] {
            worker.on_event(event, Millis(1_000));
        }
        assert_eq!(worker.phase(), Phase::Stopped);
        worker
    }

    fn wired(wired_bytes: u64) -> Event {
        let reading = WiredReading { wired_bytes, machine_bytes: 1_000, others_bytes: 0 };
        Event::WiredRead(Some(reading))
    }

    /// Whether the answer to this event is a reading of wired memory, or a start.
    fn answer(worker: &mut Worker, event: Event, now: u64) -> (bool, bool) {
        let actions = worker.on_event(event, Millis(now));
        let spawns = actions.iter().any(|action| matches!(action, Action::Spawn { .. }));
        (actions.contains(&Action::ReadWired), spawns)
    }

    fn start() -> Event {
        Event::StartAsked { model: "/d".to_owned() }
    }

    #[test]
    fn a_kill_on_order_is_checked_before_the_next_start() {
        let mut worker = killed_on_order();
        assert_eq!(answer(&mut worker, start(), 60_000), (true, false));
        assert_eq!(answer(&mut worker, wired(400), 60_000), (false, false));
        // The start is called off; the next one is checked again.
        worker.on_event(Event::EndAsked { cause: "an operator stops it" }, Millis(61_000));
        assert_eq!(answer(&mut worker, wired(100), 61_000), (false, false));
        assert_eq!(answer(&mut worker, start(), 90_000), (true, false));
        assert_eq!(answer(&mut worker, wired(110), 90_000), (true, true));
        assert_eq!(worker.restarts(), 0, "the start was asked for");
    }

    #[test]
    fn stranded_memory_ends_a_worker_that_lives_once_and_waits_for_the_operator_of_another() {
        for once in [true, false] {
            let mut worker = killed_on_order();
            worker.live_once(once);
            assert_eq!(answer(&mut worker, start(), 60_000), (true, false));
            worker.on_event(wired(400), Millis(70_000));
            assert_eq!(worker.stranded_bytes(), Some(300));
            assert_eq!(worker.stranded_above_bytes(), Some(120));
            let stopped = worker.phase() == Phase::Stopped;
            assert_eq!((stopped, worker.next_deadline()), (once, None));
            assert!(worker.reason(Millis(70_000)).contains("HOST_MEMORY_STRANDED"));
            // After a stop nobody has decided anything.
            let answered = answer(&mut worker, start(), 80_000);
            assert_eq!(answered, if once { (true, false) } else { (true, true) });
        }
    }

    #[test]
    fn a_system_that_does_not_say_prevents_no_start() {
        let mut worker = killed_on_order();
        assert_eq!(answer(&mut worker, start(), 60_000), (true, false));
        assert_eq!(answer(&mut worker, Event::WiredRead(None), 60_000), (true, true));
    }
}
