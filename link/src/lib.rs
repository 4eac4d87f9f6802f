//! The wire between the two models: shared memory with a ring each way, descriptors, handshake,
//! frames; both ends. Protobuf becomes types of `paceline_vocabulary` in [`wire`] and nowhere else.
//! Not here: the meaning of tensors, tokio, MLX.
//!
//! ```text
//!  supervisor   make_pair ──┬─ handover::send ─▶ worker `<name>.link.sock`   (handover::listen)
//!                           └─ handover::send ─▶ the other worker            each gets one End and the segment
//!  target  End ◀──── frames over the socket pair ────▶ End  drafter
//!          writes the segment's first half │ the second half is written by the drafter; each reads the other's
//! ```
//! Neither side trusts the other: a drafter may be dead, slow or wrong at any instant (I3). Each
//! message is checked before it is used, tensors are copied out before they are read, and nothing
//! waits without a bound.

mod deadline;
mod descriptors;
pub mod end;
pub mod frame;
pub mod handover;
pub mod handshake;
pub mod platform;
pub mod ring;
pub mod segment;
pub mod tensor;
pub mod wire;

pub use end::{End, INTAKE_BYTES, INTAKE_FRAMES, Side};
pub use handover::{Handover, Listener, listen, send};
pub use segment::{Pair, SEGMENT_BYTES, SharedSegment, make_pair};
pub use wire::{Frame, Message};

/// Cause of a link's end. In all cases the end is dropped and the worker goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the link or died.
    #[error("the peer is gone")]
    Gone,
    /// More bytes wait for the peer than are kept.
    #[error("the peer has stopped reading")]
    Stalled,
    /// The peer sent something that link.proto does not allow.
    #[error("protocol fault")]
    Protocol(#[from] ProtocolError),
    /// The system failed, or a caller asked for something impossible.
    #[error("link failed")]
    Io(#[source] std::io::Error),
}

/// The rule of link.proto that a peer broke.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProtocolError {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] frame::FrameError),
    /// A frame whose fields contradict link.proto.
    #[error(transparent)]
    Wire(#[from] wire::WireError),
    /// A tensor at an impossible place, or with impossible numbers.
    #[error(transparent)]
    Tensor(#[from] tensor::TensorError),
    /// An acknowledgement of a tensor that was not sent.
    #[error(transparent)]
    Ring(#[from] ring::RingError),
}

impl From<std::io::Error> for LinkError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected => Self::Gone,
            _ => Self::Io(error),
        }
    }
}
