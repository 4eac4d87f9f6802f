//! The supervisor's decisions: which processes run, which request is served, and on which route.
//!
//! Pure (I10): no clock, socket, task or file. An [`Event`] is what happened, an [`Action`] is what
//! the shell (`paceline-supervisor`) has to do. The result of an action comes back as an event.
//! Requests pass here twice, when they arrive and when they end; tokens never do.
//!
//! [`supervisor`] hands each event to the machine that it concerns, in this order:
//!
//! - [`service`]: serving, draining, ending. [`operations`]: what operators order.
//! - [`worker`]: one worker process from its start to its end. [`drafter`]: both drafter slots, the
//!   link, swaps, suspension.
//! - [`routing`]: the policy, the route of a request, how permits reach the target.
//! - [`admission`]: the queue, the KV ledger, deadlines.
//! - [`poison`]: requests at which the target ended.
//! - [`gateway`]: the gateway's reports. [`memory`]: what the machine has left. [`boot_mark`]: whether
//!   the machine went down at work.
//!
//! A module imports only modules that do not import it. [`ids`], [`poison`], [`request`], [`denial`] and
//! [`capacity`] are the lowest; [`event`] and [`action`] are used by [`supervisor`] alone.

pub mod action;
pub mod admission;
pub mod boot_mark;
pub mod capacity;
pub mod denial;
pub mod drafter;
pub mod event;
pub mod gateway;
pub mod ids;
pub mod memory;
pub mod operations;
pub mod poison;
pub mod request;
pub mod routing;
pub mod service;
pub mod settings;
pub mod supervisor;
pub mod tuning;
pub mod worker;

#[cfg(test)]
mod tests;

pub use action::{Action, Notice};
pub use event::Event;
pub use ids::{OrderId, Ticket, WorkerId, WorkerSlot};
pub use request::RequestSummary;
pub use settings::Settings;
pub use supervisor::Supervisor;
