//! Makes a link: a pair of sockets and a segment, one end for each worker. The supervisor retains
//! nothing of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use paceline_link::{SEGMENT_BYTES, make_pair};
use paceline_process::{RuntimeDir, task};
use paceline_proto::internal::v1::Stamp;
use paceline_supervisor_core::drafter::LinkEnds;
use paceline_supervisor_core::{WorkerId, WorkerSlot};
use paceline_vocabulary::{Epoch, Term};
use tokio::sync::mpsc;

use crate::mailbox::Mail;

/// Longest wait until one worker takes its end. Both together are shorter than the core's own
/// timeout.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes link `generation` and hands it to both workers; the outcome goes to `mail`.
pub fn begin(
    dir: &RuntimeDir,
    generation: u64,
    slot: WorkerSlot,
    ends: LinkEnds,
    term: Term,
    mail: mpsc::Sender<Mail>,
) {
    let path = |worker: WorkerId| dir.socket(&format!("{}.link", worker.name()));
    let (drafter, target) = (path(WorkerId::Drafter(slot)), path(WorkerId::Target));
    let hand_over = move || {
        let pair = make_pair(SEGMENT_BYTES)
            .map_err(|error| format!("no shared memory for it: {error}"))?;
        let segment = pair.segment.as_fd();
        let send = |to: &Path, epoch: Epoch, end: BorrowedFd<'_>| {
            let stamp = Stamp { term: term.0, epoch: epoch.0 };
            let timeout = HANDOVER_TIMEOUT;
            paceline_link::send(to, stamp, generation, end, segment, SEGMENT_BYTES, timeout)
        };
        // The drafter first: if it does not take its end, the target's present link is not
        // disturbed.
        send(&drafter, ends.drafter, pair.drafter.as_fd())
            .map_err(|error| format!("the drafter did not take it: {error}"))?;
        send(&target, ends.target, pair.target.as_fd())
            .map_err(|error| format!("the target did not take it: {error}"))
    };
    task::spawn("handover", async move {
        let outcome = tokio::task::spawn_blocking(hand_over).await;
        let failure =
            outcome.unwrap_or_else(|error| Err(format!("the handover broke: {error}"))).err();
        if let Some(cause) = &failure {
            tracing::warn!(generation, cause, "a link was not handed over");
        }
        // The actor may have ended.
        let _ = mail.send(Mail::Connected { generation, failure }).await;
    });
}
