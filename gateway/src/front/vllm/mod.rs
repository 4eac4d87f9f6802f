//! The engine protocol of the Shepherd Model Gateway (smg), `vllm.grpc.engine.VllmEngine`: a router
//! in front of several services sends token ids and gets token ids.
//!
//! The router renders templates, tokenizes and reads answers, with the text files that it gets from
//! [`tokenizer`]. A thin adapter: [`decode`] makes an input of a message, [`crate::inference`] serves
//! it as every other request, [`encode`] makes messages of its events. [`running`] finds requests by
//! the names that a router gave them. By [`loads`] a router chooses a service.
//!
//! All methods need a key if keys are set. Only Generate counts as a request: a router that drains
//! a service asks for its health and ends its requests until the last one is over.

mod facts;
mod loads;
mod running;
mod tokenizer;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use paceline_proto::smg::grpc::common;
use paceline_proto::strict::Deferred;
use paceline_proto::vllm::grpc::engine as vllm;
use paceline_proto::vllm::grpc::engine::vllm_engine_server::{VllmEngine, VllmEngineServer};
use paceline_protocols::inference::error::Result;
use paceline_protocols::vllm::decode;
use paceline_protocols::vllm::encode::{AnswerEncoder, Outbox};
use paceline_system::clock::monotonic_ns;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::front::connection::layer::Layered;
use crate::front::decoding::Decoding;
use crate::front::grpc::gate::Gate;
use crate::front::grpc::reception::{Received, Reception};
use crate::front::grpc::status;
use crate::guard::keys::Principal;
use crate::inference::Inference;
use crate::inference::admission::RequestSlots;
use crate::inference::standing::Standing;
use crate::inference::unread::AnswerStream;

use facts::{ConfigFacts, ServerFacts};
use loads::LoadStreams;
use running::{RunningRequest, RunningRequests};
use tokenizer::Archives;

/// Path of the requests that count among those inside the gateway.
const COUNTED: &str = "/vllm.grpc.engine.VllmEngine/Generate";

/// Adds the service to those of the listening socket. Large messages are decoded on the seats of
/// `decoding`. Streams of loads end when `closing` is cancelled.
pub fn add(
    routes: Routes,
    inference: Arc<Inference>,
    slots: RequestSlots,
    standing: watch::Receiver<Standing>,
    decoding: Decoding,
    closing: CancellationToken,
) -> Routes {
    let max_message_bytes = inference.limits.max_message_bytes;
    let metrics = Arc::clone(&inference.metrics);
    let requests = slots.watch();
    let engine = Engine {
        reception: Reception::new(inference, decoding),
        standing: standing.clone(),
        requests,
        started_ns: monotonic_ns(),
        running: RunningRequests::default(),
        archives: Archives::default(),
        load_streams: LoadStreams::new(closing),
    };
    let limit = usize::try_from(max_message_bytes).unwrap_or(usize::MAX);
    let service = VllmEngineServer::new(engine).max_decoding_message_size(limit);
    let gate = Gate { slots, standing, max_message_bytes, metrics, counted: COUNTED };
    routes.add_service(Layered::new(service, gate))
}

/// A stream of messages.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service `vllm.grpc.engine.VllmEngine`: what its methods answer from.
#[derive(Debug)]
struct Engine {
    reception: Reception,
    standing: watch::Receiver<Standing>,
    /// Number of requests inside the gateway.
    requests: watch::Receiver<usize>,
    /// Start of the gateway, by the monotonic clock.
    started_ns: i64,
    running: RunningRequests,
    archives: Archives,
    load_streams: LoadStreams,
}

#[tonic::async_trait]
impl VllmEngine for Engine {
    type GenerateStream = Messages<vllm::GenerateResponse>;
    type GetTokenizerStream = Messages<common::GetTokenizerChunk>;
    type SubscribeKvEventsStream = Messages<common::KvEventBatch>;

    async fn generate(
        &self,
        request: Request<Deferred<vllm::GenerateRequest>>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let Received { mut open, timeout_error, message, request_id, owner } =
            self.reception.receive("vllm.Generate", request);
        let failed = |error| status::with_request_id(status::of(error), request_id.as_str());
        let sender = open.sender();
        let room = self.inference().budget.hold(sender.party.clone());
        let reading = self.reception.read(sender, timeout_error, message, decode::generate);
        let (request, wish) = open.within(reading).await.map_err(failed)?;
        let running = self.running.enter(owner, wish.name.clone());
        let encoder = AnswerEncoder::new(wish, request.params.samples.get(), room);
        let aborted = running.aborted.clone();
        let answer = tokio::select! {
            biased;
            () = aborted.cancelled() => None,
            answer = open.answer(request) => Some(answer.map_err(failed)?),
        };
        let answering = Answering { answer, encoder, running, outbox: Outbox::new() };
        let id = request_id.clone();
        let messages = answering.messages().map(move |message| {
            message.map_err(|error| status::with_request_id(status::of(error), id.as_str()))
        });
        let mut response: Response<Self::GenerateStream> = Response::new(Box::pin(messages));
        if let Ok(value) = request_id.as_str().parse() {
            response.metadata_mut().insert(status::REQUEST_ID, value);
        }
        Ok(response)
    }

    async fn embed(
        &self,
        _request: Request<vllm::EmbedRequest>,
    ) -> Result<Response<vllm::EmbedResponse>, Status> {
        Err(not_served("Embed: this service makes no embeddings"))
    }

    async fn health_check(
        &self,
        _request: Request<vllm::HealthCheckRequest>,
    ) -> Result<Response<vllm::HealthCheckResponse>, Status> {
        let serving = self.standing.borrow().healthy();
        let message = serving.as_ref().err().map(|error| error.message.clone());
        Ok(Response::new(vllm::HealthCheckResponse {
            healthy: serving.is_ok(),
            message: message.unwrap_or_else(|| "a request would be served".to_owned()),
        }))
    }

