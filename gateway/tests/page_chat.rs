//! The chat of the page over real sockets: its questions are served for the page alone, and with keys
//! in its session alone. The page itself is used in `tests/status_page.rs`.

use crate::keyring::{ALICE, BOB, keys, of};
use crate::stage::http::{CHAT, HttpClient, Reply};
use crate::stage::supervisor::{Attachment, Fake};
use crate::stage::{Stage, within};
use http::StatusCode;
use serde_json::{Value, json};

const FIGURES: &str = "/status";
const SESSION: &str = "/status/session";
const QUESTION: &str = "/status/chat";
/// An origin whose pages may use the service in these tests.
const LISTED: &str = "https://chat.example";

fn question() -> Value {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    json!({ "messages": messages, "stream": true, "stream_options": { "include_usage": true } })
}

fn origin(stage: &Stage) -> String {
    format!("http://{}", stage.http)
}

/// A client that sends what a browser sends for the page.
fn page(stage: &Stage) -> HttpClient {
    let client = HttpClient::new(stage.http).with("sec-fetch-site", "same-origin");
    client.with("origin", &origin(stage)).with("content-type", "application/json")
}

/// The cookie of a session of this key.
async fn cookie(stage: &Stage, key: &str) -> String {
    let asking = page(stage).with("authorization", &of(key));
    let begun = asking.send("POST", SESSION, "").await;
    assert_eq!(begun.status, StatusCode::NO_CONTENT, "{begun:?}");
    let cookie = begun.header("set-cookie").expect("a session");
    cookie.split(';').next().expect("a pair").to_owned()
}

