//! mlx-c, the C API over MLX: where its source is, and its compilation.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::wheel::Mlx;
use super::{Result, Target};

/// Names the oldest macOS to compile for.
const DEPLOYMENT_TARGET: &str = "MACOSX_DEPLOYMENT_TARGET";

/// mlx-c's source inside crates.io's `mlx-sys`, which cargo keeps in its own cache
/// (mlx-c/Cargo.toml says why this way).
pub fn source(target: &Target) -> Result<PathBuf> {
    let manifest = target.manifest_dir.join("mlx-c/Cargo.toml");
    println!("cargo::rerun-if-changed={}", manifest.display());
    println!("cargo::rerun-if-changed={}", manifest.with_file_name("Cargo.lock").display());
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version=1", "--manifest-path"])
        .arg(&manifest)
        .output();
    let output =
        output.map_err(|cause| format!("cannot run cargo to find mlx-c's source: {cause}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().find(|line| line.starts_with("error")).unwrap_or("no reason given");
        return Err(format!(
            "cargo could not fetch crates.io's mlx-sys, which carries mlx-c's source ({said}); with a network, run \
             `cargo fetch --locked --manifest-path {}` to see why",
            manifest.display()
        ));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|cause| format!("cannot read the output of cargo metadata: {cause}"))?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let package = packages
        .iter()
        .find(|package| package["name"] == "mlx-sys")
        .and_then(|package| package["manifest_path"].as_str());
    let package = package.ok_or_else(|| {
        format!(
            "{} must depend on mlx-sys, and cargo metadata does not list it",
            manifest.display()
        )
    })?;
    let source = Path::new(package).with_file_name("src").join("mlx-c");
    if !source.join("mlx/c/array.cpp").is_file() {
        return Err(format!(
            "mlx-c's source was expected in {}; delete that package's directory and build again",
            source.display()
        ));
    }
    Ok(source)
}

/// Compiles mlx-c and our additions into one static library, linked into the crate.
pub fn compile(target: &Target, source: &Path, mlx: &Mlx) -> Result<()> {
    let shim = target.manifest_dir.join("shim");
    println!("cargo::rerun-if-changed={}", shim.display());
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").include(source).include(mlx.dir.join("include"));
    if let Some((major, minor)) =
        mlx.oldest_macos.filter(|_| env::var_os(DEPLOYMENT_TARGET).is_none())
    {
        // cc would take the version of the SDK, which may be newer than this machine. mlx-c would
        // then call functions of libc++ that the machine lacks.
        build.env(DEPLOYMENT_TARGET, format!("{major}.{minor}"));
    }
    // Every primitive of a model goes through these functions: optimized in a debug build too.
    build.opt_level(2).debug(false);
    // Other people's code; errors are still shown.
    build.warnings(false).flag_if_supported("-w");
    // mlx-c's error messages name its files: without this machine's directories.
    build.flag_if_supported(format!("-ffile-prefix-map={}=mlx-c", source.display()));
    build.flag("-include").flag(shim.join("format.h"));
    build.files(combined(&cpp_files(&source.join("mlx/c"))?, &target.out_dir)?);
    build.file(shim.join("graph.cpp"));
    if target.lacks_half() {
        build.file(shim.join("half.cpp"));
    }
    // Elsewhere models compute on the GPU.
    if target.os == "linux" {
        build.file(shim.join("host.cpp"));
    }
    build.try_compile("mlxc").map_err(|cause| {
        let install =
            if target.is_macos() { "xcode-select --install" } else { "sudo apt install g++" };
        format!("mlx-c does not compile ({cause}); a C++20 compiler is needed: {install}")
    })
}

/// Most of the time goes into MLX's headers: the 26 files compiled as two take about a third of it.
fn combined(files: &[PathBuf], out_dir: &Path) -> Result<Vec<PathBuf>> {
    let half = files.len().div_ceil(2);
    let parts = files.chunks(half).enumerate().map(|(part, files)| {
        let path = out_dir.join(format!("mlxc_{part}.cpp"));
        let text: String =
            files.iter().map(|file| format!("#include \"{}\"\n", file.display())).collect();
        fs::write(&path, text)
            .map_err(|cause| format!("cannot write {}: {cause}", path.display()))?;
        Ok(path)
    });
    parts.collect()
}

fn cpp_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(dir).map_err(|cause| format!("cannot list {}: {cause}", dir.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "cpp")).collect();
    files.sort(); // the order of a directory is not the same everywhere
    Ok(files)
}
