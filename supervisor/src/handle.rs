//! The handle of the actor: requests and questions go through it into a bounded mailbox.
//!
//! An [`AdmissionGuard`] stands for a request's place, first in the queue and then among the
//! running requests. Its holder may end by return, by an error or by a drop in the middle of an
//! await. In each case the guard gives the place back exactly once (I4, I11).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_proto::internal::v1::{Done, ServiceState};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{PolicyResponse, StatusResponse};
use paceline_supervisor_core::denial::{Denial, Outage};
use paceline_supervisor_core::drafter::DrafterOrder;
use paceline_supervisor_core::operations::OperatorOrder;
use paceline_supervisor_core::request::ServedRequest;
use paceline_supervisor_core::routing::PolicyChange;
use paceline_supervisor_core::tuning::Tuning;
use paceline_supervisor_core::{RequestSummary, Ticket};
use paceline_system::Clock;
use paceline_vocabulary::{RequestId, Term};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use crate::error;
use crate::events::Reader;
use crate::mailbox::{
    AbortStreams, AdmissionDecision, AdmissionGrant, Broadcasts, GatewayRestart, Mail, RequestEnd,
    ServedEnd,
};
use crate::route_log::ServedLine;
use crate::target_access::TargetAccess;
use crate::target_swap::TargetSetup;
use crate::wire;

/// The handle of the actor, as the services use it.
#[derive(Clone, Debug)]
pub struct ActorHandle {
    mail: mpsc::Sender<Mail>,
    ends: mpsc::Sender<RequestEnd>,
    broadcasts: Broadcasts,
    events: Reader,
    numbers: Arc<AtomicU64>,
    term: Term,
    clock: Clock,
    queue_wait_ms: u64,
}

impl ActorHandle {
    pub(crate) fn new(
        mail: mpsc::Sender<Mail>,
        ends: mpsc::Sender<RequestEnd>,
        broadcasts: Broadcasts,
        events: Reader,
        term: Term,
        clock: Clock,
    ) -> Self {
        let numbers = Arc::default();
        Self { mail, ends, broadcasts, events, numbers, term, clock, queue_wait_ms: 0 }
    }

    /// A request waits for the compiler of grammars for at most this time.
    pub(crate) fn waiting_at_most(self, queue_wait_ms: u64) -> Self {
        Self { queue_wait_ms, ..self }
    }

    /// Longest wait of a request for the compiler of grammars.
    pub(crate) fn queue_wait_ms(&self) -> u64 {
        self.queue_wait_ms
    }

    /// The supervisor's term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The clock of all deadlines.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The streams that have to end.
    pub fn aborts(&self) -> watch::Receiver<Option<AbortStreams>> {
        self.broadcasts.aborts.clone()
    }

    /// Whether requests can be served, now and at every change.
    pub fn notices(&self) -> watch::Receiver<ServiceState> {
        self.broadcasts.notices.clone()
    }

    /// The gateways that have to restart.
    pub fn gateway_restarts(&self) -> watch::Receiver<Option<GatewayRestart>> {
        self.broadcasts.restarts.clone()
    }

    /// The events: what changed state.
    pub fn events(&self) -> &Reader {
        &self.events
    }

    /// A number that is used once: for a ticket or an `Attach` stream.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Submits a request. Its place is given back when the returned value is dropped.
    ///
    /// # Errors
    /// The mailbox is full.
    pub fn submit(
        &self,
        id: RequestId,
        class: String,
        summary: RequestSummary,
    ) -> Result<PendingRequest, Status> {
        let ticket = Ticket(self.number());
        // The way to report the end is reserved first: a drop can neither wait nor fail.
        let end = self.ends.clone().try_reserve_owned().map_err(|error| refused(&error))?;
        let (reply, decision) = oneshot::channel();
        let pending = PendingRequest {
            decision,
            guard: Some(AdmissionGuard { ticket, served: None, end: Some(end) }),
        };
        self.mail
            .try_send(Mail::Submit { ticket, id, class, summary, reply })
            .map_err(|error| refused(&error))?;
        Ok(pending)
    }

