//! `[kv]`: the target's KV memory.

use serde::{Deserialize, Serialize};

use super::Auto;

/// Largest `kv.hidden_window`, in positions: hidden states are wide, and old ones help a drafter
/// little.
pub(super) const LONGEST_HIDDEN_WINDOW: u32 = 65_536;

/// `[kv]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvConfig {
    /// Bytes that sequences may hold together; auto = `budget_fraction` of what is free after load.
    pub budget_bytes: Auto<u64>,
    /// Share of the memory that is free after the weights are loaded; auto = 0.5. On macOS no more
    /// counts as free than the working set that the GPU's driver recommends has left.
    pub budget_fraction: Auto<f64>,
    /// Retain the KV of ended requests for later ones with the same beginning.
    pub prefix_cache: bool,
    /// Positions whose hidden states are retained for a drafter that attaches later.
    pub hidden_window: u32,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            budget_bytes: Auto::Auto,
            budget_fraction: Auto::Auto,
            prefix_cache: true,
            hidden_window: 512,
        }
    }
}
