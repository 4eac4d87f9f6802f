//! gRPC: `paceline.v1.Inference`, health and reflection.
//!
//! [`crate::front::connection`] accepts connections, asks requests for their keys and bounds the
//! time of their messages. [`GrpcWire`] tells it about gRPC. `gate` counts the requests inside the
//! gateway. [`reception`] decodes a request, and [`crate::inference`] serves it.

pub mod gate;
mod health;
pub mod reception;
mod reflection;
pub mod status;
mod timeout;
mod wire;

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use paceline_proto::strict::Deferred;
use paceline_proto::v1;
use paceline_proto::v1::inference_server::InferenceServer;
use paceline_protocols::grpc::{decode, encode};
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_protocols::inference::input::RequestInput;
use paceline_protocols::vllm::encode::AnswerRoom as _;
use paceline_vocabulary::RequestId;
use prost::{Message, Name};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;

use crate::front::decoding::Decoding;
use crate::inference::Inference;
use crate::inference::admission::RequestSlots;
use crate::inference::standing::Standing;

use gate::Gate;
use reception::{Received, Reception};

use crate::front::connection::layer::Layered;

pub use wire::GrpcWire;

/// Path of the requests that count among those inside the gateway.
const COUNTED: &str = "/paceline.v1.Inference/";

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
    let service = InferenceService { reception: Reception::new(inference, decoding) };
    let limit = usize::try_from(max_message_bytes).unwrap_or(usize::MAX);
    let service = InferenceServer::new(service).max_decoding_message_size(limit);
    let health = health(standing.clone(), closing);
    let gate = Gate { slots, standing, max_message_bytes, metrics, counted: COUNTED };
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
    reception: Reception,
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
        let Received { mut open, timeout_error, message, request_id, .. } =
            self.reception.receive("CountTokens", request);
        let decode = |message| {
            let counted = decode::count(message)?;
            Ok((counted.input, counted.report_ids))
        };
        let sender = open.sender();
        let room = self.reception.inference().budget.hold(sender.party.clone());
        let counted = async {
            let reading = self.reception.read(sender, timeout_error, message, decode);
            let (request, report_ids) = open.within(reading).await?;
            let counted = encode::count(open.count(request).await?, report_ids);
            // The ids, and their bytes on the wire.
            room.grow_answer((size_of_val(&*counted.token_ids) + counted.encoded_len()) as u64)?;
            Ok(counted)
        };
        let mut response =
            counted.await.map(Response::new).map_err(|error| failed(error, &request_id))?;
        // The layer of the connection holds it until the answer is read.
        response.extensions_mut().insert(room);
        Ok(response)
    }

    async fn get_model(
        &self,
        request: Request<v1::GetModelRequest>,
    ) -> Result<Response<v1::GetModelResponse>, Status> {
        let model =
            self.reception.inference().model(&request.into_inner().model).map_err(status::of)?;
        Ok(Response::new(encode::model(model)))
    }
}

impl InferenceService {
    /// One request that generates: headers and a stream of messages, or one terminal status (I4).
    async fn answer<M: Message + Name + Default + 'static>(
        &self,
        method: &'static str,
        request: Request<Deferred<M>>,
        decode: fn(M) -> Result<RequestInput>,
    ) -> Result<Response<ResponseStream>, Status> {
        let Received { mut open, timeout_error, message, request_id, .. } =
            self.reception.receive(method, request);
        let answered = async {
            let decode = move |message| Ok((decode(message)?, ()));
            let reading = self.reception.read(open.sender(), timeout_error, message, decode);
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
}
