//! The settings for images in a model directory: the vision part of `config.json`, and
//! `processor_config.json` or `preprocessor_config.json`.

use std::path::{Path, PathBuf};

use paceline_checkpoint::files::{CONFIG, PREPROCESSOR_CONFIG, PROCESSOR_CONFIG, TOWERS};
use paceline_checkpoint::tensors;
use serde_json::{Map, Value};

use super::LoadError;
use super::files::{ModelConfig, json};

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
    /// As `spatial_merge_size`, of Gemma.
    pub pooling_kernel_size: Option<u32>,
    /// Ids of the tokens before and after an image.
    marks: [Option<u32>; 2],
    /// The model directory.
    dir: PathBuf,
}

/// How images are resized and normalized.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessorSettings {
    /// The file, for messages.
    pub path: PathBuf,
    /// The settings by name. Empty without a file.
    pub fields: Map<String, Value>,
}

impl VisionSettings {
    /// The settings of a model with this configuration; `None` without a vision part.
    pub(super) fn of(dir: &Path, config: ModelConfig) -> Option<Self> {
        let ModelConfig { model_type, image_token_id, vision_config, .. } = config;
        let marks = [config.boi_token_id, config.eoi_token_id];
        let vision = vision_config?;
        Some(Self {
            config_path: dir.join(CONFIG),
            model_type,
            image_token_id,
            patch_size: vision.patch_size,
            spatial_merge_size: vision.spatial_merge_size,
            pooling_kernel_size: vision.pooling_kernel_size,
            marks,
            dir: dir.to_owned(),
        })
    }

    /// Ids of the tokens before and after an image. `usual` are those of a file that names none.
    pub fn image_marks(&self, usual: [u32; 2]) -> [u32; 2] {
        [0, 1].map(|at| self.marks[at].unwrap_or(usual[at]))
    }

    /// Whether the model has a vision tower, and not only its sizes: some conversions leave the
    /// tensors out.
    ///
    /// # Errors
    /// The index of the weights, or their header, is unreadable or not as expected.
    pub fn has_tower(&self) -> Result<bool, LoadError> {
        let is_of_tower = |name: &str| TOWERS.iter().any(|first| name.starts_with(first));
        Ok(tensors::any_name(&self.dir, is_of_tower)?)
    }

    /// Reads how images are resized and normalized. `processor_config.json` wins if it has settings
    /// for images, as in the reference implementation.
    ///
    /// A model whose images this version does not know is served as a text model. These files are
    /// not read for it, so that it starts whatever they contain.
    ///
    /// # Errors
    /// A file is unreadable or not as expected.
    pub fn processor(&self) -> Result<ProcessorSettings, LoadError> {
        let path = self.dir.join(PROCESSOR_CONFIG);
        let all: Option<Map<String, Value>> = json(&path)?;
        match all.and_then(|mut all| all.remove("image_processor")) {
            None | Some(Value::Null) => {}
            Some(Value::Object(fields)) => return Ok(ProcessorSettings { path, fields }),
            Some(other) => {
                let what = format!("image_processor: expected an object, found {other}");
                return Err(LoadError::content(&path, what));
            }
        }
        let path = self.dir.join(PREPROCESSOR_CONFIG);
        let fields = json(&path)?.unwrap_or_default();
        Ok(ProcessorSettings { path, fields })
    }

    /// Reads these settings alone.
    #[cfg(test)]
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, LoadError> {
        Ok(Self::of(dir, ModelConfig::read(dir)?))
    }
}
