//! Large messages of very small elements at the program itself: each is refused by name, costs at
//! most a few times its bytes, and keeps no other client waiting.

// The kernel's figures of a process's memory are those of Linux.
#![cfg(target_os = "linux")]

mod stage;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use futures::StreamExt;
use paceline_process::task;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;
use prost::Message as _;
use stage::program::Program;
use stage::supervisor::Fake;
use stage::{ids, within};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Bytes of each message, a little below the limit of 16 MiB.
const MESSAGE_BYTES: usize = (16 << 20) - 64;
/// Memory that one such message may add: four times its bytes.
const MAX_ADDED: u64 = 64 << 20;

/// Messages as bytes: a client that made them of Rust's types would itself need a gigabyte.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// A hostile message.
struct Hostile {
    name: &'static str,
    method: &'static str,
    wire: Bytes,
    /// Words of its refusal.
    words: [&'static str; 2],
}

/// A length-delimited field.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(content.len() + 8);
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut wire);
    prost::encoding::encode_varint(content.len() as u64, &mut wire);
    wire.extend_from_slice(content);
    wire
}

/// As many empty fields of this number as `bytes` hold.
fn empty(number: u32, bytes: usize) -> Vec<u8> {
    field(number, &[]).repeat(bytes / 2)
}

/// All of them. Long, because each row is one case.
fn all() -> Vec<Hostile> {
    let zeros = format!("{{\"type\":\"object\",\"a\":[{}0]}}", "0,".repeat(MESSAGE_BYTES / 2 - 32));
    let part = v1::ContentPart { part: Some(v1::content_part::Part::Text("x".into())) };
    let user = v1::Message { role: "user".into(), content: vec![part], ..Default::default() };
    let user = field(2, &user.encode_to_vec());
    let json =
        |message: v1::ChatRequest| Bytes::from([user.clone(), message.encode_to_vec()].concat());
    let call = v1::ToolCall { name: "f".into(), arguments: zeros.clone(), ..Default::default() };
    let calls =
        v1::Message { role: "assistant".into(), tool_calls: vec![call], ..Default::default() };
    let tool = v1::Tool { name: "f".into(), parameters: zeros.clone(), ..Default::default() };
    let nested = field(2, &empty(2, 8192)).repeat(MESSAGE_BYTES / 8200);
    let one =
        |name, method, wire: Vec<u8>, words| Hostile { name, method, wire: wire.into(), words };
    let of_json =
        |name, message, words| Hostile { name, method: "Chat", wire: json(message), words };
    vec![
        one(
            "empty messages",
            "Chat",
            empty(2, MESSAGE_BYTES),
            ["messages: expected at most 16384", "found 8388576"],
        ),
        one(
            "empty tools",
            "Chat",
            empty(9, MESSAGE_BYTES),
            ["tools: expected at most 1024", "found"],
        ),
        one(
            "empty parts of one turn",
            "Chat",
            field(2, &empty(2, MESSAGE_BYTES - 16)),
            ["messages[0].content", "4096"],
        ),
        one(
            "empty parts of many turns",
            "Chat",
            nested,
            ["messages[15].content", "at most 65536 elements"],
        ),
        one(
            "empty stops",
            "Generate",
            field(5, &empty(5, MESSAGE_BYTES - 16)),
            ["limits.stop", "at most 4096"],
        ),
        one(
            "token ids",
            "Generate",
            field(3, &field(1, &vec![1; MESSAGE_BYTES - 32])),
            ["token_ids.ids", "at most 1048576"],
        ),
        one(
            "empty messages to count",
            "CountTokens",
            field(2, &empty(2, MESSAGE_BYTES - 16)),
            ["chat.messages", "16384"],
        ),
        of_json(
            "zeros as arguments of the template",
            v1::ChatRequest { template_arguments: zeros.clone(), ..Default::default() },
            ["template_arguments: expected at most 1048576 bytes of JSON", "found 167"],
        ),
        of_json(
            "zeros as parameters of a tool",
            v1::ChatRequest { tools: vec![tool], ..Default::default() },
            ["tools[0].parameters", "bytes of JSON"],
        ),
        of_json(
            "zeros as arguments of a tool call",
            v1::ChatRequest { messages: vec![calls], ..Default::default() },
            ["messages[1].tool_calls[0].arguments", "bytes of JSON"],
        ),
    ]
}

