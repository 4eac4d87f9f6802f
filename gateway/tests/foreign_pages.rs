//! Without keys no page of another site makes a browser use the service: a request that such a page
//! may have sent is refused before anything of it is read or queued (C13). Every case is played as
//! bytes on a socket, as a browser or an attacker's program would send them.

use crate::keyring::{ALICE, keys, of};
use crate::stage::http::{CHAT, COMPLETIONS, HttpClient, RawHttp, completion};
use crate::stage::supervisor::{Attachment, Fake};
use crate::stage::{Stage, within};
use http::StatusCode;
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const EVIL: &str = "http://evil.example";
/// An origin whose pages may use the service in these tests.
const LISTED: &str = "https://chat.example";
/// Every path that is served, with its method.
const PATHS: &[(&str, &str)] = &[
    ("GET", "/"),
    ("GET", "/status"),
    ("POST", "/status/session"),
    ("DELETE", "/status/session"),
    ("POST", "/status/chat"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/demo-target"),
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("POST", RESPONSES),
    ("POST", MESSAGES),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/v1/nothing"),
    ("OPTIONS", "/v1/models"),
];

/// A service without keys that has a further name and an origin whose pages may use it.
async fn keyless() -> (Stage, Fake, Attachment) {
    Stage::serving(|config| {
        config.gateway.hosts = vec!["box.lan".to_owned()];
        config.gateway.cors_origins = vec![LISTED.to_owned()];
    })
    .await
}

/// An answer as it came.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let (head, body) = (head.to_ascii_lowercase(), body.to_owned());
        Self { status: status.expect("a status"), head, body }
    }

    /// The message of the error.
    fn message(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).expect("JSON");
        body["error"]["message"].as_str().expect("a message").to_owned()
    }
}

/// Sends a request line, these headers and a body; returns the answer.
async fn send(stage: &Stage, line: &str, headers: &[String], body: &str) -> Answer {
    let mut stream = RawHttp::connect(stage.http).await;
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write(format!("{head}{body}")).await;
    Answer::of(&stream.read().await)
}

/// Sends a request with these headers and no body to read.
async fn bare(stage: &Stage, method: &str, path: &str, headers: &[String]) -> Answer {
    send(stage, &format!("{method} {path}"), headers, "").await
}

/// Sends a completion that the supervisor answers; returns the answer.
async fn served(stage: &Stage, fake: &mut Fake, headers: &[String]) -> Answer {
    let (line, body) = (format!("POST {COMPLETIONS}"), completion().to_string());
    let (answer, _over) = within(async {
        tokio::join!(send(stage, &line, headers, &body), async {
            Some(fake.submission().await.accept().done(&[300, 2]).await)
        })
    })
    .await;
    answer
}

fn header(name: &str, value: &str) -> String {
    format!("{name}: {value}")
}

/// The `Host` of the service itself.
fn own_host(stage: &Stage) -> String {
    header("host", &format!("localhost:{}", stage.http.port()))
}

#[track_caller]
fn is_refused(answer: &Answer, setting: &str) {
    assert_eq!(answer.status, 403, "{answer:?}");
    assert!(answer.message().contains(setting), "{setting}: {answer:?}");
    assert!(!answer.head.contains("access-control-"), "{answer:?}");
    assert!(answer.head.contains("x-should-retry: false"), "{answer:?}");
}

