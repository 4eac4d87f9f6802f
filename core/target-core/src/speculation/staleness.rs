//! When plain steps are taken only to measure them, because too many blocks came without one.
//!
//! From blocks alone a slower machine and dearer blocks look the same, and the cost of plain steps
//! follows the first. After fifty blocks plain steps were estimated at 1.6 times what they took.
//! So if drafting promises less than [`CLEAR_GAIN`], a plain step is measured after a number of
//! blocks. The number doubles each time that the plain step takes what was expected.

use super::measure::CHECK_INTERVAL;

/// Blocks until the cost of plain steps is stale for the first time.
const FIRST_INTERVAL: u32 = 8;
/// Gain of drafting over plain steps above which no plain step is taken to measure it. The error of
/// the estimate cannot be that large.
pub(super) const CLEAR_GAIN: f64 = 2.0;
/// Most plain steps in a row that are taken for this, if each takes another time than expected.
const MAX_STEPS: u32 = 6;
/// Least ratio of a plain step's time over its expected time that confirms the expectation.
const LEAST_RATIO: f64 = 0.8;
/// Largest such ratio.
const MOST_RATIO: f64 = 1.25;

/// Counts blocks since a plain step confirmed the cost of plain steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct StalenessGuard {
    blocks: u32,
    /// Blocks after which the cost of plain steps is stale.
    interval: u32,
    /// Plain steps that were taken since the cost became stale.
    steps: u32,
}

impl Default for StalenessGuard {
    fn default() -> Self {
        Self { blocks: 0, interval: FIRST_INTERVAL, steps: 0 }
    }
}

impl StalenessGuard {
    /// A step had blocks.
    pub(super) fn count_block(&mut self) {
        self.blocks += 1;
    }

    /// A plain step after another plain one took `ratio` times its expected time. Returns true if
    /// that shows that the estimate was stale.
    pub(super) fn observe_plain(&mut self, ratio: f64) -> bool {
        let confirms = (LEAST_RATIO..=MOST_RATIO).contains(&ratio);
        let was_stale = self.is_stale();
        if confirms {
            self.confirm();
        } else if was_stale {
            self.interval = FIRST_INTERVAL;
        }
        was_stale && !confirms
    }

    /// Whether the cost of plain steps is stale.
    pub(super) fn is_stale(&self) -> bool {
        self.blocks >= self.interval
    }

    /// Whether one more plain step is to be taken while the cost is stale. After [`MAX_STEPS`] the
    /// cost counts as confirmed.
    pub(super) fn take_step(&mut self) -> bool {
        if self.steps >= MAX_STEPS {
            self.confirm();
            return false;
        }
        self.steps += 1;
        true
    }

    fn confirm(&mut self) {
        if self.is_stale() {
            self.interval = (2 * self.interval).min(CHECK_INTERVAL);
        }
        (self.blocks, self.steps) = (0, 0);
    }
}
