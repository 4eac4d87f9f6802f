//! `POST /status/orders`: an operator's order by the page. It is accepted only with all of these, and
//! each that is missing has an answer of its own:
//!
//! - a session of the page (401), of a client that may give orders (403)
//! - the page's own origin, and the session's order token in a header (403)
//! - a body of type `application/json`, which no form of another page can have (415)
//! - no other order of the same process under way (409)
//!
//! The answer comes at once (202). What became of the order is in the figures.

use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use paceline_checkpoint::{ModelPlaces, ModelRef};
use paceline_process::config::WITHOUT_DIRECTORY;
use paceline_protocols::inference::error::{InferenceError, Result, quoted, refuse};
use paceline_vocabulary::{Reason, chain};
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{ORDERS, guard_answer, permit};
use crate::front::http::error::ErrorReply;
use crate::front::http::reply::json_reply;
use crate::front::http::site::check_own_origin;
use crate::front::http::{HttpFront, body, of_path};
use crate::guard::keys::Principal;
use crate::guard::sessions::SessionToken;
use crate::service_report::orders::{OrderReport, RestartedProcess, ServiceOrder};

/// Header of an order with the token of its session.
const ORDER_TOKEN: HeaderName = HeaderName::from_static("x-paceline-order-token");
/// Longest body of an order: a path of a model may have 4,096 bytes, each written as six.
const MAX_BODY_BYTES: u64 = 32 << 10;
/// Longest path of a model: `PATH_MAX` of Linux.
const MAX_MODEL_BYTES: usize = 4_096;

/// The body of an order.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderRequest {
    /// The order.
    order: OrderWord,
    /// The process of `restart`.
    #[serde(default)]
    process: Option<RestartedProcess>,
    /// Model of `drafter_start` and `drafter_swap`: an absolute directory, or the name of a model that
    /// was pulled, `org/name`. Without it, the last one.
    #[serde(default)]
    model: Option<String>,
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OrderWord {
    DrafterStart,
    DrafterStop,
    DrafterSwap,
    Drain,
    Undrain,
    Restart,
}

/// Why an order is refused.
struct Refusal {
    error: InferenceError,
    /// Another status than that of the error's reason.
    status: Option<StatusCode>,
}

impl From<InferenceError> for Refusal {
    fn from(error: InferenceError) -> Self {
        Self { error, status: None }
    }
}

impl Refusal {
    fn forbidden(error: InferenceError) -> Self {
        Self { error, status: Some(StatusCode::FORBIDDEN) }
    }

    fn answer(self) -> Response {
        let reply = ErrorReply::new(self.error);
        let reply = match self.status {
            Some(status) => reply.status(status),
            None => reply,
        };
        of_path(reply, ORDERS)
    }
}

/// Takes an order.
pub(super) async fn give(State(front): State<Arc<HttpFront>>, request: Request) -> Response {
    let mut answer = match accept(&front, request).await {
        Ok(report) => json_reply(StatusCode::ACCEPTED, &json!(report)),
        Err(refusal) => {
            tracing::info!(error = %refusal.error, "an order of the status page is refused");
            refusal.answer()
        }
    };
    guard_answer(answer.headers_mut());
    answer
}

async fn accept(front: &HttpFront, request: Request) -> Result<OrderReport, Refusal> {
    let (parts, body) = request.into_parts();
    check_sender(front, &parts)?;
    let bytes = body::read(body, &parts.headers, MAX_BODY_BYTES).await.map_err(own_bound)?;
    let order = serde_json::from_slice(&bytes).map_err(|error| {
        let expected =
            "an order as JSON, such as {\"order\": \"restart\", \"process\": \"target\"}";
        InferenceError::invalid("body", expected, quoted(&error.to_string()))
    })?;
    let order = checked(order).await?;
    let owner = parts.extensions.get::<Principal>();
    let source = match owner {
        Some(owner) => format!("the status page (key {})", owner.name),
        None => "the status page".to_owned(),
    };
    Ok(front.orders.begin(order, source)?)
}

/// Checks that the page of an operator sent the request. Nothing of its body is read before.
fn check_sender(front: &HttpFront, parts: &Parts) -> Result<(), Refusal> {
    let Some(session) = parts.extensions.get::<SessionToken>() else {
        let message = "an order needs a session of the status page: open the page, sign in if it asks for a key, and give the order there";
        return Err(InferenceError::new(Reason::Unauthenticated, message).into());
    };
    check_own_origin(parts).map_err(Refusal::forbidden)?;
    let mut tokens = parts.headers.get_all(ORDER_TOKEN).iter();
    let is_right = tokens.next().is_some_and(|token| session.has_order_token(token.as_bytes()))
        && tokens.next().is_none();
    if !is_right {
        let expected = "the order token of this session, which the page reads with the figures; load the page again";
        let error = InferenceError::invalid(ORDER_TOKEN.as_str(), expected, "none or another one");
        return Err(Refusal::forbidden(error));
    }
    permit(front, parts).map_err(|refusal| {
        let message = refusal.to_string();
        Refusal::forbidden(InferenceError::new(Reason::InvalidArgument, message))
    })?;
    check_type(&parts.headers)
}

/// Checks the type of the body. Browsers send this type for a page of another origin only after a
/// question, which has no permission as its answer.
fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let found = types.next().and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = found.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") && types.next().is_none() {
        return Ok(());
    }
    let error = InferenceError::invalid("content-type", "application/json", quoted(found));
    Err(Refusal { error, status: Some(StatusCode::UNSUPPORTED_MEDIA_TYPE) })
}

/// The bound of a body in the words of this path.
fn own_bound(error: InferenceError) -> InferenceError {
    match error.kind {
        Reason::MessageTooLarge => {
            let message = format!("body: expected an order of at most {MAX_BODY_BYTES} bytes");
            InferenceError::new(Reason::MessageTooLarge, message).field("body")
        }
        _ => error,
    }
}

