//! The grammar of a request is compiled before the request takes a place in the queue. The compiler
//! of the target takes one grammar at a time, and each may take a second: a request that waited for
//! it in a running place would keep that place from requests that could run.
//!
//! The wait ends with the request, after `limits.queue_wait_s`, or at an outage. What the wait does
//! not decide is left to admission: at an outage, or when the target breaks off, the core knows why.

use std::time::Duration;

use paceline_proto::internal::v1::{PrepareRequest, PrepareResponse, Stamp};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_supervisor_core::RequestSummary;
use paceline_supervisor_core::denial::Denial;
use paceline_vocabulary::Millis;
use paceline_vocabulary::generation::Grammar;
use tonic::{Status, Streaming};

use crate::error;
use crate::handle::ActorHandle;
use crate::target_access::TargetAccess;

/// A compiled grammar; the target keeps it as long as this value lives.
#[derive(Debug)]
pub struct PreparedGrammar {
    _open: Option<Streaming<PrepareResponse>>,
    /// How long the request waited for the compiler.
    pub waited_ms: u64,
}

/// Has the target compile the grammar of a request.
///
/// # Errors
/// The grammar cannot be enforced, too many requests wait for the compiler, or the request has
/// waited too long.
pub async fn prepare(
    handle: &ActorHandle,
    grammar: Grammar,
    summary: &RequestSummary,
) -> Result<PreparedGrammar, Status> {
    let began = handle.clock().now();
    let most = Duration::from_millis(handle.queue_wait_ms());
    let left = summary.deadline.map(|deadline| handle.clock().until(deadline));
    let limit = left.map_or(most, |left| left.min(most));
    let mut notices = handle.notices();
    let compiled = tokio::select! {
        biased;
        _ = notices.wait_for(|state| !state.can_serve) => Ok(None),
        compiled = compile(handle, grammar, summary.key.0) => compiled,
        () = tokio::time::sleep(limit) => Err(too_late(handle, summary, began)),
    };
    let waited_ms = handle.clock().now().since(began);
    compiled.map(|open| PreparedGrammar { _open: open, waited_ms })
}

/// Asks the target. `None`: it does not say, and admission decides.
async fn compile(
    handle: &ActorHandle,
    grammar: Grammar,
    key_id: u64,
) -> Result<Option<Streaming<PrepareResponse>>, Status> {
    let Some(TargetAccess { epoch, mut client }) = handle.target().await? else { return Ok(None) };
    let stamp = Some(Stamp { term: handle.term().0, epoch: epoch.0 });
    let request = PrepareRequest { stamp, grammar: Some(grammar.into()), key_id };
    match client.prepare(request).await {
        Ok(open) => Ok(Some(open.into_inner())),
        Err(status) => match Reason::of(&status) {
            Some(Reason::InvalidArgument | Reason::QueueFull | Reason::Bug) => Err(status),
            _ => Ok(None),
        },
    }
}

fn too_late(handle: &ActorHandle, summary: &RequestSummary, began: Millis) -> Status {
    let now = handle.clock().now();
    let waited_ms = now.since(began);
    error::denied(match summary.deadline {
        Some(deadline) if deadline <= now => Denial::DeadlinePassed { waited_ms },
        _ => Denial::QueueWait { waited_ms },
    })
}
