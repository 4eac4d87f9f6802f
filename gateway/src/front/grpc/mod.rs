//! gRPC: `paceline.v1.Inference`, health and reflection.
//!
//! [`crate::front::connection`] accepts connections, asks requests for their keys and bounds the
//! time of their messages. [`GrpcWire`] tells it about gRPC. `gate` counts the requests inside the
//! gateway. Then the service here decodes a request, and [`crate::inference`] serves it.

mod decode;
mod encode;
mod gate;
mod health;
mod reflection;
pub mod status;
mod timeout;
mod wire;

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use paceline_process::clock::monotonic_ns;
use paceline_process::telemetry::trace;
use paceline_proto::strict::Deferred;
use paceline_proto::v1;
use paceline_proto::v1::inference_server::InferenceServer;
use paceline_vocabulary::RequestId;
use prost::{Message, Name};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;

use crate::front::decoding::Decoding;
use crate::inference::admission::RequestSlots;
use crate::inference::error::InferenceError;
use crate::inference::input::RequestInput;
use crate::inference::open::OpenRequest;
use crate::inference::request;
use crate::inference::standing::Standing;
use crate::inference::{Inference, RequestContext, Sender};

use gate::{Arrival, Gate};

use crate::front::connection::layer::Layered;
use crate::front::connection::track::Caller;

pub use decode::{chat as decode_chat, generate as decode_generate};
pub use wire::GrpcWire;

/// Longest message of a request to health, which has the name of a service and needs no key.
const MAX_NAME_BYTES: usize = 1 << 10;

/// Every service of the listening socket.
///
/// Large messages are decoded on the seats of `decoding`. Watches of health end when `closing` is
/// cancelled.
pub fn routes(
    inference: Arc<Inference>,
    slots: RequestSlots,
    standing: watch::Receiver<Standing>,
    decoding: Decoding,
    closing: CancellationToken,
) -> Routes {
    let max_message_bytes = inference.limits.max_message_bytes;
    let metrics = Arc::clone(&inference.metrics);
    let service = InferenceService { inference, decoding };
    let limit = usize::try_from(max_message_bytes).unwrap_or(usize::MAX);
    let service = InferenceServer::new(service).max_decoding_message_size(limit);
    let health = health(standing.clone(), closing);
    let gate = Gate { slots, standing, max_message_bytes, metrics };
    Routes::new(Layered::new(service, gate)).add_service(health).add_service(reflection::service())
}

/// `grpc.health.v1`. Watches end when `closing` is cancelled.
pub(super) fn health(
    standing: watch::Receiver<Standing>,
    closing: CancellationToken,
) -> HealthServer<impl tonic_health::pb::health_server::Health> {
    let service = health::HealthService::new(standing, closing);
    HealthServer::new(service).max_decoding_message_size(MAX_NAME_BYTES)
}

/// The messages of an answer.
type ResponseStream = Pin<Box<dyn Stream<Item = Result<v1::GenerateResponse, Status>> + Send>>;

/// `paceline.v1.Inference`.
#[derive(Debug)]
struct InferenceService {
    inference: Arc<Inference>,
    /// Decodes and checks messages, large ones on threads of their own.
    decoding: Decoding,
}

/// A request and the message that came with it.
struct Received<M> {
    open: OpenRequest,
    /// The error of a malformed `grpc-timeout`. It is returned as a part of the request, so that it
    /// is logged as all others.
    timeout_error: Option<InferenceError>,
    message: Deferred<M>,
    request_id: RequestId,
}

/// The terminal status of the request with this id.
fn failed(error: InferenceError, request_id: &RequestId) -> Status {
    status::with_request_id(status::of(error), request_id.as_str())
}

#[tonic::async_trait]
impl v1::inference_server::Inference for InferenceService {
    type GenerateStream = ResponseStream;
    type ChatStream = ResponseStream;

    async fn generate(
        &self,
        request: Request<Deferred<v1::GenerateRequest>>,
    ) -> Result<Response<ResponseStream>, Status> {
        self.answer("Generate", request, decode::generate).await
    }

    async fn chat(
        &self,
        request: Request<Deferred<v1::ChatRequest>>,
    ) -> Result<Response<ResponseStream>, Status> {
        self.answer("Chat", request, decode::chat).await
    }

    async fn count_tokens(
        &self,
        request: Request<Deferred<v1::CountTokensRequest>>,
    ) -> Result<Response<v1::CountTokensResponse>, Status> {
        let Received { mut open, timeout_error, message, request_id } =
            self.receive("CountTokens", request);
        let decode = |message| {
            let counted = decode::count(message)?;
            Ok((counted.input, counted.report_ids))
        };
        let counted = async {
            let reading = self.read(open.sender(), timeout_error, message, decode);
            let (request, report_ids) = open.within(reading).await?;
            Ok(encode::count(open.count(request).await?, report_ids))
        };
        counted.await.map(Response::new).map_err(|error| failed(error, &request_id))
    }

    async fn get_model(
        &self,
        request: Request<v1::GetModelRequest>,
    ) -> Result<Response<v1::GetModelResponse>, Status> {
        let model = self.inference.model(&request.into_inner().model).map_err(status::of)?;
        Ok(Response::new(encode::model(model)))
    }
}

impl InferenceService {
    /// Begins to serve a request.
    fn receive<M>(&self, method: &'static str, request: Request<Deferred<M>>) -> Received<M> {
        let (metadata, mut extensions, message) = request.into_parts();
        // In tests without the gate before the service, the request has no slot.
        let arrival: Option<Arrival> = extensions.remove();
        let arrived_ns = arrival.as_ref().map_or_else(monotonic_ns, |arrival| arrival.at_ns);
        let mut context =
            RequestContext::new(status::method(method), arrived_ns, trace::of_metadata(&metadata));
        context.principal = extensions.remove();
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
        Received { open, timeout_error, message, request_id }
    }

    /// One request that generates: headers and a stream of messages, or one terminal status (I4).
    async fn answer<M: Message + Name + Default + 'static>(
        &self,
        method: &'static str,
        request: Request<Deferred<M>>,
        decode: fn(M) -> Result<RequestInput, InferenceError>,
    ) -> Result<Response<ResponseStream>, Status> {
        let Received { mut open, timeout_error, message, request_id } =
            self.receive(method, request);
        let answered = async {
            let decode = move |message| Ok((decode(message)?, ()));
            let reading = self.read(open.sender(), timeout_error, message, decode);
            let (request, ()) = open.within(reading).await?;
            open.answer(request).await
        };
        let answer = answered.await.map_err(|error| failed(error, &request_id))?;
        let header = request_id.as_str().parse();
        let mut encoder = encode::AnswerEncoder::default();
        let messages = answer.map(move |event| match event {
            Ok(event) => Ok(encoder.event(event, request_id.as_str())),
            Err(error) => Err(failed(error, &request_id)),
        });
        let mut response: Response<ResponseStream> = Response::new(Box::pin(messages));
        if let Ok(value) = header {
            response.metadata_mut().insert(status::REQUEST_ID, value);
        }
        Ok(response)
    }

    /// Decodes and checks a request's message. `T` is the part of a message besides the request.
    async fn read<M, T, D>(
        &self,
        sender: Sender,
        timeout_error: Option<InferenceError>,
        message: Deferred<M>,
        decode: D,
    ) -> Result<(request::Request, T), InferenceError>
    where
        M: Message + Name + Default + 'static,
        T: Send + 'static,
        D: FnOnce(M) -> Result<(RequestInput, T), InferenceError> + Send + 'static,
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
