//! SmolLM3, whose head is the embedding unless config.json says otherwise.

use super::Family;
use crate::Unserved;

pub(super) const FAMILY: Family =
    Family { is_tied: true, ..Family::attending(&["smollm3"], Unserved::FREQUENCIES_ALONE) };
