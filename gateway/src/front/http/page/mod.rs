//! The page: `GET /` is one static page with two views. The chat sends its questions to
//! `POST /status/chat` ([`chat`]). The view of the service's state shows the figures of `GET /status`
//! ([`report`]), which its script asks for every two seconds. With keys the page asks for one and
//! begins a session ([`session`]).
//!
//! The page is made of the files of this folder, in the binary. Its policy
//! (`content-security-policy`) lets it run its own script and style, by their digests, and reach its
//! own origin, and nothing else. It writes every figure and every text of a model as text, never as
//! markup.

pub mod chat;
pub mod report;
pub mod session;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::reply::json_reply;
use super::{HttpFront, PAGE, ollama};
use report::StatusReport;

/// Path of the figures.
pub const FIGURES: &str = "/status";
/// Path at which sessions begin and end.
pub const SESSION: &str = "/status/session";
/// Path of the chat's questions.
pub const CHAT: &str = "/status/chat";

const HTML: &str = concat!(
    include_str!("head.html"),
    "<style>\n",
    include_str!("style.css"),
    "</style>\n",
    include_str!("body.html"),
    "<script>\n",
    include_str!("status.js"),
    include_str!("markdown.js"),
    include_str!("chat.js"),
    include_str!("page.js"),
    "</script>\n",
);
/// The digest of the page's script and style is of what stands between these.
const STYLE: [&str; 2] = ["<style>", "</style>"];
const SCRIPT: [&str; 2] = ["<script>", "</script>"];
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The paths of the page.
pub fn routes(serves_ollama: bool) -> Router<Arc<HttpFront>> {
    Router::new()
        .route(PAGE, get(move |headers| page(headers, serves_ollama)))
        .route(FIGURES, get(figures))
        .route(SESSION, post(session::begin).delete(session::end))
        .route(CHAT, post(chat::answer))
}

/// Answers with the page, under a policy that lets the browser run its own script alone. Where Ollama's
/// API is served, its clients find the words that they look for.
async fn page(request: HeaderMap, serves_ollama: bool) -> Response {
    let mut accepted = request.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if serves_ollama && !accepted.any(|value| value.contains("text/html")) {
        return ollama::GREETING.into_response();
    }
    static POLICY: LazyLock<Option<HeaderValue>> =
        LazyLock::new(|| HeaderValue::from_str(&policy(HTML)).ok());
    let mut reply = Response::new(Body::from(HTML));
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // Without a policy the browser must run nothing.
    let closed = || HeaderValue::from_static("default-src 'none'");
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone().unwrap_or_else(closed));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    guard_answer(headers);
    reply
}

/// The figures, also of a service that cannot serve: why it cannot is one of them.
async fn figures(State(front): State<Arc<HttpFront>>, request: Request) -> Response {
    let (parts, _body) = request.into_parts();
    let report = StatusReport::of(&front, &parts.extensions).await;
    let mut reply = json_reply(StatusCode::OK, &json!(report));
    guard_answer(reply.headers_mut());
    reply
}

/// Headers of every answer of the page: it is stored nowhere, its type is as written, and pages of
/// other origins do not embed it.
fn guard_answer(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
}

/// The policy of this page: its one script and its one style by their digests, its own origin for
/// figures and questions. Its icon and the pictures of a conversation are `data:` URLs.
fn policy(html: &str) -> String {
    let (style, script) = (digest(html, STYLE), digest(html, SCRIPT));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// The source of a policy for the text between two tags.
fn digest(html: &str, [open, close]: [&str; 2]) -> String {
    let text = html.split_once(open).and_then(|(_, rest)| rest.split_once(close));
    let text = text.map_or("", |(text, _)| text);
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_the_one_script_and_the_one_style_of_the_page() {
        for tags in [STYLE, SCRIPT] {
            for tag in tags {
                assert_eq!(HTML.matches(tag).count(), 1, "{tag}");
            }
        }
        let text = "<style>a</style><script>b</script>";
        // openssl dgst -sha256 -binary | base64
        let style = "style-src 'sha256-ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs='";
        let script = "script-src 'sha256-PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0='";
        let policy = policy(text);
        assert!(policy.contains(style) && policy.contains(script), "{policy}");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(HeaderValue::from_str(&super::policy(HTML)).is_ok());
    }

    #[test]
    fn the_page_asks_no_other_origin_and_writes_no_markup() {
        let icon = HTML.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(HTML.matches("http").count(), icon, "no address but the name of SVG");
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!HTML.contains(forbidden), "{forbidden}");
        }
        // Attributes that the policy would block.
        for blocked in [" style=\"", " onclick=", " onload=", " onsubmit="] {
            assert!(!HTML.contains(blocked), "{blocked}");
        }
    }
}
