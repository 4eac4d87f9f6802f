//! Blocks that stand in several kinds of messages: texts and images.

use paceline_text::images::{Detail, decode_base64};

use super::accepted;
use super::types::{ImageBlock, ImageFile, ImageSource, ImageUrl, TextBlock};
use crate::front::http::accepted::check;
use crate::images::ImageError;
use crate::inference::error::InferenceError;
use crate::inference::input::ContentPartInput;

/// The text of a block.
pub(super) fn text(path: &str, block: TextBlock) -> Result<String, InferenceError> {
    let TextBlock { text, rest } = block;
    check(&format!("{path}."), &rest, accepted::TEXT)?;
    Ok(text)
}

/// The image of a block.
pub(super) fn image(path: &str, block: ImageBlock) -> Result<ContentPartInput, InferenceError> {
    let ImageBlock { source, rest } = block;
    check(&format!("{path}."), &rest, accepted::IMAGE)?;
    match source {
        ImageSource::Url(ImageUrl { url, rest }) => {
            check(&format!("{path}.source."), &rest, &[])?;
            Ok(ContentPartInput::ImageUrl { url, detail: Detail::Full })
        }
        // The file's own beginning says what it is.
        ImageSource::Base64(ImageFile { media_type: _, data, rest }) => {
            check(&format!("{path}.source."), &rest, &[])?;
            let file = decode_base64(&data).map_err(|problem| {
                let field = format!("{path}.source.data");
                InferenceError::from(ImageError::Bad { field, problem })
            })?;
            Ok(ContentPartInput::Image(file.into()))
        }
    }
}
