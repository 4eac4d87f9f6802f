//! How running requests' other permits reach the target: in orders of which one is on its way at a
//! time, so that none overtakes another. What changes meanwhile goes with the next, each request's
//! newest permit only. What an order did not bring there, because it failed or because the target
//! did not know the request yet, is told again after a pause, as long as the request runs: a permit
//! that is lost binds nobody (I12).
//!
//! ```text
//!  free ── sent ──▶ on its way ── answered ──▶ free, with a time to tell again if something was missed
//! ```

use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;

/// Pause before the first try again: long enough for a request that was still on its way to the
/// target ...
const FIRST_AGAIN_MS: u64 = 100;
/// ... doubling to here while something is missed each time.
const LONGEST_AGAIN_MS: u64 = 5_000;

/// The orders' way to the target.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// The life that has an order and has not answered it.
    on_its_way: Option<Epoch>,
    /// When what was missed is told again.
    again: Option<Millis>,
    /// The last pause; 0: all was taken.
    pause_ms: u64,
}

impl Delivery {
    /// Whether this life may be told something now: what is new, and (`true`) also what it has
    /// missed.
    pub(super) fn turn(&mut self, epoch: Epoch, now: Millis) -> Option<bool> {
        let due = self.again.take_if(|at| *at <= now).is_some();
        (self.on_its_way != Some(epoch)).then_some(due)
    }

    /// An order goes out, with everything that was missed.
    pub(super) fn sent(&mut self, epoch: Epoch) {
        (self.on_its_way, self.again) = (Some(epoch), None);
    }

    /// Whether this life has an order to answer: what an earlier one says is nothing to this one's
    /// (I7).
    pub(super) fn is_answer(&self, epoch: Epoch) -> bool {
        self.on_its_way == Some(epoch)
    }

    /// The order was answered.
    pub(super) fn answered(&mut self, missed: bool, now: Millis) {
        self.on_its_way = None;
        self.pause_ms = match missed {
            true => (self.pause_ms * 2).clamp(FIRST_AGAIN_MS, LONGEST_AGAIN_MS),
            false => 0,
        };
        self.again = missed.then_some(now + self.pause_ms);
    }

    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.again
    }
}
