//! Commands that another program carries out: the real `paceline` beside a shell script in place of
//! `paceline-bench`, and without `paceline-pull`.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

#[path = "../../tests/harness/built.rs"]
mod built;

use std::process::{Command, Output};

use built::built;

/// `paceline` with these words, beside a script that prints its words and ends with 7.
fn run(words: &[&str]) -> Output {
    let dir = tempfile::Builder::new().prefix("pl").tempdir_in("/tmp").unwrap();
    let path = |name: &str| dir.path().join(name);
    // Written by other processes: a program this one still has open for writing, even in a fork,
    // cannot be run.
    let script = "cp \"$0\" \"$1\" && printf '#!/bin/sh\\necho $#: \"$@\"\\nexit 7\\n' > \"$2\" && chmod 755 \"$2\"";
    let made = Command::new("sh")
        .args(["-c", script])
        .arg(built("paceline"))
        .args([path("paceline"), path("paceline-bench")])
        .status()
        .unwrap();
    assert!(made.success());
    Command::new(path("paceline")).args(words).output().unwrap()
}

fn check(words: &[&str], code: i32, expected: &str) {
    let output = run(words);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
    assert!(text.contains(expected), "{words:?}: {text}");
}

#[test]
fn the_words_reach_the_program_and_its_exit_code_is_that_of_the_command() {
    check(&["bench"], 7, "0:");
    check(&["bench", "--sweep", "--kinds", "json, prose"], 7, "3: --sweep --kinds json, prose\n");
    check(&["bench", "--runs", "0", "-h"], 7, "3: --runs 0 -h\n");
}

#[test]
fn help_is_that_of_the_program() {
    check(&["bench", "--help"], 7, "1: --help\n");
    check(&["help", "bench"], 7, "1: --help\n");
}

#[test]
fn a_missing_program_is_named_with_its_place() {
    check(&["pull", "org/name"], 1, "/paceline-pull beside this program, found nothing");
}
