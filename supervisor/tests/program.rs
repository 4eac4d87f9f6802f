//! The supervisor's program with workers that do nothing: exit codes, signals, and what it leaves
//! behind.

#[path = "../../tests/harness/built.rs"]
mod built;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_process::runtime_dir::WorkerRecord;

use built::built;

struct Rig {
    temp: tempfile::TempDir,
}

impl Rig {
    /// A runtime directory, a model directory, and this shell script as the target.
    fn new(target: &str) -> Self {
        let temp = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(temp.path().join("model")).expect("made");
        script(temp.path(), "target", target);
        script(temp.path(), "drafter", DRAFTER);
        Self { temp }
    }

    fn run_dir(&self) -> PathBuf {
        self.temp.path().join("run")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(built("paceline-supervisor"));
        command
            .env("PACELINE_CONFIG", "")
            // What it finds and cannot take over, as it says nothing, is given up soon.
            .env("PACELINE_SUPERVISOR__HANG_S", "1")
            .env("PACELINE_SUPERVISOR__RUNTIME_DIR", self.run_dir())
            .env("PACELINE_TARGET__MODEL", self.temp.path().join("model"))
            .env("PACELINE_TARGET_BIN", self.temp.path().join("target.sh"))
            .env("PACELINE_DRAFTER_BIN", self.temp.path().join("drafter.sh"))
            .stderr(Stdio::piped());
        command
    }

    fn start(&self) -> Child {
        self.command().spawn().expect("it starts")
    }

    /// The process that the target wrote down.
    fn target(&self) -> WorkerRecord {
        self.process("pid")
    }

    /// Waits until the supervisor has written down that this process is this worker.
    fn recorded(&self, name: &str, process: &WorkerRecord) {
        let path = self.run_dir().join(format!("{name}.json"));
        let found = until(|| std::fs::read(&path).ok());
        assert_eq!(serde_json::from_slice::<WorkerRecord>(&found).expect("a record"), *process);
    }

    fn process(&self, file: &str) -> WorkerRecord {
        let pid = until(|| read(&self.run_dir().join(file)));
        WorkerRecord::of(pid.trim().parse().expect("a number"), 1).expect("it lives")
    }
}

fn script(dir: &Path, name: &str, text: &str) {
    let (source, program) = (dir.join(format!("{name}.txt")), dir.join(format!("{name}.sh")));
    std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).expect("writable");
    // Copied by another process. A file that this one wrote may still be open in a child that
    // another test just forked, and could not be executed then (ETXTBSY).
    assert!(Command::new("cp").args([&source, &program]).status().expect("cp exists").success());
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("ours");
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
}

/// Looks until there is something, with a bound against hangs.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    #[expect(clippy::disallowed_methods, reason = "a bound against hangs")]
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end(mut child: Child) -> Output {
    until(|| child.try_wait().expect("our child"));
    child.wait_with_output().expect("ended")
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).expect("it lives");
}

const SLEEPER: &str = r#"echo $$ > "$PACELINE_SUPERVISOR__RUNTIME_DIR/pid"; exec sleep 1000"#;

/// Writes down its name, its arguments and itself, in this order.
const DRAFTER: &str = r#"run="$PACELINE_SUPERVISOR__RUNTIME_DIR"; echo "$@" > "$run/drafter.args"
echo $$ > "$run/drafter.pid"; exec sleep 1000"#;

#[test]
fn a_configured_drafter_runs_beside_the_target_and_ends_with_it() {
    let rig = Rig::new(SLEEPER);
    let model = rig.temp.path().join("drafter");
    std::fs::create_dir(&model).expect("made");
    let supervisor =
        rig.command().env("PACELINE_DRAFTER__MODEL", &model).spawn().expect("it starts");
    let (target, drafter) = (rig.target(), rig.process("drafter.pid"));
    let arguments = read(&rig.run_dir().join("drafter.args")).expect("written first");
    assert_eq!(
        arguments.trim(),
        format!("--epoch 1 --term 1 --name drafter-0 --model {}", model.display())
    );
    send(&supervisor, Signal::SIGTERM);
    assert_eq!(end(supervisor).status.code(), Some(0));
    assert!(!target.alive() && !drafter.alive());
}

#[test]
fn a_drafter_left_behind_is_ended_by_a_supervisor_that_wants_none() {
    let rig = Rig::new(SLEEPER);
    let first = rig
        .command()
        .env("PACELINE_DRAFTER__MODEL", "/nowhere")
        .spawn()
        .expect("a missing drafter is no failure");
    let (target, drafter) = (rig.target(), rig.process("drafter.pid"));
    rig.recorded("target", &target);
    rig.recorded("drafter-0", &drafter);
    send(&first, Signal::SIGKILL);
    end(first);
    assert!(drafter.alive(), "a drafter outlives its supervisor");
    std::fs::remove_file(rig.run_dir().join("drafter.pid")).expect("there");
    let second = rig.command().env("PACELINE_DRAFTER__MODEL", "").spawn().expect("starts");
    until(|| (!drafter.alive() && !target.alive()).then_some(()));
    send(&second, Signal::SIGTERM);
    assert_eq!(end(second).status.code(), Some(0));
    for left in ["drafter.pid", "drafter-0.json", "drafter-0.sock"] {
        assert!(!rig.run_dir().join(left).exists(), "{left}");
    }
}

#[test]
fn asked_to_stop_it_ends_the_target_and_exits_0() {
    let rig = Rig::new(SLEEPER);
    let supervisor = rig.start();
    let target = rig.target();
    send(&supervisor, Signal::SIGTERM);
    let output = end(supervisor);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!target.alive());
    for left in ["supervisor.sock", "target.sock", "target.json"] {
        assert!(!rig.run_dir().join(left).exists(), "{left}");
    }
}

