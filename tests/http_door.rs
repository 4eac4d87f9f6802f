//! The HTTP door of a whole service: no path but `/health` answers without a key, and slow readers
//! do not slow other streams.

#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use paceline_process::keys::KeyLine;
use paceline_system::clock::monotonic_ns;
use paceline_tests::{Stack, http, repository, signal, wait};
use serde_json::{Value, json};

const KEY: &str = "pl_http_door_0123456789";
/// Most sequences that a target runs at once.
const MOST_RUNNING: u32 = 128;
/// Tokens of a stream: few, so that streams that wait get their turn within some seconds also where
/// 128 run on two cores.
const TOKENS: u32 = 60;

/// Sends a request and returns its connection.
fn send(address: &str, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

/// The status and the head of an answer, and what follows them.
fn head(stream: TcpStream) -> (u16, String, BufReader<TcpStream>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let count = reader.read_line(&mut head).expect("a head");
        assert_ne!(count, 0, "the connection was closed after {head:?}");
    }
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), head.to_ascii_lowercase(), reader)
}

/// Every path of the OpenAPI file, those that it does not have, and spellings of them.
fn paths() -> Vec<String> {
    let text = std::fs::read_to_string(repository().join("docs/openapi.json")).expect("there");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let documented = document["paths"].as_object().expect("paths").keys().cloned();
    let others = [
        "//",
        "/status/",
        "/status/x",
        "/index.html",
        "/metrics",
        "/metrics/",
        "/v1",
        "/v1/",
        "/v1/files",
        "/v1/models/none",
        "/docs",
        "/openapi.json",
        "/favicon.ico",
        "/health/",
        "//health",
        "/Health",
        "/%68ealth",
        "/healthz",
        "/health/x",
        "/health/../metrics",
        "/x/../health",
        "/health%00",
        "/health;x",
        "/v1/models?key=x",
        "/paceline.v1.Inference/Chat",
        "*",
    ];
    documented.chain(others.map(str::to_owned)).collect()
}

/// The address of Ollama's API in the first line of `serve`.
fn ollama_address(stack: &Stack) -> String {
    let log = stack.serve_log();
    let rest = log.split_once("Ollama's API at http://").expect("it is named").1;
    rest.split([',', '\n']).next().expect("an address").to_owned()
}

#[test]
fn ollamas_own_address_is_served_beside_http_and_by_the_next_gateway() {
    let stack = Stack::ready("gateway.ollama = \"127.0.0.1:0\"\n");
    let address = ollama_address(&stack);
    assert_ne!(address, stack.http_address());
    let tags = |host: &str| {
        let (status, _, mut reader) = head(send(host, "GET", "/api/tags", "", ""));
        let mut body = String::new();
        reader.read_to_string(&mut body).expect("a body");
        (status, body)
    };
    let (status, body) = tags(&address);
    assert!(status == 200 && body.contains(":latest"), "{status}: {body}");
    assert_eq!(tags(&stack.http_address()).0, 200);
    let gateway = stack.pid("gateway");
    signal(gateway, Signal::SIGKILL);
    wait("another gateway", || {
        let next = stack.snapshot().ok()?.gateway?.pid;
        (next != 0 && next != gateway).then_some(())
    });
    wait("it serves", || {
        let answer = http::ask(&address, "GET", "/api/tags", "").ok()?;
        (answer.status() == 200).then_some(())
    });
    stack.stop();
}

#[test]
fn a_port_of_ollama_that_is_taken_ends_serve_and_names_the_program() {
    // This test holds it, or another program does.
    let _held = TcpListener::bind("127.0.0.1:11434");
    let stack = Stack::new("");
    let output = stack.shell("paceline serve --ollama").output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{errors}");
    assert!(errors.contains("127.0.0.1:11434") && errors.contains("(pid "), "{errors}");
}

#[test]
fn without_a_key_no_path_but_health_and_the_empty_page_answers() {
    let mut stack = Stack::new("");
    let file = stack.path("keys");
    let line = KeyLine::of("door", KEY).expect("fine");
    std::fs::write(&file, format!("{line}\n")).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("ours");
    stack.set(&format!("gateway.api_keys_file = {file:?}\n"));
    stack.serve();
    let address = stack.http_address();
    let get = |path: &str, headers: &str| head(send(&address, "GET", path, headers, "")).0;
    wait("a service that is ready", || {
        let connects = TcpStream::connect(&address).is_ok();
        (connects && get("/health", "") == 200).then_some(())
    });
    assert_eq!(get("/health?x=1", ""), 200);
    assert_eq!(get("/", ""), 200);
    assert_eq!(get("/v1/models", &format!("authorization: Bearer {KEY}\r\n")), 200);
    assert_eq!(get("/v1/models", &format!("x-api-key: {KEY}\r\n")), 200);

    // Few requests: those without a key are slowed down to five a second.
    let closed = paths().into_iter().filter(|path| path != "/health" && path != "/");
    let mut requests: Vec<_> = closed.map(|path| ("GET", path)).collect();
    for path in ["/v1/chat/completions", "/v1/messages", "/none"] {
        let others = ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"];
        requests.extend(others.map(|method| (method, path.to_owned())));
    }
    for (method, path) in requests {
        let (status, _, _) = head(send(&address, method, &path, "", ""));
        // 400: what is no address of HTTP is no request of a client.
        assert!(status == 401 || (path == "*" && status == 400), "{method} {path}: {status}");
    }
    stack.stop();
}

