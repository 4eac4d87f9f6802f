//! From the engine to a request's stream without ever waiting: what does not fit the channel is kept and joined to the next
//! batch. The bound of what is kept is the request's own `max_tokens`.

use paceline_proto::internal::v1::{Stamp, TokenBatch};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tonic::Status;

/// Batches in the channel: a reader that keeps up never sees more than one or two.
pub(crate) const STREAM_BACKLOG: usize = 32;

/// The engine's end of a request's stream.
#[derive(Debug)]
pub(crate) struct Outlet {
    tx: mpsc::Sender<Result<TokenBatch, Status>>,
    stamp: Stamp,
    kept: Option<Box<TokenBatch>>,
    failure: Option<Status>,
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
        Self { tx, stamp, kept: None, failure: None }
    }

    /// Whether the reader went away.
    pub(crate) fn is_gone(&self) -> bool {
        self.tx.is_closed()
    }

    /// Adds tokens, and the end if `batch` has one, to what is to be sent.
    pub(crate) fn add(&mut self, batch: TokenBatch) {
        match &mut self.kept {
            None => self.kept = Some(Box::new(TokenBatch { stamp: Some(self.stamp), ..batch })),
            Some(kept) => {
                kept.ids.extend(batch.ids);
                kept.margins.extend(batch.margins);
                kept.step_end_ns = batch.step_end_ns;
                kept.done = batch.done;
                kept.so_far = batch.so_far;
            }
        }
    }

    /// Ends the stream with an error, behind the tokens that are there.
    pub(crate) fn fail(&mut self, status: Status) {
        self.failure = Some(status);
    }

    /// Sends what there is, as far as there is room.
    pub(crate) fn flush(&mut self) -> Flow {
        if let Some(batch) = self.kept.take() {
            match self.tx.try_send(Ok(*batch)) {
                Ok(()) => {}
                Err(TrySendError::Full(Ok(batch))) => {
                    self.kept = Some(Box::new(batch));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(first_index: u32, ids: &[u32]) -> TokenBatch {
        TokenBatch { first_index, ids: ids.to_vec(), ..TokenBatch::default() }
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
        assert_eq!(outlet.flush(), Flow::Sent);
        assert!(rx.try_recv().expect("there").is_err());
        drop(rx);
        outlet.add(batch(3, &[13]));
        assert_eq!(outlet.flush(), Flow::Gone);
    }
}
