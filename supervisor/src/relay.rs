//! One admitted request's way: the target's stream is opened, its batches are handed on, and it
//! ends exactly once.
//!
//! That it ends once is a matter of types (I4): batches go out through `Outlet::send`, which cannot
//! say anything final, and the end through `Outlet::end`, which consumes the outlet and the one
//! place kept free for it. Until the first batch is there the request has no outlet: its end is the
//! handler's own `Err`, which goes out without headers.

use std::pin::Pin;
use std::time::Duration;

use paceline_process::{Clock, task};
use paceline_proto::internal::v1::{
    Done, Generation, Permit, Stamp, TargetGenerateRequest, TokenBatch,
};
use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use paceline_vocabulary::Epoch;
use paceline_vocabulary::Millis;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use tracing::Instrument;

use crate::core::denial::Denial;
use crate::core::route;
use crate::desk::{Cut, Desk, Grant, Seat};

/// Batches under way to a gateway that does not read; behind it the target's own bounds hold the
/// request back.
const BATCHES: usize = 16;
/// The target ends requests at their deadline; this much later we do, in case it does not.
const BACKSTOP_MS: u64 = 2_000;
/// For the core to learn how a target ended whose stream broke, and for a broken stream to give
/// what is still in it.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// For the end of a finished stream to arrive, so that the target does not take our leaving for a
/// cancellation.
const FAREWELL: Duration = Duration::from_secs(1);

/// The stream a gateway reads.
pub type Batches = ReceiverStream<Result<TokenBatch, Status>>;

/// Resolves to a request's end if it comes from outside its stream: a cut, or the backstop behind
/// its deadline.
type Verdict = Pin<Box<dyn Future<Output = Status> + Send>>;

/// Runs a granted request until its first batch is there, and from then on in a task of its own.
///
/// # Errors
/// It ended before its first batch. Dropping the future cancels the request and gives its place
/// back.
pub async fn forward(
    desk: &Desk,
    generation: Generation,
    grant: Grant,
    seat: Seat,
) -> Result<Batches, Status> {
    let epoch = grant.epoch;
    let deadline = (generation.deadline_ns != 0).then(|| desk.clock().at(generation.deadline_ns));
    let mut verdict: Verdict = Box::pin(verdict(desk.cuts(), epoch, deadline, desk.clock()));
    let queued_ms = grant.queued_ms;
    let let_in = desk.clock().now();
    let (upstream, first) = tokio::select! {
        biased;
        status = &mut verdict => return Err(status),
        opened = open(desk, generation, grant) => opened?,
    };
    let first_ms = desk.clock().now().since(let_in);
    let (outlet, batches) = Outlet::new();
    let cuts = desk.cuts();
    let relay = Relay {
        upstream,
        verdict,
        cuts,
        epoch,
        queued_ms,
        first_ms,
        tokens: 0,
        so_far: None,
        seat,
    };
    task::spawn("relay", relay.run(first, outlet).in_current_span());
    Ok(batches)
}

async fn open(
    desk: &Desk,
    generation: Generation,
    mut grant: Grant,
) -> Result<(Streaming<TokenBatch>, TokenBatch), Status> {
    let request = TargetGenerateRequest {
        stamp: Some(Stamp { term: desk.term().0, epoch: grant.epoch.0 }),
        generation: Some(generation),
        permit: Some(permit_message(grant.permit)),
    };
    let opened = async {
        let mut upstream = grant.target.generate(request).await?.into_inner();
        let first = upstream.message().await?;
        Ok((upstream, first))
    };
    match opened.await {
        Ok((upstream, Some(first))) => Ok((upstream, first)),
        Ok((_, None)) => Err(broken(None, &mut desk.cuts(), grant.epoch).await),
        Err(status) => Err(broken(Some(status), &mut desk.cuts(), grant.epoch).await),
    }
}

/// A permit as the target gets it.
pub fn permit_message(permit: route::Permit) -> Permit {
    Permit {
        lane_allowed: permit.lane.into(),
        max_draft: permit.max_draft,
        reason: permit.reason.into(),
        policy_epoch: permit.policy_epoch,
    }
}

struct Relay {
    upstream: Streaming<TokenBatch>,
    verdict: Verdict,
    cuts: watch::Receiver<Option<Cut>>,
    epoch: Epoch,
    queued_ms: u64,
    first_ms: u64,
    tokens: u64,
    /// What the end would have said, where the gateway asked for it.
    so_far: Option<Done>,
    seat: Seat,
}

