//! A request that has come: its context, and its message decoded and checked. All services of gRPC
//! that generate share it.

use std::sync::Arc;

use paceline_process::telemetry::trace;
use paceline_proto::strict::Deferred;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::input::RequestInput;
use paceline_protocols::inference::request;
use paceline_system::clock::monotonic_ns;
use paceline_vocabulary::RequestId;
use prost::{Message, Name};
use tonic::Request;

use super::gate::Arrival;
use super::{status, timeout};
use crate::front::connection::track::Caller;
use crate::front::decoding::Decoding;
use crate::inference::open::OpenRequest;
use crate::inference::{Inference, RequestContext, Sender};

/// A request and the message that came with it.
#[derive(Debug)]
pub struct Received<M> {
    /// The request, whose time runs.
    pub open: OpenRequest,
    /// The error of a malformed `grpc-timeout`. It is returned as a part of the request, so that it
    /// is logged as all others.
    pub timeout_error: Option<InferenceError>,
    /// The message, not yet decoded.
    pub message: Deferred<M>,
    /// Id of the request.
    pub request_id: RequestId,
    /// Name of the request's key, if keys are set.
    pub owner: Option<Arc<str>>,
}

/// Opens requests that came over gRPC, and decodes and checks their messages.
#[derive(Debug)]
pub struct Reception {
    inference: Arc<Inference>,
    /// Decodes and checks messages, large ones on threads of their own.
    decoding: Decoding,
}

impl Reception {
    /// For requests that `inference` serves.
    pub fn new(inference: Arc<Inference>, decoding: Decoding) -> Self {
        Self { inference, decoding }
    }

    /// What requests are served with.
    pub fn inference(&self) -> &Arc<Inference> {
        &self.inference
    }

    /// Begins to serve a request.
    pub fn receive<M>(&self, method: &'static str, request: Request<Deferred<M>>) -> Received<M> {
        let (metadata, mut extensions, message) = request.into_parts();
        // In tests without the gate before the service, the request has no slot.
        let arrival: Option<Arrival> = extensions.remove();
        let arrived_ns = arrival.as_ref().map_or_else(monotonic_ns, |arrival| arrival.at_ns);
        let mut context =
            RequestContext::new(status::method(method), arrived_ns, trace::of_metadata(&metadata));
        context.principal = extensions.remove();
        let owner = context.principal.as_ref().map(|principal| Arc::clone(&principal.name));
        context.body = extensions.remove();
        context.party = extensions.remove().map(|caller: Caller| caller.party).unwrap_or_default();
        context.slot = arrival.map(|arrival| arrival.slot);
        let timeout_error = match timeout::of_request(&metadata) {
            Ok(timeout) => {
                context.timeout = timeout;
                None
            }
            Err(error) => Some(error),
        };
        let open = self.inference.open(context);
        let request_id = open.request_id().clone();
        Received { open, timeout_error, message, request_id, owner }
    }

    /// Decodes and checks a request's message. `T` is the part of a message besides the request.
    pub async fn read<M, T, D>(
        &self,
        sender: Sender,
        timeout_error: Option<InferenceError>,
        message: Deferred<M>,
        decode: D,
    ) -> Result<(request::Request, T)>
    where
        M: Message + Name + Default + 'static,
        T: Send + 'static,
        D: FnOnce(M) -> Result<(RequestInput, T)> + Send + 'static,
    {
        if let Some(error) = timeout_error {
            return Err(error);
        }
        // It is checked with the text side of the model that will answer it.
        self.inference.service().await?;
        let inference = Arc::clone(&self.inference);
        let check = move |message: Deferred<M>| {
            let message = message.decode().map_err(|status| status::error(&status))?;
            let (input, rest) = decode(message)?;
            Ok((inference.check(input)?, rest))
        };
        let bytes = message.wire_bytes();
        self.decoding.run(sender, bytes, move || check(message)).await
    }
}
