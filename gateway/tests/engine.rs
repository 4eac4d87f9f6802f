//! The engine protocol of routers, through a gateway with a scripted supervisor behind it.

use std::io::{Cursor, Read as _};
use std::path::Path;

use base64::Engine as _;
use bytes::{Buf as _, BufMut as _};
use paceline_process::keys::KeyLine;
use paceline_proto::internal::v1::ServiceState;
use paceline_proto::smg::grpc::common::{GetTokenizerRequest, SubscribeKvEventsRequest};
use paceline_proto::status::Reason;
use paceline_proto::v1;
use paceline_proto::vllm::grpc::engine as vllm;
use paceline_proto::vllm::grpc::engine::vllm_engine_client::VllmEngineClient;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use vllm::generate_request::Input;
use vllm::generate_response::Response;

use crate::stage::seeing::{PAD, file};
use crate::stage::supervisor::{Accepted, Fake};
use crate::stage::{Stage, is, ready, within};

fn client(stage: &Stage) -> VllmEngineClient<Channel> {
    VllmEngineClient::new(stage.channel.clone())
}

/// A request in pieces with this name.
fn request(name: &str, ids: &[u32]) -> vllm::GenerateRequest {
    let tokenized = vllm::TokenizedInput { original_text: String::new(), input_ids: ids.to_vec() };
    vllm::GenerateRequest {
        request_id: name.into(),
        input: Some(Input::Tokenized(tokenized)),
        stream: true,
        ..Default::default()
    }
}

/// Sends a request, which the supervisor accepts and answers with a first token.
async fn begun(
    stage: &Stage,
    fake: &mut Fake,
    request: vllm::GenerateRequest,
) -> (Streaming<vllm::GenerateResponse>, Accepted) {
    let mut client = client(stage);
    let (stream, accepted) = within(async {
        tokio::join!(client.generate(request), async {
            let mut accepted = fake.submission().await.accept();
            accepted.tokens(&[300]).await;
            accepted
        })
    })
    .await;
    (stream.expect("begun").into_inner(), accepted)
}

async fn message(stream: &mut Streaming<vllm::GenerateResponse>) -> Response {
    let message = within(stream.message()).await.expect("fine").expect("open");
    message.response.expect("one of two")
}

async fn end(stream: &mut Streaming<vllm::GenerateResponse>) -> vllm::GenerateComplete {
    loop {
        if let Response::Complete(end) = message(stream).await {
            assert!(within(stream.message()).await.expect("a good end").is_none());
            return end;
        }
    }
}

async fn abort(stage: &Stage, name: &str) {
    let order = vllm::AbortRequest { request_ids: vec![name.into()] };
    within(client(stage).abort(order)).await.expect("answered");
}

