//! How other permits of running requests reach the target.
//!
//! One batch is on its way at a time, so that none overtakes another. Permits that change meanwhile
//! go with the next batch, the newest permit of each request only. Permits that did not reach the
//! target are sent again after a pause, as long as their requests run: the batch failed, or the
//! target did not know the request yet. So a lost permit binds no request (I12).
//!
//! ```text
//!  free ── sent ──▶ on its way ── answered ──▶ free, with a time for the next try if a permit was missed
//! ```

use paceline_vocabulary::{Epoch, Millis};

/// Pause before the first further try: long enough for a request that was still on its way to the
/// target ...
const FIRST_AGAIN_MS: u64 = 100;
/// ... doubling to here while permits are missed each time.
const LONGEST_AGAIN_MS: u64 = 5_000;

/// The delivery of permits to the target.
#[derive(Debug, Default)]
pub(super) struct PermitDelivery {
    /// The epoch that has a batch and has not answered it.
    on_its_way: Option<Epoch>,
    /// When missed permits are sent again.
    again: Option<Millis>,
    /// The last pause; 0 if the target took the whole batch.
    pause_ms: u64,
}

impl PermitDelivery {
    /// Whether a batch may be sent to this epoch now: the new permits, and with `true` also the
    /// missed ones.
    pub(super) fn next_batch(&mut self, epoch: Epoch, now: Millis) -> Option<bool> {
        let due = self.again.take_if(|at| *at <= now).is_some();
        (self.on_its_way != Some(epoch)).then_some(due)
    }

    /// A batch is sent, with every missed permit.
    pub(super) fn sent(&mut self, epoch: Epoch) {
        (self.on_its_way, self.again) = (Some(epoch), None);
    }

    /// Whether this epoch has a batch to answer. An answer of an earlier epoch does not count
    /// (I7).
    pub(super) fn awaits(&self, epoch: Epoch) -> bool {
        self.on_its_way == Some(epoch)
    }

    /// The batch was answered.
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
