//! One admitted request's way: the target's stream is opened, its batches are handed on, and it
//! ends exactly once.
//!
//! The types ensure that it ends once (I4). Batches go out through `Outlet::send`, which cannot
//! send an end. The end goes out through `Outlet::end`, which consumes the outlet and the one
//! reserved place of its channel. Before the first batch the request has no outlet: its end is the
//! handler's own `Err`, which goes out without headers.

use std::pin::Pin;
use std::time::Duration;

use paceline_process::task;
use paceline_process::telemetry::trace::{self, Span};
use paceline_proto::internal::v1::{Done, Stamp, TargetGenerateRequest, TokenBatch};
use paceline_proto::status::{Reason, ReasonStatus as _, Refusal};
use paceline_supervisor_core::denial::Denial;
use paceline_system::Clock;
use paceline_vocabulary::generation::Generation;
use paceline_vocabulary::{Epoch, Millis, TraceContext};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use tracing::Instrument;

use crate::error;
use crate::handle::{ActorHandle, AdmissionGuard, AdmittedRequest};
use crate::mailbox::{AbortStreams, AdmissionGrant};
use crate::spans::fail;
use crate::wire::permit_message;

/// Batches on their way to a gateway that does not read. After them the target's own bounds hold
/// the request back.
const BATCHES: usize = 16;
/// The target ends requests at their deadline. The relay ends them this much later, in case the
/// target does not.
const BACKSTOP_MS: u64 = 2_000;
/// Longest wait, after a stream broke, until the core reports how the target ended, and for the
/// last batches of that stream.
const BROKEN_STREAM_TIMEOUT: Duration = Duration::from_millis(250);
/// Longest wait for the end of a finished stream, so that the target does not take the closed
/// stream for a cancellation.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The stream a gateway reads.
pub type Batches = ReceiverStream<Result<TokenBatch, Status>>;

/// Resolves to a request's end that comes from outside its stream: the core aborts the streams, or
/// the backstop after its deadline.
type OutsideEnd = Pin<Box<dyn Future<Output = Status> + Send>>;

/// Runs a granted request until its first batch is there, and afterwards in a task of its own.
///
/// # Errors
/// It ended before its first batch. Dropping the future cancels the request and gives its place
/// back.
pub async fn forward(
    handle: &ActorHandle,
    generation: Generation,
    admitted: AdmittedRequest,
    mut span: Span,
) -> Result<Batches, Status> {
    let AdmittedRequest { grant, guard } = admitted;
    let epoch = grant.epoch;
    let deadline = (generation.deadline_ns != 0).then(|| handle.clock().at(generation.deadline_ns));
    let mut outside_end: OutsideEnd =
        Box::pin(outside_end(handle.aborts(), epoch, deadline, handle.clock()));
    let queued_ms = grant.queued_ms;
    let admitted_at = handle.clock().now();
    let opened = tokio::select! {
        biased;
        status = &mut outside_end => Err(status),
        opened = open(handle, generation, grant, span.context()) => opened,
    };
    let (upstream, first) = opened.inspect_err(|status| fail(&mut span, status))?;
    let first_ms = handle.clock().now().since(admitted_at);
    let (outlet, batches) = Outlet::new();
    let aborts = handle.aborts();
    let relay = Relay {
        upstream,
        outside_end,
        aborts,
        epoch,
        queued_ms,
        first_ms,
        tokens: 0,
        so_far: None,
        guard,
        span,
    };
    task::spawn("relay", relay.run(first, outlet).in_current_span());
    Ok(batches)
}

async fn open(
    handle: &ActorHandle,
    generation: Generation,
    mut grant: AdmissionGrant,
    trace: Option<TraceContext>,
) -> Result<(Streaming<TokenBatch>, TokenBatch), Status> {
    let mut request = Request::new(TargetGenerateRequest {
        stamp: Some(Stamp { term: handle.term().0, epoch: grant.epoch.0 }),
        generation: Some(generation.into()),
        permit: Some(permit_message(grant.permit)),
    });
    trace::put(request.metadata_mut(), trace);
    let opened = async {
        let mut upstream = grant.target.generate(request).await?.into_inner();
        let first = upstream.message().await?;
        Ok((upstream, first))
    };
    match opened.await {
        Ok((upstream, Some(first))) => Ok((upstream, first)),
        Ok((_, None)) => Err(broken(None, &mut handle.aborts(), grant.epoch).await),
        Err(status) => Err(broken(Some(status), &mut handle.aborts(), grant.epoch).await),
    }
}

