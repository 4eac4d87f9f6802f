//! The build script's cache of unpacked wheels: what it refuses, what it uses again. No network.

#[allow(dead_code, reason = "only part of the build script is under test")]
#[allow(clippy::disallowed_methods, clippy::print_stdout, reason = "as in the build script")]
#[path = "../build/wheel.rs"]
mod wheel;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use wheel::{Wheel, install, metal};

type Result<T> = std::result::Result<T, String>;

/// Parts of the build script that wheel.rs uses.
#[allow(dead_code, reason = "read by the part that is not under test")]
pub struct Target {
    os: String,
    arch: String,
    cuda: bool,
    out_dir: PathBuf,
}

impl Target {
    fn is_macos(&self) -> bool {
        false
    }
}

const LIBRARY: &str = "libmlx.so";
const LAYOUT: &[&str] = &["mlx/include/mlx/mlx.h", "mlx/lib/libmlx.so", "mlx_cpu.libs/libblas.so"];

fn empty_cache(test: &str) -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&cache);
    cache
}

fn write_wheel(dir: &Path, files: &[&str]) -> PathBuf {
    let path = dir.join("mlx.whl");
    let mut zip = zip::ZipWriter::new(File::create(&path).expect("the directory is given"));
    for file in files {
        zip.start_file(*file, zip::write::SimpleFileOptions::DEFAULT).expect("names are valid");
        zip.write_all(b"content").expect("the disk has room");
    }
    zip.finish().expect("the disk has room");
    path
}

/// The wheel that [`write_wheel`] makes of these files.
fn wheel_of(cache: &Path, files: &[&str]) -> Wheel {
    fs::create_dir_all(cache).expect("the temporary directory can be written");
    let path = write_wheel(cache, files);
    let digest = Sha256::digest(fs::read(&path).expect("just written"));
    fs::remove_file(path).expect("just written");
    let sha256: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Wheel { package: "mlx-cpu", platform: "any", sha256: sha256.leak() }
}

fn entries(cache: &Path) -> usize {
    fs::read_dir(cache).expect("the cache exists").count()
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "compared with times of files, which are the wall clock's"
)]
fn a_wheel_is_fetched_once() {
    let cache = empty_cache("fetched-once");
    let start = SystemTime::now();
    let wheel = wheel_of(&cache, LAYOUT);
    let first =
        install(&cache, &wheel, LIBRARY, |dir| Ok(write_wheel(dir, LAYOUT))).expect("a good wheel");
    assert!(
        first.join("../mlx_cpu.libs/libblas.so").is_file(),
        "libmlx finds its libraries relative to itself"
    );
    let made = fs::metadata(first.join("lib").join(LIBRARY))
        .and_then(|library| library.modified())
        .expect("it is there");
    assert!(made < start, "cargo would take it for changed during the build and build again");
    let again = install(&cache, &wheel, LIBRARY, |_| panic!("fetched a second time"))
        .expect("the unpacked wheel");
    assert_eq!((again, entries(&cache)), (first, 1));
}

#[test]
fn a_wrong_checksum_is_refused_and_leaves_nothing() {
    let cache = empty_cache("wrong-checksum");
    let wheel = wheel_of(&cache, LAYOUT);
    let error = install(&cache, &wheel, LIBRARY, |dir| Ok(write_wheel(dir, &LAYOUT[..2])))
        .expect_err("another content");
    assert!(error.contains(wheel.sha256) && error.contains("expected"), "{error}");
    assert_eq!(entries(&cache), 0);
}

#[test]
fn an_unexpected_layout_is_refused_and_leaves_nothing() {
    let cache = empty_cache("unexpected-layout");
    let wheel = wheel_of(&cache, &LAYOUT[..1]);
    let error = install(&cache, &wheel, LIBRARY, |dir| Ok(write_wheel(dir, &LAYOUT[..1])))
        .expect_err("no library in it");
    assert!(error.contains("libmlx.so is missing"), "{error}");
    assert_eq!(entries(&cache), 0);
}

#[test]
fn a_damaged_cache_is_reported_with_what_to_delete() {
    let cache = empty_cache("damaged");
    let wheel = wheel_of(&cache, LAYOUT);
    let mlx =
        install(&cache, &wheel, LIBRARY, |dir| Ok(write_wheel(dir, LAYOUT))).expect("a good wheel");
    fs::remove_file(mlx.join("lib/libmlx.so")).expect("just unpacked");
    let error =
        install(&cache, &wheel, LIBRARY, |_| panic!("fetched into a directory that exists"))
            .expect_err("no library");
    assert!(error.contains("delete") && error.contains("mlx-cpu-"), "{error}");
}

#[test]
fn concurrent_builds_end_with_one_whole_copy() {
    let cache = empty_cache("same-time");
    let wheel = wheel_of(&cache, LAYOUT);
    let (all_fetched, fetches) = (Barrier::new(4), AtomicUsize::new(0));
    let fetch = |dir: &Path| {
        fetches.fetch_add(1, Ordering::Relaxed);
        all_fetched.wait(); // nobody has unpacked yet
        Ok(write_wheel(dir, LAYOUT))
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| install(&cache, &wheel, LIBRARY, fetch).expect("each gets the library"));
        }
    });
    assert_eq!((fetches.into_inner(), entries(&cache)), (4, 1));
}

#[test]
fn macos_gets_the_newest_library_it_can_load_and_code_for_the_oldest_that_loads_it() {
    let chosen = |version| metal(version).map(|(oldest, wheel)| (oldest, wheel.platform));
    assert_eq!(chosen((14, 6)), Ok(((14, 0), "macosx_14_0_arm64")));
    assert_eq!(chosen((26, 1)), Ok(((15, 0), "macosx_15_0_arm64"))); // the 26.0 wheel's library says minos 26.2
    assert_eq!(chosen((26, 2)), Ok(((26, 2), "macosx_26_0_arm64")));
    assert!(chosen((13, 7)).is_err());
}
