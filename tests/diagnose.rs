//! `paceline diagnose`: what is in the archive of a whole service, and what is not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use flate2::read::GzDecoder;
use paceline_tests::pty::Pty;
use paceline_tests::{Stack, chat, wait};

/// Secrets, each in another place. None may be in an archive.
const API_KEY: &str = "pl_canaryapikey0123456789";
const PROMPT: &str = "zebracanaryprompt";
const ENVIRONMENT: &str = "heroncanarytoken";
const PASSWORD: &str = "otter-canary";

/// Files of the archive by their names.
fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let file = GzDecoder::new(File::open(path).expect("there"));
    let mut archive = tar::Archive::new(file);
    let mut parts = BTreeMap::new();
    for entry in archive.entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").display().to_string();
        let name = name.strip_prefix("paceline-diagnose/").expect("one folder").to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        parts.insert(name, text);
    }
    parts
}

fn append(path: &Path, text: &str) {
    let mut file = File::options().append(true).open(path).expect("there");
    file.write_all(text.as_bytes()).expect("written");
}

fn diagnose(stack: &Stack, words: &[&str]) -> Output {
    let mut command = stack.command(&[&["diagnose"], words].concat());
    command.env("PACELINE_API_KEY", API_KEY).env("OTHER_SERVICE_TOKEN", ENVIRONMENT);
    command.output().expect("it starts")
}

#[test]
fn an_archive_has_the_facts_and_none_of_the_secrets() {
    let mut stack = Stack::new("");
    stack.env("OTHER_SERVICE_TOKEN", ENVIRONMENT);
    let keys = stack.path("keys");
    let digest = paceline_process::keys::hex(&paceline_process::keys::digest(API_KEY));
    std::fs::write(&keys, format!("alice:{digest}\n")).expect("written");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("ours");
    stack.set(&format!("gateway.api_keys_file = {keys:?}\nlog.prompts = true\n"));
    stack.serve();
    stack.wait_status("target and gateway ready", |status| {
        status["target"]["state"] == "ready" && status["gateway"]["state"] == "ready"
    });
    let asked = stack.open_as(API_KEY, chat(PROMPT).max_tokens(4)).expect("served").finish();
    assert!(!asked.expect("served").ids.is_empty());
    let log = stack.run_dir().join("target.log");
    append(
        &log,
        &format!("2026-01-01T00:00:00Z WARN x=1 {ENVIRONMENT} authorization: Bearer {API_KEY}\n"),
    );
    append(
        &log,
        &format!(
            "2026-01-01T00:00:00Z WARN url=http://user:{PASSWORD}@host/ password={PASSWORD}\n"
        ),
    );
    let gateway = stack.run_dir().join("gateway.log");
    wait("the prompt in the log", || {
        std::fs::read_to_string(&gateway).ok()?.contains(PROMPT).then_some(())
    });

    let path = stack.path("a.tar.gz");
    let file = path.display().to_string();
    let output = diagnose(&stack, &["--yes", "--output", &file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let parts = unpacked(&path);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    for (name, text) in &parts {
        assert!(shown.contains(name.as_str()), "{name} is not in the table:\n{shown}");
        for secret in [API_KEY, digest.as_str(), PROMPT, ENVIRONMENT, PASSWORD] {
            assert!(!text.contains(secret), "{secret} in {name}:\n{text}");
        }
    }
    let names: Vec<&str> = parts.keys().map(String::as_str).collect();
    let expected = [
        "contents.txt",
        "events.jsonl",
        "logs/gateway.log",
        "logs/supervisor.log",
        "logs/target.log",
        "machine.txt",
        "settings.txt",
        "status.json",
        "status.txt",
    ];
    for name in expected {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
    assert!(parts["logs/target.log"].contains("x=1 [masked] authorization: Bearer [masked]\n"));
    assert!(parts["logs/target.log"].contains("url=http://[masked]@host/ password=[masked]\n"));
    let log = &parts["logs/gateway.log"];
    assert!(
        log.contains("texts of requests are left out") && log.contains("gateway listens"),
        "{log}"
    );
    assert!(parts["status.txt"].contains("gateway     ready"), "{}", parts["status.txt"]);
    assert!(parts["events.jsonl"].contains("\"kind\":\"phase\""), "{}", parts["events.jsonl"]);
    assert!(
        parts["settings.txt"].contains("gateway.api_keys_file = /"),
        "{}",
        parts["settings.txt"]
    );
    assert!(parts["machine.txt"].contains("libmlx."), "{}", parts["machine.txt"]);

    let again = diagnose(&stack, &["--yes", "--output", &file]);
    assert_eq!(again.status.code(), Some(2), "nothing is overwritten: {again:?}");
    stack.signal_serve(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(stack.serve_ended(), Some(0));
    let later = stack.path("b.tar.gz");
    let output = diagnose(&stack, &["--yes", "--output", &later.display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let parts = unpacked(&later);
    assert!(parts["status.txt"].starts_with("no service answered"), "{}", parts["status.txt"]);
    assert!(parts["events.jsonl"].contains("\"kind\":\"phase\""), "{}", parts["events.jsonl"]);
    assert!(parts["logs/target.log"].contains("[masked]"));
}

#[test]
fn nothing_is_written_without_a_yes() {
    let stack = Stack::new("");
    let path = stack.path("c.tar.gz");
    let words = ["diagnose", "--output", &path.display().to_string()];
    let refused = stack.paceline(&words, "y\n");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--yes"), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stdout).contains("machine.txt"), "{refused:?}");
    for (answer, is_written) in [("n\r", false), ("\r", false), ("y\r", true)] {
        let mut asked = Pty::start(stack.command(&words), 120, 40);
        asked.wait_text("[y/N]");
        asked.press(answer);
        assert_eq!(asked.ended().code(), Some(0));
        assert_eq!(path.exists(), is_written, "{answer:?}");
    }
}
