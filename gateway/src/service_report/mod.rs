//! The service as its supervisor reports it: figures ([`service`]), the last changes of state
//! ([`events`]) and operators' orders ([`orders`]). None of it has a text of a request (I9).

pub mod events;
pub mod orders;
pub mod service;
