//! Cross-origin requests of browsers' pages (fetch.spec.whatwg.org, "CORS protocol"): only pages of
//! the origins in `gateway.cors_origins` may read answers. Without the setting no answer has a
//! header of CORS, and browsers let no page of another origin read it.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method};

/// Headers of answers that pages may read besides those that every page may.
const EXPOSED: &str =
    "x-request-id, x-paceline-lane, retry-after, retry-after-ms, x-should-retry, www-authenticate";
/// Seconds for which a browser keeps the permission: ten minutes, as long as most browsers keep it
/// at most.
const MAX_AGE_S: &str = "600";

/// The origins whose pages may use the service.
#[derive(Clone, Debug)]
pub struct Cors {
    origins: Vec<String>,
}

impl Cors {
    /// Allows these origins, `*` all.
    pub fn new(origins: &[String]) -> Self {
        Self { origins: origins.to_vec() }
    }

    /// Headers of the answer to a browser's question whether a page may send a request; `None` if
    /// the request is no such question of a page that may.
    pub fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<HeaderMap> {
        let asks = method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if !asks || !self.allows(headers.get(ORIGIN)?) {
            return None;
        }
        let mut reply = HeaderMap::new();
        let text = HeaderValue::from_static;
        reply.insert(ACCESS_CONTROL_ALLOW_METHODS, text("GET, POST"));
        reply.insert(ACCESS_CONTROL_MAX_AGE, text(MAX_AGE_S));
        // No header of a request has a meaning that a page must not use: keys are the page's own.
        if let Some(names) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            reply.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        Some(reply)
    }

    /// Headers that each answer gets to a request with these headers.
    pub fn answer(&self, headers: &HeaderMap) -> HeaderMap {
        let mut reply = HeaderMap::new();
        if self.origins.is_empty() {
            return reply;
        }
        reply.insert(VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = headers.get(ORIGIN).filter(|origin| self.allows(origin)) {
            reply.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            reply.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
        reply
    }

    /// Whether pages of this origin may use the service.
    pub fn allows(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|known| known == "*" || known.as_bytes() == origin.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(http::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_pages_of_listed_origins_may_read_answers() {
        let cors = Cors::new(&["https://chat.example.com".to_owned()]);
        let of = |cors: &Cors, origin| {
            let reply = cors.answer(&headers(&[(ORIGIN, origin)]));
            reply
                .get(ACCESS_CONTROL_ALLOW_ORIGIN)
                .map(|value| value.to_str().expect("text").to_owned())
        };
        let ours = Some("https://chat.example.com".to_owned());
        assert_eq!(of(&cors, "https://chat.example.com"), ours);
        for other in ["https://evil.example.com", "http://chat.example.com", "null"] {
            assert_eq!(of(&cors, other), None, "{other}");
        }
        assert_eq!(of(&Cors::new(&["*".to_owned()]), "https://chat.example.com"), ours);
        assert!(Cors::new(&[]).answer(&headers(&[(ORIGIN, "https://a.b")])).is_empty());
    }

    #[test]
    fn a_browsers_question_is_answered_for_listed_origins_only() {
        let cors = Cors::new(&["https://a.b".to_owned()]);
        let ask = |origin, method: Method| {
            let asked = headers(&[
                (ORIGIN, origin),
                (ACCESS_CONTROL_REQUEST_METHOD, "POST"),
                (ACCESS_CONTROL_REQUEST_HEADERS, "authorization, content-type"),
            ]);
            cors.preflight(&method, &asked)
        };
        let reply = ask("https://a.b", Method::OPTIONS).expect("answered");
        assert_eq!(reply[ACCESS_CONTROL_ALLOW_HEADERS], "authorization, content-type");
        assert!(ask("https://c.d", Method::OPTIONS).is_none());
        assert!(ask("https://a.b", Method::POST).is_none(), "the request itself is served");
        let plain = headers(&[(ORIGIN, "https://a.b")]);
        assert!(cors.preflight(&Method::OPTIONS, &plain).is_none());
    }
}
