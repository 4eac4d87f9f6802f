//! The prebuilt MLX: one of its Python wheels, fetched once per user, checked, unpacked. Owns the
//! cache directory. A wheel is a zip file with `mlx/include`, `mlx/lib` and, on Linux, the
//! libraries that libmlx finds relative to itself.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, process};

use sha2::{Digest, Sha256};

use super::{Result, Target};

/// The MLX that mlx-c 0.7.0 is written for.
const MLX_VERSION: &str = "0.32.2";

/// One wheel of [`MLX_VERSION`].
#[derive(Debug, PartialEq)]
pub struct Wheel {
    pub package: &'static str,
    pub platform: &'static str,
    pub sha256: &'static str,
}

const CPU_X86_64: Wheel = Wheel {
    package: "mlx-cpu",
    platform: "manylinux_2_35_x86_64",
    sha256: "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878",
};
const CPU_AARCH64: Wheel = Wheel {
    package: "mlx-cpu",
    platform: "manylinux_2_35_aarch64",
    sha256: "d0f94625588b51a878786dd51cec5617894ce586cf3c94645ce1b64e24c27c0b",
};
const CUDA_X86_64: Wheel = Wheel {
    package: "mlx-cuda-13",
    platform: "manylinux_2_35_x86_64",
    sha256: "335094ccd1c0c6dc3e09c8caba207c8180602bacc0c38ba20c1d81e9456ab394",
};
const CUDA_AARCH64: Wheel = Wheel {
    package: "mlx-cuda-13",
    platform: "manylinux_2_35_aarch64",
    sha256: "49b1a25df9021f3b519a534fd39a32a5cdbf93a1b265a31e59671c2d9fc9f4a2",
};

/// A version of macOS: major and minor.
pub type MacosVersion = (u32, u32);

/// The oldest macOS that any of the libraries loads on.
pub const OLDEST_MACOS: MacosVersion = (14, 0);

/// An MLX on this machine.
pub struct Mlx {
    /// Has `include/` and `lib/`.
    pub dir: PathBuf,
    /// The oldest macOS that the library loads on; `None` if it is for another system.
    pub oldest_macos: Option<MacosVersion>,
}

/// By the oldest macOS that loads the library (its `minos`; the last one's platform tag says 26.0).
/// The newer ones carry Metal kernels the older systems lack: bfloat16 and fences from 15, the
/// matrix units of the M5 from 26.2.
const METAL: [(MacosVersion, Wheel); 3] = [
    (
        (26, 2),
        Wheel {
            package: "mlx-metal",
            platform: "macosx_26_0_arm64",
            sha256: "e6abeac9ac5265830c9c1541b6f96e9be37a85c2446763a46ad466c63a3837ab",
        },
    ),
    (
        (15, 0),
        Wheel {
            package: "mlx-metal",
            platform: "macosx_15_0_arm64",
            sha256: "55a369250d220b2cf10213a87a2ac1b1a420608c5b35b1df4e7147ac8e32f121",
        },
    ),
    (
        OLDEST_MACOS,
        Wheel {
            package: "mlx-metal",
            platform: "macosx_14_0_arm64",
            sha256: "3825fff379dbc107dd3413e564a06caeaa24819910ec49c0439e454c06a1b9b8",
        },
    ),
];

