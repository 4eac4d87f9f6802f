//! PaddleOCR-VL (arXiv 2510.14528): a Llama whose rows stand on three axes, and a vision tower. Its
//! config.json is flat in published files and has parts in later ones.

use paceline_checkpoint::families::Sizes;

use super::attention::AttentionSpec;
use super::decoder::{Decoder, DecoderSpec, TargetFiles, dense};
use super::tower;
use crate::layers::{NormWeight, Rope, SectionOrder};
use crate::load::{Layout, LoadError};
use crate::vision::SiglipTower;

/// Frequencies of each axis if the config names none. Source: PaddleOCR-VL in transformers.
const SECTION: [usize; 3] = [16, 24, 24];

/// Loads it, in either layout.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let layout = Layout::of(weights.files(), &[Layout::OLDER_WITH_VISION, Layout::PADDLE_MLX])?;
    let sizes = Sizes::read(config)?;
    // Published files have a head of their own, whatever the class that reads them takes for granted.
    let has_head = weights.has(&format!("{}.weight", layout.head));
    let sizes = Sizes { tie_word_embeddings: !has_head, ..sizes };
    let bias = config.optional("use_bias")?.unwrap_or(false);
    let width = config.size("intermediate_size")?;
    let rope = Rope::load(config, sizes.head_dim)?;
    let tower = tower::load_if_there(config, &mut weights, &sizes, |part, weights, text| {
        SiglipTower::load_paddle(part, weights, layout == Layout::PADDLE_MLX, text)
    })?;
    let spec = DecoderSpec {
        architecture: "paddleocr_vl".into(),
        layout,
        sizes,
        attention: AttentionSpec { qkv_bias: bias, output_bias: bias, ..AttentionSpec::PLAIN },
        rotating: &[],
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: None,
        feed_forward: &*dense(sizes.hidden_size, width, bias),
        rope: rope.on_three_axes(config, SectionOrder::OneAfterAnother, SECTION)?,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
