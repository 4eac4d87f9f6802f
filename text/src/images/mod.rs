//! Images of requests: the structure of a file is checked first ([`container`]), then the file is
//! decoded within bounds ([`decode`]) and resized to the model's needs ([`resize`]). In the prompt
//! an image is a run of placeholders.
//!
//! Bytes from outside are decoded here, in the process without weights. Nothing is fetched, and
//! nothing of an image is logged.
//!
//! Must not know: requests, files of the service, threads.

pub mod address;
pub mod container;
pub mod decode;
mod error;
mod placeholders;
pub mod processor;
pub mod resize;

use bytes::Bytes;

pub use address::decode_base64;
pub use error::{BadImage, PlaceholderError};
pub use paceline_vocabulary::generation::PatchGrid;
pub use placeholders::{ExpandedPrompt, ReservedTokens, expand_placeholders};
pub use processor::{ImageProcessor, ImageTokens};

/// An image as a client sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedImage {
    /// The request's field with the image.
    pub field: String,
    /// The file, or where the file is.
    pub source: ImageSource,
    /// How much of it the model reads.
    pub detail: Detail,
}

/// How much of an image the model reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// As many pixels as the model's settings allow.
    #[default]
    Full,
    /// At most as many pixels as a square of 512 has, the size that OpenAI documents for `low`.
    Low,
}

/// How an image came. Its `Debug` form shows no bytes of the image.
#[derive(Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// The file.
    File(Bytes),
    /// An address. Only an address that contains the file can be served.
    Address(String),
}

impl std::fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ImageSource::File(file) => write!(f, "File({} bytes)", file.len()),
            ImageSource::Address(url) => write!(f, "Address({} bytes)", url.len()),
        }
    }
}

/// Size of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// From left to right.
    pub width: u32,
    /// From top to bottom.
    pub height: u32,
}

/// Processes one file through all steps without a store. For tests and fuzzing.
///
/// # Errors
/// A fault of the image.
pub fn process(
    file: &[u8],
    bounds: decode::Bounds,
    processor: &ImageProcessor,
) -> Result<(PatchGrid, Vec<u8>), BadImage> {
    let header = decode::inspect(file, bounds)?;
    let grid = processor.grid(header.upright(), Detail::Full)?;
    let pixels = decode::decode(file, &header)?;
    let mut resized = Vec::new();
    let out = |row: &[u8]| {
        resized.extend_from_slice(row);
        Ok(())
    };
    resize::resize(pixels.size(), processor.size(grid), |y, line| pixels.row(y, line), out)
        .map_err(|error| BadImage::from(error.to_string()))?;
    Ok((grid, resized))
}

#[cfg(test)]
mod tests;
