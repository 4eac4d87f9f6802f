//! The hand-over from one gateway to the next: restarts and kills of the gateway under clients that
//! keep their connections and under clients that connect anew.

#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use paceline_client::ask::whole;
use paceline_client::channel::{connect, sent};
use paceline_system::clock::monotonic_ns;
use paceline_tests::ask::Ask;
use paceline_tests::python::Clients;
use paceline_tests::{Live, Stack, chat, programs, repository, share, signal, wait};
use serde_json::{Value, json};

/// A budget of restarts that the kills do not use up.
const MANY_LIVES: &str = "supervisor.restarts = 100000\n";
/// Tokens of a short answer.
const FEW: u32 = 4;

/// A client of HTTP/1.1 that keeps its connection as long as the service does.
struct KeptAlive {
    address: String,
    model: String,
    connection: Option<BufReader<TcpStream>>,
    /// Answers after which the service closed the connection.
    closed: usize,
}

/// The name of the served model.
fn served(stack: &Stack) -> String {
    let answer = stack.http_get("/v1/models").expect("answered");
    let models: Value = serde_json::from_str(&answer.body).expect("JSON");
    models["data"][0]["id"].as_str().expect("a name").to_owned()
}

/// The head of an answer, as far as a client needs it.
struct Head {
    status: u16,
    length: Option<usize>,
    closes: bool,
}

impl KeptAlive {
    fn new(stack: &Stack) -> Self {
        Self { address: stack.http_address(), model: served(stack), connection: None, closed: 0 }
    }

    /// Sends a request and reads its whole answer. A connection that the service has closed is not
    /// used again, as no client does.
    fn ask(&mut self, streamed: bool) -> io::Result<()> {
        if self.connection.as_ref().is_some_and(|kept| is_closed(kept.get_ref())) {
            self.connection = None;
        }
        let kept = match self.connection.take() {
            Some(kept) => kept,
            None => {
                let stream = TcpStream::connect(&self.address)?;
                stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                BufReader::new(stream)
            }
        };
        self.exchange(kept, streamed)
    }

    fn exchange(&mut self, mut kept: BufReader<TcpStream>, streamed: bool) -> io::Result<()> {
        let body = json!({
            "model": self.model, "stream": streamed, "max_tokens": FEW, "temperature": 0,
            "messages": [{ "role": "user", "content": "List three fruits." }],
        })
        .to_string();
        let (host, length) = (&self.address, body.len());
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        kept.get_mut().write_all((head + &body).as_bytes())?;
        let head = read_head(&mut kept)?;
        let body = match head.length {
            Some(length) => read_exactly(&mut kept, length)?,
            None => read_chunks(&mut kept)?,
        };
        if head.status != 200 {
            let body = String::from_utf8_lossy(&body).into_owned();
            return Err(io::Error::other(format!("{}: {body}", head.status)));
        }
        match head.closes {
            true => self.closed += 1,
            false => self.connection = Some(kept),
        }
        Ok(())
    }
}

fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let seen = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("a socket");
    !seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_ascii_lowercase())
}

fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<Head> {
    let status = read_line(stream)?;
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    let mut head = Head { status, length: None, closes: false };
    loop {
        let line = read_line(stream)?;
        match line.split_once(": ") {
            Some(("content-length", length)) => head.length = length.parse().ok(),
            Some(("connection", "close")) => head.closes = true,
            _ if line.is_empty() => return Ok(head),
            _ => {}
        }
    }
}

