//! Hostile bodies over HTTP at the program itself: JSON of very many small values, and images that
//! are made to do harm. Each is refused by name, costs at most a few times its bytes, and keeps no
//! other client waiting. Twins of `amplification` and `bombs`.

// The kernel's figures of a process's memory are those of Linux.
#![cfg(target_os = "linux")]

mod hostile;
mod stage;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;
use paceline_process::task;
use serde_json::json;
use stage::http::{CHAT, COMPLETIONS, HttpClient, Reply};
use stage::program::Program;
use stage::supervisor::Fake;
use stage::within;

/// Bytes of each body, a little below the limit of 16 MiB.
const BODY_BYTES: usize = (16 << 20) - 1024;
/// Memory that one such body may add: four times its bytes, which the endless text does add, and
/// 8 MiB for the other client's requests.
const MAX_ADDED: u64 = (64 + 8) << 20;
/// Memory that images may add at their worst: as over gRPC, and four bodies of base64.
const MAX_ADDED_BY_IMAGES: u64 = (256 + 64) << 20;
/// Time that a refusal may take, on a machine that does something else as well.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A hostile body.
struct HostileBody {
    name: &'static str,
    path: &'static str,
    body: String,
    /// Words of its refusal.
    word: &'static str,
}

/// `{"model": "m", FIELD: [ITEM, ITEM, ...]}` of about [`BODY_BYTES`].
fn list(field: &str, item: &str) -> String {
    let items = vec![item; BODY_BYTES / (item.len() + 1)].join(",");
    format!("{{\"model\":\"m\",{field}:[{items}]}}")
}

/// All of them.
fn bodies() -> Vec<HostileBody> {
    let one = |name, path, body, word| HostileBody { name, path, body, word };
    let deep = "[".repeat(BODY_BYTES);
    let tool = "\"messages\":[],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":";
    let end = "}}}]}";
    let zeros = "0,".repeat(BODY_BYTES / 2 - 200);
    let user = "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]";
    let endless = "k".repeat(BODY_BYTES - 128);
    let keys: String = (0..BODY_BYTES / 14).map(|at| format!("\"{at:07}\":{{}},")).collect();
    vec![
        one("empty messages", CHAT, list("\"messages\"", "{}"), "131072 values"),
        one("empty texts", CHAT, list("\"stop\"", "\"\""), "131072 values"),
        one("nulls of no field", CHAT, list("\"nothing\"", "null"), "131072 values"),
        one("empty lists", "/v1/messages", list("\"messages\"", "[]"), "131072 values"),
        one("empty items", "/v1/responses", list("\"input\"", "{}"), "131072 values"),
        one("token ids", COMPLETIONS, list("\"prompt\"", "1"), "numbers"),
        one("lists in lists", CHAT, format!("{{\"messages\":{deep}"), "80 levels"),
        one("zeros of a tool", CHAT, format!("{{{tool}[{zeros}0]{end}"), "65536 numbers"),
        one("keys of a tool", CHAT, format!("{{{tool}{{{keys}\"x\":1}}{end}"), "131072 values"),
        one("an endless key", CHAT, format!("{{{user},\"{endless}\":1}}"), "1024 bytes in a key"),
        one("an endless text", CHAT, format!("{{{user},\"n\":\"{endless}\"}}"), "n: expected"),
        one("quotes", CHAT, "\"".repeat(BODY_BYTES), "131072 values"),
        one("backslashes", CHAT, format!("\"{}", "\\".repeat(BODY_BYTES)), "EOF"),
        one("digits", CHAT, "1".repeat(BODY_BYTES), "number out of range"),
        one("spaces", CHAT, " ".repeat(BODY_BYTES), "EOF"),
    ]
}

