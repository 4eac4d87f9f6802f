//! Which requests a page of another site may have sent.

use http::Request;
use paceline_protocols::inference::error::InferenceError;

use super::*;

fn sites() -> Sites {
    let cors = Cors::new(&["https://chat.example".to_owned()]);
    Sites::new(&["Box.Lan".to_owned()], cors)
}

fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

fn check(method: &str, target: &str, headers: &[(&str, &str)]) -> Result<(), InferenceError> {
    sites().check(&parts(method, target, headers))
}

#[track_caller]
fn refused(method: &str, target: &str, headers: &[(&str, &str)], header: &str) {
    let error = check(method, target, headers).expect_err("a page's");
    assert_eq!(error.field.as_deref(), Some(header), "{error}");
    assert!(error.message.contains("gateway."), "no setting: {error}");
}

#[test]
fn a_host_is_an_address_or_a_name_of_the_service() {
    for host in [
        "localhost",
        "localhost:8061",
        "localhost:",
        "LOCALHOST:8061",
        "localhost.",
        "app.localhost",
        "a.b.localhost:1",
        "host.docker.internal:8061",
        "box.lan",
        "BOX.lan.:8061",
        "127.0.0.1:8061",
        "192.168.1.20",
        "93.184.216.34:80",
        "[::1]:8061",
        "[::1]",
        "[2001:db8::1]:8061",
        "[::ffff:127.0.0.1]:8061",
        "",
    ] {
        assert_eq!(check("POST", "/v1/messages", &[("host", host)]), Ok(()), "{host}");
    }
    assert_eq!(check("POST", "/v1/messages", &[]), Ok(()), "no host");
    for host in [
        "evil.example",
        "evil.example:8061",
        "localhost.evil.example",
        "evil-localhost",
        "xlocalhost",
        ".localhost",
        "a..localhost",
        "localhost..",
        ".",
        "localhost@evil.example",
        "evil.example@localhost",
        "user:pass@localhost",
        "localhost:8061@evil.example",
        "localhost, evil.example",
        "localhost/evil",
        "localhost:80x",
        "localhost:+80",
        "localhost:99999",
        "localhost:80:80",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io:8061",
        "127.1",
        "0x7f.0.0.1",
        "2130706433",
        "127.0.0.1.",
        "::1",
        "[::1",
        "[::1]8061",
        "[::1].evil.example",
        "[evil.example]:80",
        "[::1]@evil.example",
        "notbox.lan",
        "box.lan.evil.example",
        "*",
    ] {
        if HeaderValue::from_str(host).is_ok() {
            refused("POST", "/v1/messages", &[("host", host)], "host");
        }
    }
    let bytes = HeaderValue::from_bytes(b"\xc3\xa9vil").expect("bytes");
    let mut request = parts("GET", "/health", &[]);
    request.headers.insert(HOST, bytes);
    assert!(sites().check(&request).is_err());
    refused("GET", "/", &[("host", "localhost"), ("host", "localhost")], "host");
}

#[test]
fn the_authority_of_the_target_is_a_host_too() {
    let ours = ("host", "localhost:8061");
    assert_eq!(check("GET", "http://localhost:8061/health", &[ours]), Ok(()));
    assert_eq!(check("GET", "http://127.0.0.1:8061/health", &[]), Ok(()));
    for target in [
        "http://evil.example/health",
        "http://localhost@evil.example/health",
        "http://evil.example@localhost/health",
    ] {
        refused("GET", target, &[ours], "host");
        refused("GET", target, &[], "host");
    }
    refused("GET", "http://localhost:8061/health", &[("host", "evil.example")], "host");
}

