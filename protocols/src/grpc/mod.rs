//! `paceline.v1`: our own protocol over gRPC.
//!
//! [`decode`] requests · [`encode`] answers · [`request`] conversations that a client sends

pub mod decode;
pub mod encode;
pub mod request;
