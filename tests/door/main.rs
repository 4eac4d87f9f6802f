//! The front door for strangers, clients and operators: keys and TLS, limits, hostile bytes, and no
//! trace of a request afterwards.

mod crowd;
mod fairness;
#[cfg(target_os = "linux")] // its bound on memory was measured there
mod hostile;
mod http2;
mod keys;
mod limits;
mod private;
mod private_http;
