//! PaddleOCR-VL.

use super::{Family, Towers};
use crate::Unserved;

/// Its tower, in either layout, and what joins it to the text model.
const UNSERVED: Unserved =
    Unserved { prefixes: &["visual.", "mlp_AR."], suffixes: BESIDE_A_TOWER.suffixes };
/// What published files have beside the served tower is of no use: a head, and a second table of
/// positions.
const BESIDE_A_TOWER: Unserved = Unserved {
    prefixes: &["visual.vision_model.head."],
    suffixes: &[".rotary_emb.inv_freq", ".packing_position_embedding.weight"],
};

pub(super) const FAMILY: Family = Family {
    towers: Towers::IfThere(BESIDE_A_TOWER),
    ..Family::attending(&["paddleocr_vl"], UNSERVED)
};
