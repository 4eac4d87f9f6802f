//! Decides which child is frozen: it runs, as the system sees it, and gives no sign of life.
//!
//! A child owes a beat within a period, the first one within a longer time after its start. Time in
//! which this process did not run either does not count: the machine slept, or everything was
//! stopped together. This process notices it by its own missed ticks, and then gives each child a
//! full new period.

use paceline_vocabulary::Millis;

use crate::member::{BOTH, Member};

/// Interval at which this process has to run to count time.
const TICK_MS: u64 = 1_000;
/// A tick that comes later than this means that this process was not run.
const LATE_MS: u64 = 1_000;
/// Time for the first beat after a start, as `TimeoutStartSec` of the units in deploy/.
const START_MS: u64 = 60_000;

/// The beats of both children.
#[derive(Debug)]
pub struct Watchdog {
    /// A child without a beat for this time is frozen.
    period_ms: u64,
    /// When this process last ran.
    ran: Millis,
    /// When each child counts as frozen; `None` if it is not watched.
    due: [Option<Millis>; 2],
}

impl Watchdog {
    /// A watchdog of children that beat at least once in `period_ms`.
    pub fn new(period_ms: u64) -> Self {
        Self { period_ms, ran: Millis(0), due: [None; 2] }
    }

    /// A child was started.
    pub fn started(&mut self, member: Member, now: Millis) {
        self.due[member.place()] = Some(now + START_MS.max(self.period_ms));
    }

    /// A child gave a sign of life.
    pub fn beat(&mut self, member: Member, now: Millis) {
        if let Some(due) = &mut self.due[member.place()] {
            *due = now + self.period_ms;
        }
    }

    /// A child is not watched any more.
    pub fn forget(&mut self, member: Member) {
        self.due[member.place()] = None;
    }

    /// This process runs. To be called with every event.
    pub fn ran(&mut self, now: Millis) {
        let missed = now.since(self.ran) > TICK_MS + LATE_MS;
        self.ran = now;
        if missed {
            for due in self.due.iter_mut().flatten() {
                *due = (*due).max(now + self.period_ms);
            }
        }
    }

    /// The children that are frozen at this time.
    pub fn frozen(&self, now: Millis) -> Vec<Member> {
        let is_due = |member: &Member| self.due[member.place()].is_some_and(|due| due <= now);
        BOTH.into_iter().filter(is_due).collect()
    }

    /// When [`Watchdog::ran`] has to be called again; `None` if no child is watched.
    pub fn next_tick(&self) -> Option<Millis> {
        self.due.iter().any(Option::is_some).then(|| self.ran + TICK_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_MS: u64 = 30_000;

    /// Runs a watchdog from one time to another, a tick each second, with `beats` at each tick.
    fn run(watchdog: &mut Watchdog, seconds: std::ops::Range<u64>, beats: &[Member]) {
        for second in seconds {
            let now = Millis(second * 1_000);
            watchdog.ran(now);
            beats.iter().for_each(|member| watchdog.beat(*member, now));
        }
    }

    fn started() -> Watchdog {
        let mut watchdog = Watchdog::new(PERIOD_MS);
        watchdog.ran(Millis(0));
        BOTH.into_iter().for_each(|member| watchdog.started(member, Millis(0)));
        watchdog
    }

    #[test]
    fn a_child_without_a_beat_for_a_period_is_frozen_and_the_other_is_not() {
        let mut watchdog = started();
        run(&mut watchdog, 0..11, &BOTH);
        run(&mut watchdog, 11..40, &[Member::Gateway]);
        assert_eq!(watchdog.frozen(Millis(39_000)), []);
        run(&mut watchdog, 40..41, &[Member::Gateway]);
        assert_eq!(watchdog.frozen(Millis(40_000)), [Member::Supervisor]);
        watchdog.forget(Member::Supervisor);
        assert_eq!(watchdog.frozen(Millis(40_000)), []);
    }

    #[test]
    fn a_child_has_a_minute_for_its_first_beat() {
        let mut watchdog = started();
        run(&mut watchdog, 0..60, &[]);
        assert_eq!(watchdog.frozen(Millis(59_000)), []);
        run(&mut watchdog, 60..61, &[]);
        assert_eq!(watchdog.frozen(Millis(60_000)), BOTH);
    }

    #[test]
    fn time_in_which_this_process_did_not_run_either_does_not_count() {
        let mut watchdog = started();
        run(&mut watchdog, 0..11, &BOTH);
        // An hour of sleep.
        watchdog.ran(Millis(3_600_000));
        assert_eq!(watchdog.frozen(Millis(3_600_000)), []);
        run(&mut watchdog, 3_601..3_630, &[]);
        assert_eq!(watchdog.frozen(Millis(3_629_000)), []);
        run(&mut watchdog, 3_630..3_631, &[]);
        assert_eq!(watchdog.frozen(Millis(3_630_000)), BOTH);
    }

    #[test]
    fn a_pause_shortens_no_time_for_a_start() {
        let mut watchdog = started();
        watchdog.ran(Millis(5_000));
        run(&mut watchdog, 6..60, &[]);
        assert_eq!(watchdog.frozen(Millis(59_000)), []);
    }

    #[test]
    fn without_children_there_is_no_tick() {
        let mut watchdog = Watchdog::new(PERIOD_MS);
        assert_eq!(watchdog.next_tick(), None);
        watchdog.ran(Millis(500));
        watchdog.started(Member::Gateway, Millis(500));
        assert_eq!(watchdog.next_tick(), Some(Millis(1_500)));
        // A beat of a child that is not watched starts no watch.
        watchdog.forget(Member::Gateway);
        watchdog.beat(Member::Gateway, Millis(600));
        assert_eq!(watchdog.next_tick(), None);
    }
}
