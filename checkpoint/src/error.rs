//! Why a file cannot be used. A cause is in the source of an error, not in its text.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use crate::header::HeaderError;

/// Most characters of a file's own words that an error shows.
const MAX_WORD_CHARS: usize = 80;

/// A file that is not what its reader expects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(String);

impl FormatError {
    /// An error about a part of a file.
    pub fn new(what: impl Display, expected: impl Display, found: impl Display) -> Self {
        Self(format!("{what}: expected {expected}, found {found}"))
    }
}

/// A model directory that cannot be served, whatever the device.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file that must be there cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file that cannot be read.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        cause: io::Error,
    },
    /// A file that is made of a model's files cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the file or directory that cannot be written.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        cause: io::Error,
    },
    /// A file has no JSON, or JSON of another form.
    #[error("{}: expected {expected}", path.display())]
    Json {
        /// Path of the file with other content.
        path: PathBuf,
        /// JSON that the file must hold.
        expected: &'static str,
        /// Where the parser stopped.
        #[source]
        cause: serde_json::Error,
    },
    /// The header of a safetensors file is broken.
    #[error("{}: the header is broken", path.display())]
    Header {
        /// Path of the file with this header.
        path: PathBuf,
        /// Fault of the header.
        #[source]
        cause: HeaderError,
    },
    /// A file is not what its name promises.
    #[error("{}: {what}", path.display())]
    Broken {
        /// Path of the file or directory.
        path: PathBuf,
        /// What was expected and what was found.
        what: String,
    },
    /// config.json has a value this version cannot serve.
    #[error("config.json of the model: {key}: {what}")]
    Config {
        /// Key in the file, with the parts that it is in.
        key: String,
        /// What was expected and what was found.
        what: String,
    },
    /// config.json has a value of another type.
    #[error("config.json of the model: {key}")]
    ConfigType {
        /// Key in the file, with the parts that it is in.
        key: String,
        /// The types expected and found.
        #[source]
        cause: serde_json::Error,
    },
    /// A tensor the model needs is not in the checkpoint.
    #[error("tensor {name} is missing from the checkpoint")]
    Missing {
        /// Name of the missing tensor.
        name: String,
    },
    /// Tensors that no part of the model took: the checkpoint is of another model than its config.
    #[error("the checkpoint has {count} tensors the model does not use, the first is {name}")]
    Unused {
        /// The first of them.
        name: String,
        /// How many.
        count: usize,
    },
    /// A tensor has another shape than the config requires.
    #[error("tensor {name} has shape {found:?}, the model needs {expected:?}")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// By the config.
        expected: Vec<usize>,
    },
    /// A tensor is in another layout than the rest of the checkpoint.
    #[error("tensor {name}: {what}; convert the checkpoint again from the original")]
    Mixed {
        /// Name of the tensor.
        name: String,
        /// What was expected and what was found.
        what: String,
    },
    /// A tensor has a type this version cannot read.
    #[error("tensor {name} has type {found}; expected {expected}")]
    Dtype {
        /// Name of the tensor.
        name: String,
        /// In the file.
        found: String,
        /// Types that can be read there.
        expected: &'static str,
    },
    /// A quantized module contradicts its format.
    #[error("module {module}: {what}")]
    Quantized {
        /// Path of the module.
        module: String,
        /// What was expected and what was found.
        what: String,
    },
    /// Products of integers are asked for by name, and the target has none.
    #[error(
        "products of integers are configured (target.products = \"integer\"): expected weights that stay quantized on the CPU, found {found}; set target.products = \"auto\" or \"float\""
    )]
    Products {
        /// Format of most of its elements, or the device.
        found: String,
    },
}

impl CheckpointError {
    /// Whether each reading of the same files ends the same. A reading that failed may succeed later,
    /// unless the file is not there.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Read { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            Self::Write { .. } => false,
            _ => true,
        }
    }

    /// A file that cannot be read, for this reason.
    pub(crate) fn read(path: &Path, cause: io::Error) -> Self {
        Self::Read { path: path.to_path_buf(), cause }
    }
}

/// A text of the file in an error: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_WORD_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
