//! Who may come in, and how long one may stand in the door: keys on every method, TLS, silent
//! openers, readers who do not read, bounds of streams and connections.

use std::time::Duration;

use crate::keyring::{ALICE, BOB, Certified, certified, keys, of, private};
use crate::stage::methods::methods;
use crate::stage::{Stage, is, limited, text, within};
use paceline_process::keys::KeyLine;
use paceline_proto::internal::v1::TokenBatch;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::GenerateRequest;
use paceline_system::clock::monotonic_ns;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::codec::Streaming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_types::StatusExt as _;

fn with_key<T>(message: T, authorization: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", authorization.parse().expect("ASCII"));
    request
}

/// Sends a request with an empty message to a method.
async fn ask(channel: &Channel, method: &str, authorization: Option<&str>) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    within(grpc.ready()).await.expect("connected");
    let request = authorization.map_or_else(|| Request::new(()), |value| with_key((), value));
    let path = format!("/{method}").parse().expect("a path");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let response = within(grpc.server_streaming(request, path, codec)).await?;
    let mut stream: Streaming<()> = response.into_inner();
    within(stream.message()).await.map(|_| ())
}

#[tokio::test]
async fn every_method_needs_a_key_and_only_health_does_not() {
    let (_dir, path) = keys();
    let (stage, _fake, _attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    let methods = methods();
    for expected in [
        "paceline.v1.Inference/Generate",
        "paceline.v1.Inference/GetModel",
        "paceline.v1.Operations/Status",
        "vllm.grpc.engine.VllmEngine/Generate",
        "vllm.grpc.engine.VllmEngine/GetTokenizer",
    ] {
        assert!(methods.iter().any(|method| method == expected), "{expected}");
    }
    assert!(
        methods.iter().any(|method| method.starts_with("grpc.reflection.v1.ServerReflection/"))
    );
    let unknown = [
        "paceline.v1.Inference/Nothing".to_owned(),
        "no.Service/At".to_owned(),
        "grpc.health.v1.Healthy/Check".to_owned(),
    ];
    for method in methods.iter().chain(&unknown) {
        let outcome = ask(&stage.channel, method, None).await;
        if method.starts_with("grpc.health.v1.Health/") {
            outcome.expect("open");
            continue;
        }
        let status = outcome.expect_err(method);
        is(&status, Code::Unauthenticated, Reason::Unauthenticated);
        // What is refused does not say what was wrong, nor whether there is such a method.
        assert_eq!(
            status.message(),
            ask(&stage.channel, "paceline.v1.Inference/Chat", None)
                .await
                .expect_err("none")
                .message()
        );
        // This stream has nothing to send to a subscriber of before, and stays open.
        if method == "vllm.grpc.engine.VllmEngine/SubscribeKvEvents" {
            continue;
        }
        // With a key one gets further.
        let known = ask(&stage.channel, method, Some(&of(ALICE))).await;
        assert_ne!(known.map_err(|status| status.code()), Err(Code::Unauthenticated), "{method}");
    }
}

#[tokio::test]
async fn a_key_names_its_owner_and_a_wrong_key_gets_no_details() {
    let (_dir, path) = keys();
    let (mut stage, mut fake, _attachment) = Stage::serving(|config| {
        config.gateway.api_keys_file = path.display().to_string();
        config.classes.insert("alice".into(), "code".into());
    })
    .await;
    let mut seen = Vec::new();
    for key in [of(ALICE), format!("bearer {ALICE}"), of(BOB)] {
        let (refused, submission) = within(async {
            tokio::join!(stage.client.generate(with_key(text("Hi"), &key)), async {
                let submission = fake.submission().await;
                let generation = submission.generation().clone();
                submission.refuse(Reason::KvExhausted.status("full"));
                generation
            })
        })
        .await;
        is(&refused.expect_err("refused"), Code::ResourceExhausted, Reason::KvExhausted);
        seen.push((submission.traffic_class, submission.cache_scope));
    }
    assert_eq!((seen[0].0.as_str(), seen[2].0.as_str()), ("code", "default"));
    assert!(
        seen[0] == seen[1] && seen[0].1 != seen[2].1 && !seen[0].1.is_empty(),
        "prefixes are never shared between keys"
    );

    let mut refused = Vec::new();
    for wrong in [
        String::new(),
        ALICE.to_owned(),
        of(""),
        of("wrong"),
        format!("Basic {ALICE}"),
        of(&format!("{ALICE}x")),
        of(&BOB[1..]),
    ] {
        refused.push(
            within(stage.client.generate(with_key(text("Hi"), &wrong))).await.expect_err("wrong"),
        );
    }
    let mut twice = with_key(text("Hi"), &of(ALICE));
    twice.metadata_mut().append("authorization", of(BOB).parse().expect("ASCII"));
    refused.push(within(stage.client.generate(twice)).await.expect_err("two"));
    for status in &refused {
        is(status, Code::Unauthenticated, Reason::Unauthenticated);
        assert_eq!(
            (status.message(), status.details()),
            (refused[0].message(), refused[0].details()),
            "no detail about why"
        );
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn wrong_keys_wait_and_right_ones_do_not() {
    let (_dir, path) = keys();
    let (stage, _fake, _attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    // Twelve at once: five are answered, the others one by one, the last after 1.4 s.
    let begun = monotonic_ns();
    let wrong = (0..12).map(|_| ask(&stage.channel, "paceline.v1.Inference/GetModel", None));
    let (outcomes, right) = tokio::join!(futures::future::join_all(wrong), async {
        let outcome = ask(&stage.channel, "no.Service/At", Some(&of(ALICE))).await;
        (outcome, monotonic_ns())
    });
    let waited_ms = (monotonic_ns() - begun) / 1_000_000;
    assert!(outcomes.iter().all(|outcome| {
        outcome.as_ref().is_err_and(|status| status.code() == Code::Unauthenticated)
    }));
    assert!(waited_ms >= 1_300, "{waited_ms} ms");
    assert_eq!(right.0.expect_err("no such method").code(), Code::Unimplemented);
    assert!((right.1 - begun) / 1_000_000 < waited_ms, "a right key went first");
}

#[tokio::test]
async fn a_changed_file_of_keys_counts_without_a_restart() {
    let (dir, path) = keys();
    let (stage, _fake, _attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    let code = async |key: &str| {
        ask(&stage.channel, "no.Service/At", Some(&of(key)))
            .await
            .expect_err("no such method")
            .code()
    };
    assert_eq!(code(ALICE).await, Code::Unimplemented);
    let fresh = dir.path().join("fresh");
    let carol = "pl_carol_0123456789";
    private(&fresh, &KeyLine::of("carol", carol).expect("fine").to_string());
    std::fs::rename(fresh, path).expect("renamed");
    within(async {
        while code(carol).await != Code::Unimplemented {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    })
    .await;
    assert_eq!(code(ALICE).await, Code::Unauthenticated);
}

#[tokio::test]
async fn a_key_with_a_full_queue_is_refused_by_the_supervisor_and_no_other_key_with_it() {
    let (_dir, path) = keys();
    let (stage, mut fake, _attachment) = Stage::serving(|config| {
        config.gateway.api_keys_file = path.display().to_string();
        config.limits.streams_per_key = 1;
    })
    .await;
    let mut clients = [(); 3].map(|()| stage.client.clone());
    let [first, second, third] = &mut clients;
    // More than run of one key at once come to the supervisor, which has them wait. It knows whose
    // they are.
    let (one, two, hers) = within(async {
        let both = async {
            let both = [fake.submission().await, fake.submission().await];
            let numbers = both.each_ref().map(|submission| submission.request.key_id);
            both.into_iter().for_each(|submission| {
                submission.refuse(Reason::QueueFull.status("128 requests wait"))
            });
            numbers
        };
        tokio::join!(
            first.generate(with_key(text("Hi"), &of(ALICE))),
            second.generate(with_key(text("Hi"), &of(ALICE))),
            both
        )
    })
    .await;
    for refused in [one, two] {
        is(
            &refused.expect_err("refused by the supervisor"),
            Code::ResourceExhausted,
            Reason::QueueFull,
        );
    }
    assert!(hers[0] == hers[1] && hers[0] != 0, "{hers:?}");
    // The queue was full for alice a moment ago, and nothing has moved. Bob's request is not held
    // against that.
    let (refused, his) = within(async {
        tokio::join!(third.generate(with_key(text("Hi"), &of(BOB))), async {
            let submission = fake.submission().await;
            let number = submission.request.key_id;
            submission.refuse(Reason::KvExhausted.status("too long"));
            number
        })
    })
    .await;
    is(
        &refused.expect_err("refused by the supervisor"),
        Code::ResourceExhausted,
        Reason::KvExhausted,
    );
    assert!(his != hers[0] && his != 0, "{his}");
}

#[tokio::test]
async fn reflection_describes_the_public_contract_only() {
    let (_dir, path) = keys();
    let (stage, _fake, _attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    let ask = async |question: MessageRequest| -> Result<MessageResponse, Status> {
        let request =
            ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        let mut client = ServerReflectionClient::new(stage.channel.clone());
        let response = client
            .server_reflection_info(with_key(futures::stream::iter([request]), &of(ALICE)))
            .await
            .expect("open");
        let answer: Option<ServerReflectionResponse> =
            within(response.into_inner().message()).await?;
        Ok(answer.and_then(|answer| answer.message_response).expect("an answer"))
    };
    let Ok(MessageResponse::ListServicesResponse(list)) =
        ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list");
    };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "paceline.v1.Inference",
            "vllm.grpc.engine.VllmEngine"
        ]
    );
    let symbol = |name: &str| MessageRequest::FileContainingSymbol(name.into());
    assert!(matches!(
        ask(symbol("paceline.v1.Inference.Chat")).await,
        Ok(MessageResponse::FileDescriptorResponse(_))
    ));
    for hidden in ["paceline.internal.v1.Supervisor", "paceline.v1.Operations"] {
        assert_eq!(ask(symbol(hidden)).await.expect_err(hidden).code(), Code::NotFound);
    }
}

/// Opens a connection of this version of TLS and checks that HTTP/2 is agreed on.
async fn accepts(
    address: std::net::SocketAddr,
    authority: &str,
    version: &'static rustls::SupportedProtocolVersion,
) {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM");
    roots.add(root).expect("a root");
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("known");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = TcpStream::connect(address).await.expect("connects");
    let name = "localhost".try_into().expect("a name");
    let stream = within(connector.connect(name, stream)).await.expect("a handshake");
    let (_, session) = stream.get_ref();
    assert_eq!(
        (session.protocol_version(), session.alpn_protocol()),
        (Some(version.version), Some(&b"h2"[..]))
    );
}

/// A record with a hello of TLS 1.1 (RFC 4346).
fn hello_of_tls_1_1() -> Vec<u8> {
    let mut hello = vec![3, 2];
    hello.extend([7; 32]); // random
    // No session; ECDHE-RSA-AES128-SHA, RSA-AES128-SHA; no compression.
    hello.extend([0, 0, 4, 0xc0, 0x13, 0, 0x2f, 1, 0]);
    let mut record = vec![22, 3, 1, 0, (hello.len() + 4) as u8, 1, 0, 0, hello.len() as u8];
    record.extend(hello);
    record
}

#[tokio::test]
async fn only_tls_1_2_and_1_3_are_accepted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Certified { authority, cert_file, key_file } = certified(dir.path());
    let other = tempfile::tempdir().expect("a temporary directory");
    let stranger = certified(other.path()).authority;
    let mut stage = Stage::new(|config| {
        (config.gateway.tls_cert, config.gateway.tls_key) = (cert_file, key_file)
    });
    let (mut fake, _attachment) = stage.attach(1).await;
    let endpoint =
        || Endpoint::from_shared(format!("https://{}", stage.address)).expect("an address");
    let trusting = |pem: &str| {
        endpoint()
            .tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)))
            .expect("fine")
    };
    let mut client = paceline_proto::v1::inference_client::InferenceClient::new(
        within(trusting(&authority).connect()).await.expect("TLS"),
    );
    let (refused, ()) = within(async {
        tokio::join!(client.generate(text("Hi")), async {
            fake.submission().await.refuse(Reason::QueueFull.status("upstream"))
        })
    })
    .await;
    is(&refused.expect_err("refused upstream"), Code::ResourceExhausted, Reason::QueueFull);
    assert!(within(trusting(&stranger).connect()).await.is_err(), "another authority");
    // Without TLS: closed without an answer.
    let status = within(stage.client.generate(text("Hi"))).await.expect_err("plain");
    assert!(
        std::error::Error::source(&status).is_some() && Reason::of(&status).is_none(),
        "{status:?}"
    );
    // TLS 1.2 and 1.3 are accepted, with HTTP/2 agreed on.
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        accepts(stage.address, &authority, version).await;
    }
    let record = hello_of_tls_1_1();
    // It is answered with an alert and closed.
    let mut stream = TcpStream::connect(stage.address).await.expect("connects");
    stream.write_all(&record).await.expect("written");
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.expect("closed in order");
    // Fatal, and nothing but the alert: handshake_failure (40, its hello lacks what 1.2 must have)
    // or protocol_version (70).
    assert!(matches!(answer[..], [21, 3, _, 0, 2, 2, 40 | 70]), "{answer:?}");
    // One that begins a handshake and does not go on.
    let mut silent = TcpStream::connect(stage.address).await.expect("connects");
    silent.write_all(&record[..5]).await.expect("written");
    let begun = monotonic_ns();
    let _ = within(silent.read_to_end(&mut Vec::new())).await;
    assert!(monotonic_ns() - begun < 5_000_000_000 * 2, "closed, in 3 s but for a busy machine");
}

