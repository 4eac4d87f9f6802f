//! Where requests and questions are handed to the actor: a bounded mailbox, and a seat for every
//! request.
//!
//! A [`Seat`] stands for a request's place, first in the queue and then among the running. However
//! its holder ends, by return, error or by being dropped in the middle of an await, the seat gives
//! the place back exactly once (I4, I11).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_process::Clock;
use paceline_proto::internal::v1::target_client::TargetClient;
use paceline_proto::internal::v1::{Done, ServiceState};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::{PolicyResponse, StatusResponse};
use paceline_vocabulary::{Epoch, RequestId, Term};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;
use tonic::transport::Channel;

use crate::actor::Mail;
use crate::core::admission::{Ask, Ticket};
use crate::core::denial::Denial;
use crate::core::drafter::Order;
use crate::core::operations::Command;
use crate::core::route::Permit;
use crate::core::routing::Served;
use crate::events::Reader;
use crate::route_log::ServedLine;

/// The right to run one request on one life of the target.
#[derive(Debug)]
pub struct Grant {
    /// Which life.
    pub epoch: Epoch,
    /// Its route.
    pub permit: Permit,
    /// How long it waited.
    pub queued_ms: u64,
    /// The way there.
    pub target: TargetClient<Channel>,
}

/// What the core decides about a request.
pub type Verdict = Result<Grant, Denial>;

/// Running streams of lives up to `epoch` are to end, and with what.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The last life that is meant.
    pub epoch: Epoch,
    /// What clients are told.
    pub denial: Denial,
}

/// The gateway of this `Attach` stream, and of earlier ones, is to end and be started again.
#[derive(Clone, Copy, Debug)]
pub struct Recall {
    /// Number of the stream.
    pub attachment: u64,
    /// What running requests get to end by themselves, if not the usual time.
    pub grace_ms: Option<u32>,
}

/// What the actor tells everybody whom it concerns.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) cuts: watch::Receiver<Option<Cut>>,
    pub(crate) notices: watch::Receiver<ServiceState>,
    pub(crate) recalls: watch::Receiver<Option<Recall>>,
}

/// The actor as the services see it.
#[derive(Clone, Debug)]
pub struct Desk {
    mail: mpsc::Sender<Mail>,
    endings: mpsc::Sender<Ending>,
    posted: Posted,
    events: Reader,
    numbers: Arc<AtomicU64>,
    term: Term,
    clock: Clock,
}

impl Desk {
    pub(crate) fn new(
        mail: mpsc::Sender<Mail>,
        endings: mpsc::Sender<Ending>,
        posted: Posted,
        events: Reader,
        term: Term,
        clock: Clock,
    ) -> Self {
        Self { mail, endings, posted, events, numbers: Arc::default(), term, clock }
    }

    /// Our term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The clock deadlines are read by.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Who has to end.
    pub fn cuts(&self) -> watch::Receiver<Option<Cut>> {
        self.posted.cuts.clone()
    }

    /// Whether requests can be served, now and at every change.
    pub fn notices(&self) -> watch::Receiver<ServiceState> {
        self.posted.notices.clone()
    }

    /// Which gateways are to end and be started again.
    pub fn recalls(&self) -> watch::Receiver<Option<Recall>> {
        self.posted.recalls.clone()
    }

    /// What changed state.
    pub fn events(&self) -> &Reader {
        &self.events
    }

    /// A number no one else gets: of tickets and of `Attach` streams.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Hands a request in. The place it gets is given back when what is returned is dropped.
    ///
    /// # Errors
    /// The mailbox is full.
    pub fn submit(&self, id: RequestId, class: String, ask: Ask) -> Result<Pending, Status> {
        let full = || {
            Reason::QueueFull.field(
                "limits.queue",
                "the service takes in as many requests as it can; try again in 1 s",
            )
        };
        let ticket = Ticket(self.number());
        // The way to report the end is reserved first: a drop can neither wait nor fail.
        let ending = self.endings.clone().try_reserve_owned().map_err(|_| full())?;
        let (reply, verdict) = oneshot::channel();
        let pending =
            Pending { verdict, seat: Some(Seat { ticket, served: None, ending: Some(ending) }) };
        self.mail.try_send(Mail::Submit { ticket, id, class, ask, reply }).map_err(|_| full())?;
        Ok(pending)
    }

