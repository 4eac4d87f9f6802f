//! The C API of MLX for `mlx-rs`, over a prebuilt MLX: Metal on Apple Silicon, the CPU on Linux,
//! CUDA on Linux.
//!
//! Stands in for crates.io's `mlx-sys`, which builds MLX from source on macOS only, by
//! `[patch.crates-io]`; `mlx-rs` does not see a difference. No MLX source is compiled, no Xcode is
//! needed, and nothing is vendored.
//!
//! # How it finds things
//!
//! - **MLX 0.32.2** is a Python wheel (`mlx-cpu`, `mlx-cuda-13`, `mlx-metal`), fetched once with
//!   pip, checked against a SHA-256 in build/wheel.rs, and unpacked into a cache that outlives
//!   `cargo clean` and serves every checkout. After that no network is needed and Python never
//!   again.
//! - **mlx-c's source** is inside crates.io's `mlx-sys` package; cargo keeps it in its own cache
//!   (mlx-c/Cargo.toml).
//! - **The system** has a C++20 compiler, libclang, and on Linux OpenBLAS: the BLAS that comes with
//!   the wheel is about thirty times slower. The executable names OpenBLAS before libmlx, and the
//!   dynamic linker takes the first. Before both comes the executable itself, where it exports a
//!   `cblas_sgemm` (rpath.rs): that is how the crate `cpu` gets them. Debian: `apt install g++
//!   clang libclang-dev libopenblas-dev python3-pip`. macOS: `xcode-select --install`.
//! - **At run time** executables find libmlx in `../lib/paceline` beside their own directory, else
//!   in the cache; rpath.rs says what a package must do for that. An installation copies there what
//!   is in the wheel's `mlx/lib` (macOS: `mlx.metallib` is looked for beside the library) and, on
//!   Linux, in its `*.libs`.
//!
//! # Environment variables of the build
//!
//! | variable | meaning |
//! |---|---|
//! | `PACELINE_MLX_CACHE` | where wheels are unpacked; else `$XDG_CACHE_HOME/paceline/mlx`, else `~/.cache/paceline/mlx` (macOS: `~/Library/Caches/paceline/mlx`), else cargo's build directory |
//! | `PACELINE_MLX_DIR` | a directory with `include/` and `lib/` of MLX 0.32.2, used instead of a wheel |
//! | `MACOSX_DEPLOYMENT_TARGET` | the oldest macOS to run on, which chooses the wheel; else the macOS that builds |
//! | `LIBCLANG_PATH`, `CXX`, `CXXFLAGS` | as bindgen and cc know them |
//!
//! pip's own configuration says which package index, proxy and certificates are used.
//!
//! # Features
//!
//! `accelerate`, `metal` and `metal-jit` are empty: `mlx-rs` asks for them. `cuda` takes the CUDA
//! library on Linux. It compiles and links without an NVIDIA driver; **it has not been run**. It
//! needs a driver of version 580 or later and `libcudnn`, `libcublasLt`, `libcufft`, `libnccl` and
//! `libnvrtc`, from the system or, where libmlx itself looks for them, beside the wheel: `pip
//! install --target <cache>/mlx-cuda-13-… nvidia-cudnn-cu13 nvidia-cublas nvidia-cufft
//! nvidia-nccl-cu13 nvidia-cuda-nvrtc nvidia-cuda-runtime`.
//!
//! # Metadata for dependents' build scripts
//!
//! `DEP_MLX_LIB_DIR` (the directory of libmlx), `DEP_MLX_INCLUDE` (MLX's headers), `DEP_MLX_CUDA`
//! (set with `cuda`).

#![allow(
    non_upper_case_globals,
    non_camel_case_types,
    non_snake_case,
    reason = "the C names are kept"
)]

mod blas;
mod cell;
mod device_info;
mod fused;
mod graph;
mod half;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod mach;

pub use blas::set_blas_threads;
pub use cell::write_numbers;
pub use device_info::{device_figure, device_text};
pub use fused::{
    as_fused, count_as_one, mlx_fast_layer_norm, mlx_fast_rms_norm, mlx_fast_rope,
    mlx_fast_rope_dynamic, mlx_fast_scaled_dot_product_attention,
};
pub use graph::{
    ArrayForm, Primitive, evaluations, graph_primitives, mlx_array_eval, mlx_async_eval, mlx_eval,
};
pub use half::*;
#[cfg(target_os = "linux")]
pub use host::{HostNumbers, HostOutput, HostRows, host_array, host_array_with, host_arrays};

#[allow(clippy::all, missing_docs, reason = "generated; mlx-c's headers are the documentation")]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
// Without those that are named above: a name goes before a glob.
pub use bindings::*;
