//! Support of whole-process tests: a [`Stack`] of real processes in a directory of its own,
//! requests to it, broken models, and bounded waits for states, never a sleep. [`Stack::sweep`]
//! checks that nothing is left. Nothing depends on this crate.
//!
//! A test that cannot get what it needs fails: this library panics with what was expected and what
//! was found.

#![expect(
    clippy::unwrap_used,
    reason = "this is a test library; what a test needs and does not get fails it"
)]

pub mod ask;
pub mod browser;
pub mod built;
pub mod gguf;
pub mod http;
pub mod image_drafters;
pub mod images;
pub mod memory;
pub mod model;
pub mod probe;
pub mod procs;
pub mod prompts;
pub mod pty;
pub mod python;
pub mod references;
pub mod replay;
pub mod resources;
pub mod router;
pub mod share;
pub mod skip;
pub mod stack;
pub mod usage;
pub mod wait;

pub use ask::{Answer, Live, chat, continue_ids, continue_text};
pub use built::built;
pub use procs::{kill_at_once, signal};
pub use stack::Stack;
pub use wait::{is_linked, wait};

use std::path::PathBuf;

/// The repository.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// What a documented line `cargo run …` runs after the build: that example, or the program of that
/// package, with the words after `--`, in the repository.
///
/// # Panics
/// It was not built.
pub fn cargo_run(line: &str) -> std::process::Command {
    let (options, words) = line.split_once(" -- ").unwrap_or((line, ""));
    let (_, name) = options.rsplit_once(' ').expect("a package or an example");
    let folder = if options.contains(" --example ") { "examples/" } else { "" };
    let mut command = std::process::Command::new(built(&format!("{folder}{name}")));
    command.args(words.split_whitespace()).current_dir(repository());
    command
}

/// The programs that were built with this test.
///
/// # Panics
/// One of them was not built.
pub fn programs() -> PathBuf {
    let names = ["paceline-supervisor", "paceline-gateway", "paceline-target", "paceline-drafter"];
    for name in names.into_iter().chain(["paceline-bench", "paceline-pull"]) {
        built(name);
    }
    built("paceline").parent().expect("a directory").to_path_buf()
}