/// Sends a hostile message and checks the refusal.
async fn send(attacker: &Channel, hostile: &Hostile) {
    let mut client = tonic::client::Grpc::new(attacker.clone());
    within(client.ready()).await.expect("connected");
    let path = format!("/paceline.v1.Inference/{}", hostile.method).parse().expect("a path");
    let request = Request::new(hostile.wire.clone());
    let status = within(client.server_streaming(request, path, Raw))
        .await
        .map(|_| ())
        .expect_err(hostile.name);
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::InvalidArgument, Some(Reason::InvalidArgument)),
        "{status:?}"
    );
    for word in hostile.words {
        assert!(
            status.message().contains(word),
            "{}: {word:?} in {}",
            hostile.name,
            status.message()
        );
    }
}

/// Sends another client's short request, and returns the time to its end.
async fn ask(program: &Program) -> Duration {
    let begun = clock();
    let stream = within(program.client.clone().generate(ids(&[300, 301]))).await.expect("served");
    let messages: Vec<_> = within(stream.into_inner().collect()).await;
    assert!(messages.last().is_some_and(Result::is_ok), "{messages:?}");
    begun.elapsed()
}

/// The gateway's program with a supervisor that answers every request at once.
async fn serving(dir: &Path) -> Program {
    std::fs::DirBuilder::new().mode(0o700).create(dir.join("run")).expect("writable");
    let mut fake = Fake::start(&dir.join("run/supervisor.sock"), 1);
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    let program = Program::start(dir, &demo);
    let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
    attachment.service(stage::ready()).await;
    task::spawn("supervisor", async move {
        let _reports = task::spawn("reports", attachment.read_on());
        while let Some(submission) = fake.submissions.recv().await {
            let _over = submission.accept().done(&[300, 2]).await;
        }
    });
    // Until the gateway knows of the model, it refuses.
    let mut client = program.client.clone();
    let known = async {
        while client.get_model(v1::GetModelRequest::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(known).await;
    program
}

/// Sends every hostile message `rounds` times. Returns the memory that it added, the longest
/// request of another client beside it, and the longest without.
async fn withstand(rounds: usize) -> (u64, Duration, Duration) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = serving(dir.path()).await;
    let mut alone = Duration::ZERO;
    for _ in 0..50 {
        alone = alone.max(ask(&program).await);
    }
    let hostile = all();
    let before = program.memory("VmRSS");
    let (attacker, over) = (program.connection(), AtomicBool::new(false));
    let attack = async {
        for _ in 0..rounds {
            for one in &hostile {
                send(&attacker, one).await;
                let added = program.memory("VmHWM").saturating_sub(before);
                assert!(added <= MAX_ADDED, "{}: {} MiB more than before", one.name, added >> 20);
            }
        }
        over.store(true, Ordering::Relaxed);
    };
    let others = async {
        let mut longest = Duration::ZERO;
        while !over.load(Ordering::Relaxed) {
            longest = longest.max(ask(&program).await);
        }
        longest
    };
    let ((), longest) = tokio::join!(attack, others);
    (program.memory("VmHWM").saturating_sub(before), longest, alone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_mebibytes_of_empty_elements_cost_at_most_four_times_as_much() {
    let (added, longest, alone) = withstand(1).await;
    eprintln!(
        "added {} MiB; a request beside it {longest:?} at most, alone {alone:?}",
        added >> 20
    );
    // The machine may be busy: a thread that decodes eight million messages would take several
    // seconds.
    assert!(
        longest <= alone + Duration::from_secs(1),
        "another client's request took {longest:?}, alone {alone:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "soak: a timed figure; run by `make soak`"]
async fn a_request_beside_large_hostile_messages_takes_at_most_100_ms_more() {
    let (added, longest, alone) = withstand(10).await;
    println!("added {} MiB; a request beside it {longest:?} at most, alone {alone:?}", added >> 20);
    assert!(
        longest <= alone + Duration::from_millis(100),
        "another client's request took {longest:?}, alone {alone:?}"
    );
}

#[expect(clippy::disallowed_methods, reason = "how long it took is what is tested")]
fn clock() -> Instant {
    Instant::now()
}
