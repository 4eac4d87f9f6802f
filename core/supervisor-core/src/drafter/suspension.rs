//! When a wanted drafter is suspended all the same: no request uses it, memory is short, or more
//! requests run at once than it pays for. An operator's order is stronger: only a drafter that is
//! wanted can be suspended.
//!
//! ```text
//!           no request may draft for idle_stop_s ──▶ suspended: idle   ── the first request that may draft ──▶ running
//!  running  KV or machine full for 3 s, or a
//!           waiting request lacks the memory ──────▶ suspended: memory ── memory is free for a while ────────▶ running
//!           too many at once for 60 s ─────────────▶ suspended: crowd  ── fewer for a while ─────────────────▶ running
//! ```
//! The while doubles each time the drafter is suspended soon after it returned, so that it does not
//! flap.

use paceline_vocabulary::Millis;

/// Memory has to be short for this time before the drafter is suspended.
const MEMORY_SHORT_MS: u64 = 3_000;
/// Too many requests have to run for this time before the drafter is suspended.
const CROWDED_MS: u64 = 60_000;
/// Memory has to be free for this time before the drafter returns, the first time.
const MEMORY_FREE_MS: u64 = 10_000;
/// Requests have to be few for this time before the drafter returns, the first time.
const FEW_MS: u64 = 5_000;
/// Both times double to here.
const LONGEST_MS: u64 = 600_000;
/// A drafter that ran for this time has shown that the pause before it was long enough.
const STEADY_MS: u64 = 600_000;

/// Why the drafter is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendReason {
    /// No request used it.
    Idle,
    /// The memory is for requests.
    Memory,
    /// Too many requests at once.
    Crowd,
}

impl SuspendReason {
    /// For operators, and as the cause of what follows.
    pub fn why(self) -> &'static str {
        match self {
            SuspendReason::Idle => {
                "no request could use it for drafter.idle_stop_s; the next one that can starts it"
            }
            SuspendReason::Memory => {
                "memory is short and goes to requests first; it is started when there is room again"
            }
            SuspendReason::Crowd => {
                "more requests run at once than it pays for; it is started when there are fewer"
            }
        }
    }
}

/// Conditions that the suspension depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrafterLoad {
    /// A request runs that drafts, or would if the drafter were there.
    pub drafting: bool,
    /// More requests run at once than it pays for.
    pub crowded: bool,
    /// KV or the machine's memory is above its hard bound.
    pub memory_short: bool,
    /// Both are well below, and the drafter fits.
    pub memory_free: bool,
    /// A request waits for memory.
    pub request_waits_for_memory: bool,
}

/// The suspension of the wanted drafter.
#[derive(Debug)]
pub struct Suspension {
    idle_ms: u64,
    reason: Option<SuspendReason>,
    idle: Option<Millis>,
    memory_short: Option<Millis>,
    crowded: Option<Millis>,
    /// While it is suspended: since when the reason for it is over.
    over: Option<Millis>,
    pause_ms: u64,
    /// When it last came back by itself.
    back: Option<Millis>,
}

impl Suspension {
    /// Not suspended. Suspended after `idle_ms` without use; 0 is never.
    pub fn new(idle_ms: u64) -> Self {
        Self {
            idle_ms,
            reason: None,
            idle: None,
            memory_short: None,
            crowded: None,
            over: None,
            pause_ms: 0,
            back: None,
        }
    }

    /// From now on the drafter is suspended after this time without use; 0 is never.
    pub fn set_idle_ms(&mut self, idle_ms: u64) {
        self.idle_ms = idle_ms;
    }

    /// Why it is suspended; `None` if it is to run.
    pub fn reason(&self) -> Option<SuspendReason> {
        self.reason
    }

    /// A request came that would use it.
    pub fn on_draftable_request(&mut self) {
        self.idle = None;
        if self.reason == Some(SuspendReason::Idle) {
            self.reason = None;
        }
    }

    /// An operator gave an order: earlier suspensions do not count.
    pub fn start_over(&mut self) {
        *self = Self::new(self.idle_ms);
    }

    /// The service stops: the drafter is not suspended any more.
    pub fn stop_clocks(&mut self) {
        (self.idle, self.memory_short, self.crowded, self.over) = (None, None, None, None);
    }

