//! Which activation a gated block has.

#[cfg(target_os = "linux")]
use paceline_cpu::rows::Activation;

/// What a gated block does with its gate before it multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gate {
    /// x · sigmoid(x).
    #[default]
    Silu,
    /// The Gaussian error linear unit by tanh.
    Gelu,
}

impl Gate {
    /// The same for nodes of our own.
    #[cfg(target_os = "linux")]
    pub(super) fn activation(self) -> Activation {
        match self {
            Self::Silu => Activation::Silu,
            Self::Gelu => Activation::Gelu,
        }
    }
}