impl Relay {
    async fn run(mut self, first: TokenBatch, outlet: Outlet) {
        let mut next = first;
        loop {
            if next.stamp.as_ref().map(|stamp| stamp.epoch) != Some(self.epoch.0) {
                let found = next.stamp.map(|stamp| stamp.epoch);
                tracing::error!(
                    epoch = self.epoch.0,
                    ?found,
                    "a batch of another life came; its request is ended (I7)"
                );
                return self.fail(outlet, gone("it sent a message of another life"));
            }
            self.tokens += next.ids.len() as u64;
            if let Some(so_far) = &mut next.so_far {
                so_far.queue_ms = self.queued_ms as f64;
                self.so_far = Some(*so_far);
            }
            if let Some(done) = &mut next.done {
                done.queue_ms = self.queued_ms as f64;
                self.seat.ended_well(done, self.tokens, self.first_ms);
                return self.finish(outlet, next).await;
            }
            tokio::select! {
                biased;
                status = &mut self.verdict => return self.fail(outlet, status),
                sent = outlet.send(next) => if !sent {
                    return self.left();
                },
            }
            let message = tokio::select! {
                biased;
                () = outlet.closed() => return self.left(),
                status = &mut self.verdict => return self.fail(outlet, status),
                message = self.upstream.message() => message,
            };
            next = match message {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    let status = broken(None, &mut self.cuts, self.epoch).await;
                    return self.fail(outlet, status);
                }
                Err(status) => {
                    let status = broken(Some(status), &mut self.cuts, self.epoch).await;
                    return self.fail(outlet, status);
                }
            };
        }
    }

    /// Its reader is gone: what we hold is dropped, which cancels it. One who asked what the end
    /// would say has ended it at a stop string, which is a good end; that its client went away
    /// instead is rare, and looks the same.
    fn left(mut self) {
        if let Some(so_far) = &self.so_far {
            self.seat.ended_well(so_far, self.tokens, self.first_ms);
        }
    }

    /// The place is given back before the client hears of the end: whoever reacts to it finds the
    /// place free.
    fn fail(self, outlet: Outlet, status: Status) {
        drop(self);
        outlet.end(Err(status));
    }

    async fn finish(self, outlet: Outlet, last: TokenBatch) {
        let Self { mut upstream, seat, .. } = self;
        drop(seat);
        outlet.end(Ok(last));
        // Whatever comes now, the request is over.
        let _ = tokio::time::timeout(FAREWELL, upstream.message()).await;
    }
}

/// The end of a stream that broke. A status of ours is the target's word about this request and
/// passes as it is; anything else is about the target, and the core may know more.
async fn broken(
    status: Option<Status>,
    cuts: &mut watch::Receiver<Option<Cut>>,
    epoch: Epoch,
) -> Status {
    let code = status.as_ref().map(Status::code);
    match status.as_ref().and_then(Reason::of) {
        // The life it was admitted to is over, or ours is: no news for a client, who has not heard
        // of lives.
        None | Some(Reason::StaleEpoch | Reason::StaleTerm) => {}
        Some(_) => return status.unwrap_or_else(|| gone("its stream broke")),
    }
    let status = match tokio::time::timeout(LAST_WORDS, cut(cuts, epoch)).await {
        Ok(denial) => denial.into(),
        Err(_) => match code {
            Some(code) => gone(&format!("its stream broke with {code:?}")),
            None => gone("its stream ended early"),
        },
    };
    tracing::info!(%epoch, ?code, "a request's stream broke");
    status
}

fn gone(cause: &str) -> Status {
    let message = format!(
        "the target did not finish the request: {cause}; it is started again if it is gone; try again in 1 s"
    );
    Refusal::new(Reason::TargetGone, message).into()
}

/// Waits for the core's word that streams of this life are to end.
async fn cut(cuts: &mut watch::Receiver<Option<Cut>>, epoch: Epoch) -> Denial {
    // Without an actor the supervisor is at its end.
    let stopping = || Denial::stopping(1_000);
    match cuts.wait_for(|cut| cut.as_ref().is_some_and(|cut| cut.epoch >= epoch)).await {
        Ok(cut) => cut.as_ref().map_or_else(stopping, |cut| cut.denial.clone()),
        Err(_) => stopping(),
    }
}

async fn verdict(
    mut cuts: watch::Receiver<Option<Cut>>,
    epoch: Epoch,
    deadline: Option<Millis>,
    clock: Clock,
) -> Status {
    let backstop = async {
        match deadline {
            Some(deadline) => tokio::time::sleep(clock.until(deadline + BACKSTOP_MS)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        denial = cut(&mut cuts, epoch) => {
            // What the target sent before it ended is still to be read; then its stream breaks by
            // itself.
            if let Denial::Gone { .. } = denial {
                tokio::time::sleep(LAST_WORDS).await;
            }
            denial.into()
        }
        () = backstop => {
            let message = "the deadline passed, and the target did not end the request";
            Refusal::new(Reason::DeadlinePassed, message).into()
        }
    }
}

/// The sending end of one response.
struct Outlet {
    batches: mpsc::Sender<Result<TokenBatch, Status>>,
    end: mpsc::OwnedPermit<Result<TokenBatch, Status>>,
}

impl Outlet {
    fn new() -> (Self, Batches) {
        let (batches, reader) = mpsc::channel(BATCHES + 1);
        let end = batches.clone().try_reserve_owned().expect("a new channel has room");
        (Self { batches, end }, ReceiverStream::new(reader))
    }

    /// Hands a batch on as soon as there is room; false if nobody reads any more.
    async fn send(&self, batch: TokenBatch) -> bool {
        self.batches.send(Ok(batch)).await.is_ok()
    }

    /// Resolves when nobody reads any more.
    async fn closed(&self) {
        self.batches.closed().await;
    }

    /// The end: the last batch of a request that went well, or why it did not.
    fn end(self, end: Result<TokenBatch, Status>) {
        self.end.send(end);
    }
}
