//! `paceline diagnose`: what is in the archive of a whole service, and what is not. `paceline doctor`:
//! what it finds wrong, with a service and without one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use flate2::read::GzDecoder;
use paceline_tests::pty::Pty;
use paceline_tests::{Stack, chat, programs, wait};
use serde_json::Value;

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
    let digest = paceline_checkpoint::digest::hex(&paceline_process::keys::digest(API_KEY));
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

/// The lines of `paceline doctor` as (check, state, fact and remedy), and its exit code.
fn doctor(stack: &Stack) -> (Vec<(String, String, String)>, Option<i32>) {
    let output = stack.paceline(&["doctor", "--json"], "");
    let object: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |check: &Value| {
        let words = format!("{}; {}", text(&check["fact"]), text(&check["remedy"]));
        (text(&check["check"]), text(&check["state"]), words)
    };
    let lines = object["checks"].as_array().expect("a list").iter().map(line).collect();
    (lines, output.status.code())
}

/// State and words of the first line of a check.
#[track_caller]
fn of<'a>(lines: &'a [(String, String, String)], check: &str) -> (&'a str, &'a str) {
    let line = lines.iter().find(|line| line.0 == check);
    let (_, state, words) = line.unwrap_or_else(|| panic!("no {check} in {lines:#?}"));
    (state, words)
}

#[test]
fn without_a_service_the_doctor_finds_what_would_stop_a_start() {
    let stack = Stack::new("");
    let (lines, code) = doctor(&stack);
    assert_eq!(code, Some(0), "{lines:#?}");
    for check in ["programs", "configuration", "model", "drafter", "memory", "gateway.http"] {
        assert_eq!(of(&lines, check).0, "ok", "{check} in {lines:#?}");
    }
    assert!(of(&lines, "service").1.contains("`paceline serve`"), "{lines:#?}");
    assert!(of(&lines, "lanes").1.contains("`paceline selftest`"), "{lines:#?}");
    assert!(!stack.run_dir().exists(), "nothing is made");

    let taken = TcpListener::bind(stack.http_address()).expect("free");
    std::fs::create_dir(stack.run_dir()).expect("made");
    std::fs::set_permissions(stack.run_dir(), std::fs::Permissions::from_mode(0o755))
        .expect("ours");
    stack.set("target.model = \"/nowhere\"\nlog.prompts = true\n");
    let (lines, code) = doctor(&stack);
    assert_eq!(code, Some(1), "{lines:#?}");
    for (check, words) in [
        ("model", "nothing at /nowhere"),
        ("gateway.http", "is in use by another program"),
        ("runtime directory", "chmod 700"),
    ] {
        let (state, found) = of(&lines, check);
        assert!(state == "problem" && found.contains(words), "{check} in {lines:#?}");
    }
    assert!(lines.iter().any(|(check, state, _)| check == "configuration" && state == "warning"));
    let text = stack.paceline(&["doctor"], "");
    let shown = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        shown.contains("problem  model ") && shown.contains("\nproblems: 3, warnings: 1\n"),
        "{shown}"
    );
    assert_eq!((text.status.code(), text.stderr.len()), (Some(1), 0), "{text:?}");
    drop(taken);
    stack.set("unknown.key = 1\n");
    let (lines, code) = doctor(&stack);
    assert_eq!((code, of(&lines, "configuration").0), (Some(1), "problem"), "{lines:#?}");
}

#[test]
fn with_a_service_the_doctor_compares_lanes_and_programs() {
    let stack = Stack::drafting("");
    let (lines, code) = doctor(&stack);
    assert_eq!(code, Some(0), "{lines:#?}");
    for check in
        ["serve", "gateway", "supervisor", "target", "drafter", "gateway.grpc", "gateway.http"]
    {
        assert_eq!(of(&lines, check).0, "ok", "{check} in {lines:#?}");
    }
    assert!(of(&lines, "model").1.contains("is served"), "{lines:#?}");
    let (state, words) = of(&lines, "lanes");
    assert!(state == "ok" && words.contains("speculative give the same"), "{lines:#?}");

    // An upgrade replaces the file: its time of change is then later than the start of the process,
    // by seconds.
    stack.wait_status("a gateway of two seconds", |status| {
        status["gateway"]["uptime_s"].as_f64().is_some_and(|seconds| seconds >= 2.0)
    });
    let program = programs().join("paceline-gateway").canonicalize().expect("built");
    let mode = std::fs::metadata(&program).expect("there").permissions();
    std::fs::set_permissions(&program, mode).expect("ours");
    let (lines, code) = doctor(&stack);
    let (state, words) = of(&lines, "gateway");
    assert!(state == "warning" && words.contains("`paceline restart gateway`"), "{lines:#?}");
    // It is the program of `serve`, too.
    let (state, words) = of(&lines, "serve");
    assert!(state == "warning" && words.contains("`paceline stop`"), "{lines:#?}");
    assert_eq!(code, Some(0), "a warning is no problem");
    stack.stop();
}
