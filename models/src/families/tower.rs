//! Loading the vision tower of a checkpoint. A checkpoint's
//! config.json names its sizes (`vision_config`) and the token of an image's rows.

use paceline_checkpoint::families::{Sizes, has_tower};

use crate::load::{ConfigJson, LoadError, Weights};
use crate::vision::{TextModelSizes, Vision};

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
    if !has_tower(config, weights.files())? {
        return Ok(None);
    }
    let image_token = image_token(config, text.vocab_size)?;
    let text = TextModelSizes { hidden: text.hidden_size, n_layers: text.n_layers, image_token };
    Ok(Some(Box::new(load(&sizes(config)?, weights, text)?)))
}

/// The sizes of a tower.
fn sizes(config: &ConfigJson) -> Result<ConfigJson, LoadError> {
    let missing =
        || config.wrong("vision_config", "expected the vision tower's sizes, found none".into());
    Ok(config.part("vision_config")?.ok_or_else(missing)?)
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
    Err(config.wrong(key, format!("expected an id below {vocab_size}, found {id}")).into())
}
