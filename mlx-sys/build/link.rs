//! Linker arguments for executables, and the instructions for packages that link them.

use std::path::Path;
use std::process::Command;

use super::{Result, Target};

include!("../rpath.rs");

/// The linker's own message would not name the package.
pub fn require_openblas() -> Result<()> {
    let compiler = cc::Build::new().cpp(true).cargo_metadata(false).try_get_compiler();
    let output = compiler.map_err(|cause| cause.to_string()).and_then(|compiler| {
        let output = Command::new(compiler.path()).arg("-print-file-name=libopenblas.so").output();
        output.map_err(|cause| format!("{}: {cause}", compiler.path().display()))
    });
    let output = output.map_err(|cause| {
        format!(
            "a C++20 compiler is needed and none runs ({cause}); install one: sudo apt install g++"
        )
    })?;
    // The bare name comes back when the compiler knows no such file.
    let found = String::from_utf8_lossy(&output.stdout);
    if Path::new(found.trim()).is_absolute() {
        return Ok(());
    }
    Err("OpenBLAS (libopenblas.so) was not found, and without it matrix products are about thirty times slower; install it: sudo apt install libopenblas-dev".into())
}

pub fn publish(target: &Target, mlx: &Path) {
    let lib = mlx.join("lib");
    println!("cargo::rustc-check-cfg=cfg(mlx_openblas)");
    println!("cargo::rustc-link-search=native={}", lib.display());
    if target.wants_openblas() {
        println!("cargo::rustc-cfg=mlx_openblas");
        // Before libmlx: the dynamic linker takes the first `cblas_sgemm` in this order, and
        // libmlx's own is slow.
        println!("cargo::rustc-link-lib=dylib=openblas");
    }
    // On macOS the library itself names its frameworks (Metal, Foundation, QuartzCore, Accelerate).
    println!("cargo::rustc-link-lib=dylib=mlx");
    // Read in dependents' build scripts as DEP_MLX_*: rpath.rs does.
    println!("cargo::metadata=lib_dir={}", lib.display());
    println!("cargo::metadata=include={}", mlx.join("include").display());
    if target.cuda {
        println!("cargo::metadata=cuda=1");
    }
    // Our own tests are executables too.
    mlx_rpath_to(&lib.display().to_string(), &target.os, target.cuda);
}
