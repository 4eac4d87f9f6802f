//! Reads the body of a request, within its bound in bytes.

use std::io;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use paceline_protocols::inference::error::{InferenceError, Result, quoted};
use paceline_vocabulary::Reason;

/// The body of a request with these headers, of at most `limit` bytes (`limits.max_message_bytes`).
///
/// # Errors
/// It is larger; it did not come in time; its client left.
pub(super) async fn read(body: Body, headers: &HeaderMap, limit: u64) -> Result<Bytes> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(bytes) = announced.filter(|bytes: &u64| *bytes > limit) {
        return Err(too_large(limit, &bytes.to_string()));
    }
    let mut body = std::pin::pin!(body);
    // Within the limit, and counted in the budget before the first byte is read.
    let mut whole = BytesMut::with_capacity(announced.unwrap_or(0) as usize);
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await
    {
        let frame = frame.map_err(|error| failure(&error, headers))?;
        let Ok(data) = frame.into_data() else { continue };
        if (whole.len() + data.len()) as u64 > limit {
            return Err(too_large(limit, "more"));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

fn too_large(limit: u64, found: &str) -> InferenceError {
    let message = format!(
        "body: expected at most {limit} bytes (limits.max_message_bytes of this service), found {found}"
    );
    let error = InferenceError::new(Reason::MessageTooLarge, message).field("body");
    error.fact("limit_bytes", limit).fact("found_bytes", found)
}

/// The error that the connection made of the body's failure; that the body is not framed as its
/// headers say; else the client left.
fn failure(error: &axum::Error, headers: &HeaderMap) -> InferenceError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(ours) = one.downcast_ref::<InferenceError>() {
            return ours.clone();
        }
        if let Some(read) = one.downcast_ref::<io::Error>()
            && is_broken(read, headers)
        {
            let expected = "chunks as HTTP/1.1 has them (RFC 9112, section 7.1)";
            return InferenceError::invalid("body", expected, quoted(&read.to_string()));
        }
        cause = one.source();
    }
    InferenceError::new(Reason::Cancelled, "the client ended its body before the end")
}

/// Whether a body could not be read because of its bytes. A body in chunks that ends before its last
/// chunk is broken; one with a length that ends early is a client's that left.
fn is_broken(error: &io::Error, headers: &HeaderMap) -> bool {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => true,
        io::ErrorKind::UnexpectedEof => headers.contains_key(TRANSFER_ENCODING),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    async fn of(
        pieces: Vec<Result<&'static str, InferenceError>>,
    ) -> Result<Bytes, InferenceError> {
        read(Body::from_stream(stream::iter(pieces)), &HeaderMap::new(), 6).await
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        assert_eq!(of(vec![Ok("abc"), Ok("def")]).await.expect("fits"), "abcdef");
        let error = of(vec![Ok("abc"), Ok("defg")]).await.expect_err("a byte more");
        assert_eq!(error.kind, Reason::MessageTooLarge);
        let headers = [(CONTENT_LENGTH, "7".parse().expect("ASCII"))].into_iter().collect();
        let error = read(Body::from("no"), &headers, 6).await.expect_err("announced");
        assert!(error.message.contains("found 7"), "{error}");
    }

    #[tokio::test]
    async fn the_error_of_a_body_that_was_cut_is_kept() {
        let late = InferenceError::new(Reason::MessageTimeout, "late");
        let error = of(vec![Ok("a"), Err(late.clone())]).await.expect_err("cut");
        assert_eq!(error, late);
    }
}
