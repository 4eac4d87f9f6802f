//! HunyuanOCR: a decoder of the usual sizes, of which one has another name. Its config.json is flat in
//! published files.

use super::{Family, Sizes, Towers};
use crate::{CheckpointError, ConfigJson, KvHeads, Unserved};

/// Its tower, in either layout.
const UNSERVED: Unserved =
    Unserved { prefixes: &["vit.", "vision_tower."], suffixes: Unserved::FREQUENCIES };

pub(super) const FAMILY: Family = Family {
    kv_heads,
    towers: Towers::IfThere(Unserved::FREQUENCIES_ALONE),
    is_tied: true,
    ..Family::attending(&["hunyuan_vl"], UNSERVED)
};

/// Sizes, of which some have another name in published files.
///
/// # Errors
/// As [`Sizes::read`].
pub fn sizes(config: &ConfigJson) -> Result<Sizes, CheckpointError> {
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

fn kv_heads(config: &ConfigJson) -> Result<Option<Vec<KvHeads>>, CheckpointError> {
    let sizes = sizes(config)?;
    Ok(Some(vec![sizes.kv_heads(); sizes.n_layers as usize]))
}
