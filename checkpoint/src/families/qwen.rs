//! Qwen2, Qwen2.5 and Qwen3, and the vision models on their decoders.

use super::{Family, Towers};
use crate::Unserved;

/// A vision tower, in either layout, and layers that predict several tokens.
const UNSERVED: Unserved = Unserved {
    prefixes: &["mtp.", "model.mtp.", "visual.", "model.visual.", "vision_tower."],
    suffixes: Unserved::FREQUENCIES,
};
/// The tower is served, or there is none.
const BESIDE_A_TOWER: Unserved =
    Unserved { prefixes: &["mtp.", "model.mtp."], suffixes: Unserved::FREQUENCIES };

/// A family of which some checkpoints have a tower.
const fn seeing(model_types: &'static [&'static str]) -> Family {
    Family { towers: Towers::IfThere(BESIDE_A_TOWER), ..Family::attending(model_types, UNSERVED) }
}

pub(super) const QWEN2: Family = Family::attending(&["qwen2"], UNSERVED);
pub(super) const QWEN3: Family = Family::attending(&["qwen3"], UNSERVED);
pub(super) const QWEN3_MOE: Family = Family::attending(&["qwen3_moe"], UNSERVED);
pub(super) const QWEN3_VL: Family = seeing(&["qwen3_vl"]);
pub(super) const QWEN3_VL_MOE: Family = seeing(&["qwen3_vl_moe"]);
pub(super) const QWEN2_VL: Family = seeing(&["qwen2_vl"]);
pub(super) const QWEN2_5_VL: Family = seeing(&["qwen2_5_vl"]);
