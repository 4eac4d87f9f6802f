//! Images of Gemma 4: which tower a checkpoint has.

use std::path::Path;

use paceline_checkpoint::families::gemma4::{is_unified, most_rows};
use paceline_checkpoint::families::has_tower;

use super::config::Config;
use crate::families::tower;
use crate::load::{ConfigJson, Layout, LoadError, Weights};
use crate::vision::{GemmaText, GemmaTower, UnifiedTower, Vision};

/// The tower of a checkpoint, if it has one.
///
/// # Errors
/// A key or a tensor is missing or does not fit.
pub(in crate::families) fn load(
    dir: &Path,
    json: &ConfigJson,
    weights: &mut Weights<'_>,
    layout: Layout,
    config: &Config,
) -> Result<Option<Box<dyn Vision>>, LoadError> {
    let Some(sizes) = json.part("vision_config")? else { return Ok(None) };
    if !has_tower(json, weights.files())? {
        return Ok(None);
    }
    let text = GemmaText {
        hidden: config.hidden,
        image_token: tower::image_token(json, config.vocab)?,
        both_ways: config.both_ways,
        most_rows: most_rows(dir)?,
    };
    // transformers keeps all parts of a model with images under one name.
    let root = if layout == Layout::WITH_VISION[0] { "model." } else { "" };
    Ok(Some(match is_unified(json)? {
        true => Box::new(UnifiedTower::load(&sizes, weights, root, text)?),
        false => Box::new(GemmaTower::load(&sizes, weights, root, text)?),
    }))
}
