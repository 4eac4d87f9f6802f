//! Why images cannot be served.

use std::io;

use paceline_text::images::{BadImage, PlaceholderError};
use paceline_vocabulary::Reason;

/// Why a request's images cannot be served. The text is the message for the client, except for a
/// [`ImageError::File`] and a [`ImageError::Bug`], whose texts are for the log.
///
/// An agent resends an image in every turn. "Could not process image" are the words on which Claude
/// Code leaves the image out of the next turn, so that its session goes on.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The model reads no images.
    #[error(
        "{field}: Could not process image: the served model has no vision tower; send text only"
    )]
    NoVision {
        /// The field of the first image.
        field: String,
    },
    /// The operator has the model served as text alone.
    #[error(
        "{field}: Could not process image: the service serves the model as text alone (target.vision = false); send text only"
    )]
    TextAlone {
        /// The field of the first image.
        field: String,
    },
    /// The request has more images than the operator allows.
    #[error(
        "{field}: Could not process image: expected at most {limit} images in a request (limits.max_images), found {found}"
    )]
    TooMany {
        /// The field of the first image above the limit.
        field: String,
        /// The operator's limit.
        limit: u32,
        /// Images of the request.
        found: usize,
    },
    /// An image cannot be served as it is.
    #[error("{field}: Could not process image: {problem}")]
    Bad {
        /// The field of the image.
        field: String,
        /// The fault of the image.
        problem: BadImage,
    },
    /// A placeholder without an image, or an image without one.
    #[error(transparent)]
    Placeholder(#[from] PlaceholderError),
    /// Other requests' images occupied the threads or the memory for decoding.
    #[error("waited {waited_s} s for other requests' images (limits.queue_wait_s); try again")]
    QueueWait {
        /// How long the request waited, in seconds.
        waited_s: u64,
    },
    /// The files of other requests' images have as many bytes as may be in use at once.
    #[error("no room for more images until requests before this one have ended; try again")]
    StoreFull,
    /// The disk with the image files is full.
    #[error(
        "the disk that images are kept on is full; send text only, or try again when the operator has made room"
    )]
    DiskFull,
    /// An image file cannot be written.
    #[error("an image's file")]
    File(#[source] io::Error),
    /// Our own mistake.
    #[error("{0}")]
    Bug(&'static str),
}

impl ImageError {
    /// The reason that the client gets.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoVision { .. } | Self::TextAlone { .. } => Reason::NoVision,
            Self::TooMany { .. } | Self::Bad { .. } => Reason::BadImage,
            Self::Placeholder(error) => error.reason(),
            Self::QueueWait { .. } => Reason::QueueWait,
            Self::StoreFull | Self::DiskFull => Reason::QueueFull,
            Self::File(_) | Self::Bug(_) => Reason::Bug,
        }
    }

    /// The request's field, or the limit, that the error is about.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::NoVision { field }
            | Self::TextAlone { field }
            | Self::TooMany { field, .. }
            | Self::Bad { field, .. } => Some(field),
            Self::Placeholder(error) => Some(error.field()),
            Self::QueueWait { .. } => Some("limits.queue_wait_s"),
            Self::StoreFull | Self::DiskFull => Some("images"),
            Self::File(_) | Self::Bug(_) => None,
        }
    }
}
