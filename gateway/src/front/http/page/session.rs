//! Sessions of the page. `POST /status/session` with a key, as every path takes it, begins one: the
//! answer sets a cookie with a random token. `DELETE` ends it. A wrong key is refused and slowed
//! down before it comes here, as at every path.
//!
//! The cookie opens the figures and the chat alone, and only without a key beside it. The chat checks
//! by itself that the page sent the question. So no page of another origin can have a browser send a
//! request for the model with it. Without keys nothing needs a session.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use http::header::AUTHORIZATION;
use http_body::Body as _;
use paceline_protocols::inference::error::{InferenceError, Result, refuse};

use super::{CHAT, FIGURES, SESSION, guard_answer};
use crate::front::http::HttpFront;
use crate::front::http::error::ErrorReply;
use crate::front::http::of_path;
use crate::front::http::site::is_own_page;
use crate::guard::keys::Principal;
use crate::guard::sessions::SessionToken;
use crate::guard::{API_KEY, Guard};

/// The session that a request may use: one without a key, from the service's own page, that asks for
/// figures, asks the model, or ends the session. Browsers count other ports of the same host as the
/// same site and send the cookie from them, too. `name` is that of the cookie.
pub fn offered(request: &Parts, name: &str) -> Option<SessionToken> {
    let is_keyed = [AUTHORIZATION, API_KEY].iter().any(|name| request.headers.contains_key(name));
    let may_use = match request.uri.path() {
        FIGURES => [Method::GET, Method::HEAD].contains(&request.method) && is_own_page(request),
        SESSION => request.method == Method::DELETE && is_own_page(request),
        // The chat checks the origin by itself, to name what is wrong.
        CHAT => request.method == Method::POST,
        _ => false,
    };
    if is_keyed || !may_use {
        return None;
    }
    let headers = request.headers.get_all(COOKIE).iter();
    let cookies = headers.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    let ours = cookies.filter_map(|cookie| cookie.trim().strip_prefix(name)?.strip_prefix('='));
    ours.filter_map(SessionToken::parse).next()
}

/// Begins a session of the key's owner; without keys none, because nothing needs one.
pub(super) async fn begin(State(front): State<Arc<HttpFront>>, request: Request) -> Response {
    if let Err(error) = check_empty(&request) {
        return of_path(ErrorReply::new(error), SESSION);
    }
    let Some(owner) = request.extensions().get::<Principal>() else { return done(None) };
    match front.guard.begin_session(owner) {
        Ok(token) => {
            tracing::info!(key = &*owner.name, "session of the page");
            done(cookie(&front.guard, token.value(), ""))
        }
        Err(error) => {
            let error = InferenceError::bug(format_args!("no random numbers: {error}"));
            of_path(ErrorReply::new(error), SESSION)
        }
    }
}

/// Ends the session of the cookie.
pub(super) async fn end(State(front): State<Arc<HttpFront>>, request: Request) -> Response {
    if let Err(error) = check_empty(&request) {
        return of_path(ErrorReply::new(error), SESSION);
    }
    if let Some(token) = request.extensions().get::<SessionToken>() {
        front.guard.end_session(token);
    }
    done(cookie(&front.guard, "", "; Max-Age=0"))
}

/// The cookie with this value. Browsers send it to the page's own paths alone, only for requests of
/// the page's own site, only by TLS if there is TLS, and show it to no script.
fn cookie(guard: &Guard, value: &str, age: &str) -> Option<HeaderValue> {
    let text = cookie_text(guard.session_cookie(), value, guard.tls.is_some(), age);
    HeaderValue::from_str(&text).ok()
}

fn cookie_text(name: &str, value: &str, has_tls: bool, age: &str) -> String {
    let secure = if has_tls { "; Secure" } else { "" };
    format!("{name}={value}; Path={FIGURES}; HttpOnly; SameSite=Strict{secure}{age}")
}

/// # Errors
/// The request has a body, which would not be read.
fn check_empty(request: &Request) -> Result<()> {
    match request.body().size_hint().exact() {
        Some(0) => Ok(()),
        _ => refuse("body", "none: the key is in a header", "one"),
    }
}

fn done(cookie: Option<HeaderValue>) -> Response {
    let mut reply = Response::default();
    *reply.status_mut() = StatusCode::NO_CONTENT;
    let headers = reply.headers_mut();
    guard_answer(headers);
    if let Some(cookie) = cookie {
        headers.insert(SET_COOKIE, cookie);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "paceline_session_0a";
    const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn found(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        offered(&parts, NAME).map(|token| token.value().to_owned())
    }

    #[test]
    fn the_cookie_opens_the_figures_and_the_chat_and_nothing_else() {
        let cookie = [("cookie", format!("{NAME}={TOKEN}"))];
        let cookie = [(cookie[0].0, cookie[0].1.as_str())];
        for (method, path) in [
            ("GET", "/status"),
            ("HEAD", "/status"),
            ("GET", "/status?x=1"),
            ("DELETE", "/status/session"),
            ("POST", "/status/chat"),
        ] {
            assert_eq!(found(method, path, &cookie).as_deref(), Some(TOKEN), "{method} {path}");
        }
        for (method, path) in [
            ("POST", "/status"),
            ("POST", "/status/session"),
            ("GET", "/status/session"),
            ("GET", "/metrics"),
            ("GET", "/v1/models"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/status/chat"),
            ("POST", "/status/chat/"),
            ("GET", "/status/"),
        ] {
            assert_eq!(found(method, path, &cookie), None, "{method} {path}");
        }
    }

    #[test]
    fn the_token_is_found_among_other_cookies_and_never_beside_a_key() {
        let ours = format!("{NAME}={TOKEN}");
        for cookies in [
            vec![format!("a=b; {ours}; c=d")],
            vec!["a=b".to_owned(), ours.clone()],
            vec![format!("{NAME}=short;{ours}")],
        ] {
            let headers: Vec<_> = cookies.iter().map(|text| ("cookie", text.as_str())).collect();
            assert_eq!(found("GET", "/status", &headers).as_deref(), Some(TOKEN), "{cookies:?}");
        }
        for other in [format!("x{ours}"), format!("{NAME}x={TOKEN}"), format!("{NAME}=\"{TOKEN}\"")]
        {
            assert_eq!(found("GET", "/status", &[("cookie", &other)]), None, "{other}");
        }
        // The cookie of another service on this host, on another port.
        let both = format!("paceline_session_0b={}; {ours}", "f".repeat(TOKEN.len()));
        assert_eq!(found("GET", "/status", &[("cookie", &both)]).as_deref(), Some(TOKEN));
        for key in ["authorization", "x-api-key"] {
            let headers = [("cookie", ours.as_str()), (key, "wrong")];
            assert_eq!(found("GET", "/status", &headers), None, "{key}");
        }
    }

    #[test]
    fn the_cookie_is_for_this_site_hidden_from_scripts_and_secure_under_tls() {
        let text = |has_tls, age| cookie_text(NAME, TOKEN, has_tls, age);
        let expected = format!("{NAME}={TOKEN}; Path=/status; HttpOnly; SameSite=Strict");
        assert_eq!(text(false, ""), expected);
        assert_eq!(text(true, ""), format!("{expected}; Secure"));
        assert_eq!(text(true, "; Max-Age=0"), format!("{expected}; Secure; Max-Age=0"));
    }
}
