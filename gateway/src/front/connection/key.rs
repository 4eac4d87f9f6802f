//! The outermost layer of a connection: lets requests with a known key pass. If keys are set, every
//! path needs one, paths that do not exist included. Only health and the page, without its figures,
//! are open. A refusal does not say what was wrong. If no keys are set, requests of pages
//! of other sites are refused instead.

use std::net::IpAddr;

use http::{HeaderMap, Request, Response};

use super::layer::{Entered, Passed, RequestLayer};
use super::track::TrackedBody;
use super::{RequestBody, WireProtocol, timed};
use crate::guard::Guard;

/// The layer that asks for a key. It puts the key's [`crate::guard::keys::Principal`] into the
/// request's extensions.
#[derive(Clone, Debug)]
pub struct AskKey<P> {
    protocol: P,
    guard: Guard,
    peer: IpAddr,
}

impl<P> AskKey<P> {
    /// For the connection of this peer.
    pub fn new(protocol: P, guard: Guard, peer: IpAddr) -> Self {
        Self { protocol, guard, peer }
    }
}

impl<P: WireProtocol, B: RequestBody> RequestLayer<B> for AskKey<P> {
    type Body = B;
    type Answer = TrackedBody<P::Body>;
    type Reply = TrackedBody<P::Body>;
    /// Headers that the answer gets.
    type Kept = HeaderMap;

    fn before(&self, request: Request<B>) -> Entered<Self, B> {
        let (mut parts, body) = request.into_parts();
        let reply_headers = self.protocol.answer_headers(&parts.headers);
        // A page knows no key, so where keys are set they suffice.
        let foreign = match self.guard.has_keys() {
            true => None,
            false => self.protocol.foreign(&parts),
        };
        let preflight = || self.protocol.preflight(&parts.method, &parts.headers);
        if let Some(reply) = foreign.or_else(preflight) {
            timed::drain(Request::from_parts(parts, body));
            let reply = with_headers(reply.map(TrackedBody::untracked), reply_headers);
            return Err(Box::pin(std::future::ready(reply)));
        }
        let principal = P::principal(&self.guard, &mut parts);
        let mut request = Request::from_parts(parts, body);
        match principal {
            Ok(Some(principal)) => {
                request.extensions_mut().insert(principal);
            }
            Ok(None) => {}
            Err(_) if P::is_open(request.uri().path()) => {}
            Err(_) => {
                let pause = self.guard.pause(self.peer);
                let path = request.uri().path().to_owned();
                // What has come of the body is not kept for the pause.
                let request = timed::undrained(request);
                return Err(Box::pin(async move {
                    tokio::time::sleep(pause).await;
                    let reply = P::refused(P::unknown_key(), &path);
                    request.into_iter().for_each(timed::drain);
                    with_headers(reply.map(TrackedBody::untracked), reply_headers)
                }));
            }
        }
        Ok(Passed { request, kept: reply_headers })
    }

    fn after(headers: HeaderMap, response: Response<Self::Answer>) -> Response<Self::Reply> {
        with_headers(response, headers)
    }
}

fn with_headers<B>(mut response: Response<B>, headers: HeaderMap) -> Response<B> {
    response.headers_mut().extend(headers);
    response
}
