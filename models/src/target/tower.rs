//! The vision tower in a checkpoint: whether there is one, and loading it. A checkpoint's
//! config.json names its sizes (`vision_config`) and the token of an image's rows.

use paceline_checkpoint::files::TOWERS;

use super::sizes::Sizes;
use crate::load::{ConfigJson, LoadError, TensorFiles, Weights};
use crate::vision::{TextModelSizes, Vision};

/// Whether a checkpoint has the sizes of a tower and tensors of one.
///
/// mlx-lm's conversions keep `vision_config` and leave the tensors out. They are text models.
///
/// # Errors
/// `vision_config` is no object.
pub(super) fn is_there(config: &ConfigJson, files: &TensorFiles) -> Result<bool, LoadError> {
    let is_of_tower = |name: &str| TOWERS.iter().any(|first| name.starts_with(first));
    Ok(config.part("vision_config")?.is_some() && files.shapes().any(|(name, _)| is_of_tower(name)))
}

/// Loads the tower of a checkpoint for a text model of these sizes, if it has one. `load` gets the
/// tower's own part of config.json, and what it needs to know of the text model.
///
/// # Errors
/// A key or a tensor is missing or does not fit.
pub(super) fn load_if_there<T: Vision + 'static>(
    config: &ConfigJson,
    weights: &mut Weights,
    text: &Sizes,
    load: impl FnOnce(&ConfigJson, &mut Weights, TextModelSizes) -> Result<T, LoadError>,
) -> Result<Option<Box<dyn Vision>>, LoadError> {
    if !is_there(config, weights.files())? {
        return Ok(None);
    }
    let image_token = image_token(config, text.vocab_size)?;
    let text = TextModelSizes { hidden: text.hidden_size, n_layers: text.n_layers, image_token };
    Ok(Some(Box::new(load(&sizes(config)?, weights, text)?)))
}

/// The sizes of a tower.
fn sizes(config: &ConfigJson) -> Result<ConfigJson, LoadError> {
    config.part("vision_config")?.ok_or_else(|| {
        config.wrong("vision_config", "expected the vision tower's sizes, found none".into())
    })
}

/// The id that stands in a prompt for each row of an image.
///
/// # Errors
/// It is missing, or beyond the vocabulary.
pub(super) fn image_token(config: &ConfigJson, vocab_size: i32) -> Result<u32, LoadError> {
    let key = match config.optional::<u32>("image_token_id")? {
        Some(_) => "image_token_id",
        None => "image_token_index",
    };
    let id = config.optional::<u32>(key)?.ok_or_else(|| {
        config.wrong("image_token_id", "expected the id of an image's rows, found none".into())
    })?;
    if id < vocab_size as u32 {
        return Ok(id);
    }
    Err(config.wrong(key, format!("expected an id below {vocab_size}, found {id}")))
}
