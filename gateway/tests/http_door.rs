//! The bounds of HTTP connections, as in `door` for gRPC: keys on every path, TLS, connections that
//! send nothing, clients that do not read, bodies that do not arrive.

use std::time::Duration;

use crate::keyring::{ALICE, BOB, Certified, certified, keys, of, private, tls};
use crate::stage::http::{COMPLETIONS, Events, HttpClient, RawHttp, Reply, completion, streamed};
use crate::stage::supervisor::{Accepted, Attachment, Fake};
use crate::stage::{Stage, within};
use http::StatusCode;
use paceline_process::keys::KeyLine;
use paceline_proto::internal::v1::TokenBatch;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_system::clock::monotonic_ns;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Paths that are served, those that another method has, and those that do not exist.
const PATHS: &[(&str, &str)] = &[
    ("GET", "/v1/models"),
    ("GET", "/v1/models/demo-target"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/metrics"),
    ("GET", "/status"),
    ("POST", "/status/session"),
    ("GET", "/v1/completions"),
    ("DELETE", "/v1/models"),
    ("GET", "//"),
    ("GET", "/status/"),
    ("POST", "/v1/nothing"),
    ("GET", "/healthy"),
    ("GET", "/health/"),
    ("OPTIONS", "/v1/models"),
];

async fn with_keys() -> (tempfile::TempDir, Stage, Fake, Attachment) {
    let (dir, path) = keys();
    let (stage, fake, attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    (dir, stage, fake, attachment)
}

/// Words that do not depend on the path.
fn refusal(reply: &Reply) -> (StatusCode, String) {
    let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
    (reply.status, message)
}

#[tokio::test]
async fn every_path_but_health_and_the_empty_page_needs_a_key() {
    let (_dir, stage, _fake, _attachment) = with_keys().await;
    let message =
        "an API key is needed; send it as authorization: Bearer KEY, or as x-api-key: KEY";
    for client in [HttpClient::new(stage.http), HttpClient::http2(stage.http)] {
        let known = client.with("authorization", &of(ALICE));
        for (method, path) in PATHS {
            let reply = client.send(method, path, "{}").await;
            // What is refused does not say what was wrong, nor whether there is such a path.
            assert_eq!(
                refusal(&reply),
                (StatusCode::UNAUTHORIZED, message.to_owned()),
                "{method} {path}"
            );
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            // With a key one gets further.
            let reply = known.send(method, path, "{}").await;
            assert_ne!(reply.status, StatusCode::UNAUTHORIZED, "{method} {path}");
        }
        assert_eq!(client.get("/health").await.status, StatusCode::OK);
        assert_eq!(client.get("/").await.status, StatusCode::OK);
        let wrong = client.with("x-api-key", "wrong");
        assert_eq!(wrong.get("/health").await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_are_errors_in_json() {
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    for (method, path, status) in [
        ("GET", "/v1/nothing", StatusCode::NOT_FOUND),
        ("GET", "/v1/completions", StatusCode::METHOD_NOT_ALLOWED),
        ("POST", "/health", StatusCode::METHOD_NOT_ALLOWED),
        ("GET", "/v1/messages", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let reply = client.send(method, path, "{}").await;
        assert_eq!(reply.status, status, "{method} {path}");
        assert!(reply.json()["error"]["message"].is_string(), "{method} {path}");
    }
}

#[tokio::test]
async fn a_key_names_its_owner_and_a_wrong_key_gets_no_details() {
    let (_dir, path) = keys();
    let (stage, mut fake, _attachment) = Stage::serving(|config| {
        config.gateway.api_keys_file = path.display().to_string();
        config.classes.insert("alice".into(), "code".into());
    })
    .await;
    let client = HttpClient::new(stage.http);
    let mut seen = Vec::new();
    for known in [
        client.with("authorization", &of(ALICE)),
        client.with("authorization", &format!("bearer {ALICE}")),
        client.with("x-api-key", ALICE),
        client.with("x-api-key", ALICE).with("authorization", &of(ALICE)),
        client.with("x-api-key", BOB),
    ] {
        let body = completion();
        let (reply, submission) = within(async {
            tokio::join!(known.post(COMPLETIONS, &body), async {
                let submission = fake.submission().await;
                let generation = submission.generation().clone();
                submission.refuse(Reason::KvExhausted.status("full"));
                generation
            })
        })
        .await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{reply:?}");
        seen.push((submission.traffic_class, submission.cache_scope));
    }
    assert_eq!((seen[0].0.as_str(), seen[4].0.as_str()), ("code", "default"));
    assert!(seen[..4].iter().all(|one| *one == seen[0]), "{seen:?}");
    assert!(seen[0].1 != seen[4].1 && !seen[0].1.is_empty(), "prefixes are never shared");

    let mut refused = Vec::new();
    for wrong in [
        client.with("authorization", ""),
        client.with("authorization", ALICE),
        client.with("authorization", &of("")),
        client.with("authorization", &of("wrong")),
        client.with("authorization", &format!("Basic {ALICE}")),
        client.with("authorization", &of(&BOB[1..])),
        client.with("x-api-key", ""),
        client.with("x-api-key", &of(ALICE)),
        client.with("x-api-key", ALICE).with("x-api-key", ALICE),
        // Two keys, each of them known.
        client.with("x-api-key", ALICE).with("authorization", &of(BOB)),
        client.with("authorization", &of(ALICE)).with("authorization", &of(BOB)),
    ] {
        refused.push(refusal(&wrong.post(COMPLETIONS, &completion()).await));
    }
    assert!(
        refused.iter().all(|one| *one == refused[0] && one.0 == StatusCode::UNAUTHORIZED),
        "no detail about why: {refused:?}"
    );
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn wrong_keys_wait_and_right_ones_do_not() {
    let (_dir, stage, _fake, _attachment) = with_keys().await;
    let client = HttpClient::new(stage.http);
    let known = client.with("x-api-key", ALICE);
    // Twelve at once: five are answered, the others one by one, the last after 1.4 s.
    let begun = monotonic_ns();
    let wrong = (0..12).map(|_| client.get("/v1/models"));
    let (outcomes, right) = tokio::join!(futures::future::join_all(wrong), async {
        let reply = known.get("/v1/nothing").await;
        (reply.status, monotonic_ns())
    });
    let waited_ms = (monotonic_ns() - begun) / 1_000_000;
    assert!(outcomes.iter().all(|reply| reply.status == StatusCode::UNAUTHORIZED));
    assert!(waited_ms >= 1_300, "{waited_ms} ms");
    assert_eq!(right.0, StatusCode::NOT_FOUND);
    assert!((right.1 - begun) / 1_000_000 < waited_ms, "a right key went first");
}

#[tokio::test]
async fn a_changed_file_of_keys_counts_without_a_restart() {
    let (dir, stage, _fake, _attachment) = with_keys().await;
    let status = async |key: &str| {
        let client = HttpClient::new(stage.http).with("x-api-key", key);
        client.get("/v1/nothing").await.status
    };
    assert_eq!(status(ALICE).await, StatusCode::NOT_FOUND);
    let carol = "pl_carol_0123456789";
    let fresh = dir.path().join("fresh");
    private(&fresh, &KeyLine::of("carol", carol).expect("fine").to_string());
    std::fs::rename(fresh, dir.path().join("keys")).expect("renamed");
    within(async {
        while status(carol).await != StatusCode::NOT_FOUND {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    })
    .await;
    assert_eq!(status(ALICE).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_full_queue_is_answered_429_with_the_time_to_try_again() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    let body = completion();
    let (reply, ()) = within(async {
        tokio::join!(client.post(COMPLETIONS, &body), async {
            fake.submission().await.refuse(Reason::QueueFull.status("128 requests wait"));
        })
    })
    .await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    let seconds: u64 = reply.header("retry-after").expect("set").parse().expect("seconds");
    assert!((1..=10).contains(&seconds), "{seconds}");
    assert_eq!(reply.header("x-should-retry"), Some("true"));
    assert!(reply.header("x-request-id").is_some_and(|id| !id.is_empty()));
}

#[tokio::test]
async fn tls_agrees_on_http_2_or_1_and_nothing_is_served_without_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Certified { authority, cert_file, key_file } = certified(dir.path());
    let stage = Stage::new(|config| {
        (config.gateway.tls_cert, config.gateway.tls_key) = (cert_file, key_file);
    });
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (offered, agreed) in [
            (&[&b"h2"[..], b"http/1.1"][..], Some(&b"h2"[..])),
            (&[b"http/1.1"], Some(b"http/1.1")),
            (&[], None),
        ] {
            let mut stream = tls(stage.http, &authority, version, offered).await;
            assert_eq!(stream.get_ref().1.alpn_protocol(), agreed);
            if agreed != Some(b"h2") {
                let request =
                    b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
                stream.write_all(request).await.expect("written");
                let mut answer = Vec::new();
                let _ = within(stream.read_to_end(&mut answer)).await;
                assert!(answer.starts_with(b"HTTP/1.1 503"), "no supervisor yet");
            }
        }
    }
    let mut plain = RawHttp::connect(stage.http).await;
    plain.write("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let answer = plain.read().await;
    assert!(!answer.contains("HTTP"), "{answer}");
}

#[tokio::test]
async fn silent_connections_are_closed_and_keep_no_client_out() {
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let mut silent = Vec::new();
    for n in 0..300 {
        let mut stream = RawHttp::connect(stage.http).await;
        // Beginnings that may still become HTTP/2.
        stream.write(&b"PRI * HTTP/2.0\r\n"[..n % 16]).await;
        silent.push(stream);
    }
    // A newcomer is served at once.
    assert_eq!(HttpClient::new(stage.http).get("/health").await.status, StatusCode::OK);
    for mut stream in silent {
        assert_eq!(stream.read().await, "");
    }
}

#[tokio::test]
async fn a_request_whose_head_is_no_http_is_refused_and_closed() {
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    for head in ["\x16\x03\x01 hello\r\n\r\n", "GET\r\n\r\n", "GET /health HTTP/9.1\r\n\r\n"] {
        let mut stream = RawHttp::connect(stage.http).await;
        stream.write(head).await;
        let answer = stream.read().await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{head:?}: {answer}");
    }
    let mut stream = RawHttp::connect(stage.http).await;
    let endless = format!("GET /health HTTP/1.1\r\nx: {}", "y".repeat(128 << 10));
    // The gateway may close before it is all sent.
    let _ = stream.0.write_all(endless.as_bytes()).await;
    let answer = stream.read().await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

/// Begins a streamed answer with one token.
async fn begun(client: &HttpClient, fake: &mut Fake) -> (Events, Accepted) {
    let body = streamed();
    within(async {
        tokio::join!(client.stream(COMPLETIONS, &body), async {
            let mut accepted = fake.submission().await.accept();
            accepted.tokens(&[300]).await;
            accepted
        })
    })
    .await
}

#[tokio::test]
async fn a_stream_comes_as_it_is_made_and_ends_well() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    for client in [HttpClient::new(stage.http), HttpClient::http2(stage.http)] {
        let (mut events, mut accepted) = begun(&client, &mut fake).await;
        assert!(events.headers.contains_key("x-request-id"));
        // The first token is there while the answer goes on.
        events.next().await.expect("an event");
        accepted.tokens(&[301]).await;
        events.next().await.expect("an event");
        accepted.done(&[2]).await;
        let rest = events.rest().await;
        assert_eq!(rest.last().map(String::as_str), Some("data: [DONE]"), "{rest:?}");
    }
}

#[tokio::test]
async fn a_reader_that_stops_is_cut_and_its_request_is_dropped() {
    let (stage, mut fake, _attachment) = Stage::serving(|config| config.limits.unread_s = 1).await;
    let client = HttpClient::new(stage.http);
    let (events, accepted) = begun(&client, &mut fake).await;
    // Tokens until the stream is cut: the buffers of the sockets are finite.
    let flood = async {
        let mut at = 1;
        loop {
            let batch = TokenBatch { first_index: at, ids: vec![300; 16], ..Default::default() };
            if accepted.batches.send(Ok(batch)).await.is_err() {
                break at;
            }
            at += 16;
        }
    };
    let sent: u32 = within(flood).await;
    assert!(sent > 0);
    let rest = events.rest().await;
    let last = rest.last().expect("events");
    assert!(last.contains("slow_reader") || last.contains("SLOW_READER"), "{last}");
    assert!((rest.len() as u32) < sent);
}

#[tokio::test]
async fn a_reader_that_waits_for_a_slow_answer_is_not_cut() {
    let (stage, mut fake, _attachment) = Stage::serving(|config| config.limits.unread_s = 1).await;
    let (mut events, mut accepted) = begun(&HttpClient::new(stage.http), &mut fake).await;
    events.next().await.expect("tokens");
    // Longer than the bound on reading: it is the model that is slow.
    let next = tokio::time::timeout(Duration::from_millis(2_500), events.next()).await;
    assert!(next.is_err(), "nothing comes");
    accepted.tokens(&[301]).await;
    accepted.done(&[2]).await;
    let rest = events.rest().await;
    assert_eq!(rest.last().map(String::as_str), Some("data: [DONE]"), "{rest:?}");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request_before_and_after_the_first_token() {
    let (stage, mut fake, mut attachment) = Stage::serving(|_| {}).await;
    for is_streamed in [true, false] {
        for has_token in [true, false] {
            let body = if is_streamed { streamed() } else { completion() }.to_string();
            let mut client = RawHttp::connect(stage.http).await;
            client.head(COMPLETIONS, body.len()).await;
            client.write(body).await;
            let mut accepted = fake.submission().await.accept();
            if has_token {
                accepted.tokens(&[300]).await;
            }
            if has_token && is_streamed {
                client.read_until("\n\n").await;
            }
            drop(client);
            assert!(within(accepted.over).await.is_err(), "the submission was dropped");
            attachment.report(|report| report.streams == 0).await;
        }
    }
}

#[tokio::test]
async fn a_gateway_that_stops_refuses_and_ends_what_runs() {
    let (mut stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    let (events, accepted) = begun(&client, &mut fake).await;
    stage.send(paceline_service_core::ending::Event::StopAsked).await;
    within(async {
        while client.get("/health").await.status == StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let reply = client.post(COMPLETIONS, &completion()).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply.header("retry-after").is_some());
    // What runs has its time.
    accepted.done(&[2]).await;
    let rest = events.rest().await;
    assert_eq!(rest.last().map(String::as_str), Some("data: [DONE]"), "{rest:?}");
    stage.ended().await;
}

#[tokio::test]
async fn pages_of_other_origins_get_no_permission_unless_it_is_configured() {
    let origin = "https://chat.example.com";
    for (is_listed, expected) in [(false, None), (true, Some(origin))] {
        let (_dir, path) = keys();
        let (stage, _fake, _attachment) = Stage::serving(|config| {
            config.gateway.api_keys_file = path.display().to_string();
            config.gateway.cors_origins.extend(is_listed.then(|| origin.to_owned()));
        })
        .await;
        let page = HttpClient::new(stage.http).with("origin", origin);
        let asking = page.with("access-control-request-method", "POST");
        let reply = asking.send("OPTIONS", COMPLETIONS, "").await;
        let status = if is_listed { StatusCode::NO_CONTENT } else { StatusCode::UNAUTHORIZED };
        assert_eq!(reply.status, status);
        for reply in [reply, page.get("/health").await, page.get("/v1/models").await] {
            assert_eq!(reply.header("access-control-allow-origin"), expected, "{reply:?}");
        }
    }
}
