//! When a drafter that is wanted rests all the same: nobody uses it, memory is short, or more
//! requests run at once than it pays for. Pure; an operator's word stands above it, for only a
//! drafter that is wanted is looked at here.
//!
//! ```text
//!           nobody may draft for idle_stop_s ──▶ resting: idle   ── the first request that may draft ──▶ at work
//!  at work  KV or machine full for 3 s, or a
//!           waiting request lacks the room ────▶ resting: memory ── room for a while ─────────────────▶ at work
//!           too many at once for 60 s ─────────▶ resting: crowd  ── fewer for a while ────────────────▶ at work
//! ```
//! The while grows each time it is stopped soon after it came back, so that it does not flap.

use paceline_vocabulary::Millis;

/// Memory has to be short for so long.
const PRESSED_MS: u64 = 3_000;
/// So long too many requests have to run.
const CROWDED_MS: u64 = 60_000;
/// Memory has to be there again for so long, at first.
const ROOM_MS: u64 = 10_000;
/// Requests have to be few again for so long, at first.
const FEW_MS: u64 = 5_000;
/// Longest pause of both.
const LONGEST_MS: u64 = 600_000;
/// Work that lasted so long proves that the pause before it was long enough.
const STEADY_MS: u64 = 600_000;

/// Why it rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nobody used it.
    Idle,
    /// The memory is for requests.
    Memory,
    /// Too many requests at once.
    Crowd,
}

impl Rest {
    /// For operators, and as the cause of what follows.
    pub fn why(self) -> &'static str {
        match self {
            Rest::Idle => {
                "no request could use it for drafter.idle_stop_s; the next one that can starts it"
            }
            Rest::Memory => {
                "memory is short and goes to requests first; it is started when there is room again"
            }
            Rest::Crowd => {
                "more requests run at once than it pays for; it is started when there are fewer"
            }
        }
    }
}

/// What a drafter's rest depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// A request runs that drafts, or would if the drafter were there.
    pub drafting: bool,
    /// More requests run at once than it pays for.
    pub crowded: bool,
    /// KV or the machine's memory is above its hard bound.
    pub pressed: bool,
    /// Both are well below, and the drafter fits.
    pub eased: bool,
    /// A request waits for memory.
    pub squeezed: bool,
}

/// The life of the wanted drafter.
#[derive(Debug)]
pub struct Lifetime {
    idle_ms: u64,
    rest: Option<Rest>,
    idle: Option<Millis>,
    pressed: Option<Millis>,
    crowded: Option<Millis>,
    /// While it rests: since when what stopped it is over.
    over: Option<Millis>,
    pause_ms: u64,
    /// When it last came back by itself.
    back: Option<Millis>,
}

impl Lifetime {
    /// At work; stopped after `idle_ms` without use, 0 is never.
    pub fn new(idle_ms: u64) -> Self {
        Self {
            idle_ms,
            rest: None,
            idle: None,
            pressed: None,
            crowded: None,
            over: None,
            pause_ms: 0,
            back: None,
        }
    }

    /// Why it rests; `None` if it is to work.
    pub fn rest(&self) -> Option<Rest> {
        self.rest
    }

    /// A request came that would use it.
    pub fn missed(&mut self) {
        self.idle = None;
        if self.rest == Some(Rest::Idle) {
            self.rest = None;
        }
    }

    /// An operator has spoken: what was before does not count.
    pub fn begin_anew(&mut self) {
        *self = Self::new(self.idle_ms);
    }

    /// Nothing is judged any more: the service stops.
    pub fn stop_clocks(&mut self) {
        (self.idle, self.pressed, self.crowded, self.over) = (None, None, None, None);
    }

    /// We were not awake: nothing lasted until `now` for all we know.
    pub fn forgive(&mut self, now: Millis) {
        for since in [&mut self.idle, &mut self.pressed, &mut self.crowded, &mut self.over] {
            *since = since.map(|_| now);
        }
    }

    /// Judges how things are; `up` says that it has loaded and could be used.
    pub fn judge(&mut self, load: &Load, up: bool, now: Millis) {
        let rests = self.rest.is_some();
        hold(&mut self.idle, self.idle_ms > 0 && up && !load.drafting && !rests, now);
        hold(&mut self.pressed, load.pressed && !rests, now);
        hold(&mut self.crowded, load.crowded && !rests, now);
        let over = match self.rest {
            Some(Rest::Memory) => load.eased && !load.pressed && !load.squeezed,
            Some(Rest::Crowd) => !load.crowded,
            Some(Rest::Idle) | None => false,
        };
        hold(&mut self.over, over, now);
        let is_due = |due: Option<Millis>| due.is_some_and(|due| due <= now);
        if rests {
            if is_due(self.over.map(|since| since + self.pause_ms)) {
                (self.rest, self.over, self.back) = (None, None, Some(now));
            }
        } else if load.squeezed || is_due(self.pressed.map(|since| since + PRESSED_MS)) {
            self.lie_down(Rest::Memory, ROOM_MS, now);
        } else if is_due(self.crowded.map(|since| since + CROWDED_MS)) {
            self.lie_down(Rest::Crowd, FEW_MS, now);
        } else if is_due(self.idle.map(|since| since + self.idle_ms)) {
            self.lie_down(Rest::Idle, 0, now);
        }
    }

    fn lie_down(&mut self, rest: Rest, pause_ms: u64, now: Millis) {
        if rest != Rest::Idle {
            let soon = self.back.is_some_and(|back| now.since(back) < STEADY_MS);
            self.pause_ms =
                if soon { (self.pause_ms * 2).clamp(pause_ms, LONGEST_MS) } else { pause_ms };
        }
        self.rest = Some(rest);
        self.stop_clocks();
    }

