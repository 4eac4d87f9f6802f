//! What can go wrong at this crate's border.

use std::io;
use std::path::PathBuf;

/// A checkpoint that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that must be there cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file is not what its name says.
    #[error("{}: {what}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Expected and found.
        what: String,
    },
    /// config.json has a value this version cannot serve.
    #[error("config.json of the model: {key}: {what}")]
    Config {
        /// The key.
        key: String,
        /// Expected and found.
        what: String,
    },
    /// A tensor the model needs is not in the checkpoint.
    #[error("tensor {name} is missing from the checkpoint")]
    Missing {
        /// Its name.
        name: String,
    },
    /// Tensors nobody asked for: the checkpoint is of another model than its config says.
    #[error("the checkpoint has {count} tensors the model does not use, the first is {name}")]
    Unused {
        /// The first of them.
        name: String,
        /// How many.
        count: usize,
    },
    /// A tensor has another shape than the config says.
    #[error("tensor {name} has shape {found:?}, the model needs {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// By the config.
        expected: Vec<usize>,
    },
    /// A tensor has a type this version cannot read.
    #[error("tensor {name} has type {found}; expected F32, F16 or BF16")]
    Dtype {
        /// Its name.
        name: String,
        /// In the file.
        found: String,
    },
    /// MLX said no.
    #[error("MLX failed while loading: {0}")]
    Mlx(#[from] mlx_rs::error::Exception),
}

/// A forward that cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The batch contradicts itself or asks for what is not built: a bug of the caller.
    #[error("bad batch: {0}")]
    Batch(String),
    /// MLX said no.
    #[error("MLX failed: {0}")]
    Mlx(#[from] mlx_rs::error::Exception),
}

/// Result of a forward.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;
