//! How long a draft is waited for, and when it is not asked for at all. A drafter that is late
//! again and again is suspect: it gets a pause, then one more chance, with growing pauses. Nothing
//! here is for ever.

use paceline_vocabulary::Millis;

/// Plain steps a draft is waited for, beyond twice the time drafts usually take.
const PLAIN_STEPS: f64 = 4.0;
/// Bounds of the wait, in milliseconds. The upper one is what a frozen drafter costs a stream once:
/// at most 250 ms.
const LEAST_MS: f64 = 20.0;
const MOST_MS: f64 = 200.0;
/// Late rounds in a row that make a drafter suspect.
const STREAK: u32 = 3;
/// The first pause, and the longest, in milliseconds.
const PAUSE_MS: u64 = 250;
const LONGEST_PAUSE_MS: u64 = 8_000;
/// Weight of the newest figure in a running mean.
const NEWEST: f64 = 0.2;

/// Measured times of one link.
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftDeadline {
    plain_ms: Option<f64>,
    draft_ms: Option<f64>,
    streak: u32,
    pauses: u32,
    paused_until: Option<Millis>,
}

impl DraftDeadline {
    /// A step that only decoded took so long.
    pub fn plain_step(&mut self, ms: f64) {
        self.plain_ms = Some(mean(self.plain_ms, ms));
    }

    /// When a draft that is asked for at `now` is late, if reading what it has to read first takes
    /// `read_ms`.
    pub fn deadline(&self, now: Millis, read_ms: f64) -> Millis {
        let wait = 2.0 * read_ms
            + PLAIN_STEPS * self.plain_ms.unwrap_or(LEAST_MS)
            + 2.0 * self.draft_ms.unwrap_or(LEAST_MS);
        now + wait.clamp(LEAST_MS, MOST_MS).round() as u64
    }

    /// Drafts came in time, so long after they were asked for.
    pub fn in_time(&mut self, ms: u64) {
        self.draft_ms = Some(mean(self.draft_ms, ms as f64));
        self.answered();
    }

    /// Drafts came in time; how long they took says nothing, as they were not looked for all the
    /// while.
    pub fn answered(&mut self) {
        (self.streak, self.pauses, self.paused_until) = (0, 0, None);
    }

    /// Drafts did not come in time.
    pub fn late(&mut self, now: Millis) {
        if !self.may_ask(now) {
            // It was asked before the pause, by somebody else: what made it late is known.
            return;
        }
        self.streak += 1;
        // On probation one late round is enough.
        if self.streak >= STREAK || self.pauses > 0 {
            self.paused_until = Some(now + (PAUSE_MS << self.pauses.min(10)).min(LONGEST_PAUSE_MS));
            self.pauses += 1;
            self.streak = 0;
        }
    }

    /// Whether drafts may be asked for.
    pub fn may_ask(&self, now: Millis) -> bool {
        self.paused_until.is_none_or(|until| now >= until)
    }

    /// Whether the drafter is late again and again.
    pub fn is_suspect(&self) -> bool {
        self.pauses > 0
    }

    /// Another drafter: what was measured of the target stays.
    pub fn restart(&mut self) {
        *self = Self { plain_ms: self.plain_ms, ..Self::default() };
    }
}

fn mean(old: Option<f64>, new: f64) -> f64 {
    old.map_or(new, |old| old + NEWEST * (new - old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_what_was_measured_within_its_bounds() {
        let mut pace = DraftDeadline::default();
        assert_eq!(pace.deadline(Millis(0), 0.0), Millis(120));
        (0..100).for_each(|_| pace.plain_step(3.0));
        (0..100).for_each(|_| pace.in_time(2));
        assert_eq!(pace.deadline(Millis(0), 0.0), Millis(20));
        (0..100).for_each(|_| pace.plain_step(20.0));
        assert_eq!(pace.deadline(Millis(0), 0.0), Millis(84));
        (0..100).for_each(|_| pace.plain_step(500.0));
        assert_eq!(pace.deadline(Millis(0), 0.0), Millis(200));
    }

    #[test]
    fn who_is_late_three_times_gets_growing_pauses_and_always_another_chance() {
        let mut pace = DraftDeadline::default();
        pace.late(Millis(0));
        pace.late(Millis(1));
        assert!(pace.may_ask(Millis(1)) && !pace.is_suspect());
        pace.late(Millis(2));
        assert!(!pace.may_ask(Millis(251)) && pace.may_ask(Millis(252)) && pace.is_suspect());
        pace.late(Millis(300));
        assert!(!pace.may_ask(Millis(799)) && pace.may_ask(Millis(800)));
        // What others asked for before a pause is no news of the drafter: the pause does not grow
        // by it.
        (0..20).for_each(|_| pace.late(Millis(1000)));
        assert!(!pace.may_ask(Millis(1999)) && pace.may_ask(Millis(2000)));
        let last = (0..20).fold(2_000, |now, _| {
            pace.late(Millis(now));
            now + 8_000
        });
        assert!(!pace.may_ask(Millis(last - 1)) && pace.may_ask(Millis(last)));
        let mut other = pace;
        other.answered();
        assert!(other.may_ask(Millis(last - 1)) && !other.is_suspect());
        assert_eq!(
            other.deadline(Millis(0), 0.0),
            pace.deadline(Millis(0), 0.0),
            "no time was learnt"
        );
        pace.in_time(5);
        assert!(pace.may_ask(Millis(last - 1)) && !pace.is_suspect());
        pace.late(Millis(last));
        assert!(pace.may_ask(Millis(last)), "the past is forgotten");
    }
}
