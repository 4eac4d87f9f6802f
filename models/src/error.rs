//! Errors of a forward. A cause is in the source of an error, not in its text.

/// A forward that cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The batch contradicts itself or the store: a bug of the caller.
    #[error("bad batch: {0}")]
    Batch(String),
    /// The numbers of an array cannot be read as they lie: a bug of this crate.
    #[error("cannot read the numbers of an array")]
    Unreadable(#[from] mlx_rs::error::AsSliceError),
    /// MLX failed.
    #[error("MLX failed")]
    Mlx(#[from] mlx_rs::error::Exception),
}

/// Result of a forward.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;
