//! Many bodies at once: they share one budget of bytes, one key has its share of it, and others are
//! served beside it, over HTTP and gRPC.

use std::sync::Arc;

use crate::keyring::{ALICE, BOB, keys, of};
use crate::stage::http::{CHAT, COMPLETIONS, HttpClient, RawHttp, Reply};
use crate::stage::raw::{GENERATE, begin_as, raw, status};
use crate::stage::supervisor::Fake;
use crate::stage::{Stage, within};
use http::StatusCode;
use paceline_process::{Config, task};
use paceline_proto::internal::v1::{Done, TokenBatch};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{FinishReason, TokenLogprobs, TopLogprob};
use serde_json::{Value, json};
use tonic::Code;
use tonic_types::StatusExt as _;

/// `limits.body_bytes` here: half of it for bodies above 1 MiB, and one key may have half of that.
const BUDGET: u64 = 16 << 20;
/// Bytes of each long body, 2.5 MiB. One key can have one at a time, and another key one beside it.
const LONG: usize = 5 << 19;

/// A gateway with keys and a small budget, and a supervisor that answers every request at once.
struct Door {
    stage: Stage,
    alice: HttpClient,
    bob: HttpClient,
    _keys: tempfile::TempDir,
}

impl Door {
    async fn open(change: impl FnOnce(&mut Config)) -> Self {
        let (dir, path) = keys();
        let (stage, fake, attachment) = Stage::serving(|config| {
            config.gateway.api_keys_file = path.display().to_string();
            config.limits.body_bytes = BUDGET;
            config.limits.max_message_bytes = 4 << 20;
            change(config);
        })
        .await;
        task::spawn("reports", attachment.read_on());
        answer_all(fake, vec![300, 2]);
        let client = HttpClient::new(stage.http);
        let alice = client.with("authorization", &of(ALICE));
        let bob = client.with("authorization", &of(BOB));
        Self { stage, alice, bob, _keys: dir }
    }

    /// A figure of the gateway.
    async fn figure(&self, series: &str) -> u64 {
        let reply = self.bob.get("/metrics").await;
        let text = String::from_utf8(reply.body.to_vec()).expect("text");
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{series} in {text}"))
    }

    /// Waits until the bodies hold `bytes` bytes and `waiting` of them wait.
    async fn until(&self, bytes: usize, waiting: u64) {
        let mut last = (0, 0);
        let reached = async {
            while last != (bytes as u64, waiting) {
                let bytes = self.figure("paceline_body_bytes{kind=\"bodies\"}").await;
                last = (bytes, self.figure("paceline_bodies_waiting").await);
            }
        };
        let reached = tokio::time::timeout(std::time::Duration::from_secs(30), reached).await;
        assert!(reached.is_ok(), "expected {bytes} bytes and {waiting} that wait, found {last:?}");
    }

    /// Sends the head of a long body of hers, and its first bytes.
    async fn long_of_alice(&self) -> RawHttp {
        let mut one = RawHttp::connect(self.stage.http).await;
        let key = of(ALICE);
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nauthorization: {key}\r\ncontent-length: {LONG}\r\n\r\n"
        );
        one.write(head).await;
        one.write(&padded(LONG)[..1_000]).await;
        one
    }
}

/// Answers every submission with these tokens.
fn answer_all(mut fake: Fake, ids: Vec<u32>) {
    task::spawn("supervisor", async move {
        while let Some(submission) = fake.submissions.recv().await {
            let _over = submission.accept().done(&ids).await;
        }
    });
}

/// A request in a body of `bytes` bytes.
fn padded(bytes: usize) -> String {
    let request = json!({ "model": "m", "prompt": [300, 301] }).to_string();
    " ".repeat(bytes - request.len()) + &request
}

async fn send(client: &HttpClient, bytes: usize) -> Reply {
    client.send("POST", COMPLETIONS, padded(bytes)).await
}

