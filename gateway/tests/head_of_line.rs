//! One answer that is not read, or one body that waits, does not delay another request on the same
//! connection. Counted in bytes of windows, not in seconds.

use crate::stage::http::{COMPLETIONS, HttpClient, completion};
use crate::stage::raw::{GENERATE, begin, raw, status};
use crate::stage::{Stage, limited, text, within};
use bytes::Bytes;
use http::StatusCode;
use paceline_process::socket::{STREAM_WINDOW, connection_window};
use paceline_process::task;
use paceline_proto::internal::v1::{Done, TokenBatch};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{FinishReason, GenerateRequest, TokenLogprobs, TopLogprob};
use tonic::Code;
use tonic::transport::Endpoint;

/// A batch of an answer with the log-probabilities of 20 tokens at each place: about 4 KiB.
fn batch(first_index: u32) -> TokenBatch {
    let top =
        (0..20).map(|token_id| TopLogprob { token_id: 2_000 + token_id, logprob: -1.5 }).collect();
    let logprobs = vec![TokenLogprobs { logprob: -0.5, top }; 16];
    TokenBatch { first_index, ids: vec![300; 16], logprobs, ..Default::default() }
}

#[tokio::test]
async fn an_answer_that_is_not_read_does_not_delay_another_on_its_connections() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    // The windows of `paceline`. From the gateway on both answers have one connection anyway.
    let endpoint = Endpoint::from_shared(format!("http://{}", stage.address)).expect("an address");
    let endpoint = endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(128));
    let channel = within(endpoint.connect()).await.expect("connects");
    let mut client = InferenceClient::new(channel);
    let request = GenerateRequest { logprobs: Some(20), ..limited(text("Hi"), 4_000) };
    let mut first = client.clone();
    let (unread, mut accepted) = within(async {
        tokio::join!(first.generate(request), async {
            let mut accepted = fake.submission().await.accept();
            accepted.send(batch(0)).await;
            accepted
        })
    })
    .await;
    // Offered until each window and buffer on its way is full: the fake's channel takes no more.
    let batches = accepted.batches.clone();
    let flood = task::spawn("flood", async move {
        let mut at = 16;
        while batches.send(Ok(batch(at))).await.is_ok() {
            at += 16;
        }
    });
    within(async {
        while accepted.batches.capacity() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The other one comes whole, however long it is.
    let request = GenerateRequest { logprobs: Some(20), ..limited(text("Hi"), 4_000) };
    let reading = async {
        let mut answer = client.generate(request).await.expect("begun").into_inner();
        let mut count = 0;
        while let Some(message) = answer.message().await.expect("fine") {
            count += message.token_ids.len();
        }
        count
    };
    let answering = async {
        let mut other = fake.submission().await.accept();
        for at in 0..200 {
            other.send(batch(at * 16)).await;
        }
        let done = Done { finish_reason: FinishReason::Stop as i32, ..Default::default() };
        let end = TokenBatch { first_index: 200 * 16, done: Some(done), ..batch(0) };
        other.send(end).await;
        Some(other.over)
    };
    let (count, _over) = within(async { tokio::join!(reading, answering) }).await;
    assert_eq!(count, 201 * 16);
    assert!(!flood.is_finished(), "the first one stands still");
    accepted.over.try_recv().expect_err("its request is open");
    drop(unread);
}

#[tokio::test]
async fn a_body_that_waits_for_room_does_not_delay_another_on_its_connection() {
    let (stage, mut fake, _attachment) = Stage::serving(|config| {
        config.limits.body_bytes = 16 << 20;
        config.limits.max_message_bytes = 4 << 20;
    })
    .await;
    let peer = raw(stage.address).await;
    let length = 3_u32 << 20;
    let prefix = [&[0][..], &length.to_be_bytes()].concat();
    // The first one holds the share of this connection, and sixteen others wait: each fills the
    // window of its stream.
    let mut held = vec![];
    for at in 0..17 {
        let (answer, mut message) = begin(&peer, GENERATE, &prefix).await;
        if at > 0 {
            message.send_data(Bytes::from(vec![0; 1 << 20]), false).expect("queued");
        }
        held.push((answer, message));
    }
    // One more on the same connection.
    let message = prost::Message::encode_to_vec(&text("Hi"));
    let wire = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let asking = async {
        let (answer, mut message) = begin(&peer, GENERATE, &wire).await;
        message.send_data(Bytes::new(), true).expect("open");
        status(answer).await
    };
    let answering = async {
        let _over = fake.submission().await.accept().done(&[300, 2]).await;
    };
    let (ended, ()) = within(async { tokio::join!(asking, answering) }).await;
    assert_eq!(ended.code(), Code::Ok, "{ended:?}");
    drop(held);
    // Over HTTP/2 with JSON as well.
    let client = HttpClient::http2(stage.http);
    let body = completion();
    let (reply, ()) = within(async {
        tokio::join!(client.post(COMPLETIONS, &body), async {
            let _over = fake.submission().await.accept().done(&[300, 2]).await;
        })
    })
    .await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
}
