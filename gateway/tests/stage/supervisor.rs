//! A supervisor that does what the test wants: each attachment and each submission is handed to the
//! test.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use paceline_process::socket;
use paceline_proto::internal::v1::supervisor_notice::Notice;
use paceline_proto::internal::v1::supervisor_server::{Supervisor, SupervisorServer};
use paceline_proto::internal::v1::{
    Beat, Done, GatewayReport, Generation, Order, ServiceState, SubmitRequest, SupervisorNotice,
    TokenBatch,
};
use paceline_proto::v1::FinishReason;
use paceline_proto::v1::operations_server::OperationsServer;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::operations::Operator;
use super::within;

/// The supervisor's process, as it were: a runtime of its own, so that its death takes every
/// connection with it.
pub struct Fake {
    runtime: Option<Runtime>,
    pub attachments: mpsc::Receiver<Attachment>,
    pub submissions: mpsc::Receiver<Submission>,
    pub operator: Operator,
}

impl Fake {
    pub fn start(path: &Path, term: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (attachment, attachments) = mpsc::channel(4);
        let (submission, submissions) = mpsc::channel(16);
        let service = SupervisorServer::new(Service { term, attachment, submission });
        let operator = Operator::default();
        let operations = OperationsServer::new(operator.clone());
        let listener = {
            let _inside = runtime.enter();
            socket::bind(path).expect("a free path")
        };
        runtime.spawn(async move {
            let incoming = socket::accept_unix(listener);
            tonic::transport::Server::builder()
                .add_service(service)
                .add_service(operations)
                .serve_with_incoming(incoming)
                .await
                .expect("serves");
        });
        Self { runtime: Some(runtime), attachments, submissions, operator }
    }

    pub async fn submission(&mut self) -> Submission {
        within(self.submissions.recv()).await.expect("a submission")
    }

    /// Dies, and reports it to no process. Its socket is free when this returns: the next one binds
    /// it.
    pub fn kill(mut self) {
        let runtime = self.runtime.take().expect("alive");
        // On a thread of its own, as a runtime may not wait inside another one.
        std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(30)))
            .join()
            .expect("it ends");
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// One Attach stream.
pub struct Attachment {
    term: u64,
    pub reports: Streaming<GatewayReport>,
    notices: mpsc::Sender<Result<SupervisorNotice, Status>>,
}

impl Attachment {
    pub async fn service(&mut self, state: ServiceState) {
        self.notice(Notice::Service(state)).await;
    }

    pub async fn beat(&mut self) {
        self.notice(Notice::Beat(Beat {})).await;
    }

    pub async fn drain(&mut self) {
        self.notice(Notice::Drain(Order { cause: "test".into(), grace_ms: None })).await;
    }

    pub async fn restart(&mut self) {
        self.notice(Notice::Restart(Order { cause: "test".into(), grace_ms: None })).await;
    }

    async fn notice(&mut self, notice: Notice) {
        let notice = SupervisorNotice { term: self.term, notice: Some(notice) };
        self.notices.send(Ok(notice)).await.expect("attached");
    }

    /// Reads reports until one is as wanted.
    pub async fn report(&mut self, wanted: impl Fn(&GatewayReport) -> bool) -> GatewayReport {
        loop {
            let report = within(self.reports.message()).await.expect("fine").expect("open");
            if wanted(&report) {
                return report;
            }
        }
    }
}

impl Attachment {
    /// Reads and drops reports, as long as they come: many requests make many.
    pub async fn read_on(mut self) {
        while let Ok(Some(_)) = self.reports.message().await {}
    }
}

/// One submitted request.
pub struct Submission {
    pub request: SubmitRequest,
    reply: oneshot::Sender<Result<mpsc::Receiver<Result<TokenBatch, Status>>, Status>>,
    /// Resolves when the request is over on this side: answered to its end, or dropped.
    pub over: oneshot::Receiver<()>,
}

impl Submission {
    pub fn generation(&self) -> &Generation {
        self.request.generation.as_ref().expect("always set")
    }

    pub fn refuse(self, status: Status) {
        let _ = self.reply.send(Err(status));
    }

    /// Begins a stream; what the test sends is streamed, and the stream ends when the sender is
    /// dropped.
    pub fn accept(self) -> Accepted {
        self.accept_after(0)
    }

    /// Likewise, of a request that has this many tokens already.
    pub fn accept_after(self, next: u32) -> Accepted {
        let (batches, receiver) = mpsc::channel(64);
        assert!(self.reply.send(Ok(receiver)).is_ok(), "the request is there");
        Accepted { batches, next, cached: 0, so_far: false, over: self.over }
    }
}

/// A stream that runs.
pub struct Accepted {
    pub batches: mpsc::Sender<Result<TokenBatch, Status>>,
    next: u32,
    /// Tokens of the prompt that came from the cache.
    pub cached: u32,
    /// Whether each batch has the figures so far.
    pub so_far: bool,
    pub over: oneshot::Receiver<()>,
}

impl Accepted {
    pub async fn send(&mut self, batch: TokenBatch) {
        self.batches.send(Ok(batch)).await.expect("the stream runs");
    }

    pub async fn tokens(&mut self, ids: &[u32]) {
        let first_index = self.next;
        self.next += ids.len() as u32;
        self.send(TokenBatch {
            first_index,
            ids: ids.to_vec(),
            step_end_ns: 77,
            so_far: self.so_far.then(|| Done { cached_tokens: self.cached, ..Default::default() }),
            ..Default::default()
        })
        .await;
    }

    /// The last tokens, and the end.
    pub async fn done(mut self, ids: &[u32]) -> oneshot::Receiver<()> {
        let done = Done {
            finish_reason: FinishReason::Stop as i32,
            cached_tokens: self.cached,
            queue_ms: 1.5,
            ..Default::default()
        };
        let first_index = self.next;
        self.send(TokenBatch {
            first_index,
            ids: ids.to_vec(),
            done: Some(done),
            ..Default::default()
        })
        .await;
        self.over
    }
}

struct Service {
    term: u64,
    attachment: mpsc::Sender<Attachment>,
    submission: mpsc::Sender<Submission>,
}

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Supervisor for Service {
    type AttachStream = Outgoing<SupervisorNotice>;
    type SubmitStream = Outgoing<TokenBatch>;

    async fn attach(
        &self,
        request: Request<Streaming<GatewayReport>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (notices, receiver) = mpsc::channel(8);
        let attachment = Attachment { term: self.term, reports: request.into_inner(), notices };
        self.attachment
            .send(attachment)
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn submit(
        &self,
        request: Request<SubmitRequest>,
    ) -> Result<Response<Self::SubmitStream>, Status> {
        let (reply, answer) = oneshot::channel();
        let (alive, over) = oneshot::channel::<()>();
        let submission = Submission { request: request.into_inner(), reply, over };
        self.submission
            .send(submission)
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        let batches =
            answer.await.map_err(|_| Status::unavailable("the test dropped the request"))??;
        // `alive` is dropped with this future, and with the stream it becomes.
        let stream = ReceiverStream::new(batches).map(move |item| {
            let _ = &alive;
            item
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
