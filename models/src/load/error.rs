//! Errors while a checkpoint is loaded. A cause is in the source of an error, not in its text.

use paceline_checkpoint::CheckpointError;

/// A checkpoint that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its files cannot be used, whatever the device.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A tensor for which there is no memory, or that MLX cannot count.
    #[error("cannot make an array of {bytes} bytes")]
    TooLarge {
        /// Bytes of the tensor.
        bytes: usize,
    },
    /// MLX failed.
    #[error("MLX failed while loading")]
    Mlx(#[from] mlx_rs::error::Exception),
}

impl LoadError {
    /// Whether each load of the same files ends the same. A read that failed may succeed later,
    /// unless the file is not there.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Checkpoint(error) => error.is_lasting(),
            Self::TooLarge { .. } | Self::Mlx(_) => false,
        }
    }
}
