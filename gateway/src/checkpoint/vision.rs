//! What a model directory says about images: the vision part of `config.json`, and
//! `processor_config.json` or `preprocessor_config.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::LoadError;
use super::files::{CONFIG, ModelConfig, json};

/// The settings for images, as the files have them. `None` means that a file leaves a value out.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionSettings {
    /// `config.json`, for messages.
    pub config_path: PathBuf,
    /// The model's architecture.
    pub model_type: Option<String>,
    /// Id of the token that stands for an image.
    pub image_token_id: Option<u32>,
    /// Pixels of a patch's side.
    pub patch_size: Option<u32>,
    /// Patches of a side that become one token.
    pub spatial_merge_size: Option<u32>,
    /// The file of `processor`, for messages.
    pub processor_path: PathBuf,
    /// How images are resized and normalized, by name. Empty without a file.
    pub processor: Map<String, Value>,
}

impl VisionSettings {
    /// The settings of a model with this configuration; `None` without a vision part.
    pub(super) fn of(dir: &Path, config: ModelConfig) -> Result<Option<Self>, LoadError> {
        let ModelConfig { model_type, image_token_id, vision_config, .. } = config;
        let Some(vision) = vision_config else { return Ok(None) };
        let ProcessorFile { path, settings } = ProcessorFile::read(dir)?;
        Ok(Some(Self {
            config_path: dir.join(CONFIG),
            model_type,
            image_token_id,
            patch_size: vision.patch_size,
            spatial_merge_size: vision.spatial_merge_size,
            processor_path: path,
            processor: settings,
        }))
    }

    /// Reads these settings alone.
    #[cfg(test)]
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, LoadError> {
        Self::of(dir, ModelConfig::read(dir)?)
    }
}

/// The file with the settings of the image processor.
struct ProcessorFile {
    path: PathBuf,
    settings: Map<String, Value>,
}

impl ProcessorFile {
    /// `processor_config.json` wins if it has settings for images, as in the reference
    /// implementation.
    fn read(dir: &Path) -> Result<Self, LoadError> {
        let path = dir.join("processor_config.json");
        let all: Option<Map<String, Value>> = json(&path)?;
        match all.and_then(|mut all| all.remove("image_processor")) {
            None | Some(Value::Null) => {}
            Some(Value::Object(settings)) => return Ok(Self { path, settings }),
            Some(other) => {
                let what = format!("image_processor: expected an object, found {other}");
                return Err(LoadError::content(&path, what));
            }
        }
        let path = dir.join("preprocessor_config.json");
        let settings = json(&path)?.unwrap_or_default();
        Ok(Self { path, settings })
    }
}