#[test]
fn the_supervisor_ends_when_its_parent_is_gone() {
    let rig = Rig::new(SLEEPER);
    let (watched, held) = nix::unistd::pipe().expect("a pipe");
    use std::os::fd::AsRawFd;
    // The reading end is inherited, the writing end is ours alone.
    nix::fcntl::fcntl(&held, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))
        .expect("ours");
    let supervisor = rig
        .command()
        .env("PACELINE_PARENT_FD", watched.as_raw_fd().to_string())
        .spawn()
        .expect("it starts");
    let target = rig.target();
    drop(held);
    assert_eq!(end(supervisor).status.code(), Some(0));
    assert!(!target.alive());
}

#[test]
fn a_second_supervisor_on_the_same_directory_refuses_to_start() {
    let rig = Rig::new(SLEEPER);
    let first = rig.start();
    rig.target();
    let output = end(rig.start());
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&format!("another supervisor (pid {}", first.id())), "{message}");
    send(&first, Signal::SIGTERM);
    assert_eq!(end(first).status.code(), Some(0));
}

#[test]
fn after_a_kill_a_silent_target_is_ended_first() {
    // Nor does it write its record, as one that is still being linked: the supervisor has done so.
    let rig = Rig::new(SLEEPER);
    let first = rig.start();
    let old = rig.target();
    rig.recorded("target", &old);
    send(&first, Signal::SIGKILL);
    end(first);
    assert!(old.alive(), "a target outlives its supervisor");
    std::fs::remove_file(rig.run_dir().join("pid")).expect("there");
    let second = rig.start();
    let new = rig.target();
    assert!(new.pid != old.pid && !old.alive(), "one after the other");
    assert_eq!(read(&rig.run_dir().join("target.epoch")), None, "the counter has no line end");
    assert_eq!(std::fs::read_to_string(rig.run_dir().join("target.epoch")).expect("there"), "2");
    send(&second, Signal::SIGTERM);
    assert_eq!(end(second).status.code(), Some(0));
    assert!(!new.alive());
}

#[test]
fn what_is_set_wrong_is_named_and_exits_64() {
    let rig = Rig::new(SLEEPER);
    let cases: [(&str, &str, &str); 4] = [
        ("PACELINE_DRAFTER__KIND", "eagle", "drafter.kind"),
        ("PACELINE_SUPERVISOR__RESTART", "1", "supervisor.restart"),
        ("PACELINE_TARGET__MODEL", "/nowhere/at/all", "target.model"),
        ("PACELINE_LIMITS__QUEUE", "many", "limits.queue"),
    ];
    for (name, value, key) in cases {
        let output = rig.command().env(name, value).output().expect("it starts");
        assert_eq!(output.status.code(), Some(64));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(key), "{message}");
    }
    assert_eq!(rig.command().arg("--confg").output().expect("it starts").status.code(), Some(64));
}

/// Has the process begin on a full disk: no file of it can grow.
fn on_a_full_disk(command: &mut Command) -> &mut Command {
    use nix::sys::resource::{Resource, setrlimit};
    use std::os::unix::process::CommandExt as _;
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_FSIZE, 0, 0)?)) }
}

#[test]
fn a_full_disk_and_a_damaged_copy_cost_no_term() {
    let rig = Rig::new(SLEEPER);
    let begin = |expected: &str| {
        let supervisor = rig.start();
        rig.target();
        let term = std::fs::read_to_string(rig.run_dir().join("term")).expect("counted");
        assert_eq!(term, expected);
        send(&supervisor, Signal::SIGTERM);
        assert_eq!(end(supervisor).status.code(), Some(0));
        std::fs::remove_file(rig.run_dir().join("pid")).expect("the target wrote it");
    };
    begin("1");
    // Without room the number is in the name of an empty file. Its words have no room either.
    let mut full = rig.command();
    let log = std::fs::OpenOptions::new().write(true).open("/dev/null").expect("there");
    let supervisor = on_a_full_disk(&mut full).stderr(log).spawn().expect("it starts");
    // The target is started after the signals are watched for.
    until(|| rig.run_dir().join("target.epoch=2").exists().then_some(()));
    assert!(rig.run_dir().join("term=2").exists());
    send(&supervisor, Signal::SIGTERM);
    assert_eq!(end(supervisor).status.code(), Some(0));
    // One copy is damaged, as an older version may have left it; then both are.
    begin("3");
    std::fs::write(rig.run_dir().join("term"), "").expect("ours");
    begin("4");
    for name in ["term", "term.spare"] {
        std::fs::write(rig.run_dir().join(name), "").expect("ours");
    }
    let refused = rig.command().output().expect("it starts");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{text}");
    assert!(text.contains("expected a number") && text.contains("term.spare"), "{text}");
}

#[test]
fn environment_bytes_that_are_not_utf8_matter_only_in_settings() {
    use std::os::unix::ffi::OsStringExt as _;
    let rig = Rig::new(SLEEPER);
    let bytes = || std::ffi::OsString::from_vec(vec![0xff, 0xfe]);
    let supervisor = rig.command().env("LS_COLORS", bytes()).spawn().expect("it starts");
    rig.target();
    send(&supervisor, Signal::SIGTERM);
    assert_eq!(end(supervisor).status.code(), Some(0));
    let refused =
        rig.command().env("PACELINE_DRAFTER__MODEL", bytes()).output().expect("it starts");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{text}");
    assert!(text.contains("PACELINE_DRAFTER__MODEL") && text.contains("expected UTF-8"), "{text}");
}
