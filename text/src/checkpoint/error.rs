//! Why a model directory cannot be served.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use paceline_checkpoint::CheckpointError;

/// A file that keeps a model directory from being served. The text names the file; causes follow by
/// `source`.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is missing or unreadable.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// The file has something else than expected, and another library reports what.
    #[error("{}: {what}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Short description of the fault, such as "no tokenizer".
        what: &'static str,
        /// The library's error.
        #[source]
        cause: Box<dyn Error + Send + Sync>,
    },
    /// The index or a header of the weights.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// The file has a value that cannot be served.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The expected and the found value.
        what: String,
    },
}

impl LoadError {
    /// A file with a value that cannot be served.
    pub fn content(path: &Path, what: impl Into<String>) -> Self {
        Self::Content { path: path.to_path_buf(), what: what.into() }
    }

    /// A file from which something could not be made.
    pub fn broken(
        path: &Path,
        what: &'static str,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Broken { path: path.to_path_buf(), what, cause: cause.into() }
    }

    pub(super) fn missing(path: &Path) -> Self {
        Self::Read { path: path.to_path_buf(), cause: io::ErrorKind::NotFound.into() }
    }
}
