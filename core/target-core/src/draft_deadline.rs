//! How long a draft is waited for, and when none is requested at all.
//!
//! The algorithm: the deadline of a draft is four plain steps plus twice the mean time of drafts,
//! within bounds. A drafter that is late three times in a row is suspect: no drafts are requested
//! for a pause, then one is tried. The pauses double up to 8 s and never become permanent.

use paceline_vocabulary::{ExponentialMean, Millis};

/// Plain steps that a draft is waited for, beyond twice the time that drafts usually take.
const PLAIN_STEPS: f64 = 4.0;
/// Shortest wait, in milliseconds, and the assumed time of a step and of a draft until one is
/// measured. Scheduling of the operating system alone may take several milliseconds.
const LEAST_MS: f64 = 20.0;
/// Longest wait, in milliseconds. A frozen drafter costs a stream this time once: the bound for it
/// is 250 ms, with the step in which it is noticed.
const MOST_MS: f64 = 200.0;
/// Late drafts in a row that make a drafter suspect. One or two may be pauses of the machine.
const LATE_LIMIT: u32 = 3;
/// First pause of a suspect drafter, in milliseconds.
const FIRST_PAUSE_MS: u64 = 250;
/// Longest pause, in milliseconds. A drafter that recovers is used again within this time.
const LONGEST_PAUSE_MS: u64 = 8_000;
/// Weight of the newest time in a mean: about the last five count.
const NEWEST_WEIGHT: f64 = 0.2;

/// Measured times of one link, and whether its drafter is suspect.
#[derive(Clone, Copy, Debug)]
pub struct DraftDeadline {
    plain_ms: ExponentialMean,
    draft_ms: ExponentialMean,
    late_in_row: u32,
    pauses: u32,
    paused_until: Option<Millis>,
}

impl Default for DraftDeadline {
    fn default() -> Self {
        Self {
            plain_ms: ExponentialMean::new(NEWEST_WEIGHT),
            draft_ms: ExponentialMean::new(NEWEST_WEIGHT),
            late_in_row: 0,
            pauses: 0,
            paused_until: None,
        }
    }
}

impl DraftDeadline {
    /// A step that only decoded took `ms`.
    pub fn plain_step(&mut self, ms: f64) {
        self.plain_ms.add(ms);
    }

    /// When a draft that is requested at `now` is late, if the drafter first needs `read_ms` to
    /// read context.
    pub fn deadline(&self, now: Millis, read_ms: f64) -> Millis {
        let wait = 2.0 * read_ms
            + PLAIN_STEPS * self.plain_ms.get().unwrap_or(LEAST_MS)
            + 2.0 * self.draft_ms.get().unwrap_or(LEAST_MS);
        now + wait.clamp(LEAST_MS, MOST_MS).round() as u64
    }

    /// Drafts arrived in time, `ms` after their request.
    pub fn in_time(&mut self, ms: u64) {
        self.draft_ms.add(ms as f64);
        self.answered();
    }

    /// Drafts arrived in time, and their time was not measured.
    pub fn answered(&mut self) {
        (self.late_in_row, self.pauses, self.paused_until) = (0, 0, None);
    }

    /// Drafts did not arrive in time.
    pub fn late(&mut self, now: Millis) {
        if !self.may_ask(now) {
            // It was requested before the pause, so the pause already counts it.
            return;
        }
        self.late_in_row += 1;
        // After a pause one late draft is enough.
        if self.late_in_row >= LATE_LIMIT || self.pauses > 0 {
            let pause_ms = (FIRST_PAUSE_MS << self.pauses.min(10)).min(LONGEST_PAUSE_MS);
            self.paused_until = Some(now + pause_ms);
            self.pauses += 1;
            self.late_in_row = 0;
        }
    }

    /// Whether drafts may be requested.
    pub fn may_ask(&self, now: Millis) -> bool {
        self.paused_until.is_none_or(|until| now >= until)
    }

    /// Whether the drafter is suspect: late several times in a row.
    pub fn is_suspect(&self) -> bool {
        self.pauses > 0
    }

    /// End of the cool-down that began last; `None` once drafts come in time again.
    pub fn cooldown_until(&self) -> Option<Millis> {
        self.paused_until
    }

    /// Another drafter is attached. What was measured of the target stays.
    pub fn restart(&mut self) {
        *self = Self { plain_ms: self.plain_ms, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_follows_the_measured_times_within_its_bounds() {
        let mut deadlines = DraftDeadline::default();
        assert_eq!(deadlines.deadline(Millis(0), 0.0), Millis(120));
        (0..100).for_each(|_| deadlines.plain_step(3.0));
        (0..100).for_each(|_| deadlines.in_time(2));
        assert_eq!(deadlines.deadline(Millis(0), 0.0), Millis(20));
        (0..100).for_each(|_| deadlines.plain_step(20.0));
        assert_eq!(deadlines.deadline(Millis(0), 0.0), Millis(84));
        (0..100).for_each(|_| deadlines.plain_step(500.0));
        assert_eq!(deadlines.deadline(Millis(0), 0.0), Millis(200));
    }

    #[test]
    fn three_late_drafts_back_off_but_never_disable() {
        let mut deadlines = DraftDeadline::default();
        deadlines.late(Millis(0));
        deadlines.late(Millis(1));
        assert!(deadlines.may_ask(Millis(1)) && !deadlines.is_suspect());
        deadlines.late(Millis(2));
        assert!(
            !deadlines.may_ask(Millis(251))
                && deadlines.may_ask(Millis(252))
                && deadlines.is_suspect()
        );
        deadlines.late(Millis(300));
        assert!(!deadlines.may_ask(Millis(799)) && deadlines.may_ask(Millis(800)));
        // Drafts that were requested before a pause do not make the pause longer.
        (0..20).for_each(|_| deadlines.late(Millis(1000)));
        assert!(!deadlines.may_ask(Millis(1999)) && deadlines.may_ask(Millis(2000)));
        let last = (0..20).fold(2_000, |now, _| {
            deadlines.late(Millis(now));
            now + 8_000
        });
        assert!(!deadlines.may_ask(Millis(last - 1)) && deadlines.may_ask(Millis(last)));
        let mut other = deadlines;
        other.answered();
        assert!(other.may_ask(Millis(last - 1)) && !other.is_suspect());
        assert_eq!(
            other.deadline(Millis(0), 0.0),
            deadlines.deadline(Millis(0), 0.0),
            "no time was measured"
        );
        deadlines.in_time(5);
        assert!(deadlines.may_ask(Millis(last - 1)) && !deadlines.is_suspect());
        deadlines.late(Millis(last));
        assert!(deadlines.may_ask(Millis(last)), "an answer resets the count");
    }
}
