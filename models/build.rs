//! Test executables find MLX's library without environment variables.

include!("../mlx-sys/rpath.rs");

fn main() {
    mlx_rpath();
}
