//! HunyuanOCR (arXiv 2511.19575): a decoder whose heads are normed after they are rotated and whose
//! rows stand on four axes, and a vision tower. Its config.json is flat in published files.

use paceline_checkpoint::families::hunyuan_vl::sizes;

use super::attention::{AttentionSpec, HeadNorms};
use super::decoder::{Decoder, DecoderSpec, TargetFiles, dense};
use super::tower;
use crate::layers::{NormWeight, Rope};
use crate::load::{Layout, LoadError};
use crate::vision::SiglipTower;

/// Loads it, in either layout.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let [_, mlx] = Layout::WITH_VISION;
    let layout = Layout::of(weights.files(), &[Layout::HUNYUAN, mlx])?;
    let sizes = sizes(config)?;
    let bias = config.optional("attention_bias")?.unwrap_or(false);
    let mlp_bias = config.optional("mlp_bias")?.unwrap_or(false);
    let width = config.size("intermediate_size")?;
    let rope = Rope::load_on_four_axes(config, sizes.head_dim)?;
    let tower = tower::load_if_there(config, &mut weights, &sizes, |part, weights, text| {
        SiglipTower::load_hunyuan(part, weights, layout.vision, text)
    })?;
    let spec = DecoderSpec {
        architecture: "hunyuan_vl".into(),
        layout,
        sizes,
        attention: AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            head_norms: HeadNorms::AfterRotation,
            ..AttentionSpec::PLAIN
        },
        rotating: &[],
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: None,
        feed_forward: &*dense(sizes.hidden_size, width, mlp_bias),
        rope,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
