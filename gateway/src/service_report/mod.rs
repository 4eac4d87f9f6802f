//! The service as its supervisor reports it: figures ([`service`]) and the last changes of state
//! ([`events`]). None of it has a text of a request (I9).

pub mod events;
pub mod service;
