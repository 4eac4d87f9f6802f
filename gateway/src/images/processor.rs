//! How a model wants its pictures: `preprocessor_config.json` and `processor_config.json` beside
//! the vision part of `config.json`. What a file leaves out or writes as null is the model type's
//! own.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::resize::Sizes;
use super::{BadImage, PatchGrid, Size};
use crate::prompt::{LoadError, Tokens};

/// Model types whose pictures are resized to multiples of merged patches and stand in the prompt a
/// row for each.
const QWEN: [&str; 3] = ["qwen3_vl", "qwen3_5", "qwen3_5_moe"];
/// Of those types, where their files say nothing: pixels, and red, green and blue from -1 to 1.
const MIN_PIXELS: u64 = 65_536;
const MAX_PIXELS: u64 = 16_777_216;
/// A budget of pixels beyond any that is published: sides stay small numbers.
const MOST_PIXELS: u64 = 1 << 28;
/// Pillow's number of its bicubic filter.
const BICUBIC: u64 = 3;

/// How a model's pictures are made and where they stand.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    /// Sizes that pictures get.
    pub sizes: Sizes,
    /// Pixels of a patch's side.
    pub patch: u32,
    /// Patches of a side that become one row of the prompt.
    pub merge: u32,
    /// The tower sees `byte · scale + bias` of red, green, blue.
    pub scale: [f32; 3],
    /// See `scale`.
    pub bias: [f32; 3],
    /// The id that stands for a picture's rows.
    pub token: u32,
    /// Its text.
    pub placeholder: String,
}

#[derive(Deserialize)]
struct ModelConfig {
    model_type: Option<String>,
    image_token_id: Option<u32>,
    vision_config: Option<VisionConfig>,
}

#[derive(Deserialize)]
struct VisionConfig {
    patch_size: Option<u32>,
    spatial_merge_size: Option<u32>,
}

impl ImageProcessor {
    /// Reads a model directory; `None` for a model that does not see.
    ///
    /// # Errors
    /// The first file that is missing or says what cannot be served, by name.
    pub fn read(dir: &Path, tokens: &Tokens) -> Result<Option<Self>, LoadError> {
        let path = dir.join("config.json");
        let refuse = |what: String| Err(LoadError::content(&path, what));
        let config: ModelConfig = match object(&path)? {
            None => return Ok(None), // whoever needs it says so
            Some(object) => serde_json::from_value(object.into())
                .map_err(|cause| LoadError::content(&path, format!("not as expected: {cause}")))?,
        };
        let Some(vision) = config.vision_config else { return Ok(None) };
        let model_type = config.model_type.unwrap_or_default();
        if !QWEN.contains(&model_type.as_str()) {
            // The target decides whether it can be served at all; its pictures cannot.
            tracing::warn!(
                model_type,
                "this version knows no pictures of this model type: it is served as a text model"
            );
            return Ok(None);
        }
        let (patch, merge) =
            (vision.patch_size.unwrap_or(16), vision.spatial_merge_size.unwrap_or(2));
        if !(1..=128).contains(&patch) || !(1..=16).contains(&merge) {
            return refuse(format!(
                "vision_config: expected patch_size 1 to 128 and spatial_merge_size 1 to 16, found {patch} and {merge}"
            ));
        }
        let Some(token) = config.image_token_id else {
            return refuse(
                "image_token_id: expected the id that stands for pictures, as there is a vision_config; found none".into(),
            );
        };
        let Some(placeholder) = tokens.text(token) else {
            return refuse(format!(
                "image_token_id: expected a token of tokenizer.json, found {token}"
            ));
        };
        let (file, settings) = settings(dir)?;
        let mut settings = Settings { of: settings };
        let made =
            settings.processor(patch, merge).map_err(|what| LoadError::content(&file, what))?;
        let (sizes, scale, bias) = made;
        Ok(Some(Self { sizes, patch, merge, scale, bias, token, placeholder }))
    }

    /// Patches of an image that has this size before it is resized.
    ///
    /// # Errors
    /// Its sides differ too much.
    pub fn grid(&self, size: Size) -> Result<PatchGrid, BadImage> {
        let Size { width, height } = self.sizes.of(size)?;
        Ok(PatchGrid { rows: height / self.patch, columns: width / self.patch })
    }

    /// Pixels of an image of so many patches.
    pub fn size(&self, grid: PatchGrid) -> Size {
        Size { width: grid.columns * self.patch, height: grid.rows * self.patch }
    }

    /// Tokens of the prompt that an image of so many patches becomes.
    pub fn tokens(&self, grid: PatchGrid) -> u64 {
        u64::from(grid.rows) * u64::from(grid.columns) / u64::from(self.merge).pow(2)
    }
}

/// The settings of a model's pictures and the file they are from. `processor_config.json` wins
/// where it has any, as in the reference.
fn settings(dir: &Path) -> Result<(std::path::PathBuf, Map<String, Value>), LoadError> {
    let whole = dir.join("processor_config.json");
    match object(&whole)?.and_then(|mut all| all.remove("image_processor")) {
        None | Some(Value::Null) => {}
        Some(Value::Object(own)) => return Ok((whole, own)),
        Some(other) => {
            return Err(LoadError::content(
                &whole,
                format!("image_processor: expected an object, found {other}"),
            ));
        }
    }
    let own = dir.join("preprocessor_config.json");
    let found = object(&own)?.unwrap_or_default();
    Ok((own, found))
}

