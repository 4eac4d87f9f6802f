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
}
