//! The page over real sockets: its headers, its figures, and its sessions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::keyring::{ALICE, BOB, Certified, certified, keys, of, private, tls};
use crate::stage::http::{COMPLETIONS, HttpClient, Reply, completion, streamed};
use crate::stage::supervisor::{Attachment, Fake};
use crate::stage::{Stage, within};
use http::StatusCode;
use paceline_process::keys::KeyLine;
use paceline_proto::v1::{
    Event, KvReduction, KvStatus, Lane, LinkStatus, ProcessState, ProcessStatus, RequestsStatus,
    RouteCount, RouteReason, RoutingStatus, Speculation, StatusResponse,
};
use paceline_system::clock::monotonic_ns;
use serde_json::{Value, json};

const FIGURES: &str = "/status";
const SESSION: &str = "/status/session";

fn snapshot() -> StatusResponse {
    let process = |state: ProcessState, pid| {
        Some(ProcessStatus { state: state.into(), pid, uptime_s: 61.5, ..Default::default() })
    };
    let route = RouteCount {
        lane: Lane::Speculative.into(),
        reason: RouteReason::Benefit.into(),
        requests: 12,
    };
    StatusResponse {
        gateway: process(ProcessState::Ready, 11),
        target: process(ProcessState::BackingOff, 0),
        kv: Some(KvStatus {
            budget_bytes: 100,
            held_bytes: 25,
            prefix_bytes: 5,
            pressure: 0.25,
            reduction: KvReduction::RebootWhileBusy.into(),
        }),
        requests: Some(RequestsStatus {
            active: 3,
            queued: 2,
            speculative: 1,
            unstarted: 1,
            most_active: 32,
            queued_tokens: 700,
            unstarted_tokens: 90,
            idle_s: 0.0,
        }),
        link: Some(LinkStatus {
            state: "up".into(),
            speculation: Some(Speculation { cycles: 10, drafted: 70, accepted: 30 }),
            ..Default::default()
        }),
        routing: Some(RoutingStatus { routes: vec![route], ..Default::default() }),
        term: 4,
        ..Default::default()
    }
}

