//! A service manager's part, played for real: `paceline-supervisor` and `paceline-gateway` without
//! `serve`, the front socket and NOTIFY_SOCKET handed down as systemd does it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_tests::{Live, Stack, continue_text, wait};
use serde_json::Value;
use tonic::Code;

/// How long the manager waits for a sign of life; a process gives one three times as often.
const WATCHDOG: Duration = Duration::from_millis(400);

/// A unit that runs.
struct Unit {
    child: Child,
    notify: UnixDatagram,
}

impl Unit {
    /// Starts `paceline-<name>` with these descriptors from 3 on.
    fn start(stack: &Stack, name: &str, sockets: Vec<(OwnedFd, &str)>) -> Self {
        Self::start_with(stack, name, sockets, &[])
    }

    /// As [`Unit::start`], with these variables besides.
    fn start_with(
        stack: &Stack,
        name: &str,
        sockets: Vec<(OwnedFd, &str)>,
        variables: &[(&str, &str)],
    ) -> Self {
        let path = stack.path(&format!("{name}.notify"));
        // Of an earlier life of the unit.
        let _ = std::fs::remove_file(&path);
        let notify = UnixDatagram::bind(&path).expect("bound");
        notify.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        let mut command =
            stack.program(&format!("paceline-{name}"), "LISTEN_PID=$$ WATCHDOG_PID=$$ exec");
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        command.env("LISTEN_PID", "").env("WATCHDOG_PID", "");
        command.envs(variables.iter().copied());
        hand_down(&mut command, sockets);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(stack.path(&format!("{name}.log")))
            .expect("writable");
        command.stdout(Stdio::null()).stderr(log);
        Self { child: command.spawn().expect("it starts"), notify }
    }

    /// Waits for a message that has this line.
    #[track_caller]
    fn hears(&self, wanted: &str) {
        self.until(wanted, |line| line == wanted);
    }

    /// Waits for a message that has a wanted line; returns that line and all lines before it.
    #[track_caller]
    fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> (String, Vec<String>) {
        let mut heard: Vec<String> = Vec::new();
        let mut buffer = [0; 2048];
        for _ in 0..10_000 {
            let length = self
                .notify
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("{what}: {error}; heard {heard:?}"));
            let words = String::from_utf8_lossy(&buffer[..length]).into_owned();
            for line in words.lines() {
                if wanted(line) {
                    return (line.to_owned(), heard);
                }
                heard.push(line.to_owned());
            }
        }
        panic!("{what}: heard {heard:?}");
    }

    /// Waits until another process is named as the main one; returns its id and the lines before.
    #[track_caller]
    fn main_process(&self) -> (u32, Vec<String>) {
        let (line, before) = self.until("MAINPID", |line| line.starts_with("MAINPID="));
        (line["MAINPID=".len()..].parse().expect("a process id"), before)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it lives");
    }

    #[track_caller]
    fn lives(&mut self) {
        assert_eq!(self.child.try_wait().expect("ours"), None);
    }

    /// Waits for its end; its exit code, none if a signal ended it.
    fn end(mut self) -> Option<i32> {
        wait("the end of a unit", || self.child.try_wait().expect("ours")).code()
    }
}

