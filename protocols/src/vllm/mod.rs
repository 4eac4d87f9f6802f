//! `vllm.grpc.engine`: the protocol by which a router drives an engine.
//!
//! [`decode`] requests · [`encode`] answers

pub mod decode;
pub mod encode;
