//! Rust declarations for mlx-c's headers.

use std::path::Path;

use super::{Result, Target};

/// bindgen panics without libclang; this says the same in a sentence.
pub fn require_libclang() -> Result<()> {
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    println!("cargo::rerun-if-env-changed=BINDGEN_EXTRA_CLANG_ARGS");
    clang_sys::load().map_err(|_| {
        let install = if cfg!(target_os = "macos") { "xcode-select --install" } else { "sudo apt install clang libclang-dev" };
        format!("libclang is needed to read mlx-c's headers and was not found; install it: {install} (or set LIBCLANG_PATH to its directory)")
    })
}

pub fn generate(target: &Target, source: &Path) -> Result<()> {
    let bindings = bindgen::builder()
        .header(source.join("mlx/c/mlx.h").to_string_lossy())
        .clang_arg(format!("-I{}", source.display()))
        .allowlist_item("_?mlx_.*|MLX_.*")
        // Which of these there are depends on the C compiler: src/half.rs declares them the same
        // for every machine.
        .blocklist_item("b?float16_t|mlx_array_(item|data)_b?float16")
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|cause| cause.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .generate()
        .map_err(|cause| format!("no bindings could be made from mlx-c's headers: {cause}"))?;
    let file = target.out_dir.join("bindings.rs");
    bindings
        .write_to_file(&file)
        .map_err(|cause| format!("cannot write {}: {cause}", file.display()))
}
