//! The outermost layer of a connection: lets calls with a known key pass. Where keys are set, every
//! method of every service needs one, reflection and methods that do not exist included; only
//! health is open. A refusal does not say what was wrong.

use std::net::IpAddr;

use http::header::AUTHORIZATION;
use http::{Request, Response};
use paceline_proto::status::{Reason, ReasonStatus as _};
use tonic::Status;
use tonic::body::Body;

use super::layer::{CallLayer, Passed, Refused};
use crate::guard::Guard;

/// The only service that needs no key.
const OPEN: &str = "/grpc.health.v1.Health/";

/// The layer that asks for a key. It puts the key's [`crate::guard::keys::Principal`] into the
/// request's extensions.
#[derive(Clone, Debug)]
pub(super) struct Door {
    guard: Guard,
    peer: IpAddr,
}

impl Door {
    /// For the connection of this peer.
    pub(super) fn new(guard: Guard, peer: IpAddr) -> Self {
        Self { guard, peer }
    }
}

impl<B> CallLayer<B> for Door {
    type Body = B;
    type Call = ();

    fn before(&self, mut request: Request<B>) -> Result<Passed<B, ()>, Refused> {
        if !request.uri().path().starts_with(OPEN) {
            match self.guard.principal(request.headers()) {
                Ok(None) => {}
                Ok(Some(principal)) => {
                    request.extensions_mut().insert(principal);
                }
                Err(_) => {
                    let pause = self.guard.pause(self.peer);
                    return Err(Box::pin(async move {
                        tokio::time::sleep(pause).await;
                        unauthenticated().into_http()
                    }));
                }
            }
        }
        // No layer or service after this one needs the key.
        request.headers_mut().remove(AUTHORIZATION);
        Ok(Passed { request, call: () })
    }

    fn after((): (), response: Response<Body>) -> Response<Body> {
        response
    }
}

/// The one refusal of all calls without a key that is known.
fn unauthenticated() -> Status {
    Reason::Unauthenticated
        .status("an API key is needed; send it as metadata, authorization: Bearer KEY")
}