async fn with_keys() -> (tempfile::TempDir, Stage, Fake, Attachment) {
    let (dir, path) = keys();
    let (stage, fake, attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    (dir, stage, fake, attachment)
}

/// Asks by this path, and has the question answered; returns the cache scope of the request.
async fn served(client: &HttpClient, path: &str, fake: &mut Fake) -> String {
    let body = question();
    let (events, (scope, _over)) = within(async {
        tokio::join!(client.stream(path, &body), async {
            let submission = fake.submission().await;
            let scope = submission.generation().cache_scope.clone();
            let mut accepted = submission.accept();
            accepted.tokens(&[300, 301]).await;
            (scope, accepted.done(&[2]).await)
        })
    })
    .await;
    let stores = events.headers["cache-control"].to_str().expect("text").to_owned();
    assert_eq!(stores == "no-store", path == QUESTION, "{stores}");
    let rest = events.rest().await;
    assert!(rest.iter().any(|event| event.contains("\"paceline\"")), "{rest:?}");
    assert_eq!(rest.last().map(String::as_str), Some("data: [DONE]"));
    scope
}

#[track_caller]
fn is_refused(reply: &Reply, status: u16, words: &str) {
    let message = reply.error().1;
    assert!(reply.status == status && message.contains(words), "{words}: {status}: {reply:?}");
}

#[tokio::test]
async fn without_keys_a_question_is_served_for_the_services_own_page_alone() {
    let (stage, mut fake, _attachment) = Stage::serving(|config| {
        config.gateway.hosts = vec!["box.lan".to_owned()];
        config.gateway.cors_origins = vec![LISTED.to_owned()];
    })
    .await;
    served(&page(&stage), QUESTION, &mut fake).await;
    let named = [("host", "box.lan"), ("origin", "https://box.lan")];
    let bare = HttpClient::new(stage.http).with("content-type", "application/json");
    let with = |headers: &[(&'static str, &str)]| {
        headers.iter().fold(bare.clone(), |client, (name, value)| client.with(name, value))
    };
    served(&with(&named), QUESTION, &mut fake).await;

    let own = origin(&stage);
    let by_name = format!("http://localhost:{}", stage.http.port());
    for (headers, words) in [
        (vec![], "origin: expected the origin of the service's own page"),
        (vec![("origin", "http://evil.example")], "origin: expected"),
        (vec![("origin", "null")], "origin: expected"),
        (vec![("origin", "http://localhost:3000")], "origin: expected"),
        // The same machine by another of its names is another origin, and so is a listed one.
        (vec![("origin", by_name.as_str())], "origin: expected"),
        (vec![("origin", LISTED)], "origin: expected the origin of the service's own page"),
        (vec![("origin", &own), ("origin", &own)], "origin: expected"),
        (vec![("origin", &own), ("sec-fetch-site", "same-site")], "sec-fetch-site: expected"),
        (vec![("origin", &own), ("sec-fetch-site", "none")], "sec-fetch-site: expected"),
        (vec![("origin", &own), ("sec-fetch-site", "cross-site")], "sec-fetch-site: expected"),
        (vec![("host", "evil.example"), ("origin", "http://evil.example")], "host: expected"),
    ] {
        is_refused(&with(&headers).post(QUESTION, &question()).await, 403, words);
    }
    assert_eq!(page(&stage).get(QUESTION).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn with_keys_a_question_needs_a_session_and_is_its_keys_request() {
    let (_dir, stage, mut fake, _attachment) = with_keys().await;
    let (alice, bob) = (cookie(&stage, ALICE).await, cookie(&stage, BOB).await);
    let asked = served(&page(&stage).with("cookie", &alice), QUESTION, &mut fake).await;
    let keyed = page(&stage).with("x-api-key", ALICE);
    assert_eq!(asked, served(&keyed, CHAT, &mut fake).await, "the key's own scope");
    let other = served(&page(&stage).with("cookie", &bob), QUESTION, &mut fake).await;
    assert!(asked != other && !asked.is_empty(), "prefixes are never shared");

    is_refused(&page(&stage).post(QUESTION, &question()).await, 401, "an API key is needed");
    // A key is no session, also beside one.
    for client in [&keyed, &keyed.with("cookie", &alice)] {
        is_refused(&client.post(QUESTION, &question()).await, 401, "needs its session");
    }
    let ended = page(&stage).with("cookie", &bob);
    assert_eq!(ended.send("DELETE", SESSION, "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(ended.post(QUESTION, &question()).await.status, StatusCode::UNAUTHORIZED);
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn a_session_asks_nothing_for_another_page_and_opens_no_other_path() {
    let (_dir, stage, mut fake, _attachment) = with_keys().await;
    let alice = cookie(&stage, ALICE).await;
    let bare = HttpClient::new(stage.http).with("cookie", &alice);
    for headers in [
        vec![],
        vec![("origin", "http://evil.example")],
        vec![("origin", "http://127.0.0.1:1")],
        vec![("origin", "null"), ("sec-fetch-site", "cross-site")],
    ] {
        let client =
            headers.iter().fold(bare.clone(), |client, (name, value)| client.with(name, value));
        for kind in ["application/json", "text/plain"] {
            let reply = client.with("content-type", kind).post(QUESTION, &question()).await;
            is_refused(&reply, 403, "expected");
        }
    }
    let page = page(&stage).with("cookie", &alice);
    // Few of them: answers to wrong keys wait.
    for (method, path) in
        [("POST", CHAT), ("POST", "/v1/messages"), ("GET", QUESTION), ("GET", "/v1/models")]
    {
        let body = if method == "POST" { question().to_string() } else { String::new() };
        let reply = page.send(method, path, body).await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{method} {path}");
    }
    assert_eq!(page.get(FIGURES).await.status, StatusCode::OK, "the session is good");
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn the_figures_have_the_limits_of_images_if_the_model_reads_them() {
    let (stage, _fake, _attachment) = Stage::seeing(|config| config.limits.max_images = 3).await;
    let images = &HttpClient::new(stage.http).get(FIGURES).await.json()["images"];
    assert_eq!(
        (&images["max_images"], &images["read_pixels"]),
        (&json!(3), &json!(1_048_576)),
        "{images}"
    );
    let (stage, _fake, _attachment) = Stage::serving(|_| {}).await;
    let figures = HttpClient::new(stage.http).get(FIGURES).await.json();
    assert_eq!((&figures["model"], &figures["images"]), (&json!("demo-target"), &Value::Null));
}
