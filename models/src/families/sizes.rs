//! Sizes of the experts of a decoder, as config.json has them.

use crate::layers::ExpertSizes;
use crate::load::{ConfigJson, LoadError};

/// Sizes of the experts of one checkpoint, in every layer the same. `chosen`: the key of how many a
/// row goes through. `renormalized`: the shares of the chosen ones add up to 1.
pub(super) fn experts(
    config: &ConfigJson,
    chosen: &str,
    hidden: i32,
    renormalized: bool,
) -> Result<ExpertSizes, LoadError> {
    let sizes = ExpertSizes {
        hidden,
        intermediate: config.size("moe_intermediate_size")?,
        n_experts: config.size("num_experts")?,
        chosen: config.size(chosen)?,
        renormalized,
    };
    if sizes.chosen > sizes.n_experts {
        let what =
            format!("expected at most the {} experts, found {}", sizes.n_experts, sizes.chosen);
        return Err(config.wrong(chosen, what).into());
    }
    Ok(sizes)
}
