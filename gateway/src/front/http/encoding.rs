//! Bodies of requests come as they are. A compressed body is refused by its header, before it is
//! read: read as JSON, its error would name a byte of the compressed data.

use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use paceline_protocols::inference::error::{InferenceError, quoted};

use super::error::ErrorReply;
use super::of_path;

/// The one encoding that is served (RFC 9110, section 12.5.3).
const IDENTITY: &str = "identity";

/// Answers 415 to a request with a compressed body.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let Some(found) = other(request.headers()) else { return next.run(request).await };
    let expected = "none: send the body as it is, not compressed";
    let error = InferenceError::invalid("content-encoding", expected, quoted(&found));
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let mut reply = of_path(ErrorReply::new(error).status(status), request.uri().path());
    reply.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(IDENTITY));
    reply
}

/// The first encoding that is not served.
fn other(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let values = values.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let mut words = values
        .flat_map(|value| value.split(',').map(|word| word.trim().to_owned()).collect::<Vec<_>>());
    words.find(|word| !word.is_empty() && !word.eq_ignore_ascii_case(IDENTITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_but_identity_is_found() {
        let found = |values: &[&'static str]| {
            let value = |text: &&'static str| (CONTENT_ENCODING, HeaderValue::from_static(text));
            other(&values.iter().map(value).collect())
        };
        for served in [&[][..], &[""], &["identity"], &["Identity , identity", "identity"]] {
            assert_eq!(found(served), None, "{served:?}");
        }
        for refused in [&["gzip"][..], &["GZIP"], &["identity, zstd"], &["identity", "br"]] {
            assert!(found(refused).is_some(), "{refused:?}");
        }
    }
}
