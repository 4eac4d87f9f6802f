//! From the engine to a request's stream without ever waiting: what does not fit the channel is
//! kept and joined to the next batch. What is kept is bounded: of one who does not read for that
//! long the request is ended (I6).

use paceline_proto::internal::v1::{Stamp, TokenBatch};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tonic::Status;

use crate::error;

/// A stream's messages are this far apart at least, in nanoseconds, but for its first and its last:
/// a message costs three processes some hundred microseconds together on the cores that the model
/// wants, and nobody reads faster than a hundred times a second.
pub(crate) const APART_NS: i64 = 10_000_000;

/// Batches in the channel: a reader that keeps up never sees more than one or two.
pub(crate) const STREAM_BACKLOG: usize = 32;

/// Most bytes that are kept for a reader who does not come: with what the hops between have under
/// way it stays below 2 MiB.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// The engine's end of a request's stream.
#[derive(Debug)]
pub(crate) struct Outlet {
    tx: mpsc::Sender<Result<TokenBatch, Status>>,
    stamp: Stamp,
    kept: Option<TokenBatch>,
    kept_bytes: usize,
    /// More was to be kept than may.
    is_behind: bool,
    failure: Option<Status>,
    /// End of the step whose tokens were sent last.
    sent_ns: Option<i64>,
}

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Everything is on its way.
    Sent,
    /// Something is kept: try again.
    Kept,
    /// Nobody reads any more.
    Gone,
}

impl Outlet {
    pub(crate) fn new(tx: mpsc::Sender<Result<TokenBatch, Status>>, stamp: Stamp) -> Self {
        Self {
            tx,
            stamp,
            kept: None,
            kept_bytes: 0,
            is_behind: false,
            failure: None,
            sent_ns: None,
        }
    }

    /// Whether the reader went away, or is as good as gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_behind || self.tx.is_closed()
    }

    /// Adds tokens, and the end if `batch` has one, to what is to be sent.
    pub(crate) fn add(&mut self, batch: TokenBatch) {
        self.kept_bytes += size(&batch);
        if self.is_behind {
            return;
        }
        if self.kept_bytes > MAX_KEPT_BYTES {
            (self.kept, self.is_behind) = (None, true);
            self.failure = Some(error::slow_reader());
            return;
        }
        match &mut self.kept {
            None => self.kept = Some(TokenBatch { stamp: Some(self.stamp), ..batch }),
            Some(kept) => {
                kept.ids.extend(batch.ids);
                kept.margins.extend(batch.margins);
                kept.logprobs.extend(batch.logprobs);
                kept.step_end_ns = batch.step_end_ns;
                kept.done = batch.done;
                kept.so_far = batch.so_far;
            }
        }
    }

    /// Ends the stream with an error, behind the tokens that are there.
    pub(crate) fn fail(&mut self, status: Status) {
        // Of one that is behind the end is said already.
        if !self.is_behind {
            self.failure = Some(status);
        }
    }

    /// Sends what there is if it is time ([`APART_NS`]). For a stream that goes on; what is kept
    /// goes with a later batch.
    pub(crate) fn offer(&mut self) {
        let due = match (&self.kept, self.sent_ns) {
            (Some(kept), Some(sent_ns)) => kept.step_end_ns - sent_ns >= APART_NS,
            _ => true,
        };
        if due {
            // A reader that is gone is noticed before the next step.
            let _ = self.flush();
        }
    }

    /// Sends what is kept of a stream that goes on if it is time at `now_ns` ([`APART_NS`]). If
    /// something is kept still: when to try again, in nanoseconds of the same clock.
    pub(crate) fn send_due(&mut self, now_ns: i64) -> Option<i64> {
        self.kept.as_ref()?;
        let due_ns = self.sent_ns.map_or(now_ns, |sent_ns| sent_ns + APART_NS);
        if now_ns < due_ns {
            return Some(due_ns);
        }
        match self.flush() {
            Flow::Kept => Some(now_ns + APART_NS),
            Flow::Sent | Flow::Gone => {
                // The step may have ended long ago: messages are apart by the time at which they
                // are sent.
                self.sent_ns = Some(now_ns);
                None
            }
        }
    }

    /// Sends what there is, as far as there is room.
    pub(crate) fn flush(&mut self) -> Flow {
        if let Some(batch) = self.kept.take() {
            let end_ns = batch.step_end_ns;
            match self.tx.try_send(Ok(batch)) {
                Ok(()) => (self.sent_ns, self.kept_bytes) = (Some(end_ns), 0),
                Err(TrySendError::Full(Ok(batch))) => {
                    self.kept = Some(batch);
                    return Flow::Kept;
                }
                Err(_) => return Flow::Gone,
            }
        }
        if let Some(status) = self.failure.take()
            && let Err(TrySendError::Full(Err(status))) = self.tx.try_send(Err(status))
        {
            self.failure = Some(status);
            return Flow::Kept;
        }
        if self.tx.is_closed() { Flow::Gone } else { Flow::Sent }
    }
}

/// About as many bytes as a batch takes on the way: varints of ids, floats with their tags.
fn size(batch: &TokenBatch) -> usize {
    let logprobs: usize = batch.logprobs.iter().map(|of| 8 + 12 * of.top.len()).sum();
    5 * batch.ids.len() + 4 * batch.margins.len() + logprobs
}

#[cfg(test)]
mod tests {
    use paceline_proto::status::{Reason, ReasonStatus as _};
    use paceline_proto::v1;

