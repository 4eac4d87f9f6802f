//! The protocols that clients use, one folder each. A front decodes its protocol's messages to
//! [`paceline_protocols::inference::input`], and encodes events and errors of [`crate::inference`]. Another
//! protocol is another folder here. [`connection`] is what their listening sockets share,
//! `effort` a field that several of them have.

pub mod connection;
pub mod decoding;
pub mod grpc;
pub mod http;
pub mod vllm;
