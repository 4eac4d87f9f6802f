//! More connections, requests and unread answers than there is room for: a newcomer and a reader
//! are served beside them.

use std::time::Duration;

use crate::stage::raw::{GENERATE, begin, raw, status};
use crate::stage::supervisor::{Accepted, Fake};
use crate::stage::{Stage, is, limited, text, within};
use futures::FutureExt as _;
use futures::future::{join_all, select_all};
use paceline_process::Config;
use paceline_process::task;
use paceline_proto::internal::v1::TokenBatch;
use paceline_proto::status::Reason;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, GenerateResponse, TokenLogprobs, TopLogprob};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

/// Asks on this channel and reads the whole answer, which the fake supervisor gives.
async fn asked(channel: Channel, fake: &mut Fake) -> Result<Vec<u32>, Status> {
    let mut client = InferenceClient::new(channel);
    let reading = async {
        let mut answer = client.generate(text("Hi")).await?.into_inner();
        let mut ids = vec![];
        while let Some(message) = answer.message().await? {
            ids.extend(message.token_ids);
        }
        Ok(ids)
    };
    let answering = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(&[300, 301]).await;
        let _over = accepted.done(&[2]).await;
    };
    let mut reading = std::pin::pin!(reading);
    within(async {
        tokio::select! {
            // Before it is answered only a refusal can end it.
            refused = &mut reading => refused,
            () = answering => reading.await,
        }
    })
    .await
}

#[tokio::test]
async fn a_newcomer_is_served_beside_256_requests_whose_message_never_arrives() {
    // The gateway takes 256 requests then: 160 on their way, 33 that run, 56 that wait, and an
    // eighth more of those.
    let settings =
        |config: &mut Config| (config.target.max_sequences, config.limits.queue) = (33, 56);
    let (stage, mut fake, mut attachment) = Stage::serving(settings).await;
    let peers = [raw(stage.address).await, raw(stage.address).await];
    let mut requests = vec![];
    for at in 0..256 {
        // Some have begun their message.
        requests.push(
            begin(&peers[at / 128], GENERATE, if at % 2 == 0 { b"" } else { &[0, 0, 0] }).await,
        );
    }
    attachment.report(|report| report.streams == 256).await;
    assert_eq!(asked(stage.channel.clone(), &mut fake).await.expect("served"), [300, 301, 2]);
    // One of the oldest made room, and its status has the reason.
    let (answers, messages): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
    let (ended, _, others) =
        within(select_all(answers.into_iter().map(|answer| status(answer).boxed()))).await;
    is(&ended, Code::ResourceExhausted, Reason::QueueFull);
    assert!(
        ended.get_details_retry_info().is_some() && ended.message().contains("had not arrived"),
        "{ended:?}"
    );
    attachment.report(|report| report.streams == 255).await;
    drop((others, messages, peers));
    attachment.report(|report| report.streams == 0).await;
}

#[tokio::test]
async fn a_request_to_any_service_ends_when_its_message_does_not_arrive_in_time() {
    let (stage, _fake, mut attachment) = Stage::serving(|config| config.limits.message_s = 1).await;
    let peer = raw(stage.address).await;
    let methods = [
        GENERATE,
        "paceline.v1.Inference/Chat",
        "paceline.v1.Inference/CountTokens",
        "paceline.v1.Inference/GetModel",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
    ];
    let mut requests = vec![];
    for method in methods {
        for bytes in [&b""[..], &[0, 0], &[0, 0, 0, 0, 9, 1]] {
            requests.push(begin(&peer, method, bytes).await);
        }
    }
    // A whole message of a request that announces more.
    requests.push(begin(&peer, "grpc.health.v1.Health/Check", &[0; 5]).await);
    attachment.report(|report| report.streams == 12).await;
    let (answers, messages): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
    for ended in join_all(answers.into_iter().map(status)).await {
        is(&ended, Code::DeadlineExceeded, Reason::MessageTimeout);
        assert!(
            ended.message().contains("limits.message_s")
                && ended.get_details_retry_info().is_none(),
            "{ended:?}"
        );
    }
    attachment.report(|report| report.streams == 0).await;
    // Reflection answers as it reads; the end of what it reads is the end of the request.
    let (answer, _message) =
        begin(&peer, "grpc.reflection.v1.ServerReflection/ServerReflectionInfo", b"").await;
    assert_eq!(status(answer).await.code(), Code::Ok);
    drop(messages);
}

