//! The protocols of clients: how requests are read and checked, and how answers and errors are
//! written. Every protocol's request becomes a [`inference::input::RequestInput`], and every
//! answer is written of the same events. No sockets, no tasks: the gateway calls this.
//!
//! - [`inference`]: requests and errors in no protocol's words
//! - [`openai`], [`responses`], [`anthropic`], [`ollama`]: protocols over HTTP
//! - [`grpc`]: our own protocol, [`vllm`] the one by which routers drive engines
//!
//! Shared by the protocols over HTTP:
//! - [`protocol`]: the parts of a protocol
//! - [`json`]: bounds of JSON
//! - [`accepted`]: fields that are accepted and not read
//! - [`number`]: whole numbers of requests, checked while they are read
//! - [`values`]: values of requests with several forms
//! - `files`: files beside texts and images
//! - [`aliases`]: the model names that are served
//! - [`answer`]: fields of all answers, [`pieces`] their text, [`sse`] their events
//! - [`tool_call_filter`]: answers that may have one tool call
//! - [`dialect`]: errors, [`paths`] the names of fields in them
//! - [`bodies`]: from the bytes of a body to a request, for the fuzz targets

pub mod accepted;
pub mod aliases;
pub mod answer;
pub mod anthropic;
pub mod bodies;
pub mod dialect;
mod effort;
mod files;
pub mod grpc;
pub mod inference;
pub mod json;
pub mod number;
pub mod ollama;
pub mod openai;
pub mod paths;
pub mod pieces;
pub mod protocol;
pub mod responses;
pub mod shorten;
pub mod sse;
pub mod tool_call_filter;
pub mod values;
pub mod vllm;

#[cfg(test)]
mod cut_answers;
