//! Images of Gemma 4: which tower a checkpoint has, and how many rows of a prompt an image takes.

use std::path::Path;

use paceline_checkpoint::files::{PREPROCESSOR_CONFIG, PROCESSOR_CONFIG};
use serde_json::{Map, Value};

use super::config::{Config, is_unified};
use crate::load::{ConfigJson, Layout, LoadError, Weights};
use crate::target::tower;
use crate::vision::{GemmaText, GemmaTower, UnifiedTower, Vision};

/// Most rows of an image if no file names them. Source: Gemma 4's image processor in transformers.
const USUAL_ROWS: u32 = 280;
/// Most rows that a published processor has.
const MOST_ROWS: u32 = 1120;

/// The tower of a checkpoint, if it has one.
///
/// # Errors
/// A key or a tensor is missing or does not fit.
pub(in crate::target) fn load(
    dir: &Path,
    json: &ConfigJson,
    weights: &mut Weights<'_>,
    layout: Layout,
    config: &Config,
) -> Result<Option<Box<dyn Vision>>, LoadError> {
    let Some(sizes) = json.part("vision_config")? else { return Ok(None) };
    if !tower::is_there(json, weights.files())? {
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

/// Most rows of an image of which all must be in one pass; `None` if a chunk may end in an image.
///
/// # Errors
/// As [`Config::read`]; a file of the image processor is broken.
pub(in crate::target) fn whole_image(
    dir: &Path,
    config: &ConfigJson,
) -> Result<Option<u32>, LoadError> {
    if Config::read(config)?.both_ways { most_rows(dir).map(Some) } else { Ok(None) }
}

/// Most rows of an image, from the files of the image processor. `processor_config.json` wins if it
/// has settings for images.
fn most_rows(dir: &Path) -> Result<u32, LoadError> {
    let key = "max_soft_tokens";
    let all = settings(&dir.join(PROCESSOR_CONFIG))?;
    let (file, of_images) = match all.get("image_processor") {
        Some(Value::Object(of_images)) => (PROCESSOR_CONFIG, of_images.clone()),
        _ => {
            let file = PREPROCESSOR_CONFIG;
            (file, settings(&dir.join(file))?)
        }
    };
    let broken = |found: &Value| LoadError::Broken {
        path: dir.join(file),
        what: format!("{key}: expected a number from 1 to {MOST_ROWS}, found {found}"),
    };
    match of_images.get(key) {
        None | Some(Value::Null) => Ok(USUAL_ROWS),
        Some(value) => match value.as_u64().and_then(|rows| u32::try_from(rows).ok()) {
            Some(rows) if (1..=MOST_ROWS).contains(&rows) => Ok(rows),
            _ => Err(broken(value)),
        },
    }
}

/// The object in a file; an empty one if the file is not there.
fn settings(path: &Path) -> Result<Map<String, Value>, LoadError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(cause) => return Err(LoadError::Read { path: path.to_owned(), cause }),
    };
    serde_json::from_slice(&text).map_err(|cause| LoadError::Json {
        path: path.to_owned(),
        expected: "a JSON object",
        cause,
    })
}
