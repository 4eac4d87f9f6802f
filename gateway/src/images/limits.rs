//! The limits that images of requests have, as clients are told them.

use paceline_process::config::LimitsConfig;
use paceline_proto::report::ImageReport;
use paceline_text::images::ImageProcessor;
use paceline_text::prompt::Language;
use paceline_vocabulary::report::ImageLimits;

/// The limits of images that a model with this processor reads, within the operator's.
pub fn limits_of(processor: &ImageProcessor, limits: &LimitsConfig) -> ImageLimits {
    ImageLimits {
        max_images: limits.max_images,
        max_pixels: limits.max_image_pixels,
        read_pixels: processor.most_pixels(),
        max_tokens: u32::try_from(processor.most_tokens()).unwrap_or(u32::MAX),
    }
}

/// The same for `paceline inspect`; `None` for a model that reads no images.
pub fn described(language: &Language, limits: &LimitsConfig) -> Option<ImageReport> {
    let found = language.images.as_deref().map(|processor| limits_of(processor, limits))?;
    let ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = found;
    Some(ImageReport { max_images, max_pixels, read_pixels, max_tokens })
}
