//! Where cargo put the programs. Also included by the tests of other crates, as a file.

use std::path::PathBuf;

/// The program of this name that was built with the running test.
///
/// # Panics
/// It was not built.
pub fn built(name: &str) -> PathBuf {
    // target/<profile>/deps/<test>
    let test = std::env::current_exe().expect("the system knows this program");
    let dir = test.ancestors().nth(2).expect("cargo's folders");
    let path = dir.join(name);
    let release = if dir.ends_with("release") { " --release" } else { "" };
    assert!(
        path.is_file(),
        "expected {}, found nothing; run `cargo build --workspace --bins{release}` first",
        path.display()
    );
    path
}
