//! Readers that do not read, at every method that is described and at the paths of HTTP: no answer
//! keeps its connection for ever, and all of them together cost little memory (I14).

// The kernel's figures of a process's memory are those of Linux.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

mod stage;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use h2::client::{ResponseFuture, SendRequest};
use paceline_process::config::OllamaApi;
use paceline_process::task;
use paceline_proto::internal::v1::{ServiceState, TokenBatch};
use paceline_proto::smg::grpc::common::SubscribeKvEventsRequest;
use paceline_proto::v1;
use paceline_proto::v1::count_tokens_request::Request as Counted;
use paceline_proto::vllm::grpc::engine as vllm;
use prost::Message as _;
use stage::methods::methods;
use stage::program::Program;
use stage::supervisor::Fake;
use stage::{Stage, chat, text, within};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

/// Paths of HTTP whose answers no model writes.
const PAGES: [&str; 7] =
    ["/", "/metrics", "/status", "/v1/models", "/health", "/api/tags", "/api/ps"];
/// Window of a client that takes a stream's first bytes.
const SOME: u32 = 65_535;
/// Largest window of HTTP/2.
const LARGEST: u32 = (1 << 31) - 1;
/// Most memory of the gateway beside readers that do not read.
const MAX_MEMORY: u64 = 100 << 20;
/// Most memory that such readers leave behind.
const MAX_LEFT: u64 = 20 << 20;
/// Streams of a connection: `limits.streams_per_connection`.
const STREAMS: usize = 128;

/// A message that this method answers without an error. An empty one suffices for most.
fn message(method: &str) -> Vec<u8> {
    match method {
        "paceline.v1.Inference/Generate" => text("Hi").encode_to_vec(),
        "paceline.v1.Inference/Chat" => chat("Hi").encode_to_vec(),
        "paceline.v1.Inference/CountTokens" => {
            let request = Some(Counted::Generate(text("Hi ".repeat(1_000))));
            v1::CountTokensRequest { request, report_ids: true }.encode_to_vec()
        }
        "vllm.grpc.engine.VllmEngine/Generate" => {
            let tokenized =
                vllm::TokenizedInput { original_text: String::new(), input_ids: vec![5, 6] };
            let input = Some(vllm::generate_request::Input::Tokenized(tokenized));
            let request_id = "r".into();
            vllm::GenerateRequest { request_id, input, stream: true, ..Default::default() }
                .encode_to_vec()
        }
        "vllm.grpc.engine.VllmEngine/SubscribeKvEvents" => {
            SubscribeKvEventsRequest { load_records_before_first_batch: true, ..Default::default() }
                .encode_to_vec()
        }
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo" => {
            let asked = MessageRequest::FileContainingSymbol("paceline.v1.Inference".into());
            ServerReflectionRequest { host: String::new(), message_request: Some(asked) }
                .encode_to_vec()
        }
        _ => Vec::new(),
    }
}

/// A connection whose streams are not read.
struct Unreader {
    requests: SendRequest<Bytes>,
    /// What was asked, until the test is over.
    asked: Vec<ResponseFuture>,
    connection: JoinHandle<()>,
    /// While it is true, the connection's socket is read.
    is_driven: watch::Sender<bool>,
}

impl Unreader {
    /// Gives each stream this window and never a further one.
    async fn connect(address: SocketAddr, window: u32) -> Self {
        let socket = within(TcpStream::connect(address)).await.expect("connects");
        let mut client = h2::client::Builder::new();
        client.initial_window_size(window).initial_connection_window_size(LARGEST);
        let (requests, connection) = within(client.handshake(socket)).await.expect("HTTP/2");
        let (is_driven, mut driven) = watch::channel(true);
        let connection = task::spawn("unreader", async move {
            let mut connection = std::pin::pin!(connection);
            loop {
                tokio::select! {
                    _ = &mut connection, if *driven.borrow_and_update() => return,
                    changed = driven.changed() => if changed.is_err() { return },
                }
            }
        });
        Self { requests, asked: Vec::new(), connection, is_driven }
    }

