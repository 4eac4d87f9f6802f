//! Orders of the status page over real sockets: whose are taken, what is refused, and what they
//! change. The buttons are pressed in `tests/status_page.rs`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::keyring::{ALICE, BOB, keys, of};
use crate::stage::http::{HttpClient, Reply};
use crate::stage::supervisor::{Attachment, Fake};
use crate::stage::{Stage, within};
use http::StatusCode;
use paceline_process::config::Operators;
use paceline_proto::status::{Reason, ReasonStatus as _};
use serde_json::{Value, json};

const FIGURES: &str = "/status";
const SESSION: &str = "/status/session";
const ORDERS: &str = "/status/orders";
const TOKEN: &str = "x-paceline-order-token";
/// An origin whose pages may use the service in these tests.
const LISTED: &str = "https://chat.example";

/// A browser that has the page open: its cookie, and the order token that the page has read.
struct Browser {
    client: HttpClient,
    token: String,
}

impl Browser {
    /// Opens the page at this service, and begins a session with this key.
    async fn open(stage: &Stage, key: Option<&str>) -> Self {
        let origin = format!("http://{}", stage.http);
        let client = HttpClient::new(stage.http).with("sec-fetch-site", "same-origin");
        let asking = match key {
            Some(key) => client.with("authorization", &of(key)),
            None => client.clone(),
        };
        let begun = asking.with("origin", &origin).send("POST", SESSION, "").await;
        assert_eq!(begun.status, StatusCode::NO_CONTENT, "{begun:?}");
        let cookie = begun.header("set-cookie").expect("a session");
        let client = client.with("cookie", cookie.split(';').next().expect("a pair"));
        let figures = client.get(FIGURES).await.json();
        let token = figures["orders"]["token"].as_str().unwrap_or_default().to_owned();
        Self { client: client.with("origin", &origin), token }
    }

    /// Sends an order as the page does.
    async fn order(&self, body: &Value) -> Reply {
        let client = self.client.with(TOKEN, &self.token).with("content-type", "application/json");
        client.post(ORDERS, body).await
    }

    /// The last order of this process.
    async fn last(&self, process: &str) -> Value {
        let figures = self.client.get(FIGURES).await.json();
        let last = figures["orders"]["last"].as_array().expect("a list").iter();
        last.clone().find(|order| order["process"] == process).cloned().unwrap_or_default()
    }

