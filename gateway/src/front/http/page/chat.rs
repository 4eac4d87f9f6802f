//! `POST /status/chat`: a question of the page, in the protocol of `/v1/chat/completions`.
//!
//! The path takes the session's cookie, which a browser sends unasked. It is therefore served for the
//! service's own page alone (403), and with keys in a session alone (401). Other clients have
//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_protocols::inference::error::InferenceError;
use paceline_protocols::openai::chat::Chat;
use paceline_vocabulary::Reason;

use super::{CHAT, guard_answer};
use crate::front::http::error::ErrorReply;
use crate::front::http::site::check_own_origin;
use crate::front::http::{HttpFront, exchange, of_path};
use crate::guard::sessions::SessionToken;

/// Answers a question of the page. Nothing of a request that is refused here is read.
pub(super) async fn answer(State(front): State<Arc<HttpFront>>, request: Request) -> Response {
    let mut answer = match refusal(&front, &request) {
        None => exchange::answer::<Chat>(State(front), request).await,
        Some(refusal) => of_path(refusal, CHAT),
    };
    guard_answer(answer.headers_mut());
    answer
}

/// Why a request is not served: there are keys and it has no session, or another page or no page
/// sent it.
fn refusal(front: &HttpFront, request: &Request) -> Option<ErrorReply> {
    if front.guard.has_keys() && request.extensions().get::<SessionToken>().is_none() {
        let message = "a question of the page needs its session: open the page and sign in; \
                       programs send theirs to /v1/chat/completions";
        return Some(ErrorReply::new(InferenceError::new(Reason::Unauthenticated, message)));
    }
    let error = check_own_origin(request.headers(), request.uri()).err()?;
    Some(ErrorReply::new(error).status(StatusCode::FORBIDDEN))
}
