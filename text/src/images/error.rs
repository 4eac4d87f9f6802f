//! Faults of images and of their placeholders.

use paceline_vocabulary::Reason;

/// A fault of an image, in words for the client: the expected and the found value.
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

/// A placeholder that is where no image is, or is missing where one is. The text is the message for
/// the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceholderError {
    /// A list of token ids has the token that stands for an image.
    #[error(
        "{field}: expected no {token}, which stands for an image's place (send Chat with the image), found it"
    )]
    Reserved {
        /// The field with the token.
        field: String,
        /// The token.
        token: u32,
    },
    /// The rendered conversation has another number of placeholders than the request has images.
    #[error(
        "{field}: Could not process image: expected a place for each of {expected} images in the rendered conversation, found {found}: this model's \
         chat template leaves images out here; send images in turns of the user"
    )]
    Count {
        /// The field of the prompt.
        field: String,
        /// Images of the request.
        expected: usize,
        /// Placeholders in the prompt.
        found: usize,
    },
}

impl PlaceholderError {
    /// The reason that the client gets.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Reserved { .. } => Reason::InvalidArgument,
            Self::Count { .. } => Reason::Template,
        }
    }

    /// The request's field that the error is about.
    pub fn field(&self) -> &str {
        match self {
            Self::Reserved { field, .. } | Self::Count { field, .. } => field,
        }
    }
}
