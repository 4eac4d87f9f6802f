//! Admission by the gateway itself: requests ([`RequestSlots`]), their bytes ([`ByteBudget`]), and
//! requests that the supervisor's queue has room for ([`Backlog`]).

mod arrival;
mod backlog;
mod bytes;
mod slots;

pub use arrival::MessageArrival;
pub use backlog::{Backlog, QueuePlace};
pub use bytes::{ByteBudget, ByteHold, ByteKind, FREE_BYTES, SMALL_BYTES, TakeBytes, bodies_full};
pub use slots::{RequestSlot, RequestSlots};