async fn with_keys() -> (tempfile::TempDir, Stage, Fake, Attachment) {
    let (dir, path) = keys();
    let (stage, fake, attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    (dir, stage, fake, attachment)
}

/// The cookie that an answer sets: its name with its value, and its attributes.
fn cookie(reply: &Reply) -> (String, String) {
    let text = reply.header("set-cookie").expect("a cookie");
    let (pair, attributes) = text.split_once("; ").expect("attributes");
    (pair.to_owned(), attributes.to_owned())
}

/// A browser with a session of this key.
async fn signed_in(client: &HttpClient, key: &str) -> HttpClient {
    let reply = client.with("authorization", &of(key)).send("POST", SESSION, "").await;
    assert_eq!(reply.status, StatusCode::NO_CONTENT, "{reply:?}");
    client.with("cookie", &cookie(&reply).0)
}

/// Asks for figures until they are as wanted.
async fn figures_until(client: &HttpClient, wanted: impl Fn(&Value) -> bool) -> Value {
    within(async {
        loop {
            let figures = client.get(FIGURES).await.json();
            if wanted(&figures) {
                return figures;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

#[tokio::test]
async fn the_page_is_one_file_that_is_stored_nowhere_and_runs_its_own_script_alone() {
    let (_dir, stage, _fake, _attachment) = with_keys().await;
    for client in [HttpClient::new(stage.http), HttpClient::http2(stage.http)] {
        let reply = client.get("/").await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        let policy = reply.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
        let body = String::from_utf8(reply.body.to_vec()).expect("UTF-8");
        assert!(body.starts_with("<!doctype html>") && body.contains("name=\"viewport\""));
        let head = client.send("HEAD", "/", "").await;
        assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
        assert_eq!(head.header("content-security-policy"), Some(policy));
        let posted = client.send("POST", "/", "").await;
        assert_eq!(posted.status, StatusCode::METHOD_NOT_ALLOWED);
    }
}

#[tokio::test]
async fn the_figures_are_the_supervisors_and_reading_them_gives_no_order() {
    let (stage, fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    fake.operator.report(snapshot());
    let reply = client.get(FIGURES).await;
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let figures = reply.json();
    assert_eq!(figures["serving"]["status"], "serving");
    assert_eq!(figures["model"], "demo-target");
    assert_eq!(figures["session"], false);
    let service = &figures["service"];
    assert_eq!(service["target"]["state"], "backing_off");
    assert_eq!((&service["target"]["pid"], &service["gateway"]["pid"]), (&Value::Null, &json!(11)));
    let requests = json!({
        "active": 3, "queued": 2, "speculative": 1, "unstarted": 1, "most_active": 32,
        "queued_tokens": 700, "unstarted_tokens": 90, "idle_s": 0.0,
    });
    assert_eq!(service["requests"], requests);
    assert_eq!(service["link"]["tokens_per_cycle"], 4.0);
    assert_eq!(service["kv"]["pressure"], 0.25);
    assert_eq!(service["kv"]["reduced_reason"], "reboot_while_busy");
    assert_eq!(
        service["routes"],
        json!([{ "lane": "speculative", "reason": "benefit", "requests": 12 }])
    );
    let head = client.send("HEAD", FIGURES, "").await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(fake.operator.orders.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn many_pages_are_one_question_a_second_to_the_supervisor() {
    let (stage, fake, _attachment) = Stage::serving(|_| {}).await;
    fake.operator.report(snapshot());
    let client = HttpClient::new(stage.http);
    let begun = monotonic_ns();
    for _ in 0..20 {
        let pages = (0..20).map(|_| client.get(FIGURES));
        for reply in futures::future::join_all(pages).await {
            assert_eq!(reply.json()["service"]["term"], 4);
        }
    }
    let seconds = (monotonic_ns() - begun) as usize / 1_000_000_000;
    let asked = fake.operator.asked.load(Ordering::SeqCst);
    assert!((1..=seconds + 1).contains(&asked), "{asked} questions in {seconds} s");
}

#[tokio::test]
async fn without_a_supervisor_the_figures_say_so_and_keep_the_gateways_own() {
    let mut stage = Stage::new(|_| {});
    let client = HttpClient::new(stage.http);
    let figures = client.get(FIGURES).await.json();
    assert_eq!(figures["service"], Value::Null);
    assert_eq!(figures["serving"]["reason"], "RESTARTING");
    assert_eq!(figures["model"], Value::Null);
    assert!(figures["throughput"]["tokens_per_s"].is_array());
    let (fake, _attachment) = stage.attach(1).await;
    fake.operator.report(snapshot());
    figures_until(&client, |figures| figures["service"]["term"] == 4).await;
    fake.kill();
    let figures = figures_until(&client, |figures| figures["service"].is_null()).await;
    assert_eq!(figures["serving"]["status"], "not_serving");
}

#[tokio::test]
async fn events_of_the_supervisor_and_of_its_successor_come_newest_first() {
    let (mut stage, fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    let event = |term, number, to: &str| Event {
        term,
        number,
        kind: "phase".into(),
        subject: "target".into(),
        to: to.into(),
        ..Default::default()
    };
    let shown = |figures: &Value| -> Vec<String> {
        let events = figures["events"].as_array().expect("a list").iter();
        events.map(|event| event["to"].as_str().expect("text").to_owned()).collect()
    };
    let first = [event(1, 1, "loading"), event(1, 2, "ready")];
    fake.operator.events.send_modify(|events| events.extend(first.clone()));
    figures_until(&client, |figures| shown(figures) == ["ready", "loading"]).await;
    fake.kill();
    let (fake, _attachment) = stage.attach(2).await;
    let more = [event(1, 3, "lost"), event(2, 1, "adopted")];
    fake.operator.events.send_modify(|events| events.extend(first.into_iter().chain(more)));
    let expected = ["adopted", "lost", "ready", "loading"];
    figures_until(&client, |figures| shown(figures) == expected).await;
}

#[tokio::test]
async fn tokens_of_a_request_that_still_runs_are_in_the_throughput() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    let body = streamed();
    let (_events, mut accepted) = within(async {
        tokio::join!(client.stream(COMPLETIONS, &body), async {
            let mut accepted = fake.submission().await.accept();
            accepted.tokens(&[300; 40]).await;
            accepted
        })
    })
    .await;
    let rates = |figures: &Value| -> f64 {
        let rates = figures["throughput"]["tokens_per_s"].as_array().expect("a list").iter();
        rates.filter_map(Value::as_f64).sum()
    };
    let figures = figures_until(&client, |figures| rates(figures) > 0.0).await;
    assert_eq!((&figures["calls"], &figures["throughput"]["interval_s"]), (&json!(1), &json!(2)));
    let calls = figures["throughput"]["calls"].as_array().expect("a list");
    assert!(calls.contains(&json!(1)), "{calls:?}");
    accepted.tokens(&[301]).await;
}

#[tokio::test]
async fn a_key_begins_a_session_whose_cookie_opens_the_figures_until_it_ends() {
    let (_dir, stage, fake, _attachment) = with_keys().await;
    fake.operator.report(snapshot());
    let client = HttpClient::new(stage.http);
    let refused = client.get(FIGURES).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(!String::from_utf8_lossy(&refused.body).contains("demo-target"));

    let keyed = client.with("authorization", &of(ALICE));
    assert_eq!(keyed.get(FIGURES).await.json()["session"], false, "a key needs no session");
    let reply = keyed.send("POST", SESSION, "").await;
    assert_eq!((reply.status, reply.body.len()), (StatusCode::NO_CONTENT, 0));
    let (pair, attributes) = cookie(&reply);
    assert_eq!(attributes, "Path=/status; HttpOnly; SameSite=Strict");
    assert!(!pair.contains(ALICE), "the key is in no cookie");

    let browser = client.with("cookie", &pair);
    let figures = browser.get(FIGURES).await;
    assert_eq!((figures.status, &figures.json()["session"]), (StatusCode::OK, &json!(true)));
    for (method, path) in
        [("POST", COMPLETIONS), ("GET", "/v1/models"), ("GET", "/metrics"), ("POST", SESSION)]
    {
        let reply = browser.send(method, path, "").await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{method} {path}");
    }
    // Neither a wrong key nor another token is helped by it.
    let wrong = browser.with("x-api-key", "wrong").get(FIGURES).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    let mut other = pair.clone().into_bytes();
    let last = other.last_mut().expect("characters");
    *last = if *last == b'0' { b'1' } else { b'0' };
    let other = client.with("cookie", std::str::from_utf8(&other).expect("ASCII"));
    assert_eq!(other.get(FIGURES).await.status, StatusCode::UNAUTHORIZED);

    let left = browser.send("DELETE", SESSION, "").await;
    assert_eq!(left.status, StatusCode::NO_CONTENT);
    let (emptied, attributes) = cookie(&left);
    assert!(emptied.ends_with('=') && attributes.ends_with("; Max-Age=0"), "{attributes}");
    assert_eq!(browser.get(FIGURES).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_session_ends_with_its_key() {
    let (dir, stage, _fake, _attachment) = with_keys().await;
    let client = HttpClient::new(stage.http);
    let alice = signed_in(&client, ALICE).await;
    let bob = signed_in(&client, BOB).await;
    assert_eq!(alice.get(FIGURES).await.status, StatusCode::OK);
    let fresh = dir.path().join("fresh");
    private(&fresh, &KeyLine::of("bob", BOB).expect("fine").to_string());
    std::fs::rename(fresh, dir.path().join("keys")).expect("renamed");
    within(async {
        while alice.get(FIGURES).await.status != StatusCode::UNAUTHORIZED {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    })
    .await;
    assert_eq!(bob.get(FIGURES).await.status, StatusCode::OK);
}

#[tokio::test]
async fn wrong_keys_at_the_page_wait_like_all_others_and_sessions_do_not() {
    let (_dir, stage, _fake, _attachment) = with_keys().await;
    let client = HttpClient::new(stage.http);
    let browser = signed_in(&client, ALICE).await;
    let wrong = client.with("authorization", &of("wrong"));
    let begun = monotonic_ns();
    let tries = (0..12).map(|_| wrong.send("POST", SESSION, ""));
    let (outcomes, right) = tokio::join!(futures::future::join_all(tries), async {
        let reply = browser.get(FIGURES).await;
        (reply.status, monotonic_ns())
    });
    let waited_ms = (monotonic_ns() - begun) / 1_000_000;
    for reply in outcomes {
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
        assert_eq!(reply.header("set-cookie"), None);
    }
    assert!(waited_ms >= 1_300, "{waited_ms} ms");
    assert_eq!(right.0, StatusCode::OK);
    assert!((right.1 - begun) / 1_000_000 < waited_ms, "a session went first");
}

#[tokio::test]
async fn without_keys_the_figures_need_no_session_and_a_body_is_refused() {
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    for method in ["POST", "DELETE"] {
        let reply = client.send(method, SESSION, "").await;
        assert_eq!(reply.status, StatusCode::NO_CONTENT, "{method}");
        let reply = client.send(method, SESSION, completion().to_string()).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{method}");
        assert!(reply.error().1.starts_with("body: expected none"), "{reply:?}");
    }
    let begun = client.send("POST", SESSION, "").await;
    assert_eq!(begun.header("set-cookie"), None, "nothing needs a session");
    assert_eq!(client.get(FIGURES).await.json()["session"], false);
    assert_eq!(client.get(SESSION).await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn under_tls_the_cookie_is_for_tls_alone() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (dir, path) = keys();
    let Certified { authority, cert_file, key_file } = certified(dir.path());
    let stage = Stage::new(|config| {
        config.gateway.api_keys_file = path.display().to_string();
        (config.gateway.tls_cert, config.gateway.tls_key) = (cert_file, key_file);
    });
    let version = &rustls::version::TLS13;
    let mut stream = tls(stage.http, &authority, version, &[b"http/1.1"]).await;
    let request = format!(
        "POST {SESSION} HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n",
        of(ALICE)
    );
    within(stream.write_all(request.as_bytes())).await.expect("written");
    let mut answer = String::new();
    // Some peers close without TLS's own end.
    let _ = within(stream.read_to_string(&mut answer)).await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert!(answer.contains("; HttpOnly; SameSite=Strict; Secure\r\n"), "{answer}");
}
