//! Tests that may be skipped: those whose model, clients or browser are not part of the repository.
//!
//! A test that lacks its checkpoint fails. There are two exceptions: the recipe's script could not
//! reach the package registry, and passes the reason in an environment variable; or there is no
//! browser. The test then prints `SKIPPED`, and its name and the reason go into a file, which the
//! script counts in its summary. On CI the test fails.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use paceline_process::environment::{env, env_os};
use paceline_process::platform;

/// Why `SmolLM2` could not be fetched. `scripts/suite.sh` sets this variable.
const REASON: &str = "SMOLLM2_SKIPPED";
/// Why the Python packages of a list in `tests/http_clients` could not be fetched. The list's name
/// is the variable's end. `scripts/suite.sh` sets it.
const CLIENTS_REASON: &str = "HTTP_CLIENTS_SKIPPED_";
/// Why cargo-deb could not be fetched. `scripts/suite.sh` sets it.
const CARGO_DEB_REASON: &str = "CARGO_DEB_SKIPPED";
/// Path of the file with a line for each skipped test. `scripts/suite.sh` sets this variable.
const SKIPPED: &str = "SKIPPED_TESTS";

/// The directory where `scripts/smollm2.sh` puts `SmolLM2`. `None` if the test is to be skipped.
///
/// # Panics
/// The model is not there, and nothing says that the registry could not be reached.
pub fn smollm2(test: &str) -> Option<PathBuf> {
    let place = platform::cache_dir().expect("$HOME is set").join("paceline/models/smollm2");
    if place.join("model.safetensors").is_file() {
        return Some(place);
    }
    let reason = env(REASON).filter(|reason| !reason.is_empty()).unwrap_or_else(|| {
        panic!(
            "expected SmolLM2 at {}, found nothing: run `sh scripts/smollm2.sh`",
            place.display()
        )
    });
    skipped(test, &reason);
    None
}

/// A `PATH` with `cargo-deb`: the caller's, with the place where `scripts/cargo-deb.sh` puts it.
/// `None` if the test is to be skipped.
///
/// # Panics
/// It is not there, and nothing says that the registry could not be reached.
pub fn cargo_deb(test: &str) -> Option<OsString> {
    let own = crate::programs().join("../cargo-deb/bin");
    let path = env_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&path).chain([own]).collect();
    if places.iter().any(|place| place.join("cargo-deb").is_file()) {
        return Some(std::env::join_paths(places).expect("they were split"));
    }
    let reason = env(CARGO_DEB_REASON).filter(|reason| !reason.is_empty()).unwrap_or_else(|| {
        panic!("expected cargo-deb in $PATH, found none: run `sh scripts/cargo-deb.sh`")
    });
    skipped(test, &reason);
    None
}

/// Why the clients of a list in `tests/http_clients` are not there, if `scripts/suite.sh` found out.
pub(crate) fn clients_reason(list: &str) -> Option<String> {
    env(&format!("{CLIENTS_REASON}{list}")).filter(|reason| !reason.is_empty())
}

/// Says that a test is skipped, and why.
///
/// # Panics
/// This is CI, where no such test may be skipped.
#[expect(clippy::print_stdout, reason = "what was skipped, beside the summary that counts it")]
pub(crate) fn skipped(test: &str, reason: &str) {
    assert!(env("CI").is_none_or(|ci| ci.is_empty()), "{test} was skipped on CI: {reason}");
    println!("SKIPPED: {test}: {reason}");
    if let Some(path) = env_os(SKIPPED) {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}
