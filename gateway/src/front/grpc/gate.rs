//! The layer before the inference service: counts requests, and refuses them before their message
//! is read when the gateway is stopping or full. It gives tonic's own refusal of a large message
//! the code and reason of our contract.

use std::sync::Arc;

use http::{Request, Response};
use paceline_proto::status::{Reason, Refusal};
use paceline_protocols::inference::error::Result;
use paceline_system::clock::monotonic_ns;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::{Code, Status};

use super::status;
use crate::front::connection::layer::{Passed, Refused, RequestLayer};
use crate::guard::keys::Principal;
use crate::inference::admission::{MessageArrival, RequestSlot, RequestSlots};
use crate::inference::standing::Standing;
use crate::metrics::Metrics;

/// Arrival of a request, for the service. It is in the request's extensions.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When the headers were read, by the monotonic clock.
    pub at_ns: i64,
    /// Place of the request among those inside the gateway.
    pub slot: Arc<RequestSlot>,
}

/// The gate before a service.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The requests inside the gateway.
    pub slots: RequestSlots,
    /// Whether the gateway takes new requests.
    pub standing: watch::Receiver<Standing>,
    /// `limits.max_message_bytes`.
    pub max_message_bytes: u64,
    /// Counts the requests that are refused here, as the service counts all others.
    pub metrics: Arc<Metrics>,
    /// Beginning of the paths whose requests count. Others pass at any time.
    pub counted: &'static str,
}

impl Gate {
    fn enter(&self, principal: Option<&Principal>) -> Result<RequestSlot> {
        self.standing.borrow().open()?;
        self.slots.enter(principal.map(|principal| &principal.name))
    }
}

impl RequestLayer<Body> for Gate {
    type Body = Body;
    type Answer = Body;
    type Reply = Body;
    /// The limit for messages.
    type Kept = u64;

    fn before(&self, mut request: Request<Body>) -> Result<Passed<Body, u64>, Refused<Body>> {
        if !request.uri().path().starts_with(self.counted) {
            return Ok(Passed { request, kept: self.max_message_bytes });
        }
        let slot = match self.enter(request.extensions().get()) {
            Ok(slot) => Arc::new(slot),
            Err(error) => {
                self.metrics.refused(error.kind);
                return Err(Box::pin(async { status::of(error).into_http() }));
            }
        };
        if let Some(message) = request.extensions().get::<Arc<MessageArrival>>() {
            self.slots.follow(message, &slot);
        }
        request.extensions_mut().insert(Arrival { at_ns: monotonic_ns(), slot });
        Ok(Passed { request, kept: self.max_message_bytes })
    }

    fn after(limit: u64, response: Response<Body>) -> Response<Body> {
        with_our_code(response, limit)
    }
}

/// Only tonic itself answers OUT_OF_RANGE here, and only to a message above the limit.
fn with_our_code(response: Response<Body>, limit: u64) -> Response<Body> {
    let status = Status::from_header_map(response.headers());
    match status {
        Some(status) if status.code() == Code::OutOfRange => {
            let found: Option<u64> =
                status.message().split_whitespace().find_map(|word| word.parse().ok());
            let found = found.map_or_else(|| "more".to_owned(), |bytes| bytes.to_string());
            let message = format!(
                "message: expected at most {limit} bytes (limits.max_message_bytes of this service), found {found}"
            );
            let refusal = Refusal::new(Reason::MessageTooLarge, message).field("message");
            Status::from(refusal.fact("limit_bytes", limit).fact("found_bytes", found)).into_http()
        }
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use paceline_proto::status::ReasonStatus as _;

    use super::*;

    #[test]
    fn only_tonics_refusal_changes_its_code() {
        let large = Status::out_of_range(
            "Error, decoded message length too large: found 50 bytes, the limit is: 40 bytes",
        );
        let status = Status::from_header_map(with_our_code(large.into_http(), 40).headers())
            .expect("a status");
        assert_eq!(
            (status.code(), Reason::of(&status)),
            (Code::ResourceExhausted, Some(Reason::MessageTooLarge))
        );
        assert!(
            status.message().contains("at most 40 bytes") && status.message().contains("found 50"),
            "{}",
            status.message()
        );
        let other = Status::from_header_map(
            with_our_code(Status::not_found("x").into_http(), 40).headers(),
        );
        assert_eq!(other.expect("a status").code(), Code::NotFound);
    }
}