#[tokio::test]
async fn silent_connections_are_closed_and_keep_no_client_out() {
    let (mut stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let mut silent = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(stage.address).await.expect("connects");
        if n % 2 == 0 {
            stream.write_all(&b"PRI * HTTP/2.0\r\n"[..n % 16]).await.expect("written");
        }
        silent.push(stream);
    }
    // A newcomer is served at once.
    let channel = within(
        Endpoint::from_shared(format!("http://{}", stage.address)).expect("an address").connect(),
    )
    .await
    .expect("connects");
    stage.health = tonic_health::pb::health_client::HealthClient::new(channel);
    assert!(stage.health_now("").await);
    for mut stream in silent {
        let _ = within(stream.read_to_end(&mut Vec::new())).await;
    }
}

/// A request whose answer is long.
fn long() -> GenerateRequest {
    limited(text("Hi"), 4_000)
}

#[tokio::test]
async fn a_reader_that_stops_is_cut_and_gets_the_reason_when_it_returns() {
    let (stage, mut fake, _attachment) = Stage::serving(|config| config.limits.unread_s = 1).await;
    // Its own connection with the smallest window: full after a few messages.
    let endpoint = Endpoint::from_shared(format!("http://{}", stage.address)).expect("an address");
    let endpoint =
        endpoint.initial_stream_window_size(65_535).initial_connection_window_size(16 * 65_535);
    let channel = within(endpoint.connect()).await.expect("connects");
    let mut client = paceline_proto::v1::inference_client::InferenceClient::new(channel);
    let (response, accepted) = within(async {
        tokio::join!(client.generate(long()), async {
            let mut accepted = fake.submission().await.accept();
            accepted.tokens(&[300]).await;
            accepted
        })
    })
    .await;
    let mut unread = response.expect("begun").into_inner();
    // Tokens until the stream is cut: each message is of a bounded size, and none is kept here.
    let flood = async {
        let mut at = 1;
        loop {
            let batch = TokenBatch { first_index: at, ids: vec![300], ..Default::default() };
            if accepted.batches.send(Ok(batch)).await.is_err() {
                break at;
            }
            at += 1;
        }
    };
    let sent: u32 = within(flood).await;
    let mut got = 0;
    let status = loop {
        match within(unread.message()).await {
            Ok(Some(message)) => got += message.token_ids.len() as u32,
            Ok(None) => panic!("it ended well"),
            Err(status) => break status,
        }
    };
    is(&status, Code::ResourceExhausted, Reason::SlowReader);
    assert!(
        got < sent && status.message().contains("limits.unread_s"),
        "{got} of {sent}: {status:?}"
    );
    assert!(
        status.get_details_retry_info().is_none() && status.get_details_quota_failure().is_some()
    );
    assert!(status.metadata().contains_key("paceline-request-id"));
}

