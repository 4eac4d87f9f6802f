//! Completions and pages of the manual, as a shell and a user get them.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

#[path = "../../tests/harness/built.rs"]
mod built;

use std::path::Path;
use std::process::Command;

use built::built;

fn paceline(words: &[&str]) -> String {
    let output = Command::new(built("paceline")).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What bash offers for the last of these words.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    let last = words.len() - 1;
    let asked = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={last}; _paceline paceline '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        words.join(" "),
        words[last],
        words[last - 1]
    );
    let output = Command::new("bash").args(["--norc", "-c", &asked]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_their_flags() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("paceline");
    std::fs::write(&script, paceline(&["completions", "bash"])).unwrap();
    assert_eq!(offered(&script, &["paceline", "sta"]), ["status"]);
    assert_eq!(offered(&script, &["paceline", "drafter", "s"]), ["start", "stop", "swap"]);
    assert_eq!(offered(&script, &["paceline", "status", "--js"]), ["--json"]);
    for (shell, begin) in [("zsh", "#compdef paceline\n"), ("fish", "# Print an optspec")] {
        let text = paceline(&["completions", shell]);
        assert!(text.starts_with(begin) && text.contains("selftest"), "{shell}: {text:.80}");
    }
}

#[test]
fn each_command_has_a_page_of_the_manual() {
    let page = paceline(&["man"]);
    assert!(page.contains(".TH paceline 1") && page.contains("paceline\\-selftest(1)"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    paceline(&["man", dir.path().to_str().unwrap()]);
    for name in ["paceline", "paceline-status", "paceline-drafter-swap"] {
        let page = std::fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH {name} 1")), "{page:.200}");
    }
    let missing = dir.path().join("none");
    let output = Command::new(built("paceline")).arg("man").arg(&missing).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(missing.to_str().unwrap()), "{said}");
}
