//! The limits that images of requests have, as clients are told them.

use std::path::Path;

use paceline_process::config::LimitsConfig;
use paceline_text::checkpoint::LoadError;
use paceline_text::images::ImageProcessor;
use paceline_text::prompt::Language;
use paceline_vocabulary::report::ImageLimits;
use serde_json::{Value, json};

/// The limits of images that a model with this processor reads, within the operator's.
pub fn limits_of(processor: &ImageProcessor, limits: &LimitsConfig) -> ImageLimits {
    ImageLimits {
        max_images: limits.max_images,
        max_pixels: limits.max_image_pixels,
        read_pixels: processor.most_pixels(),
        max_tokens: u32::try_from(processor.most_tokens()).unwrap_or(u32::MAX),
    }
}

/// The same as an object for `paceline inspect`; null for a model that reads no images.
///
/// # Errors
/// A file of the model in `dir` is missing or cannot be used.
pub fn described(dir: &Path, limits: &LimitsConfig) -> Result<Value, LoadError> {
    let language = Language::read(dir)?;
    let found = language.images.as_deref().map(|processor| limits_of(processor, limits));
    let object = |limits| {
        let ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = limits;
        json!({
            "max_images": max_images, "max_pixels": max_pixels,
            "read_pixels": read_pixels, "max_tokens": max_tokens,
        })
    };
    Ok(found.map_or(Value::Null, object))
}
