//! Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923): a Qwen2 whose rows stand on three
//! axes, and a vision tower.

use super::decoder::{Decoder, DecoderSpec, TargetFiles};
use super::{qwen2, tower};
use crate::layers::{NormWeight, Rope, SectionOrder};
use crate::load::{Layout, LoadError};
use crate::vision::{Generation, QwenTower};

/// Frequencies of each axis if the config names none.
const SECTION: [usize; 3] = [16, 24, 24];

/// The layouts of most published checkpoints, of newer ones, and of MLX's conversions.
const LAYOUTS: [Layout; 3] =
    [Layout::OLDER_WITH_VISION, Layout::WITH_VISION[0], Layout::WITH_VISION[1]];

/// Loads Qwen2-VL. Without a tower it is a text model.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    load_with(files, "qwen2_vl", Generation::Two)
}

/// Loads Qwen2.5-VL. Without a tower it is a text model.
pub(super) fn load_two_and_half(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    load_with(files, "qwen2_5_vl", Generation::TwoAndHalf)
}

fn load_with(
    files: TargetFiles<'_>,
    architecture: &str,
    generation: Generation,
) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let read = qwen2::Config::read(config)?;
    let layout = Layout::of(weights.files(), &LAYOUTS)?;
    let tower = tower::load_if_there(config, &mut weights, &read.sizes, |part, weights, text| {
        QwenTower::load(part, weights, layout.vision, text, generation)
    })?;
    let rope = Rope::load(config, read.sizes.head_dim)?;
    let spec = DecoderSpec {
        architecture: architecture.into(),
        layout,
        sizes: read.sizes,
        attention: qwen2::ATTENTION,
        rotating: &[],
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: None,
        feed_forward: &*read.feed_forward(),
        rope: rope.on_three_axes(config, SectionOrder::OneAfterAnother, SECTION)?,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
