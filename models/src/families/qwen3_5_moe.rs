//! Qwen3.5 with experts: each row goes through a few of many gated blocks, chosen by a router, and
//! through one more that all rows share.

use super::decoder::{Decoder, FeedForward, LoadFeedForward, TargetFiles};
use super::qwen3_5::{Config, load_as};
use super::sizes::experts;
use crate::layers::SharedExpertMlp;
use crate::load::{ConfigJson, LoadError};

/// Loads it, in the layout of transformers or of mlx-lm.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let read = Config::read(files.config)?;
    let feed_forward = feed_forward(files.config, read.sizes.hidden_size)?;
    load_as(files, read, &*feed_forward)
}

/// The second half of a layer: experts, and one more that is shared.
///
/// # Errors
/// A size is missing or out of range.
pub(super) fn feed_forward(
    config: &ConfigJson,
    hidden: i32,
) -> Result<Box<LoadFeedForward<'static>>, LoadError> {
    let sizes = experts(config, "num_experts_per_tok", hidden, true)?;
    let shared = config.size("shared_expert_intermediate_size")?;
    Ok(Box::new(move |weights, _, name| {
        Ok(FeedForward::SharedExperts(SharedExpertMlp::load(weights, name, sizes, shared)?))
    }))
}