fn read_exactly(stream: &mut BufReader<TcpStream>, length: usize) -> io::Result<Vec<u8>> {
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn read_chunks(stream: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = vec![];
    loop {
        let length = read_line(stream)?;
        let length = usize::from_str_radix(&length, 16)
            .map_err(|_| io::Error::other(format!("expected a chunk, found {length:?}")))?;
        let chunk = read_exactly(stream, length + 2)?;
        if length == 0 {
            return Ok(body);
        }
        body.extend(&chunk[..length]);
    }
}

/// What clients saw.
#[derive(Debug, Default)]
struct Requests {
    over: AtomicBool,
    served: AtomicUsize,
    failed: std::sync::Mutex<Vec<String>>,
}

impl Requests {
    fn count(&self, client: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => _ = self.served.fetch_add(1, Ordering::Relaxed),
            Err(error) => self.failed.lock().expect("no panic").push(format!("{client}: {error}")),
        }
    }

    /// Sends requests until the test is over.
    fn run(&self, client: &str, mut request: impl FnMut() -> Result<(), String>) {
        while !self.over.load(Ordering::Relaxed) {
            self.count(client, request());
        }
    }

    /// Waits until this many more requests were served.
    fn more(&self, count: usize) {
        let goal = self.served.load(Ordering::Relaxed) + count;
        wait("further requests", || (self.served.load(Ordering::Relaxed) >= goal).then_some(()));
    }

    fn end(&self, what: &str) {
        self.over.store(true, Ordering::Relaxed);
        let failed = self.failed.lock().expect("no panic");
        println!(
            "{what}: {} requests, {} failed",
            self.served.load(Ordering::Relaxed),
            failed.len()
        );
        assert_eq!(*failed, Vec::<String>::new(), "{what}");
    }
}

/// Our client for gRPC over one connection.
fn grpc(stack: &Stack, requests: &Requests) {
    let address = stack.address();
    let mut client = stack.block_on(connect(&address)).expect("the service is there");
    let Ask::Chat(request) = chat("List three fruits.").exactly(2 * FEW) else { unreachable!() };
    requests.run("grpc", || {
        let answer = stack.block_on(async {
            whole(sent(async || client.chat(request.clone()).await).await).await
        });
        let answer = answer.map_err(|failure| failure.to_string())?;
        let found = answer.token_ids.len();
        if found == 2 * FEW as usize { Ok(()) } else { Err(format!("found {found} tokens")) }
    });
}

/// A client for HTTP/1.1 over one connection, or over a new one for each request.
fn http(stack: &Stack, requests: &Requests, keeps: bool) {
    let mut client = KeptAlive::new(stack);
    let mut streamed = false;
    requests.run(if keeps { "http" } else { "http anew" }, || {
        streamed = !streamed;
        if !keeps {
            client.connection = None;
        }
        client.ask(streamed).map_err(|error| error.to_string())
    });
}

/// A program of `tests/http_clients` that prints a line for each request.
fn program(command: &mut Command, requests: &Requests) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in lines {
                let line = line.expect("text");
                requests.count("a package", if line == "served" { Ok(()) } else { Err(line) });
            }
        });
        while !requests.over.load(Ordering::Relaxed) {
            // The pace of looking, not a wait for something to have happened.
            std::thread::sleep(Duration::from_millis(20));
        }
        // The program ends with its input.
        drop(child.stdin.take());
    });
    assert!(child.wait().expect("a child").success());
}

/// Restarts the gateway again and again; between two restarts further requests are served.
fn restart_often(stack: &Stack, requests: &Requests, mut around: impl FnMut()) {
    let mut gateway = stack.pid("gateway");
    let restarts = share::of(100).max(10);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        requests.more(1);
        for round in 0..restarts {
            around();
            let before = std::mem::replace(&mut gateway, restart(stack));
            assert_ne!(gateway, before, "round {round}");
            around();
            requests.more(3);
        }
    }));
    requests.over.store(true, Ordering::Relaxed);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Restarts the gateway under a program of `tests/http_clients`.
fn restart_under(command: &mut Command, stack: Stack) {
    let requests = Requests::default();
    command.env("PACELINE_HTTP", stack.http_address()).env("PACELINE_GRPC", stack.address());
    command.env("PACELINE_MODEL", served(&stack));
    std::thread::scope(|scope| {
        scope.spawn(|| program(command, &requests));
        restart_often(&stack, &requests, || {});
    });
    requests.end(&format!("{command:?}"));
    stack.stop();
}

fn restart(stack: &Stack) -> u32 {
    let output = stack.paceline(&["restart", "gateway"], "");
    assert!(output.status.success(), "{output:?}");
    stack.pid("gateway")
}