    async fn flush_cache(
        &self,
        _request: Request<common::FlushCacheRequest>,
    ) -> Result<Response<common::FlushCacheResponse>, Status> {
        Err(not_served("FlushCache: the prefix cache frees its memory by itself"))
    }

    async fn start_profile(
        &self,
        _request: Request<common::StartProfileRequest>,
    ) -> Result<Response<common::ProfileResponse>, Status> {
        Err(not_served("StartProfile: this service has no profiler"))
    }

    async fn stop_profile(
        &self,
        _request: Request<common::StopProfileRequest>,
    ) -> Result<Response<common::ProfileResponse>, Status> {
        Err(not_served("StopProfile: this service has no profiler"))
    }

    async fn abort(
        &self,
        request: Request<vllm::AbortRequest>,
    ) -> Result<Response<vllm::AbortResponse>, Status> {
        let owner = request.extensions().get().map(|owner: &Principal| Arc::clone(&owner.name));
        for name in request.into_inner().request_ids {
            self.running.abort(owner.clone(), name);
        }
        Ok(Response::new(vllm::AbortResponse {}))
    }

    async fn get_model_info(
        &self,
        _request: Request<vllm::GetModelInfoRequest>,
    ) -> Result<Response<vllm::GetModelInfoResponse>, Status> {
        let (model, directory) = self.model().map_err(status::of)?;
        let read = tokio::task::spawn_blocking(move || ConfigFacts::read(&directory)).await;
        Ok(Response::new(facts::model(model, read.unwrap_or_default())))
    }

    async fn get_server_info(
        &self,
        _request: Request<vllm::GetServerInfoRequest>,
    ) -> Result<Response<vllm::GetServerInfoResponse>, Status> {
        let most_running = self.inference().loads().await.map_or(0, |loads| loads.most_running);
        let facts = ServerFacts {
            requests: *self.requests.borrow(),
            uptime_s: monotonic_ns().saturating_sub(self.started_ns) as f64 / 1e9,
            most_running,
            images: self.inference().model("").ok().and_then(|model| model.images),
        };
        Ok(Response::new(facts::server(facts)))
    }

    async fn get_loads(
        &self,
        request: Request<vllm::GetLoadsRequest>,
    ) -> Result<Response<vllm::GetLoadsResponse>, Status> {
        decode::check_rank("dp_rank", request.into_inner().dp_rank).map_err(status::of)?;
        let loads = self.inference().loads().await;
        let loads = loads.ok_or_else(|| status::of(loads::unknown()))?;
        Ok(Response::new(loads::answer(&loads)))
    }

    async fn get_tokenizer(
        &self,
        _request: Request<common::GetTokenizerRequest>,
    ) -> Result<Response<Self::GetTokenizerStream>, Status> {
        let (_, directory) = self.model().map_err(status::of)?;
        let archive = self.archives.of(&directory).await.map_err(status::of)?;
        let pieces = futures::stream::iter(archive.pieces().map(Ok));
        Ok(Response::new(Box::pin(pieces)))
    }

    async fn subscribe_kv_events(
        &self,
        request: Request<common::SubscribeKvEventsRequest>,
    ) -> Result<Response<Self::SubscribeKvEventsStream>, Status> {
        // There are no batches with changes, so there is none to go on after.
        let common::SubscribeKvEventsRequest {
            start_sequence_number: _,
            load_records_before_first_batch: reads_records,
        } = request.into_inner();
        let records = self.load_streams.open(Arc::clone(self.inference()), reads_records);
        Ok(Response::new(Box::pin(records.map(Ok))))
    }
}

impl Engine {
    fn inference(&self) -> &Arc<Inference> {
        self.reception.inference()
    }

    /// The served model and its directory.
    fn model(&self) -> Result<(paceline_protocols::inference::model::ModelDescription, PathBuf)> {
        let served = self.inference().served()?;
        let directory = PathBuf::from(served.serving.model.path);
        Ok((self.inference().model("")?, directory))
    }
}

/// The answer to a method or request that this service has not.
fn not_served(what: &str) -> Status {
    Status::unimplemented(what)
}

/// An answer on its way to a router.
#[derive(Debug)]
struct Answering {
    /// `None` after its end.
    answer: Option<AnswerStream>,
    encoder: AnswerEncoder,
    running: RunningRequest,
    /// Messages that are made and not sent.
    outbox: Outbox,
}

impl Answering {
    /// The messages of the answer, up to the error that ends it.
    fn messages(self) -> impl Stream<Item = Result<vllm::GenerateResponse>> + Send + 'static {
        futures::stream::unfold(self, |mut answering| async move {
            Some((answering.next().await?, answering))
        })
    }

    async fn next(&mut self) -> Option<Result<vllm::GenerateResponse>> {
        loop {
            if let Some(message) = self.outbox.pop_front() {
                return Some(Ok(message));
            }
            let event = match &mut self.answer {
                None if self.running.aborted.is_cancelled() => {
                    self.encoder.aborted(&mut self.outbox);
                    return self.outbox.pop_front().map(Ok);
                }
                None => return None,
                Some(answer) => tokio::select! {
                    biased;
                    () = self.running.aborted.cancelled() => {
                        self.answer = None;
                        continue;
                    }
                    event = answer.next() => event,
                },
            };
            let added = match event {
                None => {
                    self.answer = None;
                    return None;
                }
                Some(event) => event.and_then(|event| self.encoder.event(event, &mut self.outbox)),
            };
            if let Err(error) = added {
                self.answer = None;
                return Some(Err(error));
            }
        }
    }
}
