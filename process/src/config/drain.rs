//! `[drain]`: what precedes an operator's drain.

use serde::{Deserialize, Serialize};

/// `[drain]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainConfig {
    /// Seconds before `paceline drain` in which the service still serves and its health reports that
    /// it does not, so that routers send new requests elsewhere; 0 = none. At least two intervals of
    /// the router's health checks.
    pub notice_s: u64,
}