/// The program, for a model that sees, with a supervisor that answers every request at once.
async fn serving(dir: &Path) -> (Program, HttpClient) {
    paceline_process::runtime_dir::private_dir(&dir.join("run")).expect("made");
    let mut fake = Fake::start(&dir.join("run/supervisor.sock"), 1);
    stage::seeing::model(&dir.join("model"));
    let program = Program::start(dir, &dir.join("model"));
    let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
    attachment.service(stage::seeing::ready()).await;
    task::spawn("supervisor", async move {
        let _reports = task::spawn("reports", attachment.read_on());
        while let Some(submission) = fake.submissions.recv().await {
            let _over = submission.accept().done(&[300, 2]).await;
        }
    });
    let client = HttpClient::new(program.http);
    // Until the gateway knows of the model, it refuses.
    within(async {
        while client.get("/health").await.status != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
    (program, client)
}

/// Sends another client's short request, and returns the time to its end.
async fn ask(client: &HttpClient) -> Duration {
    let begun = clock();
    let reply = client.post(COMPLETIONS, &json!({ "model": "m", "prompt": [300, 301] })).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    begun.elapsed()
}

/// Sends every hostile body `rounds` times. Returns the longest request of another client beside
/// it, and the longest without.
async fn withstand(rounds: usize) -> (Duration, Duration) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (program, client) = serving(dir.path()).await;
    let mut alone = Duration::ZERO;
    for _ in 0..50 {
        alone = alone.max(ask(&client).await);
    }
    let (bodies, over) = (bodies(), AtomicBool::new(false));
    let (before, attacker) = (program.memory("VmRSS"), HttpClient::new(program.http));
    let attack = async {
        for HostileBody { name, path, body, word } in (0..rounds).flat_map(|_| &bodies) {
            let reply = attacker.send("POST", path, body.clone()).await;
            assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{name}: {reply:?}");
            let message = reply.error().1;
            assert!(message.contains(word), "{name}: {word:?} in {message}");
            assert!(message.len() < 5_000, "{name}: {} bytes", message.len());
            let added = program.memory("VmHWM").saturating_sub(before);
            assert!(added <= MAX_ADDED, "{name}: {} MiB more than before", added >> 20);
        }
        over.store(true, Ordering::Relaxed);
    };
    let others = async {
        let mut longest = Duration::ZERO;
        while !over.load(Ordering::Relaxed) {
            longest = longest.max(ask(&client).await);
        }
        longest
    };
    let ((), longest) = tokio::join!(attack, others);
    (longest, alone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_mebibytes_of_small_values_cost_at_most_four_times_as_much() {
    let (longest, alone) = withstand(1).await;
    // The machine may be busy.
    assert!(
        longest <= alone + REFUSAL_TIMEOUT,
        "another client's request took {longest:?}, alone {alone:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "soak: a timed figure; run by `make soak`"]
async fn a_request_beside_large_hostile_bodies_takes_at_most_100_ms_more() {
    let (longest, alone) = withstand(10).await;
    println!("a request beside them {longest:?} at most, alone {alone:?}");
    assert!(
        longest <= alone + Duration::from_millis(100),
        "another client's request took {longest:?}, alone {alone:?}"
    );
}

/// Sends an image in a conversation.
async fn ask_about(client: &HttpClient, file: &[u8]) -> Reply {
    let url = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(file));
    let parts = json!([
        { "type": "image_url", "image_url": { "url": url } },
        { "type": "text", "text": "?" },
    ]);
    let messages = json!([{ "role": "user", "content": parts }]);
    client.post(CHAT, &json!({ "model": "m", "messages": messages })).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_images_cost_little_and_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (program, client) = serving(dir.path()).await;
    // A good one first: what serving takes at all is in use.
    let reply = ask_about(&client, &stage::seeing::file("up.png")).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    let hostile = hostile::all();
    let before = program.memory("VmRSS");
    for one in &hostile {
        let begun = clock();
        let reply = ask_about(&client, &one.file).await;
        let took = begun.elapsed();
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}: {reply:?}", one.name);
        let (code, message) = reply.error();
        // An empty file has no data in its address.
        let word = if one.file.is_empty() { "" } else { one.word };
        assert!(message.contains(word), "{}: {code}: {message}", one.name);
        assert!(took < REFUSAL_TIMEOUT, "{}: refused after {took:?}", one.name);
    }
    let worst = hostile.iter().filter(|one| one.word.starts_with("whole")).cycle().take(16);
    for reply in futures::future::join_all(worst.map(|one| ask_about(&client, &one.file))).await {
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{reply:?}");
    }
    let added = program.memory("VmHWM").saturating_sub(before);
    assert!(added <= MAX_ADDED_BY_IMAGES, "{} MiB more than before", added >> 20);
    let left = std::fs::read_dir(dir.path().join("run/images")).expect("there").count();
    assert_eq!(left, 0, "files of images that were refused");
}

#[expect(clippy::disallowed_methods, reason = "how long it took is what is tested")]
fn clock() -> Instant {
    Instant::now()
}
