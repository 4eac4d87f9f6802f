//! The gateway as its clients and its supervisor see it: one executable for all files, because linking one takes as long as
//! compiling ten of them. Files with tests of `make soak` are executables of their own.

mod bodies;
mod bombs;
mod chat_completions;
mod crowd;
mod door;
mod engine;
mod error_fields;
mod errors;
mod foreign_pages;
mod head_of_line;
mod hostile;
mod http_bodies;
mod http_crowd;
mod http_door;
mod image_requests;
mod inference;
mod keyring;
mod life;
mod messages;
mod ollama;
mod page_chat;
mod process;
mod questions;
mod requests;
mod responses;
mod samples;
mod silence;
mod stage;
mod status_page;
mod stored_forms;
mod thinking;
mod tool_calls;
mod whole_answers;

/// Cargo looks for no test files of this crate, so a file that nothing names would never run.
#[test]
fn each_file_of_tests_belongs_to_an_executable() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("there");
    let (main, manifest) = (read("tests/main.rs"), read("Cargo.toml"));
    let mut files = 0;
    for entry in std::fs::read_dir(root.join("tests")).expect("there") {
        let name = entry.expect("readable").file_name().into_string().expect("UTF-8");
        let Some(module) = name.strip_suffix(".rs") else { continue };
        let is_named = main.contains(&format!("\nmod {module};\n"))
            || manifest.contains(&format!("path = \"tests/{name}\""));
        assert!(is_named, "expected {name} in tests/main.rs or in Cargo.toml, found it in neither");
        files += 1;
    }
    assert!(files > 30, "expected the files of tests, found {files}");
}