fn hand_down(command: &mut Command, sockets: Vec<(OwnedFd, &str)>) {
    if sockets.is_empty() {
        return;
    }
    let names: Vec<_> = sockets.iter().map(|(_, name)| *name).collect();
    command.env("LISTEN_FDS", sockets.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    let mapping =
        |(at, (fd, _)): (usize, (OwnedFd, _))| FdMapping { parent_fd: fd, child_fd: 3 + at as i32 };
    command.fd_mappings(sockets.into_iter().enumerate().map(mapping).collect()).expect("distinct");
}

/// A front socket of the stack, bound and kept by us.
fn front(address: String) -> TcpListener {
    TcpListener::bind(address).expect("a free port")
}

/// The status line with which HTTP answers that it is there.
fn http_health(stack: &Stack) -> String {
    let mut stream = TcpStream::connect(stack.http_address()).expect("the socket is there");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let request = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sent");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    line
}

fn copy(listener: &TcpListener) -> OwnedFd {
    listener.try_clone().expect("a descriptor").into()
}

fn served(stack: &Stack) {
    let answer = stack.ask(continue_text("One, two, three").exactly(8)).expect("served");
    assert_eq!(answer.ids.len(), 8);
}

/// Waits until requests are served and drafts can come, and checks that it is by the workers that
/// were there before.
fn taken_over(stack: &Stack, before: &Value) {
    stack.wait_ready();
    let after = stack.wait_linked();
    for key in ["pid", "epoch", "weights_loaded_at"] {
        for worker in ["target", "drafter"] {
            assert_eq!(after[worker][key], before[worker][key], "{worker} {key}");
        }
    }
    assert_eq!(after["gateway"]["pid"], before["gateway"]["pid"]);
    served(stack);
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn a_service_manager_runs_both_and_neither_ends_with_the_other() {
    // A lease that outlives the time between two supervisors on a busy machine.
    let stack = Stack::new("supervisor.lease_s = 30\n");
    let listener = front(stack.address());
    let mut supervisor = Unit::start(&stack, "supervisor", vec![]);
    supervisor.hears("READY=1");
    let gateway =
        Unit::start(&stack, "gateway", vec![(copy(&listener), "paceline-gateway.socket")]);
    gateway.hears("READY=1");
    // A unit of an earlier version hands down no socket for HTTP: the gateway opens it itself.
    assert!(http_health(&stack).starts_with("HTTP/1.1 "), "served");
    // Not only once: the second sign of life is given by a loop that turns.
    for _ in 0..2 {
        supervisor.hears("WATCHDOG=1");
        gateway.hears("WATCHDOG=1");
    }
    stack.wait_ready();
    let before = stack.wait_linked();
    served(&stack);
    supervisor.hears("STATUS=target ready, drafter ready, gateway ready, 0 requests, 0 waiting");

    // The gateway dies. Its socket stays: new clients wait meanwhile, and the next gateway serves
    // them.
    gateway.signal(Signal::SIGKILL);
    assert_eq!(gateway.end(), None);
    let early = TcpStream::connect(stack.address()).expect("the socket is there");
    let waiting = stack.start(continue_text("One, two, three").exactly(8));
    supervisor.lives();
    // This time among others, by its name, and with the socket of HTTP.
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let http = front(stack.http_address());
    let sockets = vec![(copy(&other), "other"), (copy(&http), "http"), (copy(&listener), "grpc")];
    let mut gateway = Unit::start(&stack, "gateway", sockets);
    gateway.hears("READY=1");
    assert!(http_health(&stack).starts_with("HTTP/1.1 "), "served");
    assert_eq!(waiting.finish().expect("served by the next gateway").ids.len(), 8);
    drop((early, other));
    stack.wait_ready();
    // With its links: what follows compares with this.
    let after = stack.wait_linked();
    for process in ["supervisor", "target", "drafter"] {
        assert_eq!(
            after[process]["pid"], before[process]["pid"],
            "{process} did not end with the gateway"
        );
    }
    let before = after;

    // The supervisor dies. Gateway and workers stay, and the next one takes them over.
    supervisor.signal(Signal::SIGKILL);
    assert_eq!(supervisor.end(), None);
    let supervisor = Unit::start(&stack, "supervisor", vec![]);
    supervisor.hears("READY=1");
    taken_over(&stack, &before);
    gateway.lives();

    // It is ordered to restart: by its exit code it asks to be started
    // again, which is the manager's part, and the command waits for the next one.
    let mut restart = stack.begin(&["restart", "supervisor"]);
    assert_eq!(supervisor.end(), Some(75), "start me again");
    assert_eq!(restart.try_wait().expect("ours"), None, "nobody has started it yet");
    let supervisor = Unit::start(&stack, "supervisor", vec![]);
    supervisor.hears("READY=1");
    let output = restart.wait_with_output().expect("ours");
    assert!(output.status.success(), "{output:?}");
    taken_over(&stack, &before);
    gateway.lives();

    // It is stopped: its workers end, and nothing else does.
    let workers = ["target", "drafter"].map(|worker| stack.pid(worker));
    supervisor.signal(Signal::SIGTERM);
    supervisor.hears("STOPPING=1");
    assert_eq!(supervisor.end(), Some(0), "asked to stop");
    for worker in workers {
        assert!(
            stack.processes().iter().all(|process| process.pid != worker),
            "worker {worker} is left"
        );
    }
    gateway.lives();
    assert_eq!(
        stack.ask(continue_text("One").max_tokens(1)).expect_err("nobody serves").code(),
        Code::Unavailable
    );
    gateway.hears("WATCHDOG=1");
    gateway.signal(Signal::SIGTERM);
    gateway.hears("STOPPING=1");
    assert_eq!(gateway.end(), Some(0), "asked to stop");
    stack.sweep();
}

/// A service whose gateway was started as systemd does it.
struct ServiceOfSystemd {
    stack: Stack,
    fronts: [TcpListener; 2],
    supervisor: Unit,
}

impl ServiceOfSystemd {
    fn start() -> (Self, Unit) {
        let stack = Stack::new("supervisor.lease_s = 30\n");
        let fronts = [front(stack.address()), front(stack.http_address())];
        let supervisor = Unit::start(&stack, "supervisor", vec![]);
        supervisor.hears("READY=1");
        let service = Self { stack, fronts, supervisor };
        let gateway = service.gateway();
        (service, gateway)
    }

    /// Starts the gateway's unit.
    fn gateway(&self) -> Unit {
        let [grpc, http] = &self.fronts;
        let sockets = vec![(copy(grpc), "grpc"), (copy(http), "http")];
        // systemd sets it for each start of a unit.
        let start = [("INVOCATION_ID", "5f1d0d7f6c1b4b5c8f0a6e1c2d3b4a59")];
        let gateway = Unit::start_with(&self.stack, "gateway", sockets, &start);
        gateway.hears("READY=1");
        self.stack.wait_ready();
        gateway
    }

    /// A stream that has begun.
    fn stream(&self) -> Live {
        let ask = continue_text("One, two, three").exactly(3_000);
        let mut stream = self.stack.open(ask).expect("served");
        stream.read(3);
        stream
    }

    fn restart(&self) {
        let restarted = self.stack.paceline(&["restart", "gateway"], "");
        assert!(restarted.status.success(), "{restarted:?}");
    }

    /// Stops the last gateway, whose unit's first process is gone, and the supervisor.
    fn stop(self, gateway: u32) {
        kill(Pid::from_raw(gateway as i32), Signal::SIGTERM).expect("it lives");
        let is_gone = || self.stack.processes().iter().all(|process| process.pid != gateway);
        wait("the end of the last gateway", || is_gone().then_some(()));
        self.supervisor.signal(Signal::SIGTERM);
        assert_eq!(self.supervisor.end(), Some(0), "asked to stop");
        self.stack.sweep();
    }
}

/// The gateway starts its successor, because systemd starts one main process at a time.
#[test]
fn a_gateway_of_systemd_drains_beside_its_successor_and_takes_its_place_back_if_that_dies() {
    let (service, mut first) = ServiceOfSystemd::start();
    let mut stream = service.stream();
    service.restart();
    let (second, before) = first.main_process();
    assert_ne!(second, first.child.id());
    assert_eq!(service.stack.pid("gateway"), second);
    assert!(before.iter().any(|line| line == "READY=1"), "it was ready before: {before:?}");
    assert!(before.iter().all(|line| line != "STOPPING=1"), "the unit does not stop: {before:?}");
    // The earlier one drains, and the next one serves.
    first.lives();
    let read = stream.so_far.ids.len();
    stream.read(read + 10);
    assert!(http_health(&service.stack).starts_with("HTTP/1.1 "), "served");

    // The next one dies: the earlier one is the main process again, and asks to be started.
    kill(Pid::from_raw(second as i32), Signal::SIGKILL).expect("it lives");
    let (main, _) = first.main_process();
    assert_eq!(main, first.child.id());
    let early = TcpStream::connect(service.stack.address()).expect("the socket is there");
    drop(stream);
    assert_eq!(first.end(), Some(75), "start me again");
    let third = service.gateway();
    drop(early);
    served(&service.stack);

    // Without a stream the earlier one ends at once, and the next one gives the signs of life.
    service.restart();
    let (fourth, _) = third.main_process();
    third.hears("WATCHDOG=1");
    served(&service.stack);
    assert_eq!(third.end(), Some(75));
    service.stop(fourth);
}

#[test]
fn a_gateway_of_systemd_starts_no_successor_while_its_predecessor_drains() {
    let (service, first) = ServiceOfSystemd::start();
    let stream = service.stream();
    service.restart();
    let (second, _) = first.main_process();
    let processes = service.stack.processes().len();
    let again = service.stack.begin(&["restart", "gateway"]);
    let log = || std::fs::read_to_string(service.stack.path("gateway.log")).unwrap_or_default();
    wait("the order to arrive", || {
        log().contains("started when the earlier one has ended").then_some(())
    });
    assert_eq!(service.stack.processes().len(), processes, "{:?}", service.stack.processes());
    served(&service.stack);
    drop(stream);
    let (third, _) = first.main_process();
    assert_ne!(third, second);
    let output = again.wait_with_output().expect("a child");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(first.end(), Some(75));
    service.stop(third);
}

/// As from a terminal, or from launchd with a job that names no socket: the gateway binds its
/// address itself.
#[test]
fn a_gateway_without_an_inherited_socket_binds_one() {
    let stack = Stack::new("");
    let start = |name: &str| {
        let mut command = stack.program(&format!("paceline-{name}"), "exec");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    };
    // The gateway first: it waits for a supervisor.
    let mut children = [start("gateway"), start("supervisor")];
    stack.wait_ready();
    served(&stack);
    for child in &mut children {
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it lives");
        let code = wait("its end", || child.try_wait().expect("ours")).code();
        assert_eq!(code, Some(0));
    }
    stack.sweep();
}

#[test]
fn an_inherited_descriptor_that_is_no_tcp_listener_is_refused() {
    let refused = |sockets: Vec<(OwnedFd, &str)>, expected: &str| {
        let stack = Stack::new("");
        let mut command = stack.program("paceline-gateway", "exec");
        hand_down(&mut command, sockets);
        let output =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{words}");
        assert!(words.contains(expected), "{expected:?} in {words}");
    };
    let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a free port"));
    refused(vec![(tcp(), "one"), (tcp(), "two")], "LISTEN_FDNAMES=one:two");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let unix = std::os::unix::net::UnixListener::bind(dir.path().join("x.sock")).expect("bound");
    refused(vec![(unix.into(), "grpc")], "of another family");
    // A connection, as from a socket unit with Accept=yes.
    let door = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let connection = TcpStream::connect(door.local_addr().expect("bound")).expect("connects");
    refused(vec![(connection.into(), "grpc")], "does not listen");
    let unix = std::os::unix::net::UnixListener::bind(dir.path().join("y.sock")).expect("bound");
    refused(vec![(tcp(), "grpc"), (unix.into(), "http")], "for http");
    refused(vec![(tcp(), "grpc"), (tcp(), "http"), (tcp(), "http")], "grpc:http:http");
}

#[test]
fn a_socket_for_http_is_refused_if_there_is_no_http() {
    let stack = Stack::new("gateway.http = \"\"\n");
    let mut command = stack.program("paceline-gateway", "exec");
    let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a free port"));
    hand_down(&mut command, vec![(tcp(), "grpc"), (tcp(), "http")]);
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output().expect("it starts");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{words}");
    assert!(words.contains("gateway.http") && words.contains("no HTTP"), "{words}");
}