/// A stream that never ends by itself, as a body of `/v1/completions`.
fn endless() -> String {
    let body = json!({
        "prompt": "Once upon a time", "stream": true, "ignore_eos": true, "max_tokens": TOKENS, "temperature": 0.8,
        "paceline": {"route": "plain"},
    });
    body.to_string()
}

/// Reads streams, one after another, until `until_ns`. The pauses between their events, in µs.
/// A slow one reads some bytes and then nothing for a while.
fn read_streams(address: &str, until_ns: i64, slow: bool, begun: &AtomicU32) -> Vec<u64> {
    let mut gaps = vec![];
    let mut is_first = true;
    while monotonic_ns() < until_ns {
        let stream = send(address, "POST", "/v1/completions", "", &endless());
        let (status, head, mut reader) = head(stream);
        if status == 429 {
            // The one request too many came first.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        assert_eq!(status, 200, "{head}");
        let (mut line, mut last_ns) = (String::new(), None);
        while monotonic_ns() < until_ns {
            if slow {
                let mut some = [0; 256];
                let count = reader.read(&mut some).expect("a slow reader is not dropped");
                if count == 0 {
                    break;
                }
                begun.fetch_add(u32::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
                // It is what a slow reader does.
                std::thread::sleep(Duration::from_millis(250));
                continue;
            }
            line.clear();
            if reader.read_line(&mut line).expect("a stream") == 0 {
                break;
            }
            assert!(!line.contains("\"error\""), "{line}");
            if line.starts_with("data: {") {
                begun.fetch_add(u32::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
                let now_ns = monotonic_ns();
                let before = last_ns.replace(now_ns);
                gaps.extend(before.map(|before| (now_ns - before) as u64 / 1_000));
            }
        }
    }
    gaps
}

/// Runs streams for `seconds` seconds, of which `slow` are slow: the median pause of each of the
/// others. While all of them run and one more request waits, another one is refused.
fn crowd(stack: &Stack, streams: u32, slow: u32, seconds: u64) -> Vec<u64> {
    let address = stack.http_address();
    let until_ns = monotonic_ns() + seconds as i64 * 1_000_000_000;
    let begun = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (address, begun) = (&address, &begun);
        let start =
            |at: u32| scope.spawn(move || read_streams(address, until_ns, at < slow, begun));
        let readers: Vec<_> = (0..streams).map(start).collect();
        wait("all streams", || (begun.load(Ordering::Relaxed) == streams).then_some(()));
        refuses_more(stack, waiting(streams));
        let pauses = readers.into_iter().map(|reader| reader.join().expect("a reader"));
        let mut medians: Vec<u64> = pauses
            .skip(slow as usize)
            .map(|mut gaps| {
                assert!(gaps.len() > 10, "{} events", gaps.len());
                gaps.sort_unstable();
                gaps[gaps.len() / 2]
            })
            .collect();
        medians.sort_unstable();
        medians
    })
}

/// Places in the queue, so that one more request than the streams fills it.
fn waiting(streams: u32) -> u32 {
    streams.saturating_sub(MOST_RUNNING) + 1
}

/// With one more request in the queue, the queue is full.
fn refuses_more(stack: &Stack, queue: u32) {
    let address = &stack.http_address();
    let mut waiting = vec![];
    let queued = || {
        let status = stack.snapshot().expect("a supervisor");
        status.requests.unwrap_or_default().queued >= queue
    };
    wait("a full queue", || {
        // A stream that ended makes room; then the one that waited runs.
        if !queued() {
            waiting.push(send(address, "POST", "/v1/completions", "", &endless()));
        }
        queued().then_some(())
    });
    let begun_ns = monotonic_ns();
    let (status, head, _) = head(send(address, "POST", "/v1/completions", "", &endless()));
    let took_ms = (monotonic_ns() - begun_ns) / 1_000_000;
    assert_eq!(status, 429, "{head}");
    assert!(head.contains("\r\nretry-after: "), "{head}");
    assert!(took_ms < 200, "refused after {took_ms} ms");
    println!("refused after {took_ms} ms");
}

/// Compares the same crowd without and with slow readers.
fn slow_readers_slow_nobody(streams: u32, seconds: u64) {
    let (running, queue) = (streams.min(MOST_RUNNING), waiting(streams));
    let stack = Stack::ready(&format!(
        "target.max_sequences = {running}\nlimits.streams_per_key = {running}\nlimits.queue = {queue}\nlimits.queue_wait_s = 60\n"
    ));
    let alone = crowd(&stack, streams, 0, seconds / 2);
    let beside = crowd(&stack, streams, streams / 10, seconds / 2);
    let (alone_us, beside_us) = (alone[alone.len() / 2], beside[beside.len() / 2]);
    println!("median gap: {alone_us} us among readers, {beside_us} us beside slow ones");
    // A loose bound: other processes of the machine work as well.
    assert!(beside_us < 2 * alone_us + 20_000, "{beside_us} us, {alone_us} us without slow ones");
    stack.wait_memory_back();
    stack.stop();
}

#[test]
fn twenty_streams_with_two_slow_readers_keep_their_pace_and_more_are_refused_at_once() {
    slow_readers_slow_nobody(20, 6);
}

#[test]
#[ignore = "soak: a minute; run by `make soak`"]
fn two_hundred_streams_with_twenty_slow_readers_keep_their_pace() {
    slow_readers_slow_nobody(200, 60);
}