    use super::*;

    fn batch(first_index: u32, ids: &[u32]) -> TokenBatch {
        let logprobs = ids
            .iter()
            .map(|id| v1::TokenLogprobs { logprob: -(*id as f32), top: vec![] })
            .collect();
        TokenBatch { first_index, ids: ids.to_vec(), logprobs, ..TokenBatch::default() }
    }

    #[test]
    fn messages_are_apart_but_the_first_and_the_last_come_at_once() {
        let (tx, mut rx) = mpsc::channel(8);
        let mut outlet = Outlet::new(tx, Stamp { term: 1, epoch: 2 });
        let at =
            |index, ms: i64| TokenBatch { step_end_ns: ms * 1_000_000, ..batch(index, &[index]) };
        let mut seen = vec![];
        for (index, ms) in [(0, 100), (1, 104), (2, 109), (3, 110), (4, 115), (5, 140)] {
            outlet.add(at(index, ms));
            outlet.offer();
            seen.push(rx.try_recv().map_or(vec![], |sent| sent.expect("tokens").ids));
        }
        assert_eq!(seen, [vec![0], vec![], vec![], vec![1, 2, 3], vec![], vec![4, 5]]);
        outlet.add(at(6, 141));
        outlet.offer();
        assert!(rx.try_recv().is_err());
        assert_eq!(outlet.flush(), Flow::Sent);
        assert_eq!(rx.try_recv().expect("there").expect("tokens").ids, [6]);
    }

    #[test]
    fn tokens_that_are_kept_are_sent_when_they_are_due_without_another_step() {
        const MS: i64 = 1_000_000;
        let (tx, mut rx) = mpsc::channel(1);
        let mut outlet = Outlet::new(tx, Stamp { term: 1, epoch: 2 });
        let step = |outlet: &mut Outlet, index, ms: i64| {
            outlet.add(TokenBatch { step_end_ns: ms * MS, ..batch(index, &[index]) });
            outlet.offer();
        };
        let mut ids = || rx.try_recv().map_or(vec![], |sent| sent.expect("tokens").ids);
        assert_eq!(outlet.send_due(99 * MS), None, "nothing is kept");
        step(&mut outlet, 0, 100);
        assert_eq!((outlet.send_due(101 * MS), ids()), (None, vec![0]));
        step(&mut outlet, 1, 104);
        step(&mut outlet, 2, 106);
        assert_eq!((outlet.send_due(107 * MS), ids()), (Some(110 * MS), vec![]));
        assert_eq!((outlet.send_due(115 * MS), ids()), (None, vec![1, 2]));
        // The next message is apart from that one, not from its step.
        step(&mut outlet, 3, 117);
        assert_eq!(outlet.send_due(117 * MS), Some(125 * MS));
        assert_eq!((outlet.send_due(125 * MS), outlet.send_due(125 * MS)), (None, None));
        // A reader that does not come is tried again after a while, and not at once for ever.
        step(&mut outlet, 4, 140);
        assert_eq!((outlet.send_due(140 * MS), ids()), (Some(150 * MS), vec![3]));
        assert_eq!((outlet.send_due(150 * MS), ids()), (None, vec![4]));
    }

    #[test]
    fn who_does_not_read_for_too_long_is_let_go_of_and_told() {
        let (tx, mut rx) = mpsc::channel(1);
        let mut outlet = Outlet::new(tx, Stamp { term: 1, epoch: 2 });
        let mut at = 0;
        let each = size(&batch(0, &[7; 1_000]));
        while !outlet.is_gone() {
            outlet.add(batch(at, &[7; 1_000]));
            outlet.flush();
            at += 1_000;
            assert!(outlet.kept_bytes <= MAX_KEPT_BYTES + each, "{at}");
        }
        assert!(at as usize / 1_000 * each > MAX_KEPT_BYTES && outlet.kept.is_none());
        outlet.fail(Status::cancelled("gone"));
        assert_eq!(outlet.flush(), Flow::Kept);
        assert!(rx.try_recv().expect("there").is_ok());
        assert_eq!(outlet.flush(), Flow::Sent);
        let status = rx.try_recv().expect("there").expect_err("the end");
        assert_eq!(Reason::of(&status), Some(Reason::SlowReader));
    }

    #[test]
    fn a_slow_reader_gets_joined_batches_and_the_error_last() {
        let (tx, mut rx) = mpsc::channel(1);
        let mut outlet = Outlet::new(tx, Stamp { term: 1, epoch: 2 });
        for (index, id) in [(0, 10), (1, 11), (2, 12)] {
            outlet.add(batch(index, &[id]));
            outlet.flush();
        }
        outlet.fail(Status::cancelled("enough"));
        assert_eq!(outlet.flush(), Flow::Kept);
        let first = rx.try_recv().expect("there").expect("tokens");
        assert_eq!((first.first_index, first.ids), (0, vec![10]));
        assert_eq!(outlet.flush(), Flow::Kept);
        let second = rx.try_recv().expect("there").expect("tokens");
        assert_eq!((second.first_index, second.ids), (1, vec![11, 12]));
        assert_eq!(
            second.logprobs.iter().map(|one| one.logprob).collect::<Vec<_>>(),
            [-11.0, -12.0]
        );
        assert_eq!(outlet.flush(), Flow::Sent);
        assert!(rx.try_recv().expect("there").is_err());
        drop(rx);
        outlet.add(batch(3, &[13]));
        assert_eq!(outlet.flush(), Flow::Gone);
    }
}
