//! Scripted workers: the real services on real sockets, each on a runtime of its own. For its peers
//! the end of that runtime is the end of a process.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt};
use paceline_link::Handover;
use paceline_process::runtime_dir::WorkerRecord;
use paceline_process::{RuntimeDir, socket};
use paceline_proto::internal::v1::drafter_server::{Drafter, DrafterServer};
use paceline_proto::internal::v1::target_server::{Target, TargetServer};
use paceline_proto::internal::v1::worker_server::{Worker, WorkerServer};
use paceline_proto::internal::v1::*;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_supervisor::WorkerIdentities;
use paceline_supervisor::child::{Host, Hosts};
use paceline_supervisor::target_swap::TargetSetup;
use paceline_supervisor_core::worker::{WorkerExit, WorkerIdentity};
use paceline_supervisor_core::{WorkerId, WorkerSlot};
use paceline_vocabulary::{Epoch, Term};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tonic::{Request, Response, Status, Streaming};

pub const BUDGET_BYTES: u64 = 1_000;
/// A recorded process that is not the one that answers.
pub const STRANGER: u32 = 666;

/// A recorded process that answers with the build of another program.
pub const OTHER_BUILD: u32 = 667;

/// The model of a drafter that an earlier supervisor left.
pub const EARLIER_MODEL: &str = "/models/earlier";

/// What the workers of these tests are started with.
pub fn target_setup() -> TargetSetup {
    TargetSetup {
        model_dir: "/models/demo".into(),
        place: "/models/demo".into(),
        identities: identities(),
        variables: Vec::new(),
        drafters: Vec::new(),
    }
}

/// Identities that the fakes report.
fn identities() -> WorkerIdentities {
    let of =
        |settings: &str| WorkerIdentity { build: "fake".into(), config_digest: settings.into() };
    WorkerIdentities { target: of("the target's settings"), drafter: of("the drafter's settings") }
}

/// A request as it reached the target, and the way its answer goes back. Closed when it is
/// cancelled.
pub struct RunningRequest {
    pub request: TargetGenerateRequest,
    pub answer: mpsc::Sender<Result<TokenBatch, Status>>,
}

impl RunningRequest {
    /// Sends tokens; `done` ends the request.
    pub async fn tokens(&self, first_index: u32, ids: &[u32], done: bool) {
        let stamp = self.request.stamp;
        let done = done.then(Done::default);
        let batch =
            TokenBatch { stamp, first_index, ids: ids.to_vec(), done, ..Default::default() };
        self.answer.send(Ok(batch)).await.expect("it is read");
    }
}

/// A grammar that is to be compiled. The test answers; the stream is closed when the supervisor
/// drops it.
pub struct Preparation {
    pub request: PrepareRequest,
    pub answer: oneshot::Sender<Result<(), Status>>,
    pub stream: mpsc::Sender<Result<PrepareResponse, Status>>,
}

/// Answers to orders for other permits, in turn.
pub type PermitAnswers = Arc<Mutex<VecDeque<Result<RepermitResponse, Status>>>>;

/// One life of a scripted worker, in the test's hands.
pub struct Life {
    pub worker: WorkerId,
    pub epoch: u64,
    pub term: u64,
    /// Directory a drafter was started with.
    pub model: String,
    /// Links as they were handed over: real descriptors.
    pub links: mpsc::Receiver<Handover>,
    pub permits: mpsc::Receiver<Vec<PermitChange>>,
    /// How the next orders for other permits are answered; without one they are taken.
    pub permit_answers: PermitAnswers,
    pub policies: mpsc::Receiver<Policy>,
    pub requests: mpsc::Receiver<RunningRequest>,
    pub preparations: mpsc::Receiver<Preparation>,
    pub stops: mpsc::Receiver<StopRequest>,
    beat: watch::Sender<Heartbeat>,
    ends: mpsc::Sender<WorkerExit>,
}

impl Life {
    pub fn loading(&self, loaded_bytes: u64, total_bytes: u64) {
        self.beat.send_modify(|beat| {
            beat.phase = WorkerPhase::Loading.into();
            (beat.loaded_bytes, beat.total_bytes) = (loaded_bytes, total_bytes);
        });
    }

