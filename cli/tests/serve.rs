//! `serve` with scripted children: the real program in a directory of its own, with shell scripts
//! in place of gateway and supervisor. The scripts record their starts and signals. Tests with real
//! children are in `tests/`.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

#[path = "../../tests/harness/built.rs"]
mod built;

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_system::Clock;

use built::built;

/// A child that ends with 0 on SIGTERM or when its parent is gone, and logs both.
const GOOD: &str = r#"
trap 'note term; kill $! 2> /dev/null; exit 0' TERM
trap '' INT
(read nothing <&"$PACELINE_PARENT_FD"; note orphan; kill -TERM $$) 3<&- & 
"#;

/// Notes that two listeners were handed down.
const SOCKETS: &str = "test -S /dev/fd/3 && test -S /dev/fd/4 && note has two sockets";

struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    /// `supervisor` and `gateway`: what each does before it waits for ever.
    fn new(supervisor: &str, gateway: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("pl").tempdir_in("/tmp").unwrap();
        let stage = Self { dir };
        // Written by other processes: a program this one still has open for writing, even in a
        // fork, cannot be run.
        let copy = Command::new("cp").arg(built("paceline")).arg(stage.path("paceline")).status();
        assert!(copy.unwrap().success());
        for (name, script) in [("supervisor", supervisor), ("gateway", gateway)] {
            let trace = stage.path("trace");
            let text = format!(
                "#!/bin/sh\nnote() {{ echo \"{name} $*\" >> {trace:?}; }}\nlives=$(grep -c '^{name} start' {trace:?} 2>/dev/null)\nlives=${{lives:-0}}\n\
                 note start restarts=$PACELINE_RESTARTS listen=$LISTEN_FDS:$LISTEN_FDNAMES config=${{PACELINE_CONFIG##*/}}\n{script}\n\
                 while :; do sleep 0.05; done\n"
            );
            let path = stage.path(&format!("paceline-{name}"));
            let mut writer = Command::new("sh")
                .args(["-c", "cat > \"$0\""])
                .arg(&path)
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(writer.wait().unwrap().success());
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::create_dir(stage.path("model")).unwrap();
        let config = format!(
            "[gateway]\ngrpc = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n[supervisor]\nruntime_dir = {:?}\nrestarts = 3\n[target]\nmodel = {:?}\n",
            stage.path("run"),
            stage.path("model")
        );
        std::fs::write(stage.path("paceline.toml"), config).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn serve(&self) -> Serve {
        Serve(self.command().spawn().unwrap())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.path("paceline"));
        command
            .args(["serve", "--config"])
            .arg(self.path("paceline.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn trace(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("trace")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the trace has a line that begins so.
    fn wait_for(&self, line: &str) {
        let clock = Clock::start();
        while !self.trace().iter().any(|found| found.starts_with(line)) {
            assert!(clock.now().0 < 30_000, "no {line:?} in {:?}", self.trace());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Serve(Child);

impl Serve {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    /// Exit code, standard output and error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let clock = Clock::start();
        while self.0.try_wait().unwrap().is_none() {
            assert!(clock.now().0 < 30_000, "serve does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let read = |stream: Option<&mut dyn std::io::Read>| {
            let lines = BufReader::new(stream.expect("piped")).lines().map_while(Result::ok);
            lines.collect::<Vec<_>>().join("\n")
        };
        let out = read(self.0.stdout.as_mut().map(|out| out as &mut dyn std::io::Read));
        let err = read(self.0.stderr.as_mut().map(|err| err as &mut dyn std::io::Read));
        (self.0.try_wait().unwrap().and_then(|status| status.code()), out, err)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // A test that failed in the middle leaves no process: the children notice our end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn position(trace: &[String], line: &str) -> usize {
    trace
        .iter()
        .position(|found| found.starts_with(line))
        .unwrap_or_else(|| panic!("no {line:?} in {trace:?}"))
}

#[test]
fn children_are_started_with_what_they_need_and_stopped_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let stage = Stage::new(GOOD, &format!("{GOOD}\n{SOCKETS}"));
        let serve = stage.serve();
        stage.wait_for("supervisor start restarts=0 listen=: config=paceline.toml");
        stage.wait_for("gateway start restarts=0 listen=2:grpc:http config=paceline.toml");
        stage.wait_for("gateway has two sockets");
        serve.signal(signal);
        let (code, out, err) = serve.end();
        assert_eq!(code, Some(0), "{err}");
        assert!(
            out.contains("gRPC at 127.0.0.1:")
                && out.contains("HTTP at http://127.0.0.1:")
                && out.contains("stopped"),
            "{out}"
        );
        let trace = stage.trace();
        assert!(
            position(&trace, "gateway term") < position(&trace, "supervisor term"),
            "{trace:?}"
        );
    }
}

#[test]
fn children_see_that_serve_was_killed() {
    let stage = Stage::new(GOOD, GOOD);
    let serve = stage.serve();
    stage.wait_for("supervisor start");
    stage.wait_for("gateway start");
    serve.signal(Signal::SIGKILL);
    stage.wait_for("supervisor orphan");
    stage.wait_for("gateway orphan");
    stage.wait_for("supervisor term");
    stage.wait_for("gateway term");
}

#[test]
fn a_gateway_whose_budget_is_spent_has_failed_and_the_service_goes_on() {
    let stage = Stage::new(GOOD, "echo the last words >&2; exit 70");
    let mut serve = stage.serve();
    let mut err = BufReader::new(serve.0.stderr.take().expect("piped")).lines();
    let mut lines = err.by_ref().map_while(Result::ok);
    let failed = lines.find(|line| line.contains("has failed")).expect("the gateway fails");
    assert!(failed.contains("the gateway ended with exit code 70"), "{failed}");
    assert!(lines.any(|line| line.contains("the last words")));
    assert_eq!(stage.trace().iter().filter(|line| line.starts_with("gateway start")).count(), 3);
    assert!(!stage.trace().iter().any(|line| line.starts_with("supervisor term")));
    serve.signal(Signal::SIGTERM);
    stage.wait_for("supervisor term");
    assert_eq!(serve.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn the_last_words_of_a_process_that_aborts_are_shown_and_those_of_a_killed_one_are_not() {
    for (signal, are_shown) in [("ABRT", true), ("SEGV", true), ("KILL", false), ("TERM", false)] {
        let script =
            format!("test \"$lives\" = 0 && {{ echo the last words >&2; kill -{signal} $$; }}");
        let stage = Stage::new(GOOD, &format!("{script}\n{GOOD}"));
        let serve = stage.serve();
        stage.wait_for("gateway start restarts=1");
        serve.signal(Signal::SIGTERM);
        let (code, _, err) = serve.end();
        assert_eq!(code, Some(0), "{err}");
        assert!(err.contains("the gateway was ended by signal"), "{err}");
        assert_eq!(err.contains("the last words"), are_shown, "{signal}: {err}");
    }
}

#[test]
fn one_crash_costs_nothing() {
    let stage = Stage::new(&format!("test \"$lives\" = 0 && kill -9 $$\n{GOOD}"), GOOD);
    let serve = stage.serve();
    stage.wait_for("supervisor start restarts=1");
    serve.signal(Signal::SIGTERM);
    assert_eq!(serve.end().0, Some(0));
}

#[test]
fn a_bad_configuration_and_a_missing_dependency_end_the_service() {
    for code in [64, 69, 78] {
        let stage = Stage::new(&format!("echo what is wrong >&2; sleep 0.2; exit {code}"), GOOD);
        let (found, _, err) = stage.serve().end();
        assert_eq!(found, Some(code), "{err}");
        assert!(err.contains("what is wrong"), "{err}");
        stage.wait_for("gateway term");
    }
}

#[test]
fn a_third_request_to_stop_kills() {
    let stubborn = "trap 'note term' TERM\ntrap '' INT";
    let stage = Stage::new(stubborn, stubborn);
    let serve = stage.serve();
    stage.wait_for("supervisor start");
    stage.wait_for("gateway start");
    serve.signal(Signal::SIGTERM);
    stage.wait_for("gateway term");
    assert!(!stage.trace().contains(&"supervisor term".to_owned()));
    serve.signal(Signal::SIGTERM);
    stage.wait_for("supervisor term");
    serve.signal(Signal::SIGTERM);
    let (code, _, err) = serve.end();
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn one_service_holds_a_runtime_directory() {
    let stage = Stage::new(GOOD, GOOD);
    let first = stage.serve();
    stage.wait_for("gateway start");
    let (code, _, err) = stage.serve().end();
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("another service"), "{err}");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.end().0, Some(0));
}

#[test]
fn an_address_in_use_is_named() {
    let stage = Stage::new(GOOD, GOOD);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for key in ["grpc", "http"] {
        let mut command = stage.command();
        command.env(format!("PACELINE_GATEWAY__{}", key.to_uppercase()), &address);
        let (code, _, err) = Serve(command.spawn().unwrap()).end();
        assert_eq!(code, Some(69), "{err}");
        assert!(err.contains(&format!("gateway.{key}")) && err.contains(&address), "{err}");
        assert_eq!(err.contains("for no HTTP"), key == "http", "{err}");
        assert_eq!(stage.trace(), Vec::<String>::new());
    }
}

#[test]
fn without_an_http_address_grpc_alone_is_handed_down() {
    let stage =
        Stage::new(GOOD, &format!("{GOOD}\ntest -S /dev/fd/4 || note has no second socket"));
    let mut command = stage.command();
    command.env("PACELINE_GATEWAY__HTTP", "");
    let serve = Serve(command.spawn().unwrap());
    stage.wait_for("gateway start restarts=0 listen=1:grpc config=paceline.toml");
    stage.wait_for("gateway has no second socket");
    serve.signal(Signal::SIGTERM);
    let (code, out, err) = serve.end();
    assert_eq!(code, Some(0), "{err}");
    assert!(!out.contains("HTTP at"), "{out}");
}

/// As `names` of the LISTEN_FDS convention; none: as a parent of an earlier version does.
fn handed_on(names: Option<&str>, handed: usize) {
    let stage = Stage::new(GOOD, &format!("{GOOD}\n{SOCKETS}"));
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.into_iter().take(handed).collect();
    let addresses: Vec<String> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    let mut command = stage.command();
    command.env("LISTEN_FDS", handed.to_string()).env_remove("LISTEN_PID");
    match names {
        Some(names) => command.env("LISTEN_FDNAMES", names),
        None => command.env_remove("LISTEN_FDNAMES"),
    };
    let fds = (3..).zip(listeners);
    let fds = fds.map(|(child_fd, listener)| FdMapping { parent_fd: listener.into(), child_fd });
    command.fd_mappings(fds.collect()).unwrap();
    let serve = Serve(command.spawn().unwrap());
    drop(command); // with it, our copies of the listeners
    stage.wait_for("gateway start restarts=0 listen=2:grpc:http");
    stage.wait_for("gateway has two sockets");
    assert!(addresses.iter().all(|address| std::net::TcpStream::connect(address).is_ok()));
    serve.signal(Signal::SIGTERM);
    let (code, out, err) = serve.end();
    assert_eq!(code, Some(0), "{err}");
    assert!(addresses.iter().all(|address| out.contains(address)), "{out}");
    for address in addresses {
        assert!(std::net::TcpStream::connect(&address).is_err(), "nobody holds it any more");
    }
}

#[test]
fn listeners_that_were_handed_down_are_handed_on() {
    handed_on(Some("http:grpc"), 2);
}

#[test]
fn a_socket_for_http_is_refused_if_there_is_no_http() {
    let stage = Stage::new(GOOD, GOOD);
    let mut command = stage.command();
    command.env("PACELINE_GATEWAY__HTTP", "").env_remove("LISTEN_PID");
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "http");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    command.fd_mappings(vec![FdMapping { parent_fd: listener.into(), child_fd: 3 }]).unwrap();
    let (code, _, err) = Serve(command.spawn().unwrap()).end();
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("gateway.http") && err.contains("no HTTP"), "{err}");
    assert_eq!(stage.trace(), Vec::<String>::new());
}

#[test]
fn a_parent_that_hands_down_no_http_socket_has_one_bound_here() {
    handed_on(None, 1);
}

#[test]
fn a_missing_program_is_named() {
    let stage = Stage::new(GOOD, GOOD);
    std::fs::remove_file(stage.path("paceline-gateway")).unwrap();
    let (code, _, err) = stage.serve().end();
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("paceline-gateway"), "{err}");
}
