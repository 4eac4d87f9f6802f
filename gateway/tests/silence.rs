//! Streams over HTTP whose first token does not come for a while.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use futures::StreamExt as _;
use paceline_process::task;
use paceline_proto::status::{Reason, ReasonStatus as _};
use serde_json::json;
use tower::ServiceExt as _;

use crate::stage::exchange::Exchange;
use crate::stage::supervisor::Submission;
use crate::stage::within;

/// Short, so that a stream is silent for this time before the test lets its first token come.
const KEEP_ALIVE: Duration = Duration::from_millis(1);

/// A stream that got its headers before its first token.
struct Silent {
    submission: Submission,
    body: BodyDataStream,
}

async fn silent(stage: &mut Exchange) -> Silent {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true});
    let request = Request::post("/v1/chat/completions").header("content-type", "application/json");
    let request = request.body(Body::from(body.to_string())).expect("a request");
    let answering = task::spawn("request", stage.router.clone().oneshot(request));
    let response = within(answering).await.expect("no panic").expect("infallible");
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(response.headers().contains_key("x-request-id"));
    let mut body = response.into_body().into_data_stream();
    let first = within(body.next()).await.expect("not over").expect("no error");
    assert_eq!(first, ": keep-alive\n\n");
    // The headers may have come before the request was passed on. Reading the body goes on with it.
    let submission = loop {
        tokio::select! {
            submission = stage.fake.submission() => break submission,
            piece = within(body.next()) => {
                assert_eq!(piece.expect("not over").expect("no error"), ": keep-alive\n\n");
            }
        }
    };
    Silent { submission, body }
}

/// The rest of a body.
async fn rest(mut body: BodyDataStream) -> String {
    let mut text = String::new();
    while let Some(bytes) = within(body.next()).await {
        text += std::str::from_utf8(&bytes.expect("no error")).expect("UTF-8");
    }
    text
}

#[tokio::test]
async fn a_stream_without_a_token_gets_its_headers_and_keep_alives() {
    let mut stage = Exchange::keeping_alive(KEEP_ALIVE).await;
    let Silent { submission, body } = silent(&mut stage).await;
    let ids = stage.language.tokens.encode("Hello", false).expect("encodes");
    let _over = submission.accept().done(&ids).await;
    let text = rest(body).await;
    assert!(text.contains("\"content\":\"Hello\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test]
async fn an_error_after_the_headers_is_an_event() {
    let mut stage = Exchange::keeping_alive(KEEP_ALIVE).await;
    let Silent { submission, body } = silent(&mut stage).await;
    submission.refuse(Reason::CrashLoop.status("the target is gone"));
    let text = rest(body).await;
    assert!(text.contains("CRASH_LOOP") && !text.contains("[DONE]"), "{text}");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_ends_its_request() {
    let mut stage = Exchange::keeping_alive(KEEP_ALIVE).await;
    let Silent { submission, body } = silent(&mut stage).await;
    drop(body);
    within(submission.over).await.expect_err("the request is dropped");
}
