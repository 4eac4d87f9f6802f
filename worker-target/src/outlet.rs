//! The engine's end of a request's stream. It never waits: tokens that do not fit the channel stay
//! pending and are joined to the next batch. Pending bytes are bounded, and the request of a reader
//! that exceeds the bound ends (I6).

use paceline_proto::internal::v1::{Stamp, TokenBatch};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tonic::Status;

use crate::error;

/// Shortest time from one message of a stream to the next, in nanoseconds. The first and the last
/// message are exempt. A message costs three processes some hundred microseconds together, on cores
/// that the model needs. No person reads faster than a hundred times a second.
pub(crate) const MIN_INTERVAL_NS: i64 = 10_000_000;

/// Longest time that tokens wait for a draft under way, in nanoseconds. Their readers would work beside
/// the drafter, on cores that it needs; when the draft has come, one thread builds the next step and
/// the other cores are free. A first token does not wait.
pub(crate) const HELD_NS: i64 = 2_000_000;

/// Most batches in the channel. A reader that keeps up leaves one or two there.
pub(crate) const STREAM_BACKLOG: usize = 32;

/// Most pending bytes of a stream. With the windows of the connections in between, the unread part
/// of an answer stays below 2 MiB.
const MAX_PENDING_BYTES: usize = 1 << 20;

/// The engine's end of a request's stream.
#[derive(Debug)]
pub(crate) struct TokenOutlet {
    tx: mpsc::Sender<Result<TokenBatch, Status>>,
    stamp: Stamp,
    pending: Option<TokenBatch>,
    pending_bytes: usize,
    /// The pending bytes exceeded their bound.
    is_overrun: bool,
    failure: Option<Status>,
    /// End of the step whose tokens were sent last, or the time of that message.
    sent_ns: Option<i64>,
}

/// The state of a stream after an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// Everything was sent.
    Sent,
    /// Something is pending: try again.
    Pending,
    /// The reader has gone.
    Gone,
}

impl TokenOutlet {
    pub(crate) fn new(tx: mpsc::Sender<Result<TokenBatch, Status>>, stamp: Stamp) -> Self {
        Self {
            tx,
            stamp,
            pending: None,
            pending_bytes: 0,
            is_overrun: false,
            failure: None,
            sent_ns: None,
        }
    }