struct Relay {
    upstream: Streaming<TokenBatch>,
    outside_end: OutsideEnd,
    aborts: watch::Receiver<Option<AbortStreams>>,
    epoch: Epoch,
    queued_ms: u64,
    first_ms: u64,
    tokens: u64,
    /// The state of the answer so far, if the gateway asked for it.
    so_far: Option<Done>,
    guard: AdmissionGuard,
    /// The span of the request's route.
    span: Span,
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
                self.guard.ended_well(done, self.tokens, self.first_ms);
                return self.finish(outlet, next).await;
            }
            tokio::select! {
                biased;
                status = &mut self.outside_end => return self.fail(outlet, status),
                sent = outlet.send(next) => if !sent {
                    return self.left();
                },
            }
            let message = tokio::select! {
                biased;
                () = outlet.closed() => return self.left(),
                status = &mut self.outside_end => return self.fail(outlet, status),
                message = self.upstream.message() => message,
            };
            next = match message {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    let status = broken(None, &mut self.aborts, self.epoch).await;
                    return self.fail(outlet, status);
                }
                Err(status) => {
                    let status = broken(Some(status), &mut self.aborts, self.epoch).await;
                    return self.fail(outlet, status);
                }
            };
        }
    }

    /// The reader has gone. The relay's stream is dropped, which cancels the request. A gateway
    /// that asked for `so_far` ended the request at a stop string, which is a good end. Its client
    /// may have gone instead, which is rare and looks the same.
    fn left(mut self) {
        if let Some(so_far) = &self.so_far {
            self.guard.ended_well(so_far, self.tokens, self.first_ms);
        }
    }

    /// The place is freed before the client receives the end, so that its next request finds the
    /// place free.
    fn fail(mut self, outlet: Outlet, status: Status) {
        fail(&mut self.span, &status);
        drop(self);
        outlet.end(Err(status));
    }

    async fn finish(self, outlet: Outlet, last: TokenBatch) {
        let Self { mut upstream, guard, span, .. } = self;
        drop((guard, span));
        outlet.end(Ok(last));
        // The outcome does not matter: the request is over.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, upstream.message()).await;
    }
}

/// The end of a stream that broke. A status of ours concerns this request and passes as it is. Any
/// other status concerns the target, and the core may know more.
async fn broken(
    status: Option<Status>,
    aborts: &mut watch::Receiver<Option<AbortStreams>>,
    epoch: Epoch,
) -> Status {
    let code = status.as_ref().map(Status::code);
    match status.as_ref().and_then(Reason::of) {
        // The epoch that it was admitted to is over, or this supervisor is. Clients do not know
        // epochs. A target that drains was stopped by a signal, or with the service, of which the
        // core knows.
        None | Some(Reason::StaleEpoch | Reason::StaleTerm | Reason::Draining) => {}
        Some(_) => return status.unwrap_or_else(|| gone("its stream broke")),
    }
    let status = match tokio::time::timeout(BROKEN_STREAM_TIMEOUT, aborted(aborts, epoch)).await {
        Ok(denial) => error::denied(denial),
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

/// Waits until the core aborts the streams of this epoch.
async fn aborted(aborts: &mut watch::Receiver<Option<AbortStreams>>, epoch: Epoch) -> Denial {
    // Without an actor the supervisor is at its end.
    let stopping = || Denial::stopping(1_000);
    match aborts.wait_for(|abort| abort.as_ref().is_some_and(|abort| abort.epoch >= epoch)).await {
        Ok(abort) => abort.as_ref().map_or_else(stopping, |abort| abort.denial.clone()),
        Err(_) => stopping(),
    }
}

async fn outside_end(
    mut aborts: watch::Receiver<Option<AbortStreams>>,
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
        denial = aborted(&mut aborts, epoch) => {
            // The batches that the target sent before its end are still to be read; then its stream
            // breaks by itself.
            if let Denial::Gone { .. } = denial {
                tokio::time::sleep(BROKEN_STREAM_TIMEOUT).await;
            }
            error::denied(denial)
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

    /// Hands a batch on as soon as there is room; false if the reader has gone.
    async fn send(&self, batch: TokenBatch) -> bool {
        self.batches.send(Ok(batch)).await.is_ok()
    }

    /// Resolves when the reader has gone.
    async fn closed(&self) {
        self.batches.closed().await;
    }

    /// The end: the last batch of a request that went well, or why it did not.
    fn end(self, end: Result<TokenBatch, Status>) {
        self.end.send(end);
    }
}