    /// The supervisor was not running: nothing is known to have lasted until `now`.
    pub fn discount_lost_time(&mut self, now: Millis) {
        for since in [&mut self.idle, &mut self.memory_short, &mut self.crowded, &mut self.over] {
            *since = since.map(|_| now);
        }
    }

    /// Computes the suspension; `up`: the drafter has loaded and could be used.
    pub fn update(&mut self, load: &DrafterLoad, up: bool, now: Millis) {
        let suspended = self.reason.is_some();
        hold(&mut self.idle, self.idle_ms > 0 && up && !load.drafting && !suspended, now);
        hold(&mut self.memory_short, load.memory_short && !suspended, now);
        hold(&mut self.crowded, load.crowded && !suspended, now);
        let over = match self.reason {
            Some(SuspendReason::Memory) => {
                load.memory_free && !load.memory_short && !load.request_waits_for_memory
            }
            Some(SuspendReason::Crowd) => !load.crowded,
            Some(SuspendReason::Idle) | None => false,
        };
        hold(&mut self.over, over, now);
        let is_due = |due: Option<Millis>| due.is_some_and(|due| due <= now);
        if suspended {
            if is_due(self.over.map(|since| since + self.pause_ms)) {
                (self.reason, self.over, self.back) = (None, None, Some(now));
            }
        } else if load.request_waits_for_memory
            || is_due(self.memory_short.map(|since| since + MEMORY_SHORT_MS))
        {
            self.suspend(SuspendReason::Memory, MEMORY_FREE_MS, now);
        } else if is_due(self.crowded.map(|since| since + CROWDED_MS)) {
            self.suspend(SuspendReason::Crowd, FEW_MS, now);
        } else if is_due(self.idle.map(|since| since + self.idle_ms)) {
            self.suspend(SuspendReason::Idle, 0, now);
        }
    }

    fn suspend(&mut self, reason: SuspendReason, pause_ms: u64, now: Millis) {
        if reason != SuspendReason::Idle {
            let soon = self.back.is_some_and(|back| now.since(back) < STEADY_MS);
            self.pause_ms =
                if soon { (self.pause_ms * 2).clamp(pause_ms, LONGEST_MS) } else { pause_ms };
        }
        self.reason = Some(reason);
        self.stop_clocks();
    }

