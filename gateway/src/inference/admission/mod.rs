//! What the gateway itself admits: calls ([`Calls`]), and requests that the supervisor's queue has
//! room for ([`Backlog`]).

mod arrival;
mod backlog;
mod calls;

pub use arrival::MessageArrival;
pub use backlog::{Backlog, QueuePlace};
pub use calls::{CallSlot, Calls};
