//! The ports that clients use, a folder for each kind. A front has `paceline_protocols` decode the
//! messages of its protocol, gives the requests to [`crate::inference`], and sends what the protocol
//! makes of their events and errors. [`connection`] is what the listening sockets share.

pub mod connection;
pub mod decoding;
pub mod grpc;
pub mod http;
pub mod vllm;
