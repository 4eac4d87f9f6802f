//! Our own tests and the bench export `cblas_sgemm` like the workers do.

include!("../mlx-sys/rpath.rs");

#[allow(
    clippy::disallowed_methods,
    reason = "a build script's arguments are environment variables"
)]
fn main() {
    export_blas(&std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default());
}