    /// Calls a method of gRPC.
    async fn call(&mut self, method: &str) -> ResponseFuture {
        let request = http::Request::post(format!("http://localhost/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let message = message(method);
        let length = (message.len() as u32).to_be_bytes();
        self.send(request, Some([&[0], &length[..], &message].concat())).await
    }

    /// Asks for a path of HTTP.
    async fn get(&mut self, path: &str) -> ResponseFuture {
        self.send(http::Request::get(format!("http://localhost{path}")), None).await
    }

    async fn send(
        &mut self,
        request: http::request::Builder,
        message: Option<Vec<u8>>,
    ) -> ResponseFuture {
        let request = request.body(()).expect("a request");
        let mut requests = within(self.requests.clone().ready()).await.expect("open");
        let (answer, mut body) = requests.send_request(request, message.is_none()).expect("sent");
        if let Some(message) = message {
            body.send_data(message.into(), true).expect("sent");
        }
        answer
    }
}

/// The demo model, served from its directory.
fn ready(model: &Path) -> ServiceState {
    let mut state = stage::ready();
    state.model.as_mut().expect("served").path = model.display().to_string();
    state
}

/// Answers each request with tokens until it is dropped.
async fn answer_all(mut fake: Fake) {
    while let Some(submission) = fake.submissions.recv().await {
        task::spawn("answer", async move {
            let accepted = submission.accept();
            for first_index in 0.. {
                let batch = TokenBatch { first_index, ids: vec![300], ..Default::default() };
                if accepted.batches.send(Ok(batch)).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
async fn no_method_keeps_a_connection_whose_answer_is_not_read() {
    let (stage, fake, mut attachment) = Stage::serving(|config| {
        config.limits.unread_s = 1;
        config.gateway.ollama = OllamaApi::WithHttp;
    })
    .await;
    fake.operator.report(v1::StatusResponse::default());
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    attachment.service(ready(&demo)).await;
    task::spawn("fake", answer_all(fake));
    // Until the gateway has read the notice, the model has no directory.
    let mut first = Unreader::connect(stage.address, SOME).await;
    within(async {
        loop {
            let answer = first.call("vllm.grpc.engine.VllmEngine/GetTokenizer").await;
            let answer = answer.await.expect("an answer");
            if Status::from_header_map(answer.headers()).is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let of_grpc = methods().into_iter().map(async |method| {
        let mut reader = Unreader::connect(stage.address, 0).await;
        let answer = within(reader.call(&method).await).await.expect("an answer");
        if let Some(status) = Status::from_header_map(answer.headers()) {
            assert_eq!(status.code(), Code::Unimplemented, "{method} needs a message: {status:?}");
            return None;
        }
        within_of(&method, reader.connection).await;
        Some(method)
    });
    let of_http = PAGES.into_iter().map(async |path| {
        let mut reader = Unreader::connect(stage.http, 0).await;
        let answer = within(reader.get(path).await).await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}");
        within_of(path, reader.connection).await;
    });
    let (closed, _) = tokio::join!(join_all(of_grpc), join_all(of_http));
    let closed: Vec<String> = closed.into_iter().flatten().collect();
    assert!(closed.len() >= 14, "the methods of the front are served: {closed:?}");
}

/// Waits for the end of a connection.
async fn within_of(method: &str, connection: JoinHandle<()>) {
    let ended = tokio::time::timeout(Duration::from_secs(25), connection).await;
    ended.unwrap_or_else(|_| panic!("{method}: its connection is open")).expect("no panic");
}

/// How clients leave their answers unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// They read the socket, and give each stream one window.
    Streams,
    /// They give all windows, and do not read the socket.
    Socket,
}

/// Memory of the gateway in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    before: u64,
    most: u64,
    /// Ten seconds at most after the clients left.
    after: u64,
}

/// The program, for a model with eight megabytes of text files.
async fn program(dir: &Path) -> (Program, JoinHandle<()>) {
    paceline_process::runtime_dir::private_dir(&dir.join("run")).expect("made");
    let mut fake = Fake::start(&dir.join("run/supervisor.sock"), 1);
    fake.operator.report(v1::StatusResponse::default());
    let model = dir.join("model");
    stage::exchange::write_model(&model, "qwen3.jinja");
    std::fs::write(model.join("more.tiktoken"), vec![b'x'; 8 << 20]).expect("written");
    let program = Program::start(dir, &model);
    let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
    attachment.service(ready(&model)).await;
    let supervisor = task::spawn("supervisor", async move {
        let _reports = task::spawn("reports", attachment.read_on());
        answer_all(fake).await;
    });
    within(async {
        let request = v1::GetModelRequest::default();
        while program.client.clone().get_model(request.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    (program, supervisor)
}

/// Asks on `connections` connections for [`STREAMS`] answers each, and reads none.
async fn leave_unread(program: &Program, what: &str, connections: usize, unread: Unread) -> Memory {
    let before = program.memory("VmRSS");
    let (is_page, window) = match unread {
        Unread::Streams => (what.starts_with('/'), SOME),
        Unread::Socket => (what.starts_with('/'), LARGEST),
    };
    let address = if is_page { program.http } else { program.address };
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut client = Unreader::connect(address, window).await;
        for _ in 0..STREAMS {
            let answer = match is_page {
                true => client.get(what).await,
                false => client.call(what).await,
            };
            client.asked.push(answer);
        }
        if unread == Unread::Socket {
            tokio::task::yield_now().await;
            client.is_driven.send_replace(false);
        }
        clients.push(client);
    }
    let mut most = 0;
    // Long enough that the gateway has made all answers that it makes.
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = most.max(program.memory("VmRSS"));
    }
    for client in clients {
        client.connection.abort();
    }
    let mut after = u64::MAX;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        after = program.memory("VmRSS");
        if after <= before + MAX_LEFT {
            break;
        }
    }
    Memory { before, most, after }
}

async fn cost_of_unread_answers(what: impl IntoIterator<Item = String>, connections: usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (program, _supervisor) = program(dir.path()).await;
    for what in what {
        for unread in [Unread::Streams, Unread::Socket] {
            let memory = leave_unread(&program, &what, connections, unread).await;
            let Memory { before, most, after } = memory;
            let mib = |bytes: u64| bytes >> 20;
            println!(
                "{what} {unread:?}: {} MiB before, at most {}, {} after",
                mib(before),
                mib(most),
                mib(after)
            );
            assert!(most <= MAX_MEMORY, "{what} {unread:?}: {memory:?}");
            assert!(after <= before + MAX_LEFT, "{what} {unread:?}: {memory:?}");
        }
    }
}

#[tokio::test]
async fn unread_archives_of_three_connections_cost_little_memory() {
    cost_of_unread_answers(["vllm.grpc.engine.VllmEngine/GetTokenizer".to_owned()], 3).await;
}

#[tokio::test]
#[ignore = "soak: minutes; run by `make soak`"]
async fn unread_answers_of_twenty_four_connections_cost_little_memory() {
    let served = |method: &String| !method.starts_with("paceline.v1.Operations/");
    let internal = |method: &String| !method.starts_with("paceline.internal.");
    let methods = methods().into_iter().filter(served).filter(internal);
    cost_of_unread_answers(methods.chain(PAGES.map(str::to_owned)), 24).await;
}
