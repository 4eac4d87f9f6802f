//! Answers with a JSON body, and the header that every answer has.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::Value;

/// Header with the id of the request, in every answer.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A JSON body with this status.
pub fn json_reply(status: StatusCode, body: &Value) -> Response {
    json_response(status, Body::from(body.to_string()))
}

/// A body of JSON text with this status.
pub(super) fn json_response(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
