//! The front door as strangers, clients and operators find it: keys and TLS, limits, hostile bytes,
//! and that nothing of a request is left lying about.

mod crowd;
mod fairness;
#[cfg(target_os = "linux")] // its bound on memory was measured there
mod hostile;
mod http2;
mod keys;
mod limits;
mod private;