fn object(path: &Path) -> Result<Option<Map<String, Value>>, LoadError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(LoadError::Read { path: path.to_path_buf(), cause }),
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|cause| LoadError::content(path, format!("not as expected: {cause}")))
}

/// Settings by name; null is as good as not there.
struct Settings {
    of: Map<String, Value>,
}

impl Settings {
    fn value(&mut self, key: &str) -> Option<Value> {
        self.of.remove(key).filter(|value| !value.is_null())
    }

    fn truth(&mut self, key: &str) -> Result<bool, String> {
        match self.value(key) {
            None => Ok(true),
            Some(Value::Bool(truth)) => Ok(truth),
            Some(other) => Err(format!("{key}: expected true or false, found {other}")),
        }
    }

    fn whole(&mut self, key: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if number > 0 => Ok(Some(number)),
            _ => Err(format!("{key}: expected a whole number above 0, found {value}")),
        }
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>, String> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| format!("{key}: expected a number, found {value}"))
    }

    /// One number for all colours, or one for each.
    fn colours(&mut self, key: &str) -> Result<Option<[f64; 3]>, String> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let each = |value: &Value| value.as_f64();
        let found = match &value {
            Value::Array(list) => list
                .iter()
                .map(each)
                .collect::<Option<Vec<_>>>()
                .and_then(|list| list.try_into().ok()),
            other => each(other).map(|number| [number; 3]),
        };
        found.map(Some).ok_or_else(|| format!("{key}: expected three numbers, found {value}"))
    }

    /// Sizes, scale and bias for a tower of these patches.
    fn processor(&mut self, patch: u32, merge: u32) -> Result<(Sizes, [f32; 3], [f32; 3]), String> {
        for (key, own) in [("patch_size", patch), ("merge_size", merge)] {
            if let Some(found) = self.whole(key)?
                && found != u64::from(own)
            {
                return Err(format!(
                    "{key}: expected {own}, which is the tower's (config.json), found {found}"
                ));
            }
        }
        if !self.truth("do_resize")? {
            return Err(
                "do_resize: expected true, as the tower takes whole patches only, found false"
                    .to_owned(),
            );
        }
        if let Some(filter) = self.whole("resample")?
            && filter != BICUBIC
        {
            return Err(format!("resample: expected {BICUBIC} (bicubic), found {filter}"));
        }
        // All pictures are red, green and blue here.
        self.truth("do_convert_rgb")?;
        let (shortest, longest) = match self.value("size") {
            None => (None, None),
            Some(Value::Object(size)) => {
                let mut size = Settings { of: size };
                let bounds = (size.whole("shortest_edge")?, size.whole("longest_edge")?);
                if let Some((key, _)) = size.of.iter().find(|(_, value)| !value.is_null()) {
                    return Err(format!(
                        "size: expected shortest_edge and longest_edge (both in pixels of area), found {key}"
                    ));
                }
                bounds
            }
            Some(other) => {
                return Err(format!(
                    "size: expected shortest_edge and longest_edge, found {other}"
                ));
            }
        };
        // These are the older names, and win where they say anything.
        let min_pixels = self.whole("min_pixels")?.or(shortest).unwrap_or(MIN_PIXELS);
        let max_pixels = self.whole("max_pixels")?.or(longest).unwrap_or(MAX_PIXELS);
        let factor = patch * merge;
        let least = u64::from(factor).pow(2);
        if min_pixels > max_pixels || max_pixels < least || max_pixels > MOST_PIXELS {
            return Err(format!(
                "size: expected at least {least} and at most {MOST_PIXELS} pixels, the least no more than the most, found \
                 {min_pixels} to {max_pixels}"
            ));
        }
        let rescale = match (self.truth("do_rescale")?, self.number("rescale_factor")?) {
            (true, factor) => factor.unwrap_or(1.0 / 255.0),
            (false, _) => 1.0,
        };
        let (mean, deviation) = (self.colours("image_mean")?, self.colours("image_std")?);
        let (mean, deviation) = match self.truth("do_normalize")? {
            true => (mean.unwrap_or([0.5; 3]), deviation.unwrap_or([0.5; 3])),
            false => ([0.0; 3], [1.0; 3]),
        };
        let scale = deviation.map(|deviation| (rescale / deviation) as f32);
        let bias = [0, 1, 2].map(|colour| (-mean[colour] / deviation[colour]) as f32);
        if scale.iter().chain(&bias).any(|number| !number.is_finite()) || scale.contains(&0.0) {
            return Err(format!(
                "image_std, rescale_factor: expected finite numbers other than 0, found {deviation:?} and {rescale}"
            ));
        }
        Ok((Sizes { factor, min_pixels, max_pixels }, scale, bias))
    }
}

#[cfg(test)]
mod tests;