    pub fn idle(&self) {
        self.beat.send_modify(|beat| {
            beat.phase = WorkerPhase::Idle.into();
            beat.weights_loaded_unix_s = 1_700_000_000;
            beat.kv =
                Some(KvUse { budget_bytes: BUDGET_BYTES, held_bytes: 250, ..Default::default() });
        });
    }

    /// Reports sequences of which no row is computed yet, and their tokens.
    pub fn unstarted(&self, sequences: u32, tokens: u64) {
        self.beat.send_modify(|beat| {
            (beat.unstarted, beat.unstarted_tokens) = (sequences, tokens);
        });
    }

    /// Says where the newest link stands.
    pub fn link(&self, generation: u64, phase: LinkPhase, reason: &str) {
        let serving =
            if matches!(phase, LinkPhase::Up | LinkPhase::Suspect) { generation } else { 0 };
        self.link_beside(generation, phase, reason, serving);
    }

    /// Reports the newest link while an older one may serve.
    pub fn link_beside(&self, generation: u64, phase: LinkPhase, reason: &str, serving: u64) {
        let report =
            LinkReport { generation, phase: phase.into(), reason: reason.to_owned(), serving };
        self.beat.send_modify(|beat| {
            beat.link = Some(report);
            let totals = SpeculationTotals {
                cycles: 10,
                drafted: 40,
                accepted: 25,
                late: 2,
                link_bytes: 4_096,
            };
            beat.speculation = Some(totals);
        });
    }

    /// The link that comes next.
    pub async fn handed(&mut self) -> Handover {
        crate::within(self.links.recv()).await.expect("it listens")
    }

    /// Ends the process.
    pub async fn die(&self, exit: WorkerExit) {
        self.ends.send(exit).await.expect("it lives");
    }

    /// The next grammar that is to be compiled.
    pub async fn preparation(&mut self) -> Preparation {
        crate::within(self.preparations.recv()).await.expect("it lives")
    }

    pub async fn next_request(&mut self) -> RunningRequest {
        crate::within(self.requests.recv()).await.expect("it lives")
    }
}

#[derive(Clone)]
struct Service {
    epoch: u64,
    pid: u32,
    model: String,
    requests: mpsc::Sender<RunningRequest>,
    preparations: mpsc::Sender<Preparation>,
    permits: mpsc::Sender<Vec<PermitChange>>,
    permit_answers: PermitAnswers,
    policies: mpsc::Sender<Policy>,
    stops: mpsc::Sender<StopRequest>,
    beat: watch::Receiver<Heartbeat>,
}

#[tonic::async_trait]
impl Target for Service {
    type GenerateStream = ReceiverStream<Result<TokenBatch, Status>>;

    async fn generate(
        &self,
        request: Request<TargetGenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let (answer, mut batches) = mpsc::channel(1);
        let running = RunningRequest { request: request.into_inner(), answer };
        self.requests.send(running).await.map_err(|_| Status::internal("the test is over"))?;
        // Headers come with the first tokens.
        let first =
            batches.recv().await.unwrap_or_else(|| Err(Status::internal("the test gave it up")))?;
        let (relay, answer) = mpsc::channel(1);
        let _ = relay.send(Ok(first)).await;
        paceline_process::task::spawn("fake", async move {
            loop {
                let batch = tokio::select! { () = relay.closed() => return, batch = batches.recv() => batch };
                let Some(batch) = batch else { return };
                if relay.send(batch).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answer)))
    }