    /// A snapshot of everything.
    ///
    /// # Errors
    /// The mailbox is full, or the service is about to end.
    pub async fn status(&self) -> Result<StatusResponse, Status> {
        let (reply, answer) = oneshot::channel();
        let full = |_| {
            Reason::QueueFull
                .status("the service has as many questions to answer as it can; try again in 1 s")
        };
        self.mail.try_send(Mail::Status { reply }).map_err(full)?;
        answer.await.map_err(|_| Denial::stopping(1_000).into())
    }

    /// Hands an operator's order of the drafter in and waits until it is carried out; returns
    /// everything as it is then. Giving the wait up leaves the order standing.
    ///
    /// # Errors
    /// It cannot be carried out, the mailbox is full, or the service is about to end.
    pub async fn order(&self, order: Order) -> Result<StatusResponse, Status> {
        self.carried_out(|reply| Mail::Order { order, reply }).await
    }

    /// The same of another process, or of the whole service.
    ///
    /// # Errors
    /// As [`Desk::order`].
    pub async fn command(&self, command: Command) -> Result<StatusResponse, Status> {
        self.carried_out(|reply| Mail::Command { command, reply }).await
    }

    async fn carried_out(
        &self,
        mail: impl FnOnce(oneshot::Sender<Result<StatusResponse, Status>>) -> Mail,
    ) -> Result<StatusResponse, Status> {
        let (reply, answer) = oneshot::channel();
        let full = |_| {
            Reason::QueueFull
                .status("the service has as many questions to answer as it can; try again in 1 s")
        };
        self.mail.try_send(mail(reply)).map_err(full)?;
        answer.await.map_err(|_| Status::from(Denial::stopping(1_000)))?
    }

    /// Sets a key of the policy; returns the policy as it is then.
    ///
    /// # Errors
    /// The configuration would refuse key or value, the mailbox is full, or the service is about to
    /// end.
    pub async fn set_policy(&self, key: String, value: String) -> Result<PolicyResponse, Status> {
        let (reply, answer) = oneshot::channel();
        let full = |_| {
            Reason::QueueFull
                .status("the service has as many questions to answer as it can; try again in 1 s")
        };
        self.mail.try_send(Mail::SetPolicy { key, value, reply }).map_err(full)?;
        answer.await.map_err(|_| Status::from(Denial::stopping(1_000)))?
    }

    /// Resolves when the actor has ended.
    pub(crate) async fn closed(&self) {
        self.mail.closed().await;
    }

    /// Tells the actor of its gateway.
    pub(crate) async fn tell(&self, mail: Mail) {
        // Without an actor there is nobody to tell.
        let _ = self.mail.send(mail).await;
    }
}

/// A request that was handed in and is not decided. Fields are dropped in this order: the actor
/// must find the verdict unwanted before it hears of the end.
#[derive(Debug)]
pub struct Pending {
    verdict: oneshot::Receiver<Verdict>,
    seat: Option<Seat>,
}

impl Pending {
    /// Waits for the decision; the request waits in the queue meanwhile.
    ///
    /// # Errors
    /// It is denied.
    pub async fn decided(mut self) -> Result<(Grant, Seat), Status> {
        let verdict = (&mut self.verdict).await;
        match (verdict, self.seat.take()) {
            (Ok(Ok(grant)), Some(seat)) => Ok((grant, seat)),
            (Ok(Err(denial)), _) => Err(denial.into()),
            _ => Err(Denial::stopping(1_000).into()),
        }
    }
}

/// A request's place; dropped, it is free.
#[derive(Debug)]
pub struct Seat {
    ticket: Ticket,
    served: Option<(Served, ServedLine)>,
    ending: Option<mpsc::OwnedPermit<Ending>>,
}

/// A request is over.
#[derive(Debug)]
pub struct Ending {
    /// Which.
    pub ticket: Ticket,
    /// How it was served, if it ended well.
    pub served: Option<(Served, ServedLine)>,
}

impl Seat {
    /// The request ended well, in this way.
    pub fn ended_well(&mut self, done: &Done, completion_tokens: u64, first_ms: u64) {
        let route = done.route.unwrap_or_default();
        let speculation = done.speculation.unwrap_or_default();
        let line = ServedLine {
            lane: route.lane().word(),
            reason: route.reason().word(),
            cycles: speculation.cycles,
            drafted: speculation.drafted,
            accepted: speculation.accepted,
            completion_tokens,
        };
        let (lane, reason) = (route.lane(), route.reason());
        self.served = Some((
            Served { lane, reason, tokens: completion_tokens, first_ms: Some(first_ms) },
            line,
        ));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(ending) = self.ending.take() {
            ending.send(Ending { ticket: self.ticket, served: self.served.take() });
        }
    }
}