    /// The client of the target that runs; `None`: none runs.
    ///
    /// # Errors
    /// The mailbox is full, or the service is about to end.
    pub(crate) async fn target(&self) -> Result<Option<TargetAccess>, Status> {
        let (reply, answer) = oneshot::channel();
        self.mail.try_send(Mail::Target { reply }).map_err(|error| refused(&error))?;
        answer.await.map_err(|_| leaving())
    }

    /// A snapshot of everything.
    ///
    /// # Errors
    /// The mailbox is full, or the service is about to end.
    pub async fn status(&self) -> Result<StatusResponse, Status> {
        self.asked(|reply| Mail::Status { reply }, too_many_questions).await
    }

    /// Resolves when the actor has answered, after everything that waits before this question.
    ///
    /// # Errors
    /// The service is about to end.
    pub(crate) async fn answers(&self) -> Result<(), Status> {
        let (reply, answer) = oneshot::channel();
        self.send(Mail::Ping { reply }).await;
        answer.await.map_err(|_| stopping())
    }

    /// Sends an operator's order about the drafter and waits until it is carried out. Returns the
    /// status of everything then. If the wait is given up, the order still stands.
    ///
    /// # Errors
    /// It cannot be carried out, the mailbox is full, or the service is about to end.
    pub async fn order_drafter(&self, order: DrafterOrder) -> Result<StatusResponse, Status> {
        self.asked(|reply| Mail::DrafterOrder { order, reply }, too_many_questions).await?
    }

    /// Sends an operator's order about another process, or the whole service, and waits likewise.
    ///
    /// # Errors
    /// As [`ActorHandle::order_drafter`].
    pub async fn order(&self, order: OperatorOrder) -> Result<StatusResponse, Status> {
        self.asked(|reply| Mail::OperatorOrder { order, reply }, too_many_questions).await?
    }

    /// Sends an operator's order to serve another model and waits likewise.
    ///
    /// # Errors
    /// As [`ActorHandle::order_drafter`].
    pub async fn swap_target(
        &self,
        setup: TargetSetup,
        drain_ms: Option<u64>,
    ) -> Result<StatusResponse, Status> {
        let setup = Box::new(setup);
        let order = |reply| Mail::SwapTarget { setup, drain_ms, reply };
        self.asked(order, too_many_questions).await?
    }

    /// Sends the actor a question and waits for its answer. `full` is the error of a full mailbox.
    async fn asked<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Mail,
        full: fn() -> Status,
    ) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        self.mail.try_send(question(reply)).map_err(|_| full())?;
        answer.await.map_err(|_| stopping())
    }

    /// Sets a key of the policy; returns the policy as it is then.
    ///
    /// # Errors
    /// The mailbox is full, or the service is about to end.
    pub async fn set_policy(&self, change: PolicyChange) -> Result<PolicyResponse, Status> {
        self.asked(|reply| Mail::SetPolicy { change, reply }, too_many_questions).await?
    }

    /// Changes settings that need no restart.
    ///
    /// # Errors
    /// The mailbox is full, or the service is about to end.
    pub async fn tune(&self, tuning: Tuning) -> Result<(), Status> {
        self.asked(|reply| Mail::Tune { tuning, reply }, too_many_questions).await?.map(drop)
    }

    /// Resolves when the actor has ended.
    pub(crate) async fn closed(&self) {
        self.mail.closed().await;
    }

    /// Sends the actor a message about its gateway.
    pub(crate) async fn send(&self, mail: Mail) {
        // The actor may have ended.
        let _ = self.mail.send(mail).await;
    }
}

/// A request that was handed in and is not decided. Fields are dropped in this order: the actor
/// must find the decision unwanted before it receives the end.
#[derive(Debug)]
pub struct PendingRequest {
    decision: oneshot::Receiver<AdmissionDecision>,
    guard: Option<AdmissionGuard>,
}