    type PrepareStream = ReceiverStream<Result<PrepareResponse, Status>>;

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<Self::PrepareStream>, Status> {
        let over = || Status::internal("the test is over");
        let (answer, answered) = oneshot::channel();
        let (stream, open) = mpsc::channel(1);
        let preparation = Preparation { request: request.into_inner(), answer, stream };
        self.preparations.send(preparation).await.map_err(|_| over())?;
        answered.await.map_err(|_| over())??;
        Ok(Response::new(ReceiverStream::new(open)))
    }

    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let class = |positions, bytes| KvClass { positions, bytes };
        let model = ModelInfo {
            name: "demo".into(),
            weight_bytes: 100,
            context_length: 1_024,
            ..Default::default()
        };
        let WorkerIdentity { mut build, config_digest } = identities().target;
        if self.pid == OTHER_BUILD {
            build.push_str("+other");
        }
        Ok(Response::new(DescribeResponse {
            epoch: self.epoch,
            pid: self.pid,
            build,
            config_digest,
            model: Some(model),
            kv_classes: vec![class(256, 100), class(1_024, 2_000)],
            max_sequences: 2,
            image_patch_bytes: 0,
        }))
    }

    async fn cancel(&self, _: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn repermit(
        &self,
        request: Request<RepermitRequest>,
    ) -> Result<Response<RepermitResponse>, Status> {
        let _ = self.permits.send(request.into_inner().changes).await;
        // The test answers, or it is taken.
        match self.permit_answers.lock().expect("not poisoned").pop_front() {
            Some(answer) => answer.map(Response::new),
            None => Ok(Response::new(RepermitResponse::default())),
        }
    }

    async fn set_policy(
        &self,
        request: Request<SetPolicyRequest>,
    ) -> Result<Response<SetPolicyResponse>, Status> {
        let _ = self.policies.send(request.into_inner().policy.unwrap_or_default()).await;
        Ok(Response::new(SetPolicyResponse {}))
    }
}

#[tonic::async_trait]
impl Drafter for Service {
    async fn describe(
        &self,
        _: Request<DescribeDrafterRequest>,
    ) -> Result<Response<DescribeDrafterResponse>, Status> {
        let WorkerIdentity { build, config_digest } = identities().drafter;
        let path = self.model.clone();
        let drafter =
            Some(DrafterInfo { block_size: 16, weight_bytes: 50, path, ..Default::default() });
        Ok(Response::new(DescribeDrafterResponse {
            epoch: self.epoch,
            pid: self.pid,
            build,
            config_digest,
            drafter,
        }))
    }
}

#[tonic::async_trait]
impl Worker for Service {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Heartbeat, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let stamp = request.into_inner().stamp.unwrap_or_default();
        if stamp.epoch != self.epoch {
            return Err(Reason::StaleEpoch.status("another life"));
        }
        let again = self.beat.clone();
        let every = tokio_stream::StreamExt::throttle(
            futures::stream::repeat(()),
            Duration::from_millis(100),
        );
        let repeated = every.map(move |()| again.borrow().clone());
        let beats = futures::stream::select(WatchStream::new(self.beat.clone()), repeated);
        Ok(Response::new(Box::pin(beats.map(Ok))))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        let _ = self.stops.send(request.into_inner()).await;
        Ok(Response::new(StopResponse {}))
    }
}

/// Starts scripted workers of one place and hands each to the test.
pub struct FakeHost {
    worker: WorkerId,
    dir: RuntimeDir,
    lives: mpsc::Sender<Life>,
    /// One that is found in place of the first start.
    earlier: Arc<Mutex<Option<WorkerRecord>>>,
    current: Option<(mpsc::Receiver<WorkerExit>, mpsc::Sender<WorkerExit>)>,
}

/// Hosts of all places; `earlier` is found where the target is to be, or a drafter.
pub fn hosts(
    dir: &RuntimeDir,
    targets: mpsc::Sender<Life>,
    drafters: mpsc::Sender<Life>,
    earlier: Option<(WorkerId, WorkerRecord)>,
) -> Hosts<FakeHost> {
    let host = |worker, lives: &mpsc::Sender<Life>| FakeHost {
        worker,
        dir: dir.clone(),
        lives: lives.clone(),
        earlier: Arc::new(Mutex::new(
            earlier.clone().filter(|(at, _)| *at == worker).map(|(_, record)| record),
        )),
        current: None,
    };
    let drafter = |slot| host(WorkerId::Drafter(slot), &drafters);
    Hosts {
        target: host(WorkerId::Target, &targets),
        drafters: [drafter(WorkerSlot::First), drafter(WorkerSlot::Second)],
    }
}

