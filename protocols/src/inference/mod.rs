//! A client's request in no protocol's words: what a protocol makes of its message, and the checks
//! that make a request of it that is well formed.
//!
//! - [`input`]: a request as it came
//! - [`request`]: a request that is well formed; `conversation` and [`params`] are parts of it
//! - [`bounds`]: bounds that no model changes
//! - [`error`]: why a request is refused, [`images`] for its images
//! - [`model`]: facts of the served model

pub mod bounds;
mod conversation;
pub mod error;
pub mod images;
pub mod input;
pub mod model;
pub mod params;
pub mod request;
