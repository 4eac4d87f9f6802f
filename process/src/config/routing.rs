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
    /// Everything with the drafter, where there is one.
    Speculative,
}

/// `[routing]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// Requests at once that may draft; auto: 4 until it is measured how far speculation pays.
    pub max_concurrent: Auto<u32>,
    /// Context above which requests decode plainly, in tokens; auto: 4096, where published drafters
    /// were trained, until measured.
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
