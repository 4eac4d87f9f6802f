//! When to try the speculative lane again where it is not known to pay.

use paceline_vocabulary::{Millis, Permit, RouteReason};

/// Pause from the first denial by a prior or a measurement to the first probe ...
const FIRST_PROBE_MS: u64 = 10_000;
/// ... doubling to here.
const LONGEST_PROBE_MS: u64 = 640_000;

/// The time of the next probe.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    /// Set by the first denial.
    due: Option<Millis>,
    pause_ms: u64,
}

impl Probe {
    /// Whether a probe is due.
    pub(super) fn is_due(self, now: Millis) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// A request got this permit.
    pub(super) fn learn(&mut self, permit: &Permit, now: Millis) {
        match permit.reason {
            RouteReason::Probe => {
                self.pause_ms = (self.pause_ms * 2).min(LONGEST_PROBE_MS);
                self.due = Some(now + self.pause_ms);
            }
            // It pays somewhere: earlier denials do not lengthen the next pause.
            RouteReason::Benefit => *self = Self::default(),
            _ if permit.is_held_back()
                && permit.reason != RouteReason::KvPressure
                && self.due.is_none() =>
            {
                self.pause_ms = FIRST_PROBE_MS;
                self.due = Some(now + FIRST_PROBE_MS);
            }
            _ => {}
        }
    }
}
