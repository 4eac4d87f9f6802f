//! Images of requests: from a client's bytes to resized pixels in a file that the target reads.
//!
//! [`pipeline`] runs the steps of [`paceline_text::images`] on threads of their own, with bounds on
//! images and bytes in progress. [`store`] keeps the files.
//!
//! Must not know: protocols, services, the supervisor.

mod limits;
mod pipeline;
pub mod store;

pub use limits::{described, limits_of};
pub use pipeline::{ImagePipeline, InspectedImage, StoredImages};
pub use store::prepare;

/// How long the work on a request's images took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageTimes {
    /// Decoding.
    pub decode_ms: f64,
    /// Resizing and writing.
    pub resize_ms: f64,
}
