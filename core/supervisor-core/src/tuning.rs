//! Settings that an operator changes while the service runs, besides the routing policy.

use crate::admission::AdmissionBounds;
use crate::drafter::DrafterPlan;

/// Changed settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// Other bounds of admission.
    Admission(AdmissionBounds),
    /// Other configured drafters, or another time to start them. A drafter that runs goes on.
    Drafters(DrafterPlan),
    /// Another notice before a drain. One that has begun lasts as long as it was to.
    Notice {
        /// Milliseconds from the order to drain until requests are refused; 0 is none.
        ms: u64,
    },
}

impl Tuning {
    /// The settings in words, for the event.
    pub fn words(&self) -> String {
        match self {
            Tuning::Admission(AdmissionBounds { queue_places, queue_wait_ms, streams_per_key }) => {
                format!(
                    "queue {queue_places}, wait {queue_wait_ms} ms, {streams_per_key} streams a key"
                )
            }
            Tuning::Drafters(plan) if plan.models.is_empty() => "no drafter".to_owned(),
            Tuning::Drafters(plan) => format!("drafters {}", plan.models.join(", ")),
            Tuning::Notice { ms } => format!("notice {ms} ms"),
        }
    }
}
