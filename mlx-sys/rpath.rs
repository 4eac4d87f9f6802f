// How executables that use MLX find its library at run time, without environment variables and
// without Python. A package's link arguments do not reach its dependents' executables, so each
// package that links one (binary, test, bench) depends on `mlx-sys` itself and has this build
// script:
//
//     include!("../mlx-sys/rpath.rs");
//
//     fn main() {
//         mlx_rpath();
//     }
//
// Where `mlx-sys` is an optional dependency that is off, it does nothing.

/// Tells cargo the run path of libmlx. In the build scripts of packages that depend on `mlx-sys`.
#[allow(dead_code, reason = "mlx-sys's own build script calls `mlx_rpath_to`")]
#[allow(clippy::disallowed_methods, reason = "a build script's arguments are environment variables")]
fn mlx_rpath() {
    if let (Ok(lib_dir), Ok(os)) = (std::env::var("DEP_MLX_LIB_DIR"), std::env::var("CARGO_CFG_TARGET_OS")) {
        mlx_rpath_to(&lib_dir, &os, std::env::var_os("DEP_MLX_CUDA").is_some());
    }
}

/// First where an installation has the library, then where this build found it.
#[allow(clippy::print_stdout, reason = "a build script answers on stdout")]
fn mlx_rpath_to(lib_dir: &str, os: &str, cuda: bool) {
    let executable = if os == "macos" { "@executable_path" } else { "$ORIGIN" };
    println!("cargo::rustc-link-arg=-Wl,-rpath,{executable}/../lib/paceline");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib_dir}");
    export_blas(os);
    if os == "linux" {
        // DT_RPATH and not DT_RUNPATH: it also serves libmlx's own libraries when they are
        // installed beside it.
        println!("cargo::rustc-link-arg=-Wl,--disable-new-dtags");
    }
    if cuda {
        // NVIDIA's libraries need not be on the machine that builds.
        println!("cargo::rustc-link-arg=-Wl,--allow-shlib-undefined");
    }
}

/// On Linux libmlx shall call the `cblas_sgemm` of an executable that has one (paceline-cpu): the
/// dynamic linker searches the executable first, but only among the symbols it exports.
#[allow(clippy::print_stdout, reason = "a build script answers on stdout")]
fn export_blas(os: &str) {
    if os == "linux" {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=cblas_sgemm");
    }
}