/// Waits until one gateway runs.
fn alone(stack: &Stack, processes: usize) {
    wait("the end of the earlier gateway", || (stack.processes().len() == processes).then_some(()));
}

#[test]
fn no_request_fails_while_the_gateway_is_restarted_under_load() {
    let stack = Stack::ready(MANY_LIVES);
    let (processes, requests) = (stack.processes().len(), Requests::default());
    let mut idle = KeptAlive::new(&stack);
    std::thread::scope(|scope| {
        scope.spawn(|| grpc(&stack, &requests));
        scope.spawn(|| http(&stack, &requests, true));
        scope.spawn(|| http(&stack, &requests, false));
        // After a restart over a connection of the gateway that drains, if it still has it.
        restart_often(&stack, &requests, || {
            requests.count("idle", idle.ask(false).map_err(|error| error.to_string()));
        });
    });
    requests.end("restarts");
    println!("{} answers of draining gateways to a connection that was kept", idle.closed);
    alone(&stack, processes);
    let status = stack.status().expect("status");
    assert_eq!(status["gateway"]["restarts"], 0, "each was asked for");
    stack.wait_memory_back();
    stack.stop();
}

#[test]
#[ignore = "more: a package of a registry"]
fn no_request_of_the_openai_package_fails_while_the_gateway_is_restarted() {
    let test = "no_request_of_the_openai_package_fails_while_the_gateway_is_restarted";
    let Some(clients) = Clients::installed(test) else { return };
    restart_under(&mut clients.command(&["restarts.py", "with_openai"]), Stack::ready(MANY_LIVES));
}

#[test]
#[ignore = "more: a package of a registry"]
fn no_request_of_grpcio_fails_while_the_gateway_is_restarted() {
    let to = programs().join("python");
    let script = repository().join("examples/python/generate.sh");
    let made = Command::new("sh").arg(script).arg(&to).output().expect("sh is there");
    assert!(made.status.success(), "{made:?}");
    let mut command = Command::new("python3");
    command.args(["-B", "restarts.py", "with_grpcio"]);
    command.current_dir(repository().join("tests/http_clients"));
    let packages = std::env::join_paths([to.join("packages"), to]).expect("no colon in it");
    command.env("PYTHONPATH", packages);
    restart_under(&mut command, Stack::ready(MANY_LIVES));
}

/// A stream that has begun and runs for long.
fn long(stack: &Stack) -> Live {
    let mut live = stack.open(chat("Tell a long story.").exactly(3_000)).expect("served");
    live.read(3);
    live
}

#[test]
fn a_gateway_drains_beside_its_successor_and_a_second_restart_waits_for_its_end() {
    let stack = Stack::ready("");
    let processes = stack.processes().len();
    let first = stack.pid("gateway");
    let mut stream = long(&stack);
    let second = restart(&stack);
    assert_ne!(second, first);
    wait("the hand-over", || {
        stack.serve_log().contains("a new gateway accepts connections").then_some(())
    });
    assert_eq!(stack.processes().len(), processes + 1, "both run");
    // The stream goes on while the successor serves.
    let read = stream.so_far.ids.len();
    stream.read(read + 20);
    KeptAlive::new(&stack).ask(true).expect("served by the successor");
    let again = stack.begin(&["restart", "gateway"]);
    wait("the order to arrive", || {
        let log = std::fs::read_to_string(stack.run_dir().join("gateway.log")).unwrap_or_default();
        (log.matches("action=Some(AskForSuccessor)").count() == 2).then_some(())
    });
    // The first one still drains, so there is no third one, and the second one serves.
    KeptAlive::new(&stack).ask(false).expect("served");
    assert_eq!(stack.pid("gateway"), second);
    assert_eq!(stack.processes().len(), processes + 1, "{:?}", stack.processes());
    drop(stream);
    let output = again.wait_with_output().expect("a child");
    assert!(output.status.success(), "{output:?}");
    assert_ne!(stack.pid("gateway"), second);
    alone(&stack, processes);
    stack.stop();
}

