//! config.json of a DFlash 2 drafter: the backbone's keys, and those of the convolutions and of the
//! candidate selector.

use crate::draft::block_diffusion::{self, Keys, wrong};
use crate::load::{ConfigJson, LoadError};

/// The name in `architectures`.
const ARCHITECTURE: &str = "DFlash2DraftModel";

/// Most rows of a block that a convolution reads.
const MOST_TAPS: i32 = 16;

/// Most candidates of a row. Scores are of all pairs of two rows' candidates.
const MOST_CANDIDATES: i32 = 64;

/// Sizes of the convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Convolution {
    /// Rows that it reads, the row itself included.
    pub(super) kernel: i32,
    /// Channels of a group.
    pub(super) group: i32,
}

/// Sizes and rules of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) backbone: block_diffusion::Config,
    pub(super) convolution: Convolution,
    /// Numbers of a row of a codebook.
    pub(super) rank: i32,
    /// Candidates of a row.
    pub(super) top_k: i32,
    /// Rows of a codebook, and of the target's head.
    pub(super) vocab: i32,
    /// Factor on the logits.
    pub(super) output_multiplier: Option<f32>,
}

/// Whether a config.json is that of a DFlash 2 drafter.
///
/// # Errors
/// A key has another type.
pub(super) fn is_dflash2(config: &ConfigJson) -> Result<bool, LoadError> {
    let keys = Keys::of(config)?;
    let named = keys.architectures()?.iter().any(|name| name == ARCHITECTURE);
    Ok(named || keys.either::<i64>("selector_rank")?.is_some_and(|rank| rank > 0))
}

impl Config {
    /// Reads the keys.
    ///
    /// # Errors
    /// A config of another kind, or one that is not served.
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let keys = Keys::of(config)?;
        if !is_dflash2(config)? {
            let found = keys.architectures()?;
            let what = format!(
                "expected [\"{ARCHITECTURE}\"], found {found:?}: leave drafter.kind at auto"
            );
            return Err(wrong("architectures", what));
        }
        if let Some(kind) = &keys.speculators {
            let what = format!(
                "expected none, found {kind}: DFlash 2 is served in the layout of z-lab alone"
            );
            return Err(wrong("speculators_model_type", what));
        }
        let backbone = keys.backbone(keys.block(2)?)?;
        let convolution = Convolution {
            kernel: keys.size("conv_kernel_size")?,
            group: keys.size("conv_group_size")?,
        };
        if convolution.kernel > MOST_TAPS {
            let what = format!("expected 1 to {MOST_TAPS}, found {}", convolution.kernel);
            return Err(wrong("conv_kernel_size", what));
        }
        if backbone.hidden_size % convolution.group != 0 {
            let what = format!(
                "expected a divisor of hidden_size, {}, found {}",
                backbone.hidden_size, convolution.group
            );
            return Err(wrong("conv_group_size", what));
        }
        let vocab = keys.layers.size("vocab_size")?;
        let (rank, top_k) = (keys.size("selector_rank")?, keys.size("selector_top_k")?);
        if top_k > vocab.min(MOST_CANDIDATES) {
            let what = format!("expected 1 to {}, found {top_k}", vocab.min(MOST_CANDIDATES));
            return Err(wrong("selector_top_k", what));
        }
        let earlier_rows = convolution.kernel - 1;
        Ok(Self {
            backbone: block_diffusion::Config { earlier_rows, ..backbone },
            convolution,
            rank,
            top_k,
            vocab,
            output_multiplier: keys.positive("output_multiplier")?,
        })
    }
}

#[cfg(test)]
mod tests;
