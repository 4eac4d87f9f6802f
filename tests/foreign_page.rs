//! A page on another port tries to use a service without keys, in a headless Chromium: by simple
//! requests, which a browser sends unasked, and by requests that it asks about first (goal C13). The
//! cases as bytes are in `gateway/tests/foreign_pages.rs`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use paceline_tests::Stack;
use paceline_tests::browser::Page;
use serde_json::{Value, json};

/// A site of its own: one page, whatever is asked for, until the test ends.
fn site() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A browser may close a connection that it opened for later.
            let _ = stream.and_then(answer);
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let page = "<!doctype html><title>another site</title><body>another site</body>";
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{page}", page.len())
}

/// Result of `fetch` in the page: a status, `opaque`, or `failed`.
fn fetched(page: &Page, url: &str, options: &Value) -> Value {
    page.value(&format!(
        "fetch({url:?}, {options}).then(reply => reply.type === 'opaque' ? 'opaque' : reply.status, \
         () => 'failed')"
    ))
}

/// Requests that were submitted so far.
fn requests(stack: &Stack) -> u64 {
    let text = stack.http_get("/metrics").expect("answered").body;
    let lines = text.lines().filter(|line| line.starts_with("paceline_requests_total"));
    lines
        .map(|line| line.rsplit(' ').next().expect("a figure").parse::<f64>().expect("one") as u64)
        .sum()
}

/// Tries everything from a page of the other site, whose host is written so.
fn try_from(test: &str, stack: &Stack, site_host: &str, site: SocketAddr) -> bool {
    let url = format!("http://{site_host}:{}/", site.port());
    let Some(page) = Page::open(test, &url) else { return false };
    page.until("the other site", |text| text.contains("another site"));
    let before = requests(stack);
    let service = format!("http://{}", stack.http_address());
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }], "n": 4_294_967_295_u32 });
    let body = chat.to_string();
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] {
        let url = format!("{service}{path}");
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json"] {
            let headers = json!({ "content-type": kind });
            let readable = json!({ "method": "POST", "headers": headers, "body": body });
            assert_eq!(fetched(&page, &url, &readable), "failed", "{path} {kind}");
            if kind != "application/json" {
                let mut opaque = readable;
                opaque["mode"] = "no-cors".into();
                assert!(fetched(&page, &url, &opaque).is_string(), "{path} {kind} can be read");
            }
        }
    }
    for path in ["/status", "/v1/models", "/metrics", "/health"] {
        let url = format!("{service}{path}");
        assert_eq!(fetched(&page, &url, &json!({})), "failed", "{path}");
        let opaque = json!({ "mode": "no-cors" });
        assert!(fetched(&page, &url, &opaque).is_string(), "{path} can be read");
    }
    // A form that is posted into a frame.
    let form = "const frame = document.createElement('iframe'); frame.name = 'frame';\
                document.body.append(frame);\
                const form = document.createElement('form'); form.target = 'frame';";
    let posted = format!(
        "new Promise(done => {{ {form} form.method = 'post'; form.enctype = 'text/plain';\
         form.action = '{service}/v1/completions'; document.body.append(form);\
         frame.onload = () => done(1); form.submit(); }})"
    );
    assert_eq!(page.value(&posted), 1);
    assert_eq!(requests(stack), before, "nothing of the page was taken as a request");
    true
}

#[test]
#[ignore = "more: needs a headless Chromium; run by `make test-more`"]
fn a_page_on_another_port_makes_a_browser_send_nothing_that_is_served() {
    let test = "a_page_on_another_port_makes_a_browser_send_nothing_that_is_served";
    let stack = Stack::ready("drafter.model = \"\"\n");
    let pid = stack.pid("gateway");
    let site = site();
    // Another site than the service's address, and the same site on another port.
    for host in ["localhost", "127.0.0.1"] {
        if !try_from(test, &stack, host, site) {
            break;
        }
    }
    assert_eq!(stack.pid("gateway"), pid);
    stack.stop();
}