    /// When [`Suspension::update`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let due = |since: Option<Millis>, ms: u64| since.map(|since| since + ms);
        let deadlines = [
            due(self.idle, self.idle_ms),
            due(self.memory_short, MEMORY_SHORT_MS),
            due(self.crowded, CROWDED_MS),
            due(self.over, self.pause_ms),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// Records since when a condition holds.
fn hold(since: &mut Option<Millis>, holds: bool, now: Millis) {
    match (holds, &since) {
        (true, None) => *since = Some(now),
        (false, Some(_)) => *since = None,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: DrafterLoad = DrafterLoad {
        drafting: false,
        crowded: false,
        memory_short: false,
        memory_free: true,
        request_waits_for_memory: false,
    };
    const MEMORY_SHORT: DrafterLoad =
        DrafterLoad { memory_short: true, memory_free: false, ..NOTHING };
    const CROWDED: DrafterLoad = DrafterLoad { drafting: true, crowded: true, ..NOTHING };

    fn at(suspension: &mut Suspension, load: DrafterLoad, s: f64) -> Option<SuspendReason> {
        let now = Millis((s * 1e3) as u64);
        suspension.update(&load, true, now);
        assert!(
            suspension.next_deadline().is_none_or(|due| due > now),
            "a deadline is left over at {s} s"
        );
        suspension.reason()
    }

    #[test]
    fn an_idle_drafter_is_suspended_until_a_request_may_draft() {
        let mut suspension = Suspension::new(5_000);
        let using = DrafterLoad { drafting: true, ..NOTHING };
        assert_eq!(at(&mut suspension, using, 1.0), None);
        assert_eq!(suspension.next_deadline(), None);
        assert_eq!(at(&mut suspension, NOTHING, 2.0), None);
        assert_eq!(suspension.next_deadline(), Some(Millis(7_000)));
        assert_eq!(at(&mut suspension, NOTHING, 7.0), Some(SuspendReason::Idle));
        assert_eq!(at(&mut suspension, NOTHING, 700.0), Some(SuspendReason::Idle));
        suspension.on_draftable_request();
        assert_eq!(at(&mut suspension, NOTHING, 700.0), None);
        // Without the setting never; while it loads nobody can use it.
        let mut suspension = Suspension::new(0);
        assert_eq!(at(&mut suspension, NOTHING, 1.0), None);
        assert_eq!(suspension.next_deadline(), None);
        let mut suspension = Suspension::new(5_000);
        suspension.update(&NOTHING, false, Millis(1_000));
        assert_eq!(suspension.next_deadline(), None);
    }

    #[test]
    fn short_memory_suspends_the_drafter_for_growing_times() {
        let mut suspension = Suspension::new(0);
        assert_eq!(at(&mut suspension, MEMORY_SHORT, 1.0), None);
        // A short peak is none.
        assert_eq!(at(&mut suspension, NOTHING, 3.9), None);
        let (mut now, mut pauses) = (10.0, vec![]);
        for _ in 0..9 {
            assert_eq!(at(&mut suspension, MEMORY_SHORT, now), None);
            assert_eq!(at(&mut suspension, MEMORY_SHORT, now + 3.0), Some(SuspendReason::Memory));
            // Between its bounds memory is neither short nor there.
            assert_eq!(
                at(&mut suspension, DrafterLoad { memory_free: false, ..NOTHING }, now + 5.0),
                Some(SuspendReason::Memory)
            );
            assert_eq!(suspension.next_deadline(), None);
            assert_eq!(at(&mut suspension, NOTHING, now + 6.0), Some(SuspendReason::Memory));
            let due = suspension.next_deadline().expect("it comes back").0 as f64 / 1e3;
            pauses.push(due - now - 6.0);
            assert_eq!(at(&mut suspension, NOTHING, due), None);
            now = due + 1.0;
        }
        assert_eq!(pauses, [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0]);
        // Long at work: the next pause is short again.
        assert_eq!(at(&mut suspension, MEMORY_SHORT, now + 1_000.0), None);
        assert_eq!(at(&mut suspension, MEMORY_SHORT, now + 1_003.0), Some(SuspendReason::Memory));
        at(&mut suspension, NOTHING, now + 1_004.0);
        assert_eq!(suspension.next_deadline(), Some(Millis(((now + 1_014.0) * 1e3) as u64)));
    }

    #[test]
    fn a_request_that_waits_for_memory_suspends_the_drafter_at_once() {
        let mut suspension = Suspension::new(0);
        assert_eq!(
            at(&mut suspension, DrafterLoad { request_waits_for_memory: true, ..NOTHING }, 1.0),
            Some(SuspendReason::Memory)
        );
        assert_eq!(
            at(&mut suspension, DrafterLoad { request_waits_for_memory: true, ..NOTHING }, 60.0),
            Some(SuspendReason::Memory)
        );
        at(&mut suspension, NOTHING, 61.0);
        assert_eq!(at(&mut suspension, NOTHING, 71.0), None);
    }

    #[test]
    fn too_many_requests_suspend_the_drafter_only_after_a_minute() {
        let mut suspension = Suspension::new(0);
        assert_eq!(at(&mut suspension, CROWDED, 1.0), None);
        assert_eq!(at(&mut suspension, NOTHING, 60.9), None);
        assert_eq!(at(&mut suspension, CROWDED, 61.0), None);
        assert_eq!(at(&mut suspension, CROWDED, 121.0), Some(SuspendReason::Crowd));
        assert_eq!(at(&mut suspension, NOTHING, 130.0), Some(SuspendReason::Crowd));
        assert_eq!(at(&mut suspension, CROWDED, 134.0), Some(SuspendReason::Crowd));
        assert_eq!(at(&mut suspension, NOTHING, 135.0), Some(SuspendReason::Crowd));
        assert_eq!(at(&mut suspension, NOTHING, 140.0), None);
    }

    #[test]
    fn lost_time_does_not_count_towards_a_suspension() {
        let mut suspension = Suspension::new(5_000);
        at(&mut suspension, MEMORY_SHORT, 1.0);
        suspension.discount_lost_time(Millis(100_000));
        assert_eq!(at(&mut suspension, MEMORY_SHORT, 100.0), None);
        assert_eq!(suspension.next_deadline(), Some(Millis(103_000)));
    }
}
