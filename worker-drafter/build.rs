//! The worker finds MLX's library without environment variables.

include!("../mlx-sys/rpath.rs");

fn main() {
    mlx_rpath();
}
