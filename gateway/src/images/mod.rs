//! Images of requests: from a client's bytes to resized pixels in a file that the target reads.
//!
//! [`pipeline`] runs the steps of [`paceline_text::images`] on threads of their own, with bounds on
//! images and bytes in progress. [`store`] keeps the files.
//!
//! Must not know: protocols, services, the supervisor.

mod error;
mod pipeline;
pub mod store;

use bytes::Bytes;
use paceline_text::images::PatchGrid;

pub use error::ImageError;
pub use pipeline::{ImagePipeline, InspectedImage, StoredImages};
pub use store::prepare;

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

/// How long the work on a request's images took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageTimes {
    /// Decoding.
    pub decode_ms: f64,
    /// Resizing and writing.
    pub resize_ms: f64,
}