/// The order that a body asks for.
///
/// # Errors
/// A field is missing, or the order does not have it; the model was not pulled.
async fn checked(request: OrderRequest) -> Result<ServiceOrder> {
    let OrderRequest { order, process, model } = request;
    if process.is_some() != (order == OrderWord::Restart) {
        let expected = "the process to restart with the order restart, and none with another order";
        return refuse("process", expected, if process.is_some() { "one" } else { "none" });
    }
    let takes_model = [OrderWord::DrafterStart, OrderWord::DrafterSwap].contains(&order);
    if model.is_some() && !takes_model {
        return refuse("model", "none: only drafter_start and drafter_swap have a model", "one");
    }
    let model = match model {
        Some(model) => directory(model).await?,
        None => String::new(),
    };
    Ok(match order {
        OrderWord::DrafterStart => ServiceOrder::StartDrafter { model },
        OrderWord::DrafterStop => ServiceOrder::StopDrafter,
        OrderWord::DrafterSwap => ServiceOrder::SwapDrafter { model },
        OrderWord::Drain => ServiceOrder::Drain,
        OrderWord::Undrain => ServiceOrder::Undrain,
        OrderWord::Restart => match process {
            Some(process) => ServiceOrder::Restart(process),
            None => return refuse("process", "a process", "none"),
        },
    })
}

/// The absolute directory of a model as an operator names it; empty for the one that the supervisor
/// knows. Drafters without a directory keep their names.
///
/// # Errors
/// It is not absolute, or a model of this name was not pulled.
async fn directory(model: String) -> Result<String> {
    let text = model.trim().to_owned();
    if text.len() > MAX_MODEL_BYTES || text.contains(char::is_control) {
        let expected = format!("at most {MAX_MODEL_BYTES} bytes without control characters");
        return refuse("model", expected, "another text");
    }
    let is_known = |text: &str| text.is_empty() || WITHOUT_DIRECTORY.contains(&text);
    if is_known(&text) || Path::new(&text).is_absolute() {
        return Ok(text);
    }
    let model = match text.parse().map_or_else(|_| ModelRef::parse(&text), ModelRef::Named) {
        model @ (ModelRef::Named(_)
        | ModelRef::Smollm2
        | ModelRef::Embedded(_)
        | ModelRef::BelowHome(_)) => model,
        // The working directory of the service is not the operator's.
        _ => {
            let expected = "an absolute directory, or the name of a model that was pulled";
            return refuse("model", expected, quoted(&text));
        }
    };
    // A file system that hangs stops this thread and no other.
    let located = tokio::task::spawn_blocking(move || ModelPlaces::of_user().locate(&model));
    let dir = located.await.map_err(InferenceError::bug)?.map_err(|error| {
        let message = format!("model: {}", chain(&error));
        InferenceError::new(Reason::InvalidArgument, message).field("model")
    })?;
    dir.into_os_string().into_string().map_err(|dir| {
        InferenceError::invalid("model", "a directory in UTF-8", format!("{}", dir.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &str) -> Result<ServiceOrder, String> {
        let request = serde_json::from_str(text).map_err(|error| error.to_string())?;
        checked(request).await.map_err(|error| error.message)
    }

    #[tokio::test]
    async fn an_order_has_the_fields_of_its_kind_and_no_other() {
        let model = || "/models/d".to_owned();
        for (text, expected) in [
            (r#"{"order": "drain"}"#, ServiceOrder::Drain),
            (r#"{"order": "undrain"}"#, ServiceOrder::Undrain),
            (r#"{"order": "drafter_stop"}"#, ServiceOrder::StopDrafter),
            (
                r#"{"order": "drafter_start", "model": null}"#,
                ServiceOrder::StartDrafter { model: String::new() },
            ),
            (
                r#"{"order": "drafter_start", "model": "lookup"}"#,
                ServiceOrder::StartDrafter { model: "lookup".into() },
            ),
            (
                r#"{"order": "drafter_swap", "model": " /models/d\n"}"#,
                ServiceOrder::SwapDrafter { model: model() },
            ),
            (
                r#"{"order": "restart", "process": "target"}"#,
                ServiceOrder::Restart(RestartedProcess::Target),
            ),
        ] {
            assert_eq!(read(text).await, Ok(expected), "{text}");
        }
        for (text, expected) in [
            (r#"{"order": "restart"}"#, "process: expected the process to restart"),
            (r#"{"order": "drain", "process": "target"}"#, "process: expected"),
            (r#"{"order": "drafter_stop", "model": "/d"}"#, "model: expected none"),
            (r#"{"order": "restart", "process": "worker"}"#, "unknown variant `worker`"),
            (r#"{"order": "end"}"#, "unknown variant `end`"),
            (r#"{"order": "drain", "now": true}"#, "unknown field `now`"),
            (r#"{"order": "drafter_swap", "model": "d"}"#, "expected an absolute directory"),
            (r#"{"order": "drafter_swap", "model": "./d"}"#, "expected an absolute directory"),
            (r#"{"order": "drafter_swap", "model": "/a\u0000b"}"#, "control characters"),
            (r#"{"order": "drafter_swap", "model": "no-such/model"}"#, "pull no-such/model"),
            ("[]", "invalid"),
        ] {
            let refused = read(text).await.expect_err(text);
            assert!(refused.contains(expected), "{text}: {refused}");
        }
        let long = format!(r#"{{"order": "drafter_swap", "model": "/{}"}}"#, "x".repeat(4_096));
        assert!(read(&long).await.expect_err("too long").contains("at most 4096 bytes"));
    }
}
