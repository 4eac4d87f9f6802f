//! Images of requests: from a client's bytes to resized pixels in a file that the target reads.
//!
//! Bytes from outside are decoded here, in the process without weights. The structure of a file is
//! checked first ([`container`]). Then the file is decoded within bounds ([`decode`]), resized to
//! the model's needs ([`resize`]) and written to a file ([`store`]). [`pipeline`] runs these steps
//! on threads of their own, with bounds on images and bytes in progress. Nothing is fetched, and
//! nothing of an image is logged.
//!
//! Must not know: protocols, services, the supervisor.

pub mod address;
pub mod container;
pub mod decode;
mod error;
mod pipeline;
mod placeholders;
pub mod processor;
pub mod resize;
pub mod store;

use bytes::Bytes;

pub use address::decode_base64;
pub use error::{BadImage, ImageError};
pub use pipeline::{ImagePipeline, InspectedImage, StoredImages, process};
pub use placeholders::{ExpandedPrompt, ReservedTokens, expand_placeholders};
pub use processor::ImageProcessor;
pub use store::prepare;

/// An image as a client sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedImage {
    /// The request's field with the image.
    pub field: String,
    /// The file, or where the file is.
    pub source: ImageSource,
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

/// An image of a prompt, as the target gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptImage {
    /// Name of the file in the runtime directory's folder `pictures`.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 digest of the size in patches, the scale, the bias and the pixels.
    pub digest: Bytes,
    /// Index of its first placeholder in the prompt's ids.
    pub start: u32,
    /// Patches from top to bottom and from left to right.
    pub grid: PatchGrid,
    /// The vision tower gets `byte · scale + bias` of red, green, blue.
    pub scale: [f32; 3],
    /// See `scale`.
    pub bias: [f32; 3],
}

/// Size of an image in patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchGrid {
    /// From top to bottom.
    pub rows: u32,
    /// From left to right.
    pub columns: u32,
}

/// Size of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// From left to right.
    pub width: u32,
    /// From top to bottom.
    pub height: u32,
}

/// How long the work on a request's images took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageTimes {
    /// Decoding.
    pub decode_ms: f64,
    /// Resizing and writing.
    pub resize_ms: f64,
}

#[cfg(test)]
pub(crate) mod tests;
