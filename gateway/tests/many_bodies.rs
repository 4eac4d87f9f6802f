//! Many large bodies at once at the program itself: memory is bounded, and other clients are served
//! as without them. Timed figures of `bodies`.

// The kernel's figures of a process's memory are those of Linux.
#![cfg(target_os = "linux")]

mod keyring;
mod stage;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keyring::{ALICE, BOB, keys};
use paceline_process::task;
use stage::program::Program;
use stage::supervisor::Fake;
use stage::within;

/// Most memory of the gateway beside the bodies.
const MEMORY: u64 = 400 << 20;
/// Most time of a small request, as a median.
const SMALL_TIME: Duration = Duration::from_millis(300);
/// Most time of a request of 100 KB, as a median.
const LARGE_TIME: Duration = Duration::from_secs(1);

/// The program with two keys and a supervisor that answers every request at once, and work beside
/// it on a thread that may wait.
fn with_keys(work: impl FnOnce(&Program)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (dir, file) = keys();
    let program = runtime.block_on(async {
        let run = dir.path().join("run");
        paceline_process::runtime_dir::private_dir(&run).expect("made");
        let mut fake = Fake::start(&run.join("supervisor.sock"), 1);
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
        let program = Program::with_keys(dir.path(), &demo, &file);
        let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
        attachment.service(stage::ready()).await;
        task::spawn("supervisor", async move {
            let _reports = task::spawn("reports", attachment.read_on());
            while let Some(submission) = fake.submissions.recv().await {
                let _over = submission.accept().done(&[300, 2]).await;
            }
        });
        program
    });
    // Until the gateway knows of the model, it refuses.
    let ready = || post(program.http, "/v1/completions", BOB, &padded(60)).0.contains("200");
    assert!((0..1_000).any(|_| ready()), "it serves");
    work(&program);
}

/// A request in a body of `bytes` bytes.
fn padded(bytes: usize) -> String {
    let request = r#"{"model":"m","prompt":[5,6,7,8],"max_tokens":1}"#;
    // A format's width has 16 bits.
    " ".repeat(bytes.saturating_sub(request.len())) + request
}

/// Posts a body on a connection of its own; the answer's status line, and how long it took.
fn post(address: SocketAddr, path: &str, key: &str, body: &str) -> (String, Duration) {
    let begun = clock();
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    let mut answer = String::new();
    // A refusal may come before the body is sent.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let _ = stream.read_to_string(&mut answer);
    (answer.lines().next().unwrap_or_default().to_owned(), begun.elapsed())
}

/// The median time of 20 requests of the other client, each of which is served.
fn median(address: SocketAddr, key: &str, bytes: usize) -> Duration {
    let body = padded(bytes);
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let (status, took) = post(address, "/v1/completions", key, &body);
            assert_eq!(status, "HTTP/1.1 200 OK");
            took
        })
        .collect();
    times.sort();
    eprintln!("{bytes} bytes: median {:?}, longest {:?}", times[10], times[19]);
    times[10]
}

/// One body that is sent as fast as it is taken, up to `all` bytes, and then trickles.
struct Trickle {
    stream: TcpStream,
    head: Vec<u8>,
    sent: usize,
    all: usize,
}

impl Trickle {
    fn begin(address: SocketAddr, key: &str, chunked: bool, all: usize) -> Self {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_nonblocking(true).expect("a socket");
        let length = match chunked {
            true => "transfer-encoding: chunked\r\n\r\nffffff\r\n".to_owned(),
            false => format!("content-length: {}\r\n\r\n", 16 << 20),
        };
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n{length}"
        );
        Self { stream, head: head.into_bytes(), sent: 0, all }
    }

    /// Sends what is taken now.
    fn send(&mut self, spaces: &[u8]) {
        while self.sent < self.all {
            let bytes = if self.head.is_empty() { spaces } else { &self.head };
            match self.stream.write(bytes) {
                Ok(count) if !self.head.is_empty() => drop(self.head.drain(..count)),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.sent = usize::MAX,
            }
        }
    }
}

/// Sends `count` bodies of 15 MiB until `over`, a byte every four seconds after that. Bodies that end
/// are begun again.
fn trickle(address: SocketAddr, key: &str, count: usize, over: &AtomicBool) {
    let spaces = vec![b' '; 64 << 10];
    let begin = |at: usize| Trickle::begin(address, key, at % 2 == 1, 15 << 20);
    let mut bodies: Vec<Trickle> = (0..count).map(begin).collect();
    let mut last = clock();
    while !over.load(Ordering::Relaxed) {
        let trickles = last.elapsed() > Duration::from_secs(4);
        if trickles {
            last = clock();
        }
        for (at, body) in bodies.iter_mut().enumerate() {
            body.send(&spaces);
            if trickles && body.sent != usize::MAX && body.sent >= body.all {
                let _ = body.stream.write(b" ");
            }
            if body.sent == usize::MAX {
                *body = begin(at);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "soak: 320 bodies of 15 MiB, and timed figures; run by `make soak`"]
fn bodies_of_15_mib_that_trickle_cost_400_mib_at_most_and_delay_no_other_key() {
    with_keys(beside_bodies_that_trickle);
}

fn beside_bodies_that_trickle(program: &Program) {
    let address = program.http;
    let (over, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| trickle(address, ALICE, 320, &over));
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(program.memory("VmRSS"), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        // Until all that is taken has been sent.
        std::thread::sleep(Duration::from_secs(10));
        let figures = [60, 100_000].map(|bytes| median(address, BOB, bytes));
        over.store(true, Ordering::Relaxed);
        let peak = peak.load(Ordering::Relaxed);
        eprintln!("the gateway's memory: {} MiB", peak >> 20);
        assert!(peak <= MEMORY, "{} MiB", peak >> 20);
        assert!(figures[0] <= SMALL_TIME && figures[1] <= LARGE_TIME, "{figures:?}");
    });
}

#[test]
#[ignore = "soak: 24 connections that send bodies of 1 to 15 MB, and timed figures; run by `make soak`"]
fn a_request_of_100_kb_beside_24_connections_with_bodies_of_1_to_15_mb_takes_a_second_at_most() {
    with_keys(beside_bodies_of_megabytes);
}

fn beside_bodies_of_megabytes(program: &Program) {
    let address = program.http;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for at in 0..24 {
            let over = &over;
            scope.spawn(move || {
                let text = "word ".repeat((1 + at % 15) * 200_000);
                let body = format!(
                    r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"{text}"}}]}}"#
                );
                while !over.load(Ordering::Relaxed) {
                    post(address, "/v1/chat/completions", ALICE, &body);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(3));
        let figures = [60, 100_000].map(|bytes| median(address, BOB, bytes));
        over.store(true, Ordering::Relaxed);
        assert!(figures[0] <= SMALL_TIME && figures[1] <= LARGE_TIME, "{figures:?}");
    });
}

#[expect(clippy::disallowed_methods, reason = "how long it took is what is tested")]
fn clock() -> Instant {
    Instant::now()
}
