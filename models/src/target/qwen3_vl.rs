//! Qwen3-VL (arXiv 2511.21631): a Qwen3 whose rows stand on three axes, and a vision tower. What is
//! its own is here: where a checkpoint keeps its parts, and how they must fit each other.

use super::decoder::{Decoder, DecoderSpec, TargetFiles};
use super::qwen3::Config;
use super::tower;
use crate::layers::{NormWeight, Rope, SectionOrder};
use crate::load::{Layout, LoadError};
use crate::vision::Deepstack;

/// Frequencies of each axis if the config names none. Source: Qwen3-VL in transformers.
const SECTION: [usize; 3] = [24, 20, 20];

/// Loads it, in either layout.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let read = Config::read(config)?;
    let sizes = read.sizes;
    let rope = Rope::load(config, sizes.head_dim)?.on_three_axes(
        config,
        SectionOrder::Interleaved,
        SECTION,
    )?;
    let layout = Layout::of(&weights, &Layout::WITH_VISION)?;
    let tower = tower::load(config, &mut weights, layout, &sizes, Deepstack::AsConfigured)?;
    let spec = DecoderSpec {
        architecture: "qwen3_vl".into(),
        layout,
        sizes,
        attention: read.attention,
        recurrent: &[],
        norms: NormWeight::Whole,
        feed_forward: &|weights, _, name| read.feed_forward(weights, name),
        rope,
        tower: Some(tower),
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