/// A request that was admitted.
#[derive(Debug)]
pub struct AdmittedRequest {
    /// The right to run it.
    pub grant: AdmissionGrant,
    /// The guard of its place.
    pub guard: AdmissionGuard,
}

impl PendingRequest {
    /// Waits for the decision; the request waits in the queue meanwhile.
    ///
    /// # Errors
    /// The request is denied.
    pub async fn decided(mut self) -> Result<AdmittedRequest, Status> {
        let decision = (&mut self.decision).await;
        match (decision, self.guard.take()) {
            (Ok(Ok(grant)), Some(guard)) => Ok(AdmittedRequest { grant, guard }),
            (Ok(Err(denial)), _) => Err(error::denied(denial)),
            _ => Err(leaving()),
        }
    }
}

/// A request's place; a drop frees it.
#[derive(Debug)]
pub struct AdmissionGuard {
    ticket: Ticket,
    served: Option<ServedEnd>,
    end: Option<mpsc::OwnedPermit<RequestEnd>>,
}

impl AdmissionGuard {
    /// Number of the request.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The request ended well, in this way.
    pub fn ended_well(&mut self, done: &Done, completion_tokens: u64, first_ms: u64) {
        let route = wire::served_route(done.route);
        let speculation = done.speculation.unwrap_or_default();
        let line = ServedLine {
            lane: route.lane.word().to_owned(),
            reason: route.reason.word().to_owned(),
            cycles: speculation.cycles,
            drafted: speculation.drafted,
            accepted: speculation.accepted,
            completion_tokens,
        };
        let request = ServedRequest {
            lane: route.lane,
            reason: route.reason,
            tokens: completion_tokens,
            first_ms: Some(first_ms),
        };
        self.served = Some(ServedEnd { request, line });
    }
}

impl Drop for AdmissionGuard {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end.send(RequestEnd { ticket: self.ticket, served: self.served.take() });
        }
    }
}

fn taken_in() -> Status {
    let message = "the service takes in as many requests as it can; try again in 1 s";
    Reason::QueueFull.field("limits.queue", message)
}

/// The status of a request that the actor could not take.
fn refused<T>(error: &TrySendError<T>) -> Status {
    match error {
        TrySendError::Full(_) => taken_in(),
        TrySendError::Closed(_) => leaving(),
    }
}

/// The actor has ended, and this process ends. The gateway submits the request to the next
/// supervisor, or is told itself that the service stops.
fn leaving() -> Status {
    let why = "the supervisor is ending".to_owned();
    let outage = Outage { reason: Reason::Restarting, why };
    error::denied(Denial::Outage { outage, retry_ms: 1_000, log: String::new() })
}

fn too_many_questions() -> Status {
    let message = "the service has as many questions to answer as it can; try again in 1 s";
    Reason::QueueFull.status(message)
}

fn stopping() -> Status {
    error::denied(Denial::stopping(1_000))
}

/// A handle whose actor a test plays, and the mail of that actor. The last value keeps the other
/// channels open.
#[cfg(test)]
pub(crate) fn played(
    runtime_dir: &paceline_process::RuntimeDir,
) -> (ActorHandle, mpsc::Receiver<Mail>, impl Sized + use<>) {
    let (mail, mailbox) = mpsc::channel(4);
    let (ends, receiver) = mpsc::channel(4);
    let (aborts_tx, aborts) = watch::channel(None);
    let (notices_tx, notices) = watch::channel(Default::default());
    let (restarts_tx, restarts) = watch::channel(None);
    let (journal, events) = crate::events::Journal::new(runtime_dir, Term(1));
    let broadcasts = Broadcasts { aborts, notices, restarts };
    let handle = ActorHandle::new(mail, ends, broadcasts, events, Term(1), Clock::start());
    (handle, mailbox, (receiver, aborts_tx, notices_tx, restarts_tx, journal))
}
