//! `selftest` where its service does not come up: the real program beside shell scripts in place of
//! gateway and supervisor. It says why, and nothing of it stays. What it finds on a real service is
//! tested with one, in `tests/`.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

#[path = "../../tests/harness/built.rs"]
mod built;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_process::runtime_dir::WorkerRecord;
use paceline_system::Clock;

use built::built;

/// A child that waits to be stopped.
const WAIT_FOR_TERM: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

struct Scene(tempfile::TempDir);

impl Scene {
    /// `supervisor`: what it does after it wrote down who it is and where.
    fn new(supervisor: &str) -> Self {
        let scene = Self(tempfile::Builder::new().prefix("pl").tempdir_in("/tmp").unwrap());
        // Written by other processes: a program this one still has open for writing, even in a
        // fork, cannot be run.
        assert!(
            Command::new("cp")
                .arg(built("paceline"))
                .arg(scene.path("paceline"))
                .status()
                .unwrap()
                .success()
        );
        for (name, script) in [("supervisor", supervisor), ("gateway", WAIT_FOR_TERM)] {
            let (pids, place) = (scene.path("pids"), scene.path("place"));
            // Only the supervisor, which none of these tests stops early, and first: a test that
            // finds its pid finds the place too.
            let place = if name == "supervisor" {
                format!("echo \"$PACELINE_SUPERVISOR__RUNTIME_DIR\" > {place:?}; ")
            } else {
                String::new()
            };
            let head = format!("{place}echo $$ >> {pids:?}; echo $PPID >> {pids:?}");
            let path = scene.path(&format!("paceline-{name}"));
            let mut writer = Command::new("sh")
                .args(["-c", "cat > \"$0\""])
                .arg(&path)
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            writer
                .stdin
                .take()
                .unwrap()
                .write_all(format!("#!/bin/sh\n{head}\n{script}\n").as_bytes())
                .unwrap();
            assert!(writer.wait().unwrap().success());
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::create_dir(scene.path("model")).unwrap();
        std::fs::write(
            scene.path("paceline.toml"),
            format!("[target]\nmodel = {:?}\n", scene.path("model")),
        )
        .unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("paceline"));
        command.arg("selftest").args(words).env("PACELINE_CONFIG", self.path("paceline.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// No process that was started lives, and the runtime directory is gone.
    fn check_nothing_is_left(&self) {
        let place = self.read("place");
        assert!(place.starts_with("/tmp/paceline-selftest."), "{place:?}");
        assert!(!Path::new(place.trim()).parent().unwrap().exists(), "{place}");
        for pid in self.read("pids").lines() {
            assert!(gone(pid), "process {pid} is left");
        }
    }
}

fn words(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_service_that_cannot_start_is_reported_with_its_last_log_lines() {
    let scene = Scene::new("echo what is wrong >&2; exit 64");
    let (code, out, err) = words(&scene.command(&[]).output().unwrap());
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(
        err.contains("the service ended with exit code 64") && err.contains("what is wrong"),
        "{err}"
    );
    scene.check_nothing_is_left();
}

#[test]
fn json_is_an_object_also_when_it_fails() {
    let scene = Scene::new("exit 69");
    let (code, out, _) = words(&scene.command(&["--json"]).output().unwrap());
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &object["error"]["reason"]),
        (Some(1), &serde_json::json!("SELFTEST")),
        "{out}"
    );
    scene.check_nothing_is_left();
}

#[test]
fn missing_model_directories_are_usage_errors() {
    let scene = Scene::new(WAIT_FOR_TERM);
    for flag in ["--model", "--drafter"] {
        let (code, _, err) = words(&scene.command(&[flag, "/nowhere"]).output().unwrap());
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(flag) && err.contains("/nowhere"), "{err}");
    }
    assert_eq!(scene.read("pids"), "", "nothing was started");
}

#[test]
fn an_interrupted_selftest_leaves_no_process() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let scene = Scene::new(WAIT_FOR_TERM);
        let child = scene.command(&[]).spawn().unwrap();
        wait_until(|| scene.read("pids").lines().count() == 4);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let (code, _, err) = words(&child.wait_with_output().unwrap());
        assert_eq!(code, Some(130), "{signal}: {err}");
        scene.check_nothing_is_left();
    }
}

#[test]
fn a_killed_selftest_leaves_no_process_and_no_directory() {
    let scene = Scene::new(WAIT_FOR_TERM);
    let mut child = scene.command(&[]).spawn().unwrap();
    wait_until(|| scene.read("pids").lines().count() == 4);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| scene.read("pids").lines().all(gone));
    // The service removed it at its end.
    scene.check_nothing_is_left();
}

/// Also of a process that is dead and was not waited for: its new parent may never do that.
fn gone(pid: &str) -> bool {
    WorkerRecord::of(pid.parse().unwrap(), 1).is_none()
}

fn wait_until(mut so: impl FnMut() -> bool) {
    let clock = Clock::start();
    while !so() {
        assert!(clock.now().0 < 30_000, "waited in vain");
        std::thread::sleep(Duration::from_millis(10));
    }
}
