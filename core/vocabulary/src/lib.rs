//! The words that cores and shells share: ids, times, lanes, permits, reasons, process states,
//! reports and figures.
//!
//! Plain data without dependencies. A core takes and returns these types. The shell beside it
//! converts them to and from protobuf, once, in its `wire.rs`. Conversions that several shells need
//! are in `paceline_proto::convert`.
//!
//! - [`generation`] has a request between our processes and its answer.
//! - [`grammar`] has the bounds of grammars that clients send.
//! - [`ids`] has ids and numbers that cross processes.
//! - [`time`] has times in milliseconds.
//! - [`lane`] has lanes, route reasons, permits, the operator's override.
//! - [`reason`] has the reasons why a request ended without its answer.
//! - [`state`] has states of processes, workers and links.
//! - [`report`] has what processes report about themselves.
//! - [`products`] has how products by quantized weights are computed.
//! - [`tensor`] has element types and places of tensors.
//! - [`link`] has the messages between target and drafter.
//! - [`trace`] has the place of a span in a trace.
//! - [`mean`] has the exponential mean.
//! - [`sampling`] has the parameters by which tokens are chosen.
//! - [`Exit`] has the exit codes of our processes.
//! - [`chain()`] writes an error and its causes in one line.

mod chain;
mod exit;
pub mod generation;
pub mod grammar;
pub mod ids;
pub mod lane;
pub mod link;
pub mod mean;
pub mod products;
pub mod reason;
pub mod report;
pub mod sampling;
pub mod state;
pub mod tensor;
pub mod time;
pub mod trace;
mod words;

pub use chain::chain;
pub use exit::Exit;
pub use ids::{Epoch, KeyId, ModelMark, RequestId, Term};
pub use lane::{Force, Lane, Permit, Route, RouteReason, RouteWish};
pub use mean::ExponentialMean;
pub use products::Products;
pub use reason::Reason;
pub use sampling::SamplingRule;
pub use tensor::TensorType;
pub use time::Millis;
pub use trace::TraceContext;