    /// Whether the reader has gone, or its pending bytes exceeded their bound.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_overrun || self.tx.is_closed()
    }

    /// Adds tokens to the pending ones, with the stream's end if `batch` has one.
    pub(crate) fn add(&mut self, batch: TokenBatch) {
        self.pending_bytes += size(&batch);
        if self.is_overrun {
            return;
        }
        if self.pending_bytes > MAX_PENDING_BYTES {
            (self.pending, self.is_overrun) = (None, true);
            self.failure = Some(error::slow_reader());
            return;
        }
        match &mut self.pending {
            None => self.pending = Some(TokenBatch { stamp: Some(self.stamp), ..batch }),
            Some(pending) => {
                pending.ids.extend(batch.ids);
                pending.margins.extend(batch.margins);
                pending.logprobs.extend(batch.logprobs);
                pending.step_end_ns = batch.step_end_ns;
                pending.done = batch.done;
                pending.so_far = batch.so_far;
            }
        }
    }

    /// Ends the stream with an error, after its pending tokens.
    pub(crate) fn fail(&mut self, status: Status) {
        // The end of an overrun stream is set already.
        if !self.is_overrun {
            self.failure = Some(status);
        }
    }

    /// Sends the pending tokens if the interval has passed ([`MIN_INTERVAL_NS`]); else a later
    /// batch takes them along. For streams that go on.
    pub(crate) fn offer(&mut self) {
        let due = match (&self.pending, self.sent_ns) {
            (Some(pending), Some(sent_ns)) => pending.step_end_ns - sent_ns >= MIN_INTERVAL_NS,
            _ => true,
        };
        if due {
            // A reader that has gone is noticed before the next step.
            let _ = self.flush();
        }
    }

    /// While a draft is under way, sends the pending tokens of a stream that goes on if they have waited
    /// for it ([`HELD_NS`]) and the interval has passed at `now_ns` ([`MIN_INTERVAL_NS`]). Returns when
    /// to try again, in nanoseconds of the same clock, if tokens are still pending.
    pub(crate) fn send_due(&mut self, now_ns: i64) -> Option<i64> {
        let held_until_ns = self.pending.as_ref()?.step_end_ns + HELD_NS;
        let due_ns = |sent_ns: i64| held_until_ns.max(sent_ns + MIN_INTERVAL_NS);
        let due_ns = self.sent_ns.map_or(now_ns, due_ns);
        if now_ns < due_ns {
            return Some(due_ns);
        }
        match self.flush() {
            SendState::Pending => Some(now_ns + MIN_INTERVAL_NS),
            SendState::Sent | SendState::Gone => {
                // The step may have ended long ago. The interval counts from the time of sending.
                self.sent_ns = Some(now_ns);
                None
            }
        }
    }

    /// Sends what is pending, as far as the channel has room.
    pub(crate) fn flush(&mut self) -> SendState {
        if let Some(batch) = self.pending.take() {
            let end_ns = batch.step_end_ns;
            match self.tx.try_send(Ok(batch)) {
                Ok(()) => (self.sent_ns, self.pending_bytes) = (Some(end_ns), 0),
                Err(TrySendError::Full(Ok(batch))) => {
                    self.pending = Some(batch);
                    return SendState::Pending;
                }
                Err(_) => return SendState::Gone,
            }
        }
        if let Some(status) = self.failure.take()
            && let Err(TrySendError::Full(Err(status))) = self.tx.try_send(Err(status))
        {
            self.failure = Some(status);
            return SendState::Pending;
        }
        if self.tx.is_closed() { SendState::Gone } else { SendState::Sent }
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
    fn messages_keep_their_interval_but_the_first_and_the_last_come_at_once() {
        let (tx, mut rx) = mpsc::channel(8);
        let mut outlet = TokenOutlet::new(tx, Stamp { term: 1, epoch: 2 });
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
        assert_eq!(outlet.flush(), SendState::Sent);
        assert_eq!(rx.try_recv().expect("there").expect("tokens").ids, [6]);
    }

    #[test]
    fn pending_tokens_are_sent_when_they_are_due_without_another_step() {
        const MS: i64 = 1_000_000;
        let (tx, mut rx) = mpsc::channel(1);
        let mut outlet = TokenOutlet::new(tx, Stamp { term: 1, epoch: 2 });
        let step = |outlet: &mut TokenOutlet, index, ms: i64| {
            outlet.add(TokenBatch { step_end_ns: ms * MS, ..batch(index, &[index]) });
            outlet.offer();
        };
        let mut ids = || rx.try_recv().map_or(vec![], |sent| sent.expect("tokens").ids);
        assert_eq!(outlet.send_due(99 * MS), None, "nothing is pending");
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
        assert_eq!((outlet.send_due(142 * MS), ids()), (Some(152 * MS), vec![3]));
        assert_eq!((outlet.send_due(152 * MS), ids()), (None, vec![4]));
        // Tokens wait for the draft for a moment, although the interval has passed.
        outlet.add(TokenBatch { step_end_ns: 170 * MS, ..batch(5, &[5]) });
        assert_eq!((outlet.send_due(171 * MS), ids()), (Some(170 * MS + HELD_NS), vec![]));
        assert_eq!((outlet.send_due(170 * MS + HELD_NS), ids()), (None, vec![5]));
    }

    #[test]
    fn a_reader_that_exceeds_the_bound_gets_slow_reader_after_its_tokens() {
        let (tx, mut rx) = mpsc::channel(1);
        let mut outlet = TokenOutlet::new(tx, Stamp { term: 1, epoch: 2 });
        let mut at = 0;
        let each = size(&batch(0, &[7; 1_000]));
        while !outlet.is_gone() {
            outlet.add(batch(at, &[7; 1_000]));
            outlet.flush();
            at += 1_000;
            assert!(outlet.pending_bytes <= MAX_PENDING_BYTES + each, "{at}");
        }
        assert!(at as usize / 1_000 * each > MAX_PENDING_BYTES && outlet.pending.is_none());
        outlet.fail(Status::cancelled("gone"));
        assert_eq!(outlet.flush(), SendState::Pending);
        assert!(rx.try_recv().expect("there").is_ok());
        assert_eq!(outlet.flush(), SendState::Sent);
        let status = rx.try_recv().expect("there").expect_err("the end");
        assert_eq!(Reason::of(&status), Some(Reason::SlowReader));
    }

    #[test]
    fn a_slow_reader_gets_joined_batches_and_the_error_last() {
        let (tx, mut rx) = mpsc::channel(1);
        let mut outlet = TokenOutlet::new(tx, Stamp { term: 1, epoch: 2 });
        for (index, id) in [(0, 10), (1, 11), (2, 12)] {
            outlet.add(batch(index, &[id]));
            outlet.flush();
        }
        outlet.fail(Status::cancelled("enough"));
        assert_eq!(outlet.flush(), SendState::Pending);
        let first = rx.try_recv().expect("there").expect("tokens");
        assert_eq!((first.first_index, first.ids), (0, vec![10]));
        assert_eq!(outlet.flush(), SendState::Pending);
        let second = rx.try_recv().expect("there").expect("tokens");
        assert_eq!((second.first_index, second.ids), (1, vec![11, 12]));
        assert_eq!(
            second.logprobs.iter().map(|one| one.logprob).collect::<Vec<_>>(),
            [-11.0, -12.0]
        );
        assert_eq!(outlet.flush(), SendState::Sent);
        assert!(rx.try_recv().expect("there").is_err());
        drop(rx);
        outlet.add(batch(3, &[13]));
        assert_eq!(outlet.flush(), SendState::Gone);
    }
}