#[test]
fn a_stop_ends_a_gateway_and_its_draining_predecessor() {
    let mut stack = Stack::ready("");
    let stream = long(&stack);
    restart(&stack);
    stack.signal_serve(Signal::SIGTERM);
    wait("it to be stopping", || stack.serve_log().contains("stopping").then_some(()));
    stack.signal_serve(Signal::SIGTERM);
    stream.finish().expect_err("cancelled");
    assert_eq!(stack.serve_ended(), Some(0), "{}", stack.serve_log());
    stack.sweep();
}

#[test]
fn a_gateway_goes_on_if_the_next_one_cannot_start() {
    let stack = Stack::ready("");
    let (processes, before) = (stack.processes().len(), stack.pid("gateway"));
    stack.set("gateway.tls_cert = \"/nowhere\"\ngateway.tls_key = \"/nowhere\"\n");
    // This command reads the same file, and needs no certificate.
    let mut restart = stack.begin(&["restart", "gateway"]);
    wait("the next gateway to fail", || {
        stack.serve_log().contains("the present one goes on").then_some(())
    });
    KeptAlive::new(&stack).ask(false).expect("served");
    assert_eq!(stack.processes().len(), processes, "{:?}", stack.processes());
    assert_eq!(stack.snapshot().expect("a supervisor").gateway.unwrap_or_default().pid, before);
    restart.kill().expect("it waits");
    restart.wait().expect("a child");
    stack.stop();
}

/// Connects again and again, and asks for the health each time; returns the refused connections. A
/// connection that the killed gateway had accepted ends with it.
fn connects(stack: &Stack, over: &AtomicBool) -> Vec<io::Error> {
    let mut refused = vec![];
    while !over.load(Ordering::Relaxed) {
        for address in [stack.http_address(), stack.address()] {
            match TcpStream::connect(address) {
                Ok(mut stream) => {
                    // An answer or the end, so that few connections wait at once.
                    let request =
                        b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
                    let _ = stream.write_all(request);
                    let _ = stream.read_to_end(&mut vec![]);
                }
                Err(error) => refused.push(error),
            }
        }
    }
    refused
}

/// Kills the gateway under streams; returns after how many milliseconds their memory was free.
fn kill_under_streams(stack: &Stack) -> f64 {
    let streams: Vec<Live> = (0..2).map(|_| long(stack)).collect();
    let gateway = stack.pid("gateway");
    let mut target = stack.probe_target();
    target.until_held("memory to be held", |held| held > 0);
    let killed = monotonic_ns();
    signal(gateway, Signal::SIGKILL);
    let freed = target.until_held("all memory to be free", |held| held == 0);
    for stream in streams {
        stream.finish().expect_err("its connection is gone");
    }
    stack.wait_status("another gateway", |status: &Value| {
        status["gateway"]["state"] == "ready" && status["gateway"]["pid"] != gateway
    });
    (freed - killed) as f64 / 1e6
}

/// Kills the gateway this often; returns the longest time until the memory of its streams was free.
fn kills(count: usize) -> f64 {
    let stack = Stack::ready(MANY_LIVES);
    let over = AtomicBool::new(false);
    let longest_ms = std::thread::scope(|scope| {
        let connector = scope.spawn(|| connects(&stack, &over));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..count).map(|_| kill_under_streams(&stack)).fold(0.0, f64::max)
        }));
        over.store(true, Ordering::Relaxed);
        let refused = connector.join().expect("no panic");
        assert!(refused.is_empty(), "{refused:?}");
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{count} kills, all memory free after at most {longest_ms:.0} ms");
    stack.stop();
    longest_ms
}

#[test]
fn a_killed_gateway_refuses_no_connection_and_its_streams_hold_no_memory() {
    // The wait has a loose bound.
    kills(3);
}

#[test]
#[ignore = "soak: a figure for a quiet machine; run by `make soak`"]
fn the_memory_of_a_killed_gateways_streams_is_free_within_half_a_second() {
    let longest_ms = kills(20);
    assert!(longest_ms < 500.0, "{longest_ms} ms");
}