#[tokio::test]
async fn many_bodies_of_one_key_hold_its_share_and_another_key_is_served_beside_them() {
    let door = Door::open(|_| {}).await;
    let mut flood = vec![door.long_of_alice().await];
    door.until(LONG, 0).await;
    for _ in 1..40 {
        flood.push(door.long_of_alice().await);
    }
    // Over gRPC they are counted with the others.
    let peer = raw(door.stage.address).await;
    let prefix = [&[0][..], &(LONG as u32).to_be_bytes(), b"abc"].concat();
    let grpc = begin_as(&peer, GENERATE, &prefix, Some(&of(ALICE))).await;
    door.until(LONG, 40).await;
    // Bob's bodies of each kind.
    for bytes in [60, 100_000, 1 << 20, LONG] {
        let reply = send(&door.bob, bytes).await;
        assert_eq!(reply.status, StatusCode::OK, "{bytes} bytes: {reply:?}");
    }
    // Alice's shorter ones do not wait for her long ones.
    assert_eq!(send(&door.alice, 100_000).await.status, StatusCode::OK);
    // What ends makes room for the next one.
    let mut first = flood.remove(0);
    first.write(&padded(LONG)[1_000..]).await;
    assert!(first.read_until("}").await.starts_with("HTTP/1.1 200"));
    door.until(LONG, 39).await;
    // Clients that leave give everything back.
    drop((flood, grpc, peer));
    door.until(0, 0).await;
}

#[tokio::test]
async fn a_body_that_finds_no_room_in_its_time_is_answered_503_and_may_be_sent_again() {
    let door = Door::open(|config| config.limits.message_s = 2).await;
    let mut flood = vec![];
    for _ in 0..6 {
        flood.push(door.long_of_alice().await);
    }
    let peer = raw(door.stage.address).await;
    let prefix = [&[0][..], &(LONG as u32).to_be_bytes()].concat();
    let (first, _one) = begin_as(&peer, GENERATE, &prefix, Some(&of(ALICE))).await;
    let (second, _other) = begin_as(&peer, GENERATE, &prefix, Some(&of(ALICE))).await;
    let mut refused = 0;
    for mut one in flood {
        let answer = one.read().await;
        // One that has room, and its bytes do not come.
        if answer.starts_with("HTTP/1.1 408") {
            continue;
        }
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("BODIES_FULL") && answer.contains("limits.body_bytes"), "{answer}");
        assert!(answer.contains("retry-after:") && answer.contains("x-should-retry: true"));
        refused += 1;
    }
    assert!(refused > 0);
    let ended = [status(first).await, status(second).await];
    let full = ended.iter().find(|status| Reason::of(status) == Some(Reason::BodiesFull));
    let full = full.unwrap_or_else(|| panic!("one at least: {ended:?}"));
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.get_details_retry_info().is_some(), "{full:?}");
    door.until(0, 0).await;
}

#[tokio::test]
async fn a_chunked_body_is_counted_as_it_grows() {
    let door = Door::open(|_| {}).await;
    let mut chunked = RawHttp::connect(door.stage.http).await;
    let head = "host: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let key = of(ALICE);
    chunked.write(format!("POST {COMPLETIONS} HTTP/1.1\r\nauthorization: {key}\r\n{head}")).await;
    let spaces = |bytes: usize| format!("{bytes:x}\r\n{}\r\n", " ".repeat(bytes));
    chunked.write(spaces(10_000)).await;
    door.until(0, 0).await;
    chunked.write(spaces(60_000)).await;
    door.until(1 << 20, 0).await;
    chunked.write(spaces(1 << 20)).await;
    // The longest message that is served.
    door.until(4 << 20, 0).await;
    let body = padded(100);
    chunked.write(format!("64\r\n{body}\r\n0\r\n\r\n")).await;
    assert!(chunked.read().await.starts_with("HTTP/1.1 200"));
    door.until(0, 0).await;
}

#[tokio::test]
async fn a_message_of_grpc_is_one_message() {
    let door = Door::open(|_| {}).await;
    let peer = raw(door.stage.address).await;
    let (answer, _message) =
        begin_as(&peer, GENERATE, &[0, 0, 0, 0, 1, 8, 0], Some(&of(ALICE))).await;
    let ended = status(answer).await;
    assert_eq!(Reason::of(&ended), Some(Reason::InvalidArgument), "{ended:?}");
}

/// The last token of an answer, and its end.
fn last(first_index: u32, top: Vec<TopLogprob>) -> TokenBatch {
    let done = Done { finish_reason: FinishReason::Stop as i32, ..Default::default() };
    let logprobs = vec![TokenLogprobs { logprob: -0.5, top }];
    TokenBatch { first_index, ids: vec![2], logprobs, done: Some(done), ..Default::default() }
}