fn endpoint(stage: &Stage) -> Endpoint {
    Endpoint::from_shared(format!("http://{}", stage.address)).expect("an address")
}

/// A connection of its own with an answered request.
async fn connect(stage: &Stage) -> Result<HealthClient<Channel>, Status> {
    let mut client =
        HealthClient::new(within(endpoint(stage).connect()).await.expect("TCP connects"));
    within(client.check(HealthCheckRequest::default())).await.map(|_| client)
}

#[tokio::test]
async fn idle_connections_make_room_and_those_with_open_requests_do_not() {
    let (mut stage, _fake, _attachment) =
        Stage::serving(|config| config.limits.connections = 16).await;
    let mut idle = vec![];
    for _ in 0..40 {
        idle.push(raw(stage.address).await);
    }
    let mut held = vec![];
    for _ in 0..15 {
        let mut client = connect(&stage).await.expect("a newcomer is served");
        let watch = within(client.watch(HealthCheckRequest::default())).await.expect("open");
        held.push((client, watch));
    }
    assert!(stage.health_now("").await, "the first is undisturbed");
    let watch = stage.watch("").await;
    assert!(connect(&stage).await.is_err(), "all have open requests");
    // The places of requests that end come back.
    drop(held.pop());
    within(async { while connect(&stage).await.is_err() {} }).await;
    drop((watch, idle));
    assert!(stage.health_now("").await, "the first is undisturbed");
}

/// A batch of an answer with the log-probabilities of 20 tokens at each place: about 4 KiB.
fn batch(first_index: u32) -> TokenBatch {
    let top =
        (0..20).map(|token_id| TopLogprob { token_id: 2_000 + token_id, logprob: -1.5 }).collect();
    let logprobs = vec![TokenLogprobs { logprob: -0.5, top }; 16];
    TokenBatch { first_index, ids: vec![300; 16], logprobs, ..Default::default() }
}

/// An answer that is begun on this channel, then offered until every buffer on its way is full, and
/// not read.
async fn unread(channel: &Channel, fake: &mut Fake) -> (Streaming<GenerateResponse>, Accepted) {
    let mut client = InferenceClient::new(channel.clone());
    let request = GenerateRequest { logprobs: Some(20), ..limited(text("Hi"), 4_000) };
    let (answer, accepted) = within(async {
        tokio::join!(client.generate(request), async {
            let mut accepted = fake.submission().await.accept();
            accepted.send(batch(0)).await;
            accepted
        })
    })
    .await;
    let batches = accepted.batches.clone();
    task::spawn("flood", async move {
        let mut at = 16;
        while batches.send(Ok(batch(at))).await.is_ok() {
            at += 16;
        }
    });
    (answer.expect("begun").into_inner(), accepted)
}

#[tokio::test]
async fn twenty_four_unread_streams_do_not_stop_a_reader() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    // The windows of a client that keeps its own streams apart.
    let channel = endpoint(&stage)
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(64 * 65_535);
    let channel = within(channel.connect()).await.expect("connects");
    let mut held = vec![];
    for _ in 0..24 {
        held.push(unread(&channel, &mut fake).await);
    }
    // Full down to the supervisor: nothing more is taken of any of them.
    within(async {
        while held.iter().any(|(_, accepted)| accepted.batches.capacity() > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    for (whose, reader) in
        [("another connection", stage.channel.clone()), ("the same connection", channel)]
    {
        assert_eq!(asked(reader, &mut fake).await.expect(whose), [300, 301, 2], "{whose}");
    }
}
