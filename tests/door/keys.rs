//! Keys and TLS with the real programs: made by one command, used by another, refused by a third.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use paceline_tests::{Stack, programs, wait};
use serde_json::Value;

/// A new key and its line.
pub fn make(name: &str) -> (String, String) {
    let output = Command::new(programs().join("paceline"))
        .args(["key", "new", name, "--json"])
        .output()
        .expect("it starts");
    let object: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (
        object["key"].as_str().expect("a string").to_owned(),
        object["line"].as_str().expect("a string").to_owned(),
    )
}

/// Writes a file that is this user's alone.
pub fn private(path: &Path, text: &str) {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).expect("writable");
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600)).expect("ours");
    std::fs::rename(fresh, path).expect("renamed");
}

fn generate(stack: &Stack, key: Option<&str>, prompt: &str) -> Output {
    let mut command =
        stack.command(&["generate", "--prompt", prompt, "--max-tokens", "2", "--json"]);
    if let Some(key) = key {
        command.env("PACELINE_API_KEY", key);
    }
    command.spawn().expect("it starts").wait_with_output().expect("it ends")
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Exit code and words of a service that does not start.
fn refused(stack: &mut Stack, words: &[&str]) {
    stack.serve();
    assert_eq!(stack.serve_ended(), Some(64), "{}", stack.serve_log());
    let log = std::fs::read_to_string(stack.run_dir().join("gateway.log")).unwrap_or_default()
        + &stack.serve_log();
    for word in words {
        assert!(log.contains(word), "{word:?} in {log}");
    }
}

#[test]
fn a_key_can_be_made_used_and_revoked() {
    let mut stack = Stack::new("");
    let file = stack.path("keys");
    stack.set(&format!("gateway.api_keys_file = {file:?}\n"));
    let ((alice, alices), (bob, bobs)) = (make("alice"), make("bob"));
    // Others may read it: refused, with the remedy.
    std::fs::write(&file, format!("{alices}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&mut stack, &["gateway.api_keys_file", "0644", "chmod 600"]);
    private(&file, &format!("{alices}\n{bobs}\n"));
    stack.serve();
    stack.wait_ready();

    let long = "The quick brown fox jumps over the lazy dog. ".repeat(20);
    let cached = |key: &str| {
        object(&generate(&stack, Some(key), &long))["usage"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&alice), 0);
    assert!(cached(&alice) > 0, "her own prefix");
    assert_eq!(cached(&bob), 0, "prefixes are never shared between keys");
    assert!(cached(&bob) > 0, "his own prefix");

    for key in [None, Some("wrong"), Some(&alice[1..])] {
        let output = generate(&stack, key, "Hi");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = &object(&output)["error"];
        assert_eq!(
            (error["code"].as_str(), error["reason"].as_str()),
            (Some("UNAUTHENTICATED"), Some("UNAUTHENTICATED"))
        );
    }
    // From a file as well.
    let key_file = stack.path("key");
    private(&key_file, &alice);
    let output = stack.paceline(
        &[
            "generate",
            "--prompt",
            "Hi",
            "--max-tokens",
            "1",
            "--api-key-file",
            key_file.to_str().unwrap(),
        ],
        "",
    );
    assert!(output.status.success(), "{output:?}");

    private(&file, &format!("{bobs}\n"));
    wait("alice's key to be taken away", || {
        (generate(&stack, Some(&alice), "Hi").status.code() == Some(1)).then_some(())
    });
    assert!(generate(&stack, Some(&bob), "Hi").status.success());
    // A file with a mistake does not revoke the keys that were read before.
    private(&file, "bob\n");
    let log = || std::fs::read_to_string(stack.run_dir().join("gateway.log")).unwrap_or_default();
    wait("the gateway to say so", || log().contains("stay as they were").then_some(()));
    assert!(generate(&stack, Some(&bob), "Hi").status.success());
    stack.stop();
}

#[test]
fn the_digest_command_makes_the_same_line_for_the_same_key() {
    let (key, line) = make("carol");
    let mut command = Command::new(programs().join("paceline"));
    command
        .args(["key", "digest", "carol"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), format!("{key}\n").as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), line);
    assert!(!line.contains(&key));
}

#[test]
fn a_public_address_without_keys_and_tls_is_refused() {
    for key in ["grpc", "http"] {
        let mut stack = Stack::new("");
        stack.env(&format!("PACELINE_GATEWAY__{}", key.to_uppercase()), "0.0.0.0:1");
        let setting = format!("gateway.{key}");
        refused(&mut stack, &[&setting, "neither keys", "gateway.insecure"]);
        stack.sweep();
    }
}

#[test]
fn the_command_line_speaks_tls() {
    let mut stack = Stack::new("");
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (cert, key) = (stack.path("cert.pem"), stack.path("key.pem"));
    private(&cert, &pair.cert.pem());
    private(&key, &pair.signing_key.serialize_pem());
    stack
        .set(&format!("gateway.tls_cert = {cert:?}\ngateway.tls_key = {:?}\n", stack.path("none")));
    refused(&mut stack, &["gateway.tls_key"]);
    std::fs::rename(&key, stack.path("none")).unwrap();
    stack.serve();
    stack.wait_status("target and gateway ready", |status| {
        status["target"]["state"] == "ready" && status["gateway"]["state"] == "ready"
    });
    let by_configuration = generate(&stack, None, "Hi");
    assert!(by_configuration.status.success(), "{by_configuration:?}");
    let address = format!("https://{}", stack.address());
    let ask = ["generate", "--prompt", "Hi", "--max-tokens", "1", "--address", &address];
    let by_file = stack.paceline(&[&ask[..], &["--ca", cert.to_str().unwrap()]].concat(), "");
    assert!(by_file.status.success(), "{by_file:?}");
    let other = stack.path("other.pem");
    private(
        &other,
        &rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert.pem(),
    );
    let wrong = stack.paceline(&[&ask[..], &["--ca", other.to_str().unwrap()]].concat(), "");
    assert_eq!(wrong.status.code(), Some(3), "{wrong:?}");
    let plain = stack.paceline(&["generate", "--prompt", "Hi", "--address", &stack.address()], "");
    assert!(!plain.status.success(), "{plain:?}");
    stack.stop();
}
