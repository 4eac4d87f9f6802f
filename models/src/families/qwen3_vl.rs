//! Qwen3-VL (arXiv 2511.21631), dense and with experts: a Qwen3 whose rows stand on three axes, and a
//! vision tower. What is its own is here: where a checkpoint keeps its parts, and how they must fit
//! each other.

use super::decoder::{Decoder, DecoderSpec, LoadFeedForward, TargetFiles};
use super::{qwen3, qwen3_moe, tower};
use crate::layers::{NormWeight, Rope, SectionOrder};
use crate::load::{Layout, LoadError};
use crate::vision::{Deepstack, Generation, QwenTower};

/// Frequencies of each axis if the config names none. Source: Qwen3-VL in transformers.
const SECTION: [usize; 3] = [24, 20, 20];

/// Loads it, in either layout. Without a tower it is a text model.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let read = qwen3::Config::read(files.config)?;
    load_with(files, "qwen3_vl", read, &*read.feed_forward())
}

/// Loads the one with experts. The reference divides the shares of a row's experts by their sum in
/// any case.
pub(super) fn load_moe(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let read = qwen3_moe::Config::read(files.config, true)?;
    load_with(files, "qwen3_vl_moe", read.dense, &|weights, layer, name| {
        read.feed_forward(weights, layer, name)
    })
}

fn load_with(
    files: TargetFiles<'_>,
    architecture: &str,
    read: qwen3::Config,
    feed_forward: &LoadFeedForward<'_>,
) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let sizes = read.sizes;
    let rope = Rope::load(config, sizes.head_dim)?;
    let layout = Layout::of(weights.files(), &Layout::WITH_VISION)?;
    let generation = Generation::Three(Deepstack::AsConfigured);
    let tower = tower::load_if_there(config, &mut weights, &sizes, |part, weights, text| {
        QwenTower::load(part, weights, layout.vision, text, generation)
    })?;
    let spec = DecoderSpec {
        architecture: architecture.into(),
        layout,
        sizes,
        attention: read.attention,
        rotating: &[],
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: None,
        feed_forward,
        rope: rope.on_three_axes(config, SectionOrder::Interleaved, SECTION)?,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