    /// Waits until the last order of this process has this state.
    async fn until(&self, process: &str, state: &str) -> Value {
        within(async {
            loop {
                let last = self.last(process).await;
                if last["state"] == state {
                    return last;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }
}

fn restart(process: &str) -> Value {
    json!({ "order": "restart", "process": process })
}

async fn keyless() -> (Stage, Fake, Attachment) {
    Stage::serving(|config| {
        config.gateway.hosts = vec!["box.lan".to_owned()];
        config.gateway.cors_origins = vec![LISTED.to_owned()];
    })
    .await
}

/// A service with the keys of Alice and Bob, of whom these may give orders.
async fn with_keys(operators: Operators) -> (tempfile::TempDir, Stage, Fake, Attachment) {
    let (dir, path) = keys();
    let (stage, fake, attachment) = Stage::serving(|config| {
        config.gateway.api_keys_file = path.display().to_string();
        config.gateway.operators = operators;
    })
    .await;
    (dir, stage, fake, attachment)
}

fn orders_of(fake: &Fake) -> usize {
    fake.operator.orders.load(Ordering::SeqCst)
}

#[track_caller]
fn is_refused(reply: &Reply, status: u16, words: &str) {
    let message = reply.error().1;
    assert!(reply.status == status && message.contains(words), "{words}: {status}: {reply:?}");
    assert_eq!(reply.header("cache-control"), Some("no-store"), "{reply:?}");
}

#[tokio::test]
async fn each_order_reaches_the_supervisor_with_its_source_and_its_outcome_is_shown() {
    let (stage, fake, _attachment) = keyless().await;
    let browser = Browser::open(&stage, None).await;
    fake.operator.outcome.send_replace(Some(Ok(())));
    for (body, process, given) in [
        (restart("gateway"), "gateway", "restart PROCESS_GATEWAY"),
        (restart("target"), "target", "restart PROCESS_TARGET"),
        (restart("drafter"), "drafter", "restart PROCESS_DRAFTER"),
        (json!({ "order": "drafter_start" }), "drafter", "start \"\""),
        (json!({ "order": "drafter_stop" }), "drafter", "stop"),
        (json!({ "order": "drafter_swap", "model": "/d" }), "drafter", "swap \"/d\""),
        (json!({ "order": "drain" }), "service", "drain, undo false"),
        (json!({ "order": "undrain" }), "service", "drain, undo true"),
    ] {
        let reply = browser.order(&body).await;
        assert_eq!(reply.status, StatusCode::ACCEPTED, "{body}: {reply:?}");
        assert_eq!(reply.json()["order"], body["order"]);
        browser.until(process, "done").await;
        let last = fake.operator.given().pop().expect("an order");
        assert_eq!(last, format!("{given}, by the status page"));
    }
    let figures = browser.client.get(FIGURES).await.json();
    let last = figures["orders"]["last"].as_array().expect("a list");
    let words: Vec<_> = last.iter().map(|order| order["order"].as_str().expect("text")).collect();
    assert_eq!(words, ["undrain", "drain", "drafter_swap", "restart", "restart"]);
    assert_eq!(last[2]["model"], "/d");
}

#[tokio::test]
async fn a_process_takes_one_order_at_a_time_and_a_failure_has_its_reason() {
    let (stage, fake, _attachment) = keyless().await;
    let browser = Browser::open(&stage, None).await;
    fake.operator.outcome.send_replace(None);
    let swap = json!({ "order": "drafter_swap", "model": "/d" });
    assert_eq!(browser.order(&swap).await.status, StatusCode::ACCEPTED);
    for body in [&swap, &restart("drafter"), &json!({ "order": "drafter_stop" })] {
        is_refused(&browser.order(body).await, 409, "busy with an earlier order (drafter_swap");
    }
    for body in [restart("target"), json!({ "order": "drain" }), json!({ "order": "undrain" })] {
        assert_eq!(browser.order(&body).await.status, StatusCode::ACCEPTED, "{body}");
    }
    assert_eq!(browser.last("drafter").await["ended"], Value::Null);
    let failure = Reason::DrafterFailed.status("its config.json is missing");
    fake.operator.outcome.send_replace(Some(Err(failure)));
    let last = browser.until("drafter", "failed").await;
    assert_eq!(last["message"], "its config.json is missing");
    assert!(last["ended"].is_i64(), "{last}");
    assert_eq!(browser.order(&swap).await.status, StatusCode::ACCEPTED, "the first has ended");
    within(async {
        while orders_of(&fake) < 5 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_restart_of_the_supervisor_is_done_when_the_next_one_serves() {
    use paceline_proto::v1::{ProcessState, ProcessStatus, StatusResponse};
    let (mut stage, fake, _attachment) = keyless().await;
    let browser = Browser::open(&stage, None).await;
    fake.operator.outcome.send_replace(Some(Ok(())));
    assert_eq!(browser.order(&restart("supervisor")).await.status, StatusCode::ACCEPTED);
    within(async {
        while orders_of(&fake) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    fake.kill();
    assert_eq!(browser.last("supervisor").await["state"], "running");
    let (fake, _attachment) = stage.attach(2).await;
    let serving = |state: ProcessState| StatusResponse {
        term: 2,
        target: Some(ProcessStatus { state: state.into(), ..Default::default() }),
        ..Default::default()
    };
    fake.operator.report(serving(ProcessState::Loading));
    within(async {
        while fake.operator.asked.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(browser.last("supervisor").await["state"], "running");
    fake.operator.report(serving(ProcessState::Ready));
    browser.until("supervisor", "done").await;
    assert_eq!(orders_of(&fake), 0, "the order is given once");
}

#[tokio::test]
async fn without_a_session_its_token_or_the_pages_origin_an_order_is_refused() {
    let (stage, fake, _attachment) = keyless().await;
    let browser = Browser::open(&stage, None).await;
    let other = Browser::open(&stage, None).await;
    assert!(!browser.token.is_empty() && browser.token != other.token);
    let own = format!("http://{}", stage.http);
    let json_type = "application/json";
    let order = restart("target");
    let bare = HttpClient::new(stage.http);
    let cookie = browser.client.clone();

    // Without a session, whatever else is right.
    let stranger = bare.with("origin", &own).with("content-type", json_type);
    is_refused(&stranger.with(TOKEN, &browser.token).post(ORDERS, &order).await, 401, "session");
    let ended = Browser::open(&stage, None).await;
    assert_eq!(ended.client.send("DELETE", SESSION, "").await.status, StatusCode::NO_CONTENT);
    is_refused(&ended.order(&order).await, 401, "session");

    // With a session and without its token.
    let typed = cookie.with("content-type", json_type);
    is_refused(&typed.post(ORDERS, &order).await, 403, TOKEN);
    for wrong in ["", "0", other.token.as_str(), &browser.token[1..]] {
        is_refused(&typed.with(TOKEN, wrong).post(ORDERS, &order).await, 403, TOKEN);
    }
    let twice = typed.with(TOKEN, &browser.token).with(TOKEN, &browser.token);
    is_refused(&twice.post(ORDERS, &order).await, 403, TOKEN);

    assert_eq!(orders_of(&fake), 0);
    fake.operator.outcome.send_replace(Some(Ok(())));
    assert_eq!(browser.order(&order).await.status, StatusCode::ACCEPTED);
}

/// An order with the browser's cookie and token, and these headers instead of the page's.
async fn order_with(browser: &Browser, stage: &Stage, headers: &[(&'static str, &str)]) -> Reply {
    let cookie = browser.client.header("cookie");
    let client = HttpClient::new(stage.http).with("cookie", &cookie).with(TOKEN, &browser.token);
    let client = headers.iter().fold(client, |client, (name, value)| client.with(name, value));
    client.post(ORDERS, &restart("target")).await
}

#[tokio::test]
async fn an_order_of_another_page_host_or_form_is_refused() {
    let (stage, fake, _attachment) = keyless().await;
    let browser = Browser::open(&stage, None).await;
    let port = stage.http.port();
    let (own, json_type) = (format!("http://{}", stage.http), ("content-type", "application/json"));
    let send = async |headers: &[(&'static str, &str)]| order_with(&browser, &stage, headers).await;

    for origin in ["http://evil.example", "null", "http://localhost:3000", LISTED] {
        let reply = send(&[("origin", origin), json_type]).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{origin}: {reply:?}");
        assert!(reply.error().1.starts_with("origin: expected"), "{reply:?}");
    }
    // The same machine by another of its names is another origin.
    let named = format!("http://localhost:{port}");
    assert_eq!(send(&[("origin", &named), json_type]).await.status, StatusCode::FORBIDDEN);
    is_refused(&send(&[json_type]).await, 403, "origin: expected the origin of the service's own");
    for site in ["same-site", "none"] {
        let reply = send(&[("origin", &own), ("sec-fetch-site", site), json_type]).await;
        is_refused(&reply, 403, "sec-fetch-site: expected same-origin");
    }
    let reply = send(&[("origin", &own), ("sec-fetch-site", "cross-site"), json_type]).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{reply:?}");
    let evil = [("host", "evil.example"), ("origin", "http://evil.example"), json_type];
    let reply = send(&evil).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert!(reply.error().1.starts_with("host: expected"), "{reply:?}");

    // Names and addresses that clients may use, by which operators do not.
    for host in ["box.lan", "192.168.7.9", "host.docker.internal"] {
        let origin = format!("http://{host}");
        let reply = send(&[("host", host), ("origin", &origin), json_type]).await;
        is_refused(&reply, 403, "a browser on this machine alone");
    }
    for name in ["x-forwarded-for", "forwarded", "via", "x-real-ip"] {
        let reply = send(&[("origin", &own), json_type, (name, "192.0.2.1")]).await;
        is_refused(&reply, 403, "without a proxy");
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let reply = send(&[("origin", &own), ("content-type", kind)]).await;
        is_refused(&reply, 415, "content-type: expected application/json");
    }
    is_refused(&send(&[("origin", &own)]).await, 415, "content-type");
    assert_eq!(orders_of(&fake), 0);
    fake.operator.outcome.send_replace(Some(Ok(())));
    let named = [("host", "localhost"), ("origin", "http://localhost")];
    let utf8 = ("content-type", "application/json; charset=utf-8");
    assert_eq!(send(&[named[0], named[1], utf8]).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn only_a_short_body_that_is_posted_is_an_order() {
    let (stage, fake, _attachment) = keyless().await;
    let browser = Browser::open(&stage, None).await;
    let ready = browser.client.with(TOKEN, &browser.token).with("content-type", "application/json");
    let order = restart("target").to_string();
    for method in ["GET", "HEAD", "PUT", "DELETE", "PATCH"] {
        let body = if ["GET", "HEAD"].contains(&method) { "" } else { &order };
        let reply = ready.send(method, ORDERS, body.to_owned()).await;
        assert_eq!(reply.status, StatusCode::METHOD_NOT_ALLOWED, "{method}: {reply:?}");
    }
    let query = format!("{ORDERS}?order=restart&process=target");
    assert_eq!(ready.get(&query).await.status, StatusCode::METHOD_NOT_ALLOWED);
    for (body, status, words) in [
        (String::new(), 400, "body: expected an order as JSON"),
        ("order=restart&process=target".to_owned(), 400, "body: expected an order as JSON"),
        ("{\"order\":\"restart\"}".to_owned(), 400, "process: expected the process to restart"),
        (format!("{order}{}", " ".repeat(40_000)), 413, "at most 32768 bytes"),
        ("[".repeat(30_000), 400, "body: expected an order as JSON"),
    ] {
        is_refused(&ready.send("POST", ORDERS, body).await, status, words);
    }
    assert_eq!(orders_of(&fake), 0);
}

#[tokio::test]
async fn with_keys_a_listed_key_gives_orders_in_its_session_and_no_other() {
    let listed = Operators::Keys(vec!["alice".to_owned()]);
    let (_dir, stage, fake, _attachment) = with_keys(listed).await;
    let alice = Browser::open(&stage, Some(ALICE)).await;
    let bob = Browser::open(&stage, Some(BOB)).await;
    let order = restart("target");
    let figures = bob.client.get(FIGURES).await.json();
    assert_eq!((&figures["orders"]["allowed"], &bob.token), (&json!(false), &String::new()));
    assert!(figures["orders"]["refusal"].as_str().expect("why").contains("the key bob"));
    // Without the page's figures Bob would not know his token.
    is_refused(&bob.order(&order).await, 403, TOKEN);
    // A key is no session, also a listed one.
    let keyed = HttpClient::new(stage.http).with("authorization", &of(ALICE));
    let keyed = keyed.with("origin", &format!("http://{}", stage.http)).with(TOKEN, &alice.token);
    let keyed = keyed.with("content-type", "application/json");
    is_refused(&keyed.post(ORDERS, &order).await, 401, "session of the status page");
    let bare = HttpClient::new(stage.http);
    for method in ["POST", "GET"] {
        assert_eq!(bare.send(method, ORDERS, "").await.status, StatusCode::UNAUTHORIZED);
    }
    let json_type = ("content-type", "application/json");
    for origin in ["http://evil.example", "http://localhost:3000"] {
        let reply = order_with(&alice, &stage, &[("origin", origin), json_type]).await;
        is_refused(&reply, 403, "origin: expected");
    }
    let ready = alice.client.with(TOKEN, &alice.token);
    assert_eq!(ready.get(ORDERS).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(orders_of(&fake), 0);
    fake.operator.outcome.send_replace(Some(Ok(())));
    assert_eq!(alice.order(&order).await.status, StatusCode::ACCEPTED);
    alice.until("target", "done").await;
    assert_eq!(fake.operator.given(), ["restart PROCESS_TARGET, by the status page (key alice)"]);
}

#[tokio::test]
async fn with_keys_nobody_gives_orders_by_default_and_an_empty_list_switches_them_off() {
    let (_dir, stage, _fake, _attachment) = with_keys(Operators::Auto).await;
    let alice = Browser::open(&stage, Some(ALICE)).await;
    let figures = alice.client.get(FIGURES).await.json();
    let refusal = figures["orders"]["refusal"].as_str().expect("why");
    assert!(refusal.contains("gateway.operators") && alice.token.is_empty(), "{refusal}");
    let (stage, _fake, _attachment) =
        Stage::serving(|config| config.gateway.operators = Operators::Keys(vec![])).await;
    let client = HttpClient::new(stage.http);
    let begun = client.send("POST", SESSION, "").await;
    assert_eq!((begun.status, begun.header("set-cookie")), (StatusCode::NO_CONTENT, None));
    let orders = &client.get(FIGURES).await.json()["orders"];
    assert_eq!((&orders["allowed"], &orders["token"]), (&json!(false), &Value::Null));
    assert!(orders["refusal"].as_str().expect("why").contains("orders by this page are off"));
}

#[tokio::test]
async fn a_page_of_another_origin_reads_no_token() {
    let (stage, _fake, _attachment) = keyless().await;
    let browser = Browser::open(&stage, None).await;
    let client = HttpClient::new(stage.http).with("cookie", &browser.client.header("cookie"));
    let token =
        async |client: &HttpClient| client.get(FIGURES).await.json()["orders"]["token"].clone();
    assert_eq!(token(&client).await, json!(browser.token));
    for (name, value) in [("origin", LISTED), ("sec-fetch-site", "same-site")] {
        assert_eq!(token(&client.with(name, value)).await, Value::Null, "{name}");
    }
    let listed = client.with("origin", LISTED).with("sec-fetch-site", "cross-site");
    assert_eq!(token(&listed).await, Value::Null);
}