#[tokio::test]
async fn a_foreign_host_is_refused_on_every_path() {
    let (stage, mut fake, _attachment) = keyless().await;
    let port = stage.http.port();
    for (method, path) in PATHS {
        for host in ["evil.example".to_owned(), format!("evil.example:{port}")] {
            let answer = bare(&stage, method, path, &[header("host", &host)]).await;
            is_refused(&answer, "gateway.hosts");
        }
    }
    // Other ways to name it.
    let evil = header("host", "evil.example");
    for (target, hosts) in [
        ("http://evil.example/status", vec![own_host(&stage)]),
        ("http://evil.example/status", vec![]),
        ("http://localhost@evil.example/status", vec![own_host(&stage)]),
        ("http://localhost/status", vec![evil.clone()]),
        ("/status", vec![own_host(&stage), evil.clone()]),
        ("/status", vec![evil, own_host(&stage)]),
        ("/status", vec![header("host", "localhost@evil.example")]),
        ("/status", vec![header("host", "evil.example@localhost")]),
        ("/status", vec![header("HOST", "EVIL.example.")]),
    ] {
        let answer = bare(&stage, "GET", target, &hosts).await;
        assert!([400, 403].contains(&answer.status), "{target} {hosts:?}: {answer:?}");
        assert!(!answer.body.contains("processes"), "{target} {hosts:?}: {answer:?}");
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn own_names_and_addresses_are_served() {
    let (stage, mut fake, _attachment) = keyless().await;
    let port = stage.http.port();
    for host in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
        format!("app.localhost:{port}"),
        "localhost".to_owned(),
        format!("LocalHost.:{port}"),
        format!("host.docker.internal:{port}"),
        "box.lan".to_owned(),
        format!("BOX.lan:{port}"),
        format!("192.168.7.9:{port}"),
        "93.184.216.34".to_owned(),
        format!("[2001:db8::7]:{port}"),
    ] {
        let answer = served(&stage, &mut fake, &[header("host", &host)]).await;
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
        for path in ["/", "/status", "/health", "/v1/models", "/metrics"] {
            let answer = bare(&stage, "GET", path, &[header("host", &host)]).await;
            assert_eq!(answer.status, 200, "{host} {path}: {answer:?}");
        }
    }
    let absolute = format!("http://localhost:{port}/health");
    assert_eq!(bare(&stage, "GET", &absolute, &[own_host(&stage)]).await.status, 200);
}

#[tokio::test]
async fn http_2_is_checked_by_its_authority() {
    let (stage, mut fake, _attachment) = keyless().await;
    let stream = within(tokio::net::TcpStream::connect(stage.http)).await.expect("connects");
    let (mut requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    paceline_process::task::spawn("client", async { drop(connection.await) });
    for (authority, host, status) in [
        ("localhost", None, 200),
        ("127.0.0.1:8061", None, 200),
        ("evil.example", None, 403),
        ("evil.example:8061", Some("localhost"), 403),
        ("localhost", Some("evil.example"), 403),
    ] {
        let mut request = http::Request::get(format!("http://{authority}/v1/models"));
        if let Some(host) = host {
            request = request.header("host", host);
        }
        requests = within(requests.ready()).await.expect("open");
        let request = request.body(()).expect("a request");
        let (answer, _body) = requests.send_request(request, true).expect("sent");
        let found = match within(answer).await {
            Ok(answer) => answer.status().as_u16(),
            // hyper ends a stream whose host is not its authority.
            Err(_) => 403,
        };
        assert_eq!(found, status, "{authority} {host:?}");
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn a_foreign_origin_is_refused_in_each_protocols_form() {
    let (stage, mut fake, _attachment) = keyless().await;
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }] });
    for (path, body) in [
        (CHAT, chat.clone()),
        (COMPLETIONS, completion()),
        (RESPONSES, json!({ "input": "a" })),
        (MESSAGES, json!({ "model": "m", "max_tokens": 4, "messages": chat["messages"] })),
    ] {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json"] {
            for origin in
                [EVIL, "null", "http://localhost:3000", "https://chat.example.evil.example"]
            {
                let headers =
                    [own_host(&stage), header("content-type", kind), header("origin", origin)];
                let line = format!("POST {path}");
                let answer = send(&stage, &line, &headers, &body.to_string()).await;
                is_refused(&answer, "gateway.cors_origins");
                let body: Value = serde_json::from_str(&answer.body).expect("JSON");
                assert_eq!(body["error"]["type"], "permission_error", "{answer:?}");
                let is_anthropic = body["type"] == "error";
                assert_eq!(is_anthropic, path == MESSAGES, "{answer:?}");
            }
        }
    }
    for (method, path) in PATHS {
        let headers = [own_host(&stage), header("origin", EVIL)];
        is_refused(&bare(&stage, method, path, &headers).await, "gateway.cors_origins");
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn a_preflight_of_a_foreign_page_gets_no_permission() {
    let (stage, _fake, _attachment) = keyless().await;
    let asked = |origin: &str| {
        [
            own_host(&stage),
            header("origin", origin),
            header("access-control-request-method", "POST"),
            header("access-control-request-headers", "content-type"),
            header("sec-fetch-site", "cross-site"),
            header("sec-fetch-mode", "cors"),
        ]
    };
    for origin in [EVIL, "null"] {
        let answer = bare(&stage, "OPTIONS", CHAT, &asked(origin)).await;
        is_refused(&answer, "gateway.cors_origins");
    }
    let answer = bare(&stage, "OPTIONS", CHAT, &asked(LISTED)).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert!(answer.head.contains(&format!("access-control-allow-origin: {LISTED}")), "{answer:?}");
    // A rebound name is refused whatever its origin.
    let mut rebound = asked(LISTED);
    rebound[0] = header("host", "evil.example");
    let answer = bare(&stage, "OPTIONS", CHAT, &rebound).await;
    assert_eq!(answer.status, 403, "{answer:?}");
}

#[tokio::test]
async fn the_services_own_page_and_listed_origins_are_served() {
    let (stage, mut fake, _attachment) = keyless().await;
    let port = stage.http.port();
    for (host, origin, site) in [
        (format!("localhost:{port}"), format!("http://localhost:{port}"), "same-origin"),
        (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}"), "same-origin"),
        (format!("localhost:{port}"), LISTED.to_owned(), "cross-site"),
        ("box.lan".to_owned(), "https://box.lan".to_owned(), "same-origin"),
    ] {
        let headers =
            [header("host", &host), header("origin", &origin), header("sec-fetch-site", site)];
        let answer = served(&stage, &mut fake, &headers).await;
        assert_eq!(answer.status, 200, "{host} {origin}: {answer:?}");
    }
}

#[tokio::test]
async fn another_site_may_link_to_the_page_and_do_nothing_else() {
    let (stage, mut fake, _attachment) = keyless().await;
    let link = [
        own_host(&stage),
        header("sec-fetch-site", "cross-site"),
        header("sec-fetch-mode", "navigate"),
        header("sec-fetch-dest", "document"),
    ];
    let answer = bare(&stage, "GET", "/", &link).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.body.starts_with("<!doctype html>"));
    for (method, path) in PATHS.iter().filter(|path| **path != ("GET", "/")) {
        is_refused(&bare(&stage, method, path, &link).await, "gateway.cors_origins");
    }
    for (at, word) in [(2, "no-cors"), (3, "iframe"), (3, "embed")] {
        let mut embedded = link.clone();
        embedded[at] = header(["", "", "sec-fetch-mode", "sec-fetch-dest"][at], word);
        is_refused(&bare(&stage, "GET", "/", &embedded).await, "gateway.cors_origins");
    }
    let body = completion().to_string();
    let line = format!("POST {COMPLETIONS}");
    is_refused(&send(&stage, &line, &link[..2], &body).await, "gateway.cors_origins");
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn a_client_that_is_no_browser_is_served_whatever_its_content_type() {
    let (stage, mut fake, _attachment) = keyless().await;
    for kind in [
        "application/json",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
    ] {
        let headers = [own_host(&stage), header("content-type", kind)];
        let answer = served(&stage, &mut fake, &headers).await;
        assert_eq!(answer.status, 200, "{kind}: {answer:?}");
    }
    // Programs on Node.js send one of the three headers of browsers.
    let headers = [own_host(&stage), header("sec-fetch-mode", "cors")];
    assert_eq!(served(&stage, &mut fake, &headers).await.status, 200);
    assert_eq!(served(&stage, &mut fake, &[]).await.status, 200, "no Host at all");
}

#[tokio::test]
async fn a_right_key_is_served_from_any_host_and_a_cookie_opens_no_post() {
    let (_dir, path) = keys();
    let (stage, mut fake, _attachment) =
        Stage::serving(|config| config.gateway.api_keys_file = path.display().to_string()).await;
    let key = header("authorization", &of(ALICE));
    let foreign = [
        header("host", "models.example"),
        header("origin", EVIL),
        header("sec-fetch-site", "cross-site"),
    ];
    let with_key: Vec<String> = foreign.iter().cloned().chain([key]).collect();
    assert_eq!(served(&stage, &mut fake, &with_key).await.status, 200);
    let body = completion().to_string();
    let line = format!("POST {COMPLETIONS}");
    assert_eq!(send(&stage, &line, &foreign, &body).await.status, 401, "no key");

    let client = HttpClient::new(stage.http);
    let begun = client.with("x-api-key", ALICE).send("POST", "/status/session", "").await;
    assert_eq!(begun.status, StatusCode::NO_CONTENT);
    let cookie = begun.header("set-cookie").expect("a session").split(';').next().expect("a pair");
    let cookie = header("cookie", cookie);
    let own = [own_host(&stage), cookie.clone()];
    assert_eq!(bare(&stage, "GET", "/status", &own).await.status, 200, "the session is good");
    // Few of them: answers to wrong keys wait.
    let own_origin = format!("http://localhost:{}", stage.http.port());
    for (method, path, other) in [
        ("POST", COMPLETIONS, header("origin", EVIL)),
        ("POST", "/status/session", header("origin", EVIL)),
        ("POST", MESSAGES, header("origin", &own_origin)),
        ("DELETE", "/status/session", header("origin", EVIL)),
        ("GET", "/status", header("sec-fetch-site", "same-site")),
    ] {
        let headers = [own_host(&stage), cookie.clone(), other];
        let answer = send(&stage, &format!("{method} {path}"), &headers, &body).await;
        assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
    }
    assert_eq!(bare(&stage, "GET", "/status", &own).await.status, 200, "it was not ended");
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}
