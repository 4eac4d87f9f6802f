//! The wire between the two models: shared memory with a ring each way, descriptors, handshake,
//! frames; both ends. Not here: what tensors mean, tokio, MLX.
//!
//! ```text
//!  supervisor   make_pair ──┬─ handover::send ─▶ worker `<name>.link.sock`   (handover::listen)
//!                           └─ handover::send ─▶ the other worker            each gets one End and the segment
//!  target  End ◀──── frames over the socket pair ────▶ End  drafter
//!          writes the segment's first half │ the second half is written by the drafter; each reads the other's
//! ```
//! Neither side trusts the other: a drafter may be dead, slow or wrong at any instant (I3). What
//! comes over a link is checked before it is used, tensors are copied out before they are looked
//! at, and nothing waits without a bound.

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

pub use end::{End, INTAKE_BYTES, INTAKE_FRAMES, Side};
pub use frame::Frame;
pub use handover::{Handover, Listener, listen, send};
pub use segment::{Pair, SEGMENT_BYTES, Segment, make_pair};

/// What ends a link. Whatever it is, the end is dropped and the worker goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the link or died.
    #[error("the peer is gone")]
    Gone,
    /// The peer takes nothing any more: more waits for it than is kept.
    #[error("the peer has stopped reading")]
    Stalled,
    /// The peer said something that link.proto does not allow.
    #[error("protocol fault: {0}")]
    Protocol(String),
    /// The system, or a caller that asked for what cannot be.
    #[error("link failed")]
    Io(#[source] std::io::Error),
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