/// A whole answer with log-probabilities that would take more than the budget has.
#[tokio::test]
async fn a_whole_answer_that_takes_too_much_ends_with_a_sentence_and_a_stream_does_not() {
    let (stage, mut fake, _attachment) = Stage::serving(|config| {
        config.limits.body_bytes = BUDGET;
        config.limits.max_message_bytes = 4 << 20;
    })
    .await;
    let top = |token_id| TopLogprob { token_id, logprob: -1.5 };
    let top: Arc<Vec<_>> = Arc::new((300..320).map(top).collect());
    task::spawn("supervisor", async move {
        while let Some(submission) = fake.submissions.recv().await {
            let mut accepted = submission.accept();
            let top = Arc::clone(&top);
            // 8 MiB are 416 tokens of 20 KB.
            task::spawn("answer", async move {
                for at in 0..60_u32 {
                    let one = TokenLogprobs { logprob: -0.5, top: top.to_vec() };
                    let batch = TokenBatch {
                        first_index: at * 16,
                        ids: vec![300; 16],
                        logprobs: vec![one; 16],
                        ..Default::default()
                    };
                    if accepted.batches.send(Ok(batch)).await.is_err() {
                        return;
                    }
                }
                accepted.send(last(960, top.to_vec())).await;
            });
        }
    });
    let client = HttpClient::new(stage.http);
    let chat: Value = json!({
        "model": "m", "messages": [{ "role": "user", "content": "Hi" }],
        "logprobs": true, "top_logprobs": 20, "max_tokens": 4_000,
    });
    let completion: Value =
        json!({ "model": "m", "prompt": "Hi", "logprobs": 20, "max_tokens": 4_000 });
    for (path, body) in [(CHAT, chat), (COMPLETIONS, completion)] {
        let reply = within(client.post(path, &body)).await;
        assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}: {}", reply.error().1);
        let (_, message) = reply.error();
        assert!(message.contains("stream") && message.contains("limits.body_bytes"), "{message}");
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let events = client.stream(path, &streamed).await.rest().await;
        assert_eq!(events.last().map(String::as_str), Some("data: [DONE]"), "{path}");
    }
    let text = client.get("/metrics").await;
    let text = String::from_utf8(text.body.to_vec()).expect("text");
    assert!(text.contains("paceline_body_bytes{kind=\"answers\"} 0"), "{text}");
}

#[tokio::test]
async fn watches_without_a_key_shut_nobody_out() {
    let door = Door::open(|config| config.limits.connections = 8).await;
    let empty = [0; 5];
    let mut held = vec![];
    for _ in 0..8 {
        let peer = raw(door.stage.address).await;
        let (answer, mut message) =
            begin_as(&peer, "grpc.health.v1.Health/Watch", &empty, None).await;
        message.send_data(bytes::Bytes::new(), true).expect("open");
        held.push((peer, within(answer).await.expect("a watch")));
    }
    // Connections of their own: a client of a key is served, over both protocols.
    for _ in 0..8 {
        let client = HttpClient::new(door.stage.http).with("authorization", &of(BOB));
        assert_eq!(send(&client, 60).await.status, StatusCode::OK);
        let peer = raw(door.stage.address).await;
        let bob = of(BOB);
        let (answer, mut message) =
            begin_as(&peer, "paceline.v1.Inference/GetModel", &empty, Some(&bob)).await;
        message.send_data(bytes::Bytes::new(), true).expect("open");
        assert_eq!(status(answer).await.code(), Code::Ok);
    }
}

#[tokio::test]
async fn the_thirty_third_watch_without_a_key_is_refused() {
    let door = Door::open(|_| {}).await;
    let peers = [raw(door.stage.address).await, raw(door.stage.address).await];
    let mut held = vec![];
    for at in 0..33 {
        let peer = &peers[at % 2];
        let (answer, mut message) =
            begin_as(peer, "grpc.health.v1.Health/Watch", &[0; 5], None).await;
        message.send_data(bytes::Bytes::new(), true).expect("open");
        if at == 32 {
            let refused = status(answer).await;
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
            assert!(refused.message().contains("32 watches of health"), "{refused:?}");
        } else {
            let answer = within(answer).await.expect("an answer");
            assert!(!answer.headers().contains_key("grpc-status"), "{at}: {answer:?}");
            held.push(answer);
        }
    }
}
