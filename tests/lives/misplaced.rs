//! A directory in the place of a file of the runtime directory.

use std::os::unix::fs::DirBuilderExt as _;

use paceline_tests::{Stack, wait};

/// A stack whose runtime directory has a directory of this name, not started yet.
fn with_directory(name: &str) -> Stack {
    let stack = Stack::new("");
    for path in [stack.run_dir(), stack.run_dir().join(name)] {
        std::fs::DirBuilder::new().mode(0o700).create(path).expect("made");
    }
    stack
}

/// Checks that `text` names the directory `name` and the remedy.
fn named(stack: &Stack, name: &str, text: &str) {
    let path = stack.run_dir().join(name).display().to_string();
    for words in [&path, "expected", "found a directory", "move it away"] {
        assert!(text.contains(words), "{name}: {words:?} in {text}");
    }
}

#[test]
fn a_start_that_finds_a_directory_in_the_place_of_a_file_names_it_and_what_to_do() {
    for name in ["service.lock", "gateway.lock", "supervisor.log", "supervisor.sock", "term"] {
        let mut stack = with_directory(name);
        stack.serve();
        let code = stack.serve_ended();
        assert!(matches!(code, Some(64 | 69)), "{name}: {code:?} {}", stack.serve_log());
        named(&stack, name, &stack.serve_log());
    }
}

#[test]
fn a_worker_that_finds_a_directory_in_the_place_of_a_file_is_failed_with_its_name() {
    for name in ["target.log", "target.sock", "target.json"] {
        let mut stack = with_directory(name);
        stack.serve();
        let status = stack.wait_status("the reason", |status| {
            status["target"]["reason"].as_str().is_some_and(|reason| reason.contains("expected"))
        });
        named(&stack, name, status["target"]["reason"].as_str().expect("a text"));
        stack.signal_serve(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(stack.serve_ended(), Some(0));
        wait("the end of all", || stack.processes().is_empty().then_some(()));
    }
}