impl FakeHost {
    fn begin(&mut self, epoch: u64, term: u64, model: &str, pid: u32) {
        // More than 60 lines: one worker process, all its services in order.
        let (requests_tx, requests) = mpsc::channel(16);
        let (preparations_tx, preparations) = mpsc::channel(64);
        let (stops_tx, stops) = mpsc::channel(4);
        let (permits_tx, permits) = mpsc::channel(16);
        let permit_answers = PermitAnswers::default();
        let (policies_tx, policies) = mpsc::channel(16);
        let (links_tx, links) = mpsc::channel(16);
        let (ends, mut ended) = mpsc::channel(4);
        let (gone_tx, gone) = mpsc::channel(1);
        let (beat, beats) = watch::channel(Heartbeat {
            epoch,
            phase: WorkerPhase::Loading.into(),
            ..Default::default()
        });
        let model = model.to_owned();
        let service = Service {
            epoch,
            pid,
            model: model.clone(),
            requests: requests_tx,
            preparations: preparations_tx,
            permits: permits_tx,
            permit_answers: permit_answers.clone(),
            policies: policies_tx,
            stops: stops_tx,
            beat: beats,
        };
        let worker = self.worker;
        let path = self.dir.socket(worker.name());
        let link_path = self.dir.socket(&format!("{}.link", worker.name()));
        let (bound_tx, bound) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let listener = paceline_link::listen(&link_path, move |handover| {
                let _ = links_tx.blocking_send(handover);
            });
            let listener = listener.expect("a free socket");
            let exit = runtime.block_on(async move {
                let incoming = socket::accept_unix(socket::bind(&path).expect("a free socket"));
                bound_tx.send(()).expect("the test waits");
                let server = tonic::transport::Server::builder()
                    .add_service(WorkerServer::new(service.clone()));
                let server = match worker {
                    WorkerId::Target => server.add_service(TargetServer::new(service)),
                    WorkerId::Drafter(_) => server.add_service(DrafterServer::new(service)),
                };
                tokio::select! {
                    _ = server.serve_with_incoming(incoming) => None,
                    exit = ended.recv() => exit,
                }
            });
            // All sockets close here, as they do when a process ends.
            drop(listener);
            drop(runtime);
            let _ = gone_tx.blocking_send(exit.unwrap_or(WorkerExit::Unknown));
        });
        bound.recv().expect("it is bound");
        self.current = Some((gone, ends.clone()));
        let life = Life {
            worker,
            epoch,
            term,
            model,
            links,
            permits,
            permit_answers,
            policies,
            requests,
            preparations,
            stops,
            beat,
            ends,
        };
        self.lives.try_send(life).expect("the test takes each life");
    }
}

impl Host for FakeHost {
    fn find(&mut self) -> Option<WorkerRecord> {
        let record = self.earlier.lock().expect("not poisoned").take()?;
        let pid = if record.pid == STRANGER { 1 } else { record.pid };
        self.begin(record.epoch, 0, EARLIER_MODEL, pid);
        Some(record)
    }

    fn start(&mut self, epoch: Epoch, term: Term, model: &str) -> io::Result<u32> {
        self.begin(epoch.0, term.0, model, 4_242);
        Ok(4_242)
    }

    fn set_models(&mut self, _: &[(&'static str, String)]) {}

    fn signal(&mut self, hard: bool) {
        if let Some((_, ends)) = &self.current {
            let _ = ends.try_send(WorkerExit::Signal(if hard { 9 } else { 15 }));
        }
    }

    fn is_frozen(&self) -> bool {
        false
    }

    async fn exited(&mut self) -> WorkerExit {
        let exit = match &mut self.current {
            Some((gone, _)) => gone.recv().await.unwrap_or(WorkerExit::Unknown),
            None => std::future::pending().await,
        };
        self.current = None;
        exit
    }

    fn last_words(&self) -> String {
        "the last words".into()
    }
}

/// Stream that a test reads for a request.
pub type Answer = Streaming<TokenBatch>;