/// The MLX to build with: `$PACELINE_MLX_DIR`, or the unpacked wheel for `target`.
pub fn locate(target: &Target) -> Result<Mlx> {
    for name in ["PACELINE_MLX_DIR", "PACELINE_MLX_CACHE", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let library = if target.is_macos() { "libmlx.dylib" } else { "libmlx.so" };
    let mlx = match absolute("PACELINE_MLX_DIR")? {
        Some(dir) => {
            let dir = checked(dir, library).map_err(|problem| {
                format!("PACELINE_MLX_DIR must name a directory with include/ and lib/ of MLX {MLX_VERSION}, but {problem}")
            })?;
            Mlx { dir, oldest_macos: target.is_macos().then_some(OLDEST_MACOS) }
        }
        None => {
            let (oldest_macos, wheel) = select(target)?;
            let dir = install(&cache_dir(target)?, wheel, library, |into| download(wheel, into))?;
            Mlx { dir, oldest_macos }
        }
    };
    // Deleting the cache brings the next build back here.
    println!("cargo::rerun-if-changed={}", mlx.dir.join("lib").join(library).display());
    Ok(mlx)
}

/// The wheel for a target and, for macOS, the oldest version that loads it; or why there is none.
fn select(target: &Target) -> Result<(Option<MacosVersion>, &'static Wheel)> {
    match (target.os.as_str(), target.arch.as_str(), target.cuda) {
        ("linux", "x86_64", false) => Ok((None, &CPU_X86_64)),
        ("linux", "aarch64", false) => Ok((None, &CPU_AARCH64)),
        ("linux", "x86_64", true) => Ok((None, &CUDA_X86_64)),
        ("linux", "aarch64", true) => Ok((None, &CUDA_AARCH64)),
        ("macos", "aarch64", false) => {
            metal(macos_version()?).map(|(oldest, wheel)| (Some(oldest), wheel))
        }
        ("macos", "aarch64", true) => {
            Err("the feature `cuda` is for Linux; on macOS build without it".into())
        }
        (os, arch, _) => Err(format!(
            "there is no prebuilt MLX {MLX_VERSION} for {os} on {arch} (there is for Linux on x86_64 and aarch64 and for macOS on Apple Silicon); \
             set PACELINE_MLX_DIR to a directory with include/ and lib/ of an MLX of your own"
        )),
    }
}

/// The newest wheel that this macOS loads, and the oldest macOS that loads it.
pub fn metal(macos: MacosVersion) -> Result<(MacosVersion, &'static Wheel)> {
    let newest = METAL.iter().find(|(oldest, _)| macos >= *oldest);
    newest.map(|(oldest, wheel)| (*oldest, wheel)).ok_or_else(|| {
        format!("MLX {MLX_VERSION} needs macOS 14.0, this is {}.{}", macos.0, macos.1)
    })
}

/// The macOS the executables shall run on: `$MACOSX_DEPLOYMENT_TARGET`, else this machine's.
fn macos_version() -> Result<MacosVersion> {
    println!("cargo::rerun-if-env-changed=MACOSX_DEPLOYMENT_TARGET");
    let text = match env::var("MACOSX_DEPLOYMENT_TARGET") {
        Ok(version) => version,
        Err(_) => {
            let output = Command::new("sw_vers").arg("-productVersion").output();
            let output = output.map_err(|cause| {
                format!("cannot ask `sw_vers -productVersion` which macOS this is ({cause}); set MACOSX_DEPLOYMENT_TARGET")
            })?;
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
    };
    let mut parts = text.split('.').map(str::parse);
    match (parts.next(), parts.next().unwrap_or(Ok(0))) {
        (Some(Ok(major)), Ok(minor)) => Ok((major, minor)),
        _ => Err(format!(
            "a macOS version such as 15.1 was expected, found {text:?}; set MACOSX_DEPLOYMENT_TARGET"
        )),
    }
}

/// Outlives `cargo clean` and serves every checkout of the user.
fn cache_dir(target: &Target) -> Result<PathBuf> {
    if let Some(dir) = absolute("PACELINE_MLX_CACHE")? {
        return Ok(dir);
    }
    let caches = if target.is_macos() { "Library/Caches" } else { ".cache" };
    let of_user = match (absolute("XDG_CACHE_HOME")?, absolute("HOME")?) {
        (Some(dir), _) => Some(dir),
        (None, home) => home.map(|dir| dir.join(caches)),
    };
    Ok(of_user.map_or_else(|| target.out_dir.join("mlx"), |dir| dir.join("paceline/mlx")))
}

/// A directory named by the environment; empty counts as not set.
fn absolute(name: &str) -> Result<Option<PathBuf>> {
    match env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from) {
        // A build script runs in its package's directory, which is not what a relative path would
        // mean.
        Some(dir) if dir.is_relative() => {
            Err(format!("{name} must be an absolute path, found {}", dir.display()))
        }
        dir => Ok(dir),
    }
}

/// The unpacked `wheel` under `cache`, put there first if need be. `fetch` writes the wheel into
/// the directory it is given and returns the file. Builds that run at the same time may both fetch;
/// the first rename wins and no build ever sees half a directory.
pub fn install(
    cache: &Path,
    wheel: &Wheel,
    library: &str,
    fetch: impl FnOnce(&Path) -> Result<PathBuf>,
) -> Result<PathBuf> {
    let name =
        format!("{}-{MLX_VERSION}-{}-{}", wheel.package, wheel.platform, &wheel.sha256[..12]);
    let home = cache.join(name);
    if home.is_dir() {
        return checked(home.join("mlx"), library)
            .map_err(|problem| format!("{problem}; delete {} and build again", home.display()));
    }
    // Beside its destination, so that the rename stays within one file system.
    let scratch = Scratch::new(cache)?;
    let file = fetch(&scratch.0)?;
    verify(&file, wheel.sha256)?;
    let unpacked = scratch.0.join("unpacked");
    unpack(&file, &unpacked).map_err(|cause| {
        format!("cannot unpack {} into {}: {cause}", file.display(), unpacked.display())
    })?;
    checked(unpacked.join("mlx"), library).map_err(|problem| {
        format!("the wheel {} is not laid out as expected: {problem}", wheel.package)
    })?;
    date_back(&unpacked.join("mlx/lib").join(library))?;
    match fs::rename(&unpacked, &home) {
        // Another build was first: same checksum, same content.
        Err(_) if home.is_dir() => {}
        Err(cause) => {
            return Err(format!("cannot move the unpacked MLX to {}: {cause}", home.display()));
        }
        Ok(()) => {}
    }
    Ok(home.join("mlx"))
}

/// A directory of this build alone, gone when the build is done with it, well or not.
struct Scratch(PathBuf);

impl Scratch {
    #[expect(clippy::disallowed_methods, reason = "a name that no other build has")]
    fn new(cache: &Path) -> Result<Scratch> {
        // Containers may share a cache and have the same process ids.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let dir = cache.join(format!(".unpacking-{}-{}", process::id(), now.as_nanos()));
        fs::create_dir_all(cache).and_then(|()| fs::create_dir(&dir)).map_err(|cause| {
            format!("cannot create {}: {cause}; set PACELINE_MLX_CACHE to a directory that can be written", dir.display())
        })?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn checked(mlx: PathBuf, library: &str) -> Result<PathBuf> {
    for part in [Path::new("include/mlx/mlx.h"), &Path::new("lib").join(library)] {
        if !mlx.join(part).is_file() {
            return Err(format!("{} is missing", mlx.join(part).display()));
        }
    }
    Ok(mlx)
}

fn verify(file: &Path, expected: &str) -> Result<()> {
    let bytes =
        fs::read(file).map_err(|cause| format!("cannot read {}: {cause}", file.display()))?;
    let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if found == expected {
        return Ok(());
    }
    Err(format!(
        "{} has SHA-256 {found}, expected {expected}: it was damaged on the way or is not the file this build was written for, \
         so it is not used; build again, and if it stays so ask whoever runs your package index",
        file.display()
    ))
}

fn unpack(file: &Path, into: &Path) -> io::Result<()> {
    // `extract` refuses names that lead out of `into`.
    Ok(zip::ZipArchive::new(File::open(file)?)?.extract(into)?)
}

/// Cargo runs a build script again when a file it watches is newer than the script's start, and
/// this file was just made.
fn date_back(file: &Path) -> Result<()> {
    let opened = File::options().write(true).open(file);
    opened
        .and_then(|opened| opened.set_modified(UNIX_EPOCH + Duration::from_secs(1)))
        .map_err(|cause| format!("cannot set the time of {}: {cause}", file.display()))
}

/// Leaves the choice of package index, proxy and certificates to pip's own configuration.
fn download(wheel: &Wheel, into: &Path) -> Result<PathBuf> {
    let requirement = format!("{}=={MLX_VERSION}", wheel.package);
    let args: Vec<&str> =
        "download --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 --implementation py --abi none"
            .split(' ')
            .chain(["--platform", wheel.platform, &requirement])
            .collect();
    let output = pip(&args, into)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said =
            said.lines().rfind(|line| line.starts_with("ERROR")).unwrap_or("no reason given");
        return Err(format!(
            "pip could not download {requirement} for {} ({said}); check the network and pip's configuration, \
             or unpack that wheel yourself and set PACELINE_MLX_DIR to its mlx/ directory",
            wheel.platform
        ));
    }
    let files =
        fs::read_dir(into).map_err(|cause| format!("cannot list {}: {cause}", into.display()))?;
    let mut wheels = files
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "whl"));
    wheels.next().ok_or_else(|| {
        format!(
            "pip downloaded {requirement} without an error, but left no wheel in {}",
            into.display()
        )
    })
}

fn pip(args: &[&str], dir: &Path) -> Result<process::Output> {
    for (program, first) in [("python3", &["-m", "pip"][..]), ("pip3", &[])] {
        let has_pip = Command::new(program)
            .args(first)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success());
        if has_pip {
            let output = Command::new(program).args(first).args(args).current_dir(dir).output();
            return output.map_err(|cause| format!("cannot run {program}: {cause}"));
        }
    }
    let install = if cfg!(target_os = "macos") {
        "brew install python"
    } else {
        "sudo apt install python3-pip"
    };
    Err(format!(
        "pip is needed once, to fetch the prebuilt MLX, and neither `python3 -m pip` nor `pip3` works; install it: {install}"
    ))
}
