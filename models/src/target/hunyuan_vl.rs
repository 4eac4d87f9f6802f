//! HunyuanOCR (arXiv 2511.19575): a decoder whose heads are normed after they are turned and whose
//! rows stand on four axes, and a vision tower. Its config.json is flat in published files.

use super::attention::{AttentionSpec, HeadNorms};
use super::decoder::{Decoder, DecoderSpec, TargetFiles, dense};
use super::sizes::Sizes;
use super::tower;
use crate::layers::{NormWeight, Rope};
use crate::load::{ConfigJson, KvHeads, Layout, LoadError};
use crate::vision::SiglipTower;

/// Sizes, of which some have another name in published files.
fn sizes(config: &ConfigJson) -> Result<Sizes, LoadError> {
    let read = Sizes::read(config)?;
    let other = config.size_or("attention_head_dim", read.head_dim)?;
    let head_dim = config.size_or("head_dim", other)?;
    config.check_heads("num_attention_heads", read.n_heads, head_dim)?;
    if head_dim % 2 != 0 {
        let what = format!("expected an even number, found {head_dim}");
        return Err(config.wrong("attention_head_dim", what));
    }
    let tie_word_embeddings = config.optional("tie_word_embeddings")?.unwrap_or(true);
    Ok(Sizes { head_dim, tie_word_embeddings, ..read })
}

/// Keys and values of its layers.
///
/// # Errors
/// As [`load`] for config.json.
pub(super) fn kv_heads(config: &ConfigJson) -> Result<Option<Vec<KvHeads>>, LoadError> {
    let Sizes { n_layers, n_kv_heads, head_dim, .. } = sizes(config)?;
    let heads = KvHeads { n_kv: n_kv_heads, head_dim, window: None };
    Ok(Some(vec![heads; n_layers as usize]))
}

/// Loads it, in either layout.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let [_, mlx] = Layout::WITH_VISION;
    let layout = Layout::of(&weights, &[Layout::HUNYUAN, mlx])?;
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
            head_norms: HeadNorms::AfterTurn,
            ..AttentionSpec::PLAIN
        },
        recurrent: &[],
        norms: NormWeight::Whole,
        branch_norms: None,
        feed_forward: &*dense(sizes.hidden_size, width, mlp_bias),
        rope,
        tower,
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