#[tokio::test]
async fn a_reader_that_waits_for_a_slow_answer_is_not_cut() {
    let (mut stage, mut fake, _attachment) =
        Stage::serving(|config| config.limits.unread_s = 1).await;
    let (response, mut accepted) = within(async {
        tokio::join!(stage.client.generate(long()), async {
            let mut accepted = fake.submission().await.accept();
            accepted.tokens(&[300]).await;
            accepted
        })
    })
    .await;
    let mut stream = response.expect("begun").into_inner();
    within(stream.message()).await.expect("fine").expect("tokens");
    // Longer than the bound on reading: it is the model that is slow.
    assert!(
        tokio::time::timeout(Duration::from_millis(2_500), stream.message()).await.is_err(),
        "nothing comes"
    );
    accepted.tokens(&[301]).await;
    accepted.done(&[2]).await;
    while within(stream.message()).await.expect("fine").is_some() {}
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn a_peer_that_fell_silent_is_cancelled() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut peer = TcpStream::connect(stage.address).await.expect("connects");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/paceline.v1.Inference/Generate"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let word = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let headers: Vec<u8> = fields
        .iter()
        .flat_map(|(name, value)| [vec![0], word(name), word(value)].concat())
        .collect();
    let message = text("Hi").encode_to_vec();
    let message = [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat();
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &*frame(4, 0, 0, &[]),
        &frame(4, 1, 0, &[]),
        &frame(1, 4, 1, &headers),
        &frame(0, 1, 1, &message),
    ];
    peer.write_all(&request.concat()).await.expect("written");
    let submission = fake.submission().await;
    let begun = monotonic_ns();
    // It keeps the connection and answers no ping: 10 s until one is sent, 5 s for its answer.
    assert!(within(submission.over).await.is_err(), "the submission was dropped");
    let seconds = (monotonic_ns() - begun) / 1_000_000_000;
    assert!((14..25).contains(&seconds), "{seconds} s");
}
