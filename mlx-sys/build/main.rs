//! Builds the MLX C API: a prebuilt MLX (`wheel`), mlx-c's source compiled against it (`mlxc`),
//! Rust bindings to it (`bindings`), and what the linker needs (`link`). The head of src/lib.rs
//! says what a user of the crate has to know. An error is one sentence on stderr and exit code 1:
//! what was expected, what was found, what to do.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script is told by environment variables and answers on stdout"
)]

mod bindings;
mod link;
mod mlxc;
mod wheel;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

/// A sentence for the person who builds.
type Result<T> = std::result::Result<T, String>;

/// System, features and directories of the build, from cargo's environment.
struct Target {
    os: String,
    arch: String,
    cuda: bool,
    manifest_dir: PathBuf,
    out_dir: PathBuf,
}

impl Target {
    fn from_cargo() -> Result<Target> {
        Ok(Target {
            os: cargo_var("CARGO_CFG_TARGET_OS")?,
            arch: cargo_var("CARGO_CFG_TARGET_ARCH")?,
            cuda: env::var_os("CARGO_FEATURE_CUDA").is_some(),
            manifest_dir: cargo_var("CARGO_MANIFEST_DIR")?.into(),
            out_dir: cargo_var("OUT_DIR")?.into(),
        })
    }

    fn is_macos(&self) -> bool {
        self.os == "macos"
    }

    /// mlx-c has the half-precision accessors only where the C compiler has the types (half.h).
    fn lacks_half(&self) -> bool {
        self.arch != "aarch64"
    }

    /// On Linux the prebuilt MLX brings the reference BLAS; OpenBLAS takes its place. macOS has
    /// Accelerate.
    fn wants_openblas(&self) -> bool {
        self.os == "linux"
    }
}

fn cargo_var(name: &str) -> Result<String> {
    env::var(name).map_err(|_| format!("{name} is not set: run this build script through cargo"))
}

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("mlx-sys: {message}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<()> {
    let target = Target::from_cargo()?;
    // What the system must have is asked first: these answers are quick, and a download before them
    // would be wasted.
    bindings::require_libclang()?;
    if target.wants_openblas() {
        link::require_openblas()?;
    }
    let mlx = wheel::locate(&target)?;
    let source = mlxc::source(&target)?;
    mlxc::compile(&target, &source, &mlx)?;
    bindings::generate(&target, &source)?;
    link::publish(&target, &mlx.dir);
    Ok(())
}
