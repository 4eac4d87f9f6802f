//! The end of requests: their memory, and the last messages of their streams.

use paceline_models::SequenceId;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_target_core::SequenceKey;
use tonic::Status;

use super::Engine;
use super::spans::record_spans;
use crate::error;
use crate::outlet::{SendState, TokenOutlet};

/// How a request ends.
#[derive(Debug)]
pub(super) enum RequestEnd {
    /// The request's last token was sent.
    Finished,
    /// The request's reader has gone.
    Abandoned,
    /// The request's stream ends with this error.
    Failed(Status),
}

impl RequestEnd {
    /// A word for the log.
    fn word(&self) -> &'static str {
        match self {
            RequestEnd::Finished => "finished",
            RequestEnd::Abandoned => "abandoned",
            RequestEnd::Failed(status) => Reason::of(status).map_or("failed", Reason::word),
        }
    }

    /// The word; an error if the request failed.
    fn outcome(&self) -> Result<&'static str, &'static str> {
        match self {
            RequestEnd::Finished | RequestEnd::Abandoned => Ok(self.word()),
            RequestEnd::Failed(_) => Err(self.word()),
        }
    }
}

impl Engine {
    /// Removes a sequence and returns its memory.
    pub(super) fn end(&mut self, key: SequenceKey, end: RequestEnd) {
        self.scheduler.remove(key);
        self.drafting.close(key);
        self.pages.close(key);
        self.kv.free(SequenceId(key.0));
        let Some(mut running) = self.running.remove(&key) else { return };
        // The figures come before the last message. A client that reads the end of its stream then
        // finds its memory free here, and after the last stream also in the supervisor.
        self.write_figures();
        if self.running.is_empty() {
            self.pulse.now();
        }
        self.log_end(key, &running, end.word());
        record_spans(&running, end.outcome());
        if let RequestEnd::Failed(status) = end {
            running.outlet.fail(status);
        }
        self.close_outlet(running.outlet);
    }

    /// Ends a running request before its time, through no fault of its own.
    pub(super) fn end_early(&mut self, key: SequenceKey, end: RequestEnd) {
        if let Some(sequence) = self.scheduler.get(key) {
            let ids = sequence.ids.clone();
            self.retain_all(key, &ids);
        }
        self.end(key, end);
    }

    /// Ends a request of which no token can be chosen. Its rows may hold NaN, so nothing of it is
    /// left for later requests. Dropped are its pages and the pages after them, the features of its
    /// images, and its context in the drafter.
    pub(super) fn end_faulty(&mut self, key: SequenceKey) {
        let Some(sequence) = self.scheduler.get(key) else { return };
        let (ids, images) = (sequence.ids.clone(), sequence.images.clone());
        let running = self.running.get(&key);
        if let Some(why) = running.and_then(|running| running.constraint.failure()) {
            // The model's numbers are fine, so its rows are kept for others.
            return self.end_early(key, RequestEnd::Failed(error::grammar(&why)));
        }
        let request_id = self.request_id(key);
        tracing::error!(
            request_id,
            sequence = key.0,
            position = ids.len(),
            "the model's numbers are not finite; the request ends"
        );
        self.pages.remove(key, &ids);
        self.count_retained();
        images.iter().for_each(|image| self.scheduler.tower.forget(&image.key));
        self.end(key, RequestEnd::Failed(error::numerics()));
    }

    /// Ends a request after a mistake of the engine's own.
    pub(super) fn end_with_bug(&mut self, key: SequenceKey, message: &str) {
        self.end(key, RequestEnd::Failed(Reason::Bug.status(message)));
    }

    /// Ends a request that was not admitted.
    pub(super) fn refuse(&mut self, mut outlet: TokenOutlet, status: Status) {
        outlet.fail(status);
        self.close_outlet(outlet);
    }

    fn close_outlet(&mut self, mut outlet: TokenOutlet) {
        if outlet.flush() == SendState::Pending {
            self.closing.push(outlet);
        }
    }

    /// Tries again to send the last messages of ended streams.
    pub(super) fn flush_closing(&mut self) {
        self.closing.retain_mut(|outlet| outlet.flush() == SendState::Pending);
    }

    /// Sends the tokens of all streams whose next message is due.
    pub(super) fn offer_tokens(&mut self) {
        self.running.values_mut().for_each(|running| running.outlet.offer());
    }

    /// Sends all tokens that are there. Called before a long step, so that none waits for its end.
    pub(super) fn flush_all(&mut self) {
        for running in self.running.values_mut() {
            // A reader that has gone is noticed at the next step border.
            let _ = running.outlet.flush();
        }
    }
}