#[tokio::test]
async fn ids_go_in_and_come_out_in_pieces_or_at_once() {
    let (stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let mut engine = client(&stage);
    for in_pieces in [true, false] {
        let asked = vllm::GenerateRequest { stream: in_pieces, ..request("r", &[5, 6]) };
        let (stream, generation) = within(async {
            tokio::join!(engine.generate(asked), async {
                let submission = fake.submission().await;
                let generation = submission.generation().clone();
                let mut accepted = submission.accept();
                accepted.tokens(&[300, 301]).await;
                accepted.done(&[302, 2]).await;
                generation
            })
        })
        .await;
        assert_eq!(generation.prompt_ids, [5, 6]);
        let mut stream = stream.expect("begun").into_inner();
        if in_pieces {
            for expected in [&[300, 301][..], &[302, 2]] {
                match message(&mut stream).await {
                    Response::Chunk(chunk) => assert_eq!(chunk.token_ids, expected),
                    Response::Complete(complete) => panic!("an end: {complete:?}"),
                }
            }
        }
        let end = end(&mut stream).await;
        let ids: &[u32] = if in_pieces { &[302, 2] } else { &[300, 301, 302, 2] };
        assert_eq!((end.output_ids.as_slice(), end.finish_reason.as_str()), (ids, "stop"));
        assert_eq!(end.prompt_tokens, 2);
    }
    attachment.report(|report| report.streams == 0).await;
}

#[tokio::test]
async fn an_abort_ends_the_request_of_its_name_and_frees_it_upstream() {
    let (stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let (mut first, upstream) = begun(&stage, &mut fake, request("first", &[5])).await;
    let (mut second, mut other) = begun(&stage, &mut fake, request("second", &[5])).await;
    attachment.report(|report| report.streams == 2).await;
    abort(&stage, "unknown").await;
    abort(&stage, "first").await;
    assert_eq!(end(&mut first).await.finish_reason, "abort");
    assert!(within(upstream.over).await.is_err(), "it was dropped");
    attachment.report(|report| report.streams == 1).await;
    other.tokens(&[301]).await;
    other.done(&[2]).await;
    assert_eq!(end(&mut second).await.finish_reason, "stop");
}

#[tokio::test]
async fn an_abort_ends_a_request_that_waits_for_its_first_token() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut engine = client(&stage);
    let (stream, (over,)) = within(async {
        tokio::join!(engine.generate(request("r", &[5])), async {
            let submission = fake.submission().await;
            abort(&stage, "r").await;
            // Not the receiver itself, which is a future.
            (submission.over,)
        })
    })
    .await;
    let end = end(&mut stream.expect("answered").into_inner()).await;
    assert_eq!((end.finish_reason.as_str(), end.output_ids.len()), ("abort", 0));
    assert!(within(over).await.is_err(), "it was dropped");
}

#[tokio::test]
async fn a_key_ends_none_of_another_ones_requests() {
    let (dir, keys) = (tempfile::tempdir().expect("a directory"), ["alice", "bob"]);
    let path = dir.path().join("keys");
    let secret = |name: &str| format!("pl_{name}_0123456789");
    let lines = keys.map(|name| KeyLine::of(name, &secret(name)).expect("fine").to_string());
    std::fs::write(&path, lines.join("\n")).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("ours");
    let (stage, mut fake, _attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    let mut engine = client(&stage);
    let keyed = |name: &str, message: vllm::AbortRequest| {
        let mut request = Request::new(message);
        let value = format!("Bearer {}", secret(name)).parse().expect("ASCII");
        request.metadata_mut().insert("authorization", value);
        request
    };
    let mut asked = Request::new(request("r", &[5]));
    let value = format!("Bearer {}", secret("alice")).parse().expect("ASCII");
    asked.metadata_mut().insert("authorization", value);
    let (stream, mut accepted) = within(async {
        tokio::join!(engine.generate(asked), async {
            let mut accepted = fake.submission().await.accept();
            accepted.tokens(&[300]).await;
            accepted
        })
    })
    .await;
    let mut stream = stream.expect("begun").into_inner();
    let order = || vllm::AbortRequest { request_ids: vec!["r".into()] };
    within(engine.abort(keyed("bob", order()))).await.expect("answered");
    accepted.tokens(&[301]).await;
    for expected in [[300], [301]] {
        match message(&mut stream).await {
            Response::Chunk(chunk) => assert_eq!(chunk.token_ids, expected),
            Response::Complete(end) => panic!("ended: {end:?}"),
        }
    }
    within(engine.abort(keyed("alice", order()))).await.expect("answered");
    assert_eq!(end(&mut stream).await.finish_reason, "abort");
}

#[tokio::test]
async fn a_service_that_drains_or_loads_is_not_healthy_and_finishes_what_runs() {
    let (stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    let mut engine = client(&stage);
    let health = async |engine: &mut VllmEngineClient<Channel>| {
        within(engine.health_check(vllm::HealthCheckRequest {}))
            .await
            .expect("answered")
            .into_inner()
    };
    assert!(health(&mut engine).await.healthy);
    let (mut stream, accepted) = begun(&stage, &mut fake, request("r", &[5])).await;
    attachment.service(ServiceState { can_serve: true, drafter_serves: false, ..ready() }).await;
    assert!(health(&mut engine).await.healthy, "a drafter that is gone costs no request");
    attachment.service(ServiceState { leaving: true, ..ready() }).await;
    within(async {
        while health(&mut engine).await.healthy {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(health(&mut engine).await.message.contains("drains"));
    attachment.drain().await;
    within(async {
        while !health(&mut engine).await.message.contains("stopping") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!health(&mut engine).await.healthy);
    let refused = within(engine.generate(request("s", &[5]))).await.expect_err("draining");
    is(&refused, Code::Unavailable, Reason::Draining);
    accepted.done(&[2]).await;
    assert_eq!(end(&mut stream).await.finish_reason, "stop");
}

#[tokio::test]
async fn the_archive_has_the_checkpoints_files_byte_for_byte() {
    let (stage, _fake, mut attachment) = Stage::serving(|_| {}).await;
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    let mut state = ready();
    state.model.as_mut().expect("served").path = demo.display().to_string();
    attachment.service(state).await;
    let mut engine = client(&stage);
    // Until the gateway has read the notice, the model has no directory.
    let begun = within(async {
        loop {
            match engine.get_tokenizer(GetTokenizerRequest {}).await {
                Ok(begun) => return begun,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    let mut stream = begun.await.into_inner();
    let (mut bytes, mut digest) = (Vec::new(), String::new());
    while let Some(piece) = within(stream.message()).await.expect("fine") {
        assert!(digest.is_empty(), "the last piece alone has it");
        bytes.extend_from_slice(&piece.data);
        digest = piece.sha256;
    }
    assert_eq!(digest, paceline_checkpoint::digest::hex(&Sha256::digest(&bytes)));
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).expect("an archive");
    let names: Vec<String> = (0..archive.len())
        .map(|at| archive.by_index(at).expect("there").name().expect("UTF-8").into_owned())
        .collect();
    for needed in ["tokenizer.json", "tokenizer_config.json", "config.json"] {
        assert!(names.iter().any(|name| name == needed), "{needed} in {names:?}");
    }
    for name in names {
        let mut content = Vec::new();
        archive.by_name(&name).expect("there").read_to_end(&mut content).expect("whole");
        assert!(content == std::fs::read(demo.join(&name)).expect("there"), "{name}");
    }
    let info = within(engine.get_model_info(vllm::GetModelInfoRequest {})).await;
    let info = info.expect("answered").into_inner();
    assert_eq!(
        (info.served_model_name.as_str(), info.model_type.as_str()),
        ("demo-target", "qwen3")
    );
    assert_eq!((info.architectures.len(), info.max_context_length), (1, 4096));
    assert_eq!((info.eos_token_ids, info.supports_vision), (vec![2], false));
}

#[tokio::test]
async fn an_image_stands_for_its_placeholder() {
    let (stage, mut fake, _attachment) = Stage::seeing(|_| {}).await;
    let url = |name: &str| {
        let data = base64::engine::general_purpose::STANDARD.encode(file(name));
        vllm::MediaRef { modality: 1, url: format!("data:image/png;base64,{data}") }
    };
    let with = |ids: &[u32], items| {
        let media_refs = Some(vllm::MediaRefs { items });
        vllm::GenerateRequest { media_refs, ..request("r", ids) }
    };
    let mut engine = client(&stage);
    let (stream, generation) = within(async {
        tokio::join!(engine.generate(with(&[5, PAD, 6], vec![url("up.png")])), async {
            let submission = fake.submission().await;
            let generation = submission.generation().clone();
            submission.accept().done(&[2]).await;
            generation
        })
    })
    .await;
    // 100 x 60 becomes 96 x 64: 3 x 2 rows.
    assert_eq!(generation.prompt_ids, [5, PAD, PAD, PAD, PAD, PAD, PAD, 6]);
    assert_eq!((generation.images.len(), generation.images[0].first), (1, 1));
    assert_eq!(end(&mut stream.expect("begun").into_inner()).await.prompt_tokens, 8);
    let fetched = vllm::MediaRef { modality: 1, url: "https://example.com/a.png".into() };
    for (asked, reason) in [
        (with(&[5], vec![url("up.png")]), Reason::InvalidArgument),
        (with(&[PAD, PAD], vec![url("up.png")]), Reason::InvalidArgument),
        (with(&[PAD], vec![fetched]), Reason::BadImage),
        (request("r", &[5, PAD]), Reason::InvalidArgument),
    ] {
        let refused = within(engine.generate(asked)).await.expect_err("refused");
        is(&refused, Code::InvalidArgument, reason);
    }
}

/// Messages as their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

/// A method of the service, with a message of any bytes.
async fn raw(stage: &Stage, method: &str, wire: Vec<u8>) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(stage.channel.clone());
    within(grpc.ready()).await.expect("connected");
    let path = format!("/vllm.grpc.engine.VllmEngine/{method}").parse().expect("a path");
    let response = within(grpc.server_streaming(Request::new(wire), path, BytesCodec)).await?;
    let mut stream: Streaming<Vec<u8>> = response.into_inner();
    within(stream.message()).await.map(|_| ())
}

#[tokio::test]
async fn hostile_messages_are_refused_and_cost_nothing() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let whole = request("r", &[5, 6, 7]).encode_to_vec();
    let cut = whole[..whole.len() - 1].to_vec();
    let mut unknown = whole.clone();
    prost::encoding::uint32::encode(77, &1, &mut unknown);
    let many = vllm::AbortRequest { request_ids: vec![String::new(); 5_000] }.encode_to_vec();
    let mut deep = Vec::new();
    prost::encoding::uint32::encode(9, &1, &mut deep);
    for (method, wire) in
        [("Generate", cut), ("Generate", unknown), ("Abort", many), ("GetLoads", deep)]
    {
        let refused = raw(&stage, method, wire).await.expect_err(method);
        is(&refused, Code::InvalidArgument, Reason::InvalidArgument);
    }
    for method in ["Embed", "FlushCache", "StartProfile", "StopProfile"] {
        let refused = raw(&stage, method, Vec::new()).await.expect_err(method);
        assert_eq!(refused.code(), Code::Unimplemented, "{method}");
    }
    let mut far = request("r", &[4096]);
    far.sampling_params = Some(vllm::SamplingParams { max_tokens: Some(8), ..Default::default() });
    let refused = within(client(&stage).generate(far)).await.expect_err("no such id");
    is(&refused, Code::InvalidArgument, Reason::InvalidArgument);
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn loads_are_answered_and_pushed() {
    let (stage, fake, _attachment) = Stage::serving(|_| {}).await;
    fake.operator.report(v1::StatusResponse {
        kv: Some(v1::KvStatus { budget_bytes: 1_000, pressure: 0.5, ..Default::default() }),
        requests: Some(v1::RequestsStatus { active: 3, queued: 9, ..Default::default() }),
        ..Default::default()
    });
    let mut engine = client(&stage);
    let loads = within(engine.get_loads(vllm::GetLoadsRequest::default())).await;
    let loads = loads.expect("answered").into_inner();
    assert_eq!((loads.dp_rank_count, loads.loads.len()), (1, 1));
    let load = &loads.loads[0];
    assert_eq!((load.num_running_reqs, load.num_waiting_reqs, load.token_usage), (3, 9, 0.5));
    let wrong = vllm::GetLoadsRequest { dp_rank: Some(1), ..Default::default() };
    let refused = within(engine.get_loads(wrong)).await.expect_err("one replica");
    is(&refused, Code::InvalidArgument, Reason::InvalidArgument);
    let ask =
        SubscribeKvEventsRequest { load_records_before_first_batch: true, ..Default::default() };
    let mut stream = within(engine.subscribe_kv_events(ask)).await.expect("begun").into_inner();
    let batch = within(stream.message()).await.expect("fine").expect("open");
    let load = batch.load.expect("a load");
    assert_eq!((batch.sequence_number, batch.events.len()), (0, 0));
    assert!(load.load_only);
    assert_eq!((load.running_requests, load.waiting_requests), (3, 9));
}

#[tokio::test]
async fn a_sixty_fifth_stream_of_loads_and_a_second_archive_of_a_client_are_refused() {
    let (stage, fake, mut attachment) = Stage::serving(|_| {}).await;
    fake.operator.report(v1::StatusResponse::default());
    let endpoint = format!("http://{}", stage.address);
    let endpoint = tonic::transport::Endpoint::from_shared(endpoint).expect("an address");
    let mut streams = Vec::new();
    let mut refused = Vec::new();
    // A client alone leaves some places. Clients of this machine are told apart by connection.
    for _ in 0..3 {
        let mut engine = VllmEngineClient::new(within(endpoint.connect()).await.expect("TCP"));
        let status = loop {
            match within(engine.subscribe_kv_events(SubscribeKvEventsRequest::default())).await {
                Ok(stream) => streams.push(stream),
                Err(status) => break status,
            }
        };
        is(&status, Code::ResourceExhausted, Reason::TooManyStreams);
        refused.push(status.message().to_owned());
    }
    assert_eq!(streams.len(), 64, "{refused:?}");
    assert!(refused[0].contains("there are 57 streams of loads of this client"), "{refused:?}");
    assert!(refused[2].contains("there are 64 streams of loads in all"), "{refused:?}");
    drop(streams.pop());
    let mut engine = VllmEngineClient::new(within(endpoint.connect()).await.expect("TCP"));
    within(async {
        // The gateway hears of the end a moment later.
        while engine.subscribe_kv_events(SubscribeKvEventsRequest::default()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let model = tempfile::tempdir().expect("a directory");
    crate::stage::exchange::write_model(model.path(), "qwen3.jinja");
    // More than the window of a client.
    std::fs::write(model.path().join("more.tiktoken"), vec![b'x'; 8 << 20]).expect("written");
    let mut state = ready();
    state.model.as_mut().expect("served").path = model.path().display().to_string();
    attachment.service(state).await;
    let unread = within(async {
        loop {
            match engine.get_tokenizer(GetTokenizerRequest {}).await {
                Ok(begun) => return begun,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let second = within(engine.get_tokenizer(GetTokenizerRequest {})).await.expect_err("one");
    is(&second, Code::ResourceExhausted, Reason::TooManyStreams);
    drop(unread);
}