    /// When [`Lifetime::judge`] has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let due = |since: Option<Millis>, ms: u64| since.map(|since| since + ms);
        let deadlines = [
            due(self.idle, self.idle_ms),
            due(self.pressed, PRESSED_MS),
            due(self.crowded, CROWDED_MS),
            due(self.over, self.pause_ms),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// Keeps since when something holds.
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

    const NOTHING: Load =
        Load { drafting: false, crowded: false, pressed: false, eased: true, squeezed: false };
    const PRESSED: Load = Load { pressed: true, eased: false, ..NOTHING };
    const CROWDED: Load = Load { drafting: true, crowded: true, ..NOTHING };

    fn at(lifetime: &mut Lifetime, load: Load, s: f64) -> Option<Rest> {
        let now = Millis((s * 1e3) as u64);
        lifetime.judge(&load, true, now);
        assert!(
            lifetime.next_deadline().is_none_or(|due| due > now),
            "a deadline is left over at {s} s"
        );
        lifetime.rest()
    }

    #[test]
    fn unused_it_is_stopped_and_the_next_use_starts_it() {
        let mut lifetime = Lifetime::new(5_000);
        let using = Load { drafting: true, ..NOTHING };
        assert_eq!(at(&mut lifetime, using, 1.0), None);
        assert_eq!(lifetime.next_deadline(), None);
        assert_eq!(at(&mut lifetime, NOTHING, 2.0), None);
        assert_eq!(lifetime.next_deadline(), Some(Millis(7_000)));
        assert_eq!(at(&mut lifetime, NOTHING, 7.0), Some(Rest::Idle));
        assert_eq!(at(&mut lifetime, NOTHING, 700.0), Some(Rest::Idle));
        lifetime.missed();
        assert_eq!(at(&mut lifetime, NOTHING, 700.0), None);
        // Without the setting never; while it loads nobody can use it.
        let mut lifetime = Lifetime::new(0);
        assert_eq!(at(&mut lifetime, NOTHING, 1.0), None);
        assert_eq!(lifetime.next_deadline(), None);
        let mut lifetime = Lifetime::new(5_000);
        lifetime.judge(&NOTHING, false, Millis(1_000));
        assert_eq!(lifetime.next_deadline(), None);
    }

    #[test]
    fn short_memory_stops_it_and_pauses_grow() {
        let mut lifetime = Lifetime::new(0);
        assert_eq!(at(&mut lifetime, PRESSED, 1.0), None);
        // A short peak is none.
        assert_eq!(at(&mut lifetime, NOTHING, 3.9), None);
        let (mut now, mut pauses) = (10.0, vec![]);
        for _ in 0..9 {
            assert_eq!(at(&mut lifetime, PRESSED, now), None);
            assert_eq!(at(&mut lifetime, PRESSED, now + 3.0), Some(Rest::Memory));
            // Between its bounds memory is neither short nor there.
            assert_eq!(
                at(&mut lifetime, Load { eased: false, ..NOTHING }, now + 5.0),
                Some(Rest::Memory)
            );
            assert_eq!(lifetime.next_deadline(), None);
            assert_eq!(at(&mut lifetime, NOTHING, now + 6.0), Some(Rest::Memory));
            let due = lifetime.next_deadline().expect("it comes back").0 as f64 / 1e3;
            pauses.push(due - now - 6.0);
            assert_eq!(at(&mut lifetime, NOTHING, due), None);
            now = due + 1.0;
        }
        assert_eq!(pauses, [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0]);
        // Long at work: the next pause is short again.
        assert_eq!(at(&mut lifetime, PRESSED, now + 1_000.0), None);
        assert_eq!(at(&mut lifetime, PRESSED, now + 1_003.0), Some(Rest::Memory));
        at(&mut lifetime, NOTHING, now + 1_004.0);
        assert_eq!(lifetime.next_deadline(), Some(Millis(((now + 1_014.0) * 1e3) as u64)));
    }

    #[test]
    fn a_request_that_waits_for_memory_stops_it_at_once() {
        let mut lifetime = Lifetime::new(0);
        assert_eq!(at(&mut lifetime, Load { squeezed: true, ..NOTHING }, 1.0), Some(Rest::Memory));
        assert_eq!(at(&mut lifetime, Load { squeezed: true, ..NOTHING }, 60.0), Some(Rest::Memory));
        at(&mut lifetime, NOTHING, 61.0);
        assert_eq!(at(&mut lifetime, NOTHING, 71.0), None);
    }

    #[test]
    fn a_long_crowd_stops_it_and_a_burst_does_not() {
        let mut lifetime = Lifetime::new(0);
        assert_eq!(at(&mut lifetime, CROWDED, 1.0), None);
        assert_eq!(at(&mut lifetime, NOTHING, 60.9), None);
        assert_eq!(at(&mut lifetime, CROWDED, 61.0), None);
        assert_eq!(at(&mut lifetime, CROWDED, 121.0), Some(Rest::Crowd));
        assert_eq!(at(&mut lifetime, NOTHING, 130.0), Some(Rest::Crowd));
        assert_eq!(at(&mut lifetime, CROWDED, 134.0), Some(Rest::Crowd));
        assert_eq!(at(&mut lifetime, NOTHING, 135.0), Some(Rest::Crowd));
        assert_eq!(at(&mut lifetime, NOTHING, 140.0), None);
    }

    #[test]
    fn time_that_was_slept_away_proves_nothing() {
        let mut lifetime = Lifetime::new(5_000);
        at(&mut lifetime, PRESSED, 1.0);
        lifetime.forgive(Millis(100_000));
        assert_eq!(at(&mut lifetime, PRESSED, 100.0), None);
        assert_eq!(lifetime.next_deadline(), Some(Millis(103_000)));
    }
}
