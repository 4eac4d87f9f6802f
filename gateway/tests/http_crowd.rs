//! More connections, requests and unfinished bodies over HTTP than there is room for: a newcomer is
//! served beside them, and all bounds are those of gRPC too. Twins of `crowd`.

use std::time::Duration;

use crate::stage::http::{CHAT, COMPLETIONS, HttpClient, RawHttp, Reply, completion, streamed};
use crate::stage::supervisor::Fake;
use crate::stage::{Stage, text, within};
use http::StatusCode;
use paceline_process::Config;

/// Asks and reads the whole answer, which the fake supervisor gives.
async fn asked(client: &HttpClient, fake: &mut Fake) -> Reply {
    let body = completion();
    let mut reading = std::pin::pin!(client.post(COMPLETIONS, &body));
    let answering = async {
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(&[300, 301]).await;
        let _over = accepted.done(&[2]).await;
    };
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
async fn a_newcomer_is_served_beside_256_requests_whose_body_never_arrives() {
    // The gateway takes 256 requests then: 160 on their way, 33 that run, 56 that wait, and an
    // eighth more of those.
    let settings =
        |config: &mut Config| (config.target.max_sequences, config.limits.queue) = (33, 56);
    let (stage, mut fake, mut attachment) = Stage::serving(settings).await;
    let mut requests = vec![];
    for at in 0..256 {
        let mut request = RawHttp::connect(stage.http).await;
        request.head(COMPLETIONS, 100).await;
        // Some have begun their body.
        if at % 2 == 0 {
            request.write("{\"model\"").await;
        }
        requests.push(request);
        // In this order: the oldest makes room.
        attachment.report(|report| report.streams == at + 1).await;
    }
    let reply = asked(&HttpClient::new(stage.http), &mut fake).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    // The oldest made room, and its answer has the reason.
    let ended = requests[0].read_until("}}").await;
    assert!(ended.starts_with("HTTP/1.1 429") && ended.contains("had not arrived"), "{ended}");
    assert!(ended.contains("retry-after:"), "{ended}");
    // Requests of gRPC have the same places.
    let (refused, ()) = within(async {
        let mut client = stage.client.clone();
        tokio::join!(async move { client.generate(text("Hi")).await }, async {
            fake.submission().await.accept().done(&[2]).await;
        })
    })
    .await;
    refused.expect("another one made room");
    drop(requests);
    attachment.report(|report| report.streams == 0).await;
}

#[tokio::test]
async fn a_request_ends_when_its_body_does_not_arrive_in_time() {
    let (stage, _fake, mut attachment) = Stage::serving(|config| config.limits.message_s = 1).await;
    let mut requests = vec![];
    for path in [COMPLETIONS, CHAT, "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"] {
        for bytes in ["", "{", "{\"model\": \"m\""] {
            let mut request = RawHttp::connect(stage.http).await;
            request.head(path, 100).await;
            request.write(bytes).await;
            requests.push(request);
        }
    }
    attachment.report(|report| report.streams == 15).await;
    for mut request in requests {
        let ended = request.read().await;
        assert!(ended.starts_with("HTTP/1.1 408"), "{ended}");
        assert!(ended.contains("limits.message_s") && !ended.contains("retry-after"), "{ended}");
    }
    attachment.report(|report| report.streams == 0).await;
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_with_its_answer_even_while_it_is_sent() {
    let (stage, fake, _attachment) =
        Stage::serving(|config| config.limits.max_message_bytes = 100_000).await;
    let client = HttpClient::new(stage.http);
    let fits = format!("{{\"model\": \"{}\"}}", "m".repeat(99_000));
    assert_eq!(client.send("POST", COMPLETIONS, fits).await.status, StatusCode::BAD_REQUEST);
    // Announced, and in chunks.
    let mut announced = RawHttp::connect(stage.http).await;
    announced.head(COMPLETIONS, 8 << 20).await;
    let mut chunked = RawHttp::connect(stage.http).await;
    let head = "host: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    chunked.write(format!("POST {COMPLETIONS} HTTP/1.1\r\n{head}")).await;
    let (piece, chunk) = ("x".repeat(1 << 20), format!("100000\r\n{}\r\n", "x".repeat(1 << 20)));
    for _ in 0..8 {
        announced.write(&piece).await;
        chunked.write(&chunk).await;
    }
    chunked.write("0\r\n\r\n").await;
    for mut refused in [announced, chunked] {
        let answer = refused.read_until("}}").await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("at most 100000 bytes"), "{answer}");
        // The rest was read: the connection serves on.
        refused.write("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(refused.read_until("}").await.starts_with("HTTP/1.1 200"));
    }
    drop(fake);
}

#[tokio::test]
async fn connections_of_both_protocols_share_one_bound_and_idle_ones_make_room() {
    let (mut stage, mut fake, _attachment) =
        Stage::serving(|config| config.limits.connections = 8).await;
    // Idle connections with an answered request.
    let mut idle = vec![];
    for _ in 0..20 {
        let mut one = RawHttp::connect(stage.http).await;
        one.write("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(one.read_until("}").await.starts_with("HTTP/1.1 200"), "a newcomer is served");
        idle.push(one);
    }
    assert!(stage.health_now("").await, "a newcomer of gRPC is served");
    assert_eq!(idle[0].read().await, "", "the longest idle one is closed");
    // Seven of HTTP with an open request, and one of gRPC.
    let watch = stage.watch("").await;
    let mut held = vec![];
    for _ in 0..7 {
        let mut one = RawHttp::connect(stage.http).await;
        let body = streamed().to_string();
        one.head(COMPLETIONS, body.len()).await;
        one.write(body).await;
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(&[300]).await;
        one.read_until("\n\n").await;
        held.push((one, accepted));
    }
    let mut newcomer = RawHttp::connect(stage.http).await;
    // The gateway may close before it is written.
    let request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let _ = tokio::io::AsyncWriteExt::write_all(&mut newcomer.0, request).await;
    assert_eq!(newcomer.read().await, "", "all have open requests");
    // The places of requests that end come back.
    drop(held.pop());
    within(async {
        loop {
            let mut one = RawHttp::connect(stage.http).await;
            let request = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut one.0, request).await;
            if one.read().await.starts_with("HTTP/1.1 200") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    drop((watch, idle));
}

#[tokio::test]
async fn twenty_four_unread_streams_do_not_stop_a_reader() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut held = vec![];
    for _ in 0..24 {
        let mut one = RawHttp::connect(stage.http).await;
        let body = streamed().to_string();
        one.head(COMPLETIONS, body.len()).await;
        one.write(body).await;
        let mut accepted = fake.submission().await.accept();
        accepted.tokens(&[300]).await;
        let batches = accepted.batches.clone();
        paceline_process::task::spawn("flood", async move {
            let mut first_index = 1;
            let batch = |first_index| paceline_proto::internal::v1::TokenBatch {
                first_index,
                ids: vec![300; 16],
                ..Default::default()
            };
            while batches.send(Ok(batch(first_index))).await.is_ok() {
                first_index += 16;
            }
        });
        held.push((one, accepted));
    }
    // Full down to the supervisor: nothing more is taken of any of them.
    within(async {
        while held.iter().any(|(_, accepted)| accepted.batches.capacity() > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let reply = asked(&HttpClient::new(stage.http), &mut fake).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
}
