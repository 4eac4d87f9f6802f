//! `[routing]`: when speculation is allowed.

use serde::{Deserialize, Serialize};

use super::Auto;

/// An operator's override of the route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Force {
    /// No override.
    #[default]
    Auto,
    /// Everything without the drafter.
    Plain,
    /// Everything with the drafter, if there is one.
    Speculative,
}

/// `[routing]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// Most requests at once that may draft; auto: 4 until there are measurements.
    pub max_concurrent: Auto<u32>,
    /// Context above which requests decode plainly, in tokens; auto: 4096, the length that
    /// published drafters were trained at, until there are measurements.
    pub max_context: Auto<u32>,
    /// KV pressure above which requests decode plainly.
    pub kv_pressure: f64,
    /// Operator's override.
    pub force: Force,
    /// File of the route log; "" = off.
    pub route_log: String,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            max_concurrent: Auto::Auto,
            max_context: Auto::Auto,
            kv_pressure: 0.85,
            force: Force::Auto,
            route_log: String::new(),
        }
    }
}
