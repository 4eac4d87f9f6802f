//! The example clients against the real service: plain, with a key, and over TLS.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use paceline_tests::{Stack, cargo_run, chat, programs, repository};

const QUESTION: &str = "List three fruits.";
const KEY: &str = "pl_examples_0123456789";

/// A service that wants a key and speaks TLS; the file of its certificate.
fn guarded() -> (Stack, PathBuf) {
    let mut stack = Stack::new("");
    let write = |name: &str, text: &str| {
        let path = stack.path(name);
        std::fs::write(&path, text).expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
        path
    };
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    let certificate = write("cert.pem", &pair.cert.pem());
    let key = write("key.pem", &pair.signing_key.serialize_pem());
    let line = paceline_process::keys::KeyLine::of("examples", KEY).expect("fine");
    let keys = write("keys", &format!("{line}\n"));
    stack.set(&format!("gateway.api_keys_file = {keys:?}\ngateway.tls_cert = {certificate:?}\ngateway.tls_key = {key:?}\n"));
    stack.serve();
    stack.wait_status("target and gateway ready", |status| {
        status["target"]["state"] == "ready" && status["gateway"]["state"] == "ready"
    });
    (stack, certificate)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks a client, the same for both. `client(address)` asks [`QUESTION`] there.
fn check(client: impl Fn(&str) -> Command) {
    let run = |mut command: Command| -> Output { command.output().expect("it starts") };
    let stack = Stack::ready("");
    let expected = stack.ask(chat(QUESTION)).expect("served").text;
    let answered = |output: &Output| {
        assert!(output.status.success(), "{output:?}");
        assert_eq!(text(&output.stdout), format!("{expected}\n"));
        assert!(text(&output.stderr).contains("prompt tokens"), "{output:?}");
    };
    answered(&run(client(&stack.address())));
    stack.stop();

    let (stack, certificate) = guarded();
    let address = format!("https://{}", stack.address());
    let with = |key: &str, certificate: Option<&Path>| {
        let mut command = client(&address);
        command.env("PACELINE_API_KEY", key);
        certificate.map(|path| command.env("PACELINE_CA", path));
        run(command)
    };
    answered(&with(KEY, Some(&certificate)));
    let output = with("pl_wrong_0123456789", Some(&certificate));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).to_uppercase().contains("UNAUTHENTICATED"), "{output:?}");
    stack.stop();
}

#[test]
fn the_rust_client_asks_and_is_answered() {
    check(|address| {
        let mut command = cargo_run(&format!("cargo run -p paceline-example-client -- {address}"));
        command.arg(QUESTION);
        command
    });
}

#[test]
fn the_python_client_asks_and_is_answered() {
    let to = programs().join("python");
    let made = Command::new("sh")
        .arg(repository().join("examples/python/generate.sh"))
        .arg(&to)
        .output()
        .expect("sh is there");
    assert!(made.status.success(), "{}", text(&made.stderr));
    check(|address| {
        let mut command = Command::new("python3");
        command.arg(repository().join("examples/python/client.py")).args([address, QUESTION]);
        command.env(
            "PYTHONPATH",
            std::env::join_paths([to.join("packages"), to.clone()]).expect("no colon in it"),
        );
        command
    });
}