#[test]
fn an_origin_is_the_services_own_or_a_listed_one() {
    let of = |host, origin| check("POST", "/v1/responses", &[("host", host), ("origin", origin)]);
    for (host, origin) in [
        ("localhost:8061", "http://localhost:8061"),
        ("LOCALHOST:8061", "http://localhost:8061"),
        ("127.0.0.1:8061", "http://127.0.0.1:8061"),
        ("[::1]:8061", "http://[::1]:8061"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("box.lan", "https://box.lan"),
        ("localhost:8061", "https://chat.example"),
    ] {
        assert_eq!(of(host, origin), Ok(()), "{host} {origin}");
    }
    for origin in [
        "http://evil.example",
        "http://evil.example:8061",
        "http://localhost:3000",
        "http://localhost",
        "http://127.0.0.1:8061",
        "http://app.localhost:8061",
        "http://localhost:8061.evil.example",
        "http://localhost:8061@evil.example",
        "http://localhost:8061 http://evil.example",
        "ftp://localhost:8061",
        "https://chat.example:444",
        "http://chat.example",
        "https://chat.example.evil.example",
        "chrome-extension://abcdef",
        "null",
        "",
    ] {
        refused(
            "POST",
            "/v1/responses",
            &[("host", "localhost:8061"), ("origin", origin)],
            "origin",
        );
    }
    let two = [("origin", "https://chat.example"), ("origin", "http://evil.example")];
    refused("POST", "/v1/responses", &two, "origin");
    refused("POST", "/v1/responses", &[("origin", "http://localhost:8061")], "origin");
    let of_http2 = [("origin", "http://localhost:8061")];
    assert_eq!(check("POST", "http://localhost:8061/v1/responses", &of_http2), Ok(()));
}

#[test]
fn another_site_may_only_link_to_the_status_page() {
    let link = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ];
    assert_eq!(check("GET", "/", &link), Ok(()));
    assert_eq!(check("GET", "/?from=mail", &link), Ok(()));
    for path in ["/status", "/v1/models", "/metrics", "/health", "/nothing"] {
        refused("GET", path, &link, "sec-fetch-site");
    }
    for method in ["POST", "HEAD", "OPTIONS"] {
        refused(method, "/", &link, "sec-fetch-site");
    }
    for (at, word) in [(1, "no-cors"), (1, "cors"), (2, "iframe"), (2, "empty"), (2, "image")] {
        let mut embedded = link;
        embedded[at].1 = word;
        refused("GET", "/", &embedded, "sec-fetch-site");
    }
    refused("GET", "/", &link[..1], "sec-fetch-site");
    refused("GET", "/", &link[..2], "sec-fetch-site");
    for own in ["same-origin", "same-site", "none"] {
        assert_eq!(check("GET", "/status", &[("sec-fetch-site", own)]), Ok(()), "{own}");
    }
    for other in ["cross-site", "CROSS-SITE", "none, cross-site", "", "other"] {
        refused("POST", "/v1/messages", &[("sec-fetch-site", other)], "sec-fetch-site");
    }
    let two = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")];
    refused("POST", "/v1/messages", &two, "sec-fetch-site");
    // Browsers send it with the origin of a page that may.
    let listed = [("origin", "https://chat.example"), ("sec-fetch-site", "cross-site")];
    assert_eq!(check("POST", "/v1/messages", &listed), Ok(()));
}

#[test]
fn a_session_is_for_the_services_own_page() {
    let own = |headers: &[(&str, &str)]| is_own_page(&parts("GET", "/status", headers));
    let host = ("host", "box.example:8061");
    assert!(own(&[host]) && own(&[]));
    assert!(own(&[host, ("origin", "http://box.example:8061")]));
    assert!(own(&[host, ("sec-fetch-site", "same-origin")]));
    assert!(own(&[host, ("sec-fetch-site", "none")]));
    // Behind a proxy that sends a host of its own.
    let behind = ("origin", "https://box.example");
    assert!(own(&[("host", "127.0.0.1:8061"), behind, ("sec-fetch-site", "same-origin")]));
    assert!(!own(&[host, ("sec-fetch-site", "same-site")]));
    assert!(!own(&[host, ("sec-fetch-site", "cross-site")]));
    assert!(!own(&[host, ("origin", "http://box.example:3000")]));
    assert!(!own(&[host, ("origin", "null")]));
    assert!(!own(&[("origin", "http://box.example:8061")]));
}

#[test]
fn a_question_of_the_page_has_the_origin_of_the_host_that_it_asks() {
    let own = ("origin", "http://localhost:8061");
    let host = ("host", "localhost:8061");
    let of = |target: &str, headers: &[(&str, &str)]| {
        let parts = parts("POST", target, headers);
        check_own_origin(&parts.headers, &parts.uri).map_err(|error| error.message)
    };
    assert_eq!(of("/o", &[host, own]), Ok(()));
    assert_eq!(of("/o", &[host, own, ("sec-fetch-site", "same-origin")]), Ok(()));
    assert_eq!(of("http://localhost:8061/o", &[own]), Ok(()), "HTTP/2");
    assert_eq!(of("/o", &[("host", "box.lan"), ("origin", "https://box.lan")]), Ok(()), "a proxy");
    for headers in [
        &[host][..],
        &[own],
        &[host, own, own],
        &[host, ("origin", "null")],
        &[host, ("origin", "http://localhost:8062")],
        &[host, ("origin", "http://127.0.0.1:8061")],
        &[host, own, ("sec-fetch-site", "same-site")],
        &[host, own, ("sec-fetch-site", "none")],
    ] {
        let message = of("/o", headers).expect_err("not the page");
        assert!(message.contains("expected"), "{headers:?}: {message}");
    }
}
