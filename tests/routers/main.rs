//! Routers of other people before one and two services, unmodified and from their packages: what
//! passes through them is what our own clients get, and a service is taken out without a failed
//! request.

mod crowd;
mod many;
mod smg;
mod smg_faults;
mod smg_files;
mod texts;
mod vllm_router;
