//! The machine went down while the target was busy: the next start uses 80 % of the KV budget, and
//! the start after an ordinary stop uses all of it. The reboot is a mark that names another boot.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use paceline_checkpoint::digest;
use paceline_system::platform;
use paceline_tests::{Stack, wait};
use serde_json::{Value, json};

const BUDGET_BYTES: u64 = 50_000_000;

/// A service whose user has an empty cache directory, and the place of its mark.
fn service() -> (Stack, PathBuf) {
    let mut stack = Stack::new(&format!("kv.budget_bytes = {BUDGET_BYTES}\n"));
    let home = stack.path("home");
    for variable in ["HOME", "XDG_CACHE_HOME"] {
        stack.env(variable, home.to_str().expect("UTF-8"));
    }
    let below = if cfg!(target_os = "macos") { "Library/Caches" } else { "" };
    let marks = home.join(below).join("paceline/boot-marks");
    std::fs::create_dir_all(&marks).expect("made");
    std::fs::DirBuilder::new().mode(0o700).create(stack.run_dir()).expect("made");
    let name = digest::of_bytes(real_run_dir(&stack).as_bytes());
    let mark = marks.join(format!("{}.json", &name[..32]));
    (stack, mark)
}

fn real_run_dir(stack: &Stack) -> String {
    let dir = stack.run_dir().canonicalize().expect("there");
    dir.to_str().expect("UTF-8").to_owned()
}

fn read(mark: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(mark).ok()?).ok()
}

/// Budget and reason in the status of a service that is ready.
fn budget(stack: &Stack) -> (Value, Value) {
    let kv = &stack.wait_ready()["kv"];
    (kv["budget_bytes"].clone(), kv["reduced_reason"].clone())
}

fn stop(stack: &mut Stack) {
    stack.signal_serve(Signal::SIGTERM);
    assert_eq!(stack.serve_ended(), Some(0), "{}", stack.serve_log());
}

#[test]
fn a_reboot_at_work_reduces_the_kv_budget_until_an_ordinary_stop() {
    let (mut stack, mark) = service();
    let written = json!({
        "version": 1, "runtime_dir": real_run_dir(&stack), "boot": "another boot",
        "busy": true, "reduced": false, "stranded_above_bytes": null,
    });
    std::fs::write(&mark, written.to_string()).expect("written");
    stack.serve();
    assert_eq!(budget(&stack), (json!(BUDGET_BYTES / 5 * 4), json!("reboot_while_busy")));
    let text = stack.paceline(&["status"], "").stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("kv: 80 % of the budget"), "{text}");
    let own = read(&mark).expect("the service wrote its own mark");
    assert_eq!((&own["boot"], &own["reduced"]), (&json!(platform::boot_id()), &json!(true)));
    let events = std::fs::read_to_string(stack.run_dir().join("events.jsonl")).expect("there");
    let event = events.lines().find(|line| line.contains("\"kv\"")).expect("an event");
    assert!(event.contains("\"80 %\"") && event.contains("went down"), "{event}");
    stop(&mut stack);
    assert!(!mark.exists(), "a mark is left after an ordinary stop");

    // No mark, and then one that is none.
    std::fs::write(&mark, "{").expect("written");
    stack.serve();
    assert_eq!(budget(&stack), (json!(BUDGET_BYTES), Value::Null));
    wait("the broken mark to be replaced", || {
        read(&mark).filter(|mark| mark["reduced"] == json!(false))
    });
    let log = std::fs::read_to_string(stack.run_dir().join("supervisor.log")).expect("a log");
    assert_eq!(log.matches("the boot mark is ignored").count(), 1, "{log}");
    stack.stop();
    assert!(!mark.exists(), "a mark is left after an ordinary stop");
}
