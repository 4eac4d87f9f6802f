//! Makes the names of the two workers, which find MLX's library without environment variables.

include!("../links.rs");
include!("../../mlx-sys/rpath.rs");

fn main() {
    link_names("paceline-worker", &["paceline-target", "paceline-drafter"]);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../links.rs");
    mlx_rpath();
}
