//! Why images cannot be served.

use std::io;

use paceline_vocabulary::Reason;

/// What is wrong with an image, in words for the client: what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadImage(String);

impl From<String> for BadImage {
    fn from(words: String) -> Self {
        Self(words)
    }
}

impl From<&str> for BadImage {
    fn from(words: &str) -> Self {
        Self(words.to_owned())
    }
}

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
    /// The request has more images than the operator allows.
    #[error(
        "{field}: Could not process image: expected at most {limit} pictures in a request (limits.max_images), found {found}"
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
        /// What is wrong with the image.
        problem: BadImage,
    },
    /// A text or a list of token ids has the token that stands for an image.
    #[error(
        "{field}: expected no {token}, which stands for a picture's place ({instead}), found it"
    )]
    Reserved {
        /// The field with the token.
        field: String,
        /// The token as the field has it: its text or its id.
        token: String,
        /// What the client can do.
        instead: &'static str,
    },
    /// The rendered conversation has another number of placeholders than the request has images.
    #[error(
        "{field}: Could not process image: expected a place for each of {expected} pictures in the rendered conversation, found {found}: this model's \
         chat template leaves pictures out here, or text has {placeholder}; send pictures in turns of the user, and no such text"
    )]
    Placeholders {
        /// The field of the prompt.
        field: String,
        /// Images of the request.
        expected: usize,
        /// Placeholders in the prompt.
        found: usize,
        /// The text of the placeholder.
        placeholder: String,
    },
    /// Other requests' images occupied the threads or the memory for decoding.
    #[error("waited {waited_s} s for other requests' pictures (limits.queue_wait_s); try again")]
    QueueWait {
        /// How long the request waited, in seconds.
        waited_s: u64,
    },
    /// The files of other requests' images have as many bytes as may be in use at once.
    #[error("no room for more pictures until requests before this one have ended; try again")]
    StoreFull,
    /// The disk with the image files is full.
    #[error(
        "the disk that pictures are kept on is full; send text only, or try again when the operator has made room"
    )]
    DiskFull,
    /// An image file cannot be written.
    #[error("a picture's file")]
    File(#[source] io::Error),
    /// Our own mistake.
    #[error("{0}")]
    Bug(&'static str),
}

impl ImageError {
    /// The reason that the client gets.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoVision { .. } => Reason::NoVision,
            Self::TooMany { .. } | Self::Bad { .. } => Reason::BadImage,
            Self::Reserved { .. } => Reason::InvalidArgument,
            Self::Placeholders { .. } => Reason::Template,
            Self::QueueWait { .. } => Reason::QueueWait,
            Self::StoreFull | Self::DiskFull => Reason::QueueFull,
            Self::File(_) | Self::Bug(_) => Reason::Bug,
        }
    }

    /// The request's field, or the limit, that the error is about.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::NoVision { field }
            | Self::TooMany { field, .. }
            | Self::Bad { field, .. }
            | Self::Reserved { field, .. }
            | Self::Placeholders { field, .. } => Some(field),
            Self::QueueWait { .. } => Some("limits.queue_wait_s"),
            Self::StoreFull | Self::DiskFull => Some("pictures"),
            Self::File(_) | Self::Bug(_) => None,
        }
    }
}
