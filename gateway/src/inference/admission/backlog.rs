//! A request that the supervisor's full queue would refuse is refused before its prompt is made.
//!
//! Under overload most requests are refused. Making their prompts and submitting them would take
//! time from the requests that are served, because all processes share the machine's cores. The
//! queue stays full as long as no request leaves it or the model. Every request that leaves passes
//! through this gateway; what requests of another gateway do is noticed within [`FRESH`].
//!
//! A refusal counts for the requests of the same API key only. A full queue takes a request of
//! another key that has fewer waiting ones, in place of the newest of the key with most. As long as
//! nothing leaves the queue, such exchanges do not make room for a key that was refused: they only
//! take from keys that have the most, and never leave it two behind another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_system::clock::monotonic_ns;
use paceline_vocabulary::{KeyId, Reason, Term};

use crate::lock::lock;

/// How long the report of a full queue counts.
const FRESH: Duration = Duration::from_millis(50);

/// Knowledge about the supervisor's queue.
#[derive(Debug, Default)]
pub struct Backlog {
    /// How often a request left the queue or the model.
    moves: AtomicU64,
    /// The last refusal of each key, as long as it is fresh.
    full: Mutex<HashMap<KeyId, FullQueue>>,
}

/// A refusal by the supervisor.
#[derive(Debug)]
struct FullQueue {
    error: InferenceError,
    /// The life of the supervisor that refused.
    term: Term,
    at_ns: i64,
    /// Moves before the request that was refused was submitted.
    moves: u64,
}

impl FullQueue {
    fn is_fresh(&self, now_ns: i64) -> bool {
        now_ns - self.at_ns < FRESH.as_nanos() as i64
    }
}

/// A request at the supervisor, from its submission to its end.
#[derive(Debug)]
pub struct QueuePlace {
    backlog: Arc<Backlog>,
    key: KeyId,
    moves: u64,
    refused: bool,
}

impl Backlog {
    /// Whether a request of this key to the supervisor of this term may find a place.
    ///
    /// # Errors
    /// The supervisor's own refusal of another one of the key, a moment ago, and nothing has moved
    /// since.
    pub fn check(&self, key: KeyId, term: Term) -> Result<()> {
        self.check_at(key, term, monotonic_ns())
    }

    fn check_at(&self, key: KeyId, term: Term, now_ns: i64) -> Result<()> {
        let full = lock(&self.full);
        let moves = self.moves.load(Ordering::Relaxed);
        let holds =
            |full: &&FullQueue| full.term == term && full.moves == moves && full.is_fresh(now_ns);
        full.get(&key).filter(holds).map_or(Ok(()), |full| Err(full.error.clone()))
    }

    /// A request of this key is about to be submitted.
    pub fn enter(self: &Arc<Self>, key: KeyId) -> QueuePlace {
        QueuePlace {
            backlog: Arc::clone(self),
            key,
            moves: self.moves.load(Ordering::Relaxed),
            refused: false,
        }
    }
}

impl QueuePlace {
    /// Notes that the first tokens are there: the request has left the queue.
    pub fn begun(&self) {
        self.backlog.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// The supervisor of this term refused it.
    pub fn refused(self, term: Term, error: &InferenceError) {
        self.refused_at(term, error, monotonic_ns());
    }

    fn refused_at(mut self, term: Term, error: &InferenceError, at_ns: i64) {
        if error.kind != Reason::QueueFull {
            return;
        }
        // It never had a place that could come free, or another request has taken it.
        self.refused = true;
        let full = FullQueue { error: error.clone(), term, at_ns, moves: self.moves };
        let mut all = lock(&self.backlog.full);
        // No more than the refusals of one moment are kept.
        all.retain(|_, full| full.is_fresh(at_ns));
        all.insert(self.key, full);
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if !self.refused {
            self.backlog.moves.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH_NS: i64 = FRESH.as_nanos() as i64;

    fn full() -> InferenceError {
        InferenceError::new(Reason::QueueFull, "64 requests wait")
    }

    const KEY: KeyId = KeyId::NONE;
    const TERM: Term = Term(1);

    fn refuse(backlog: &Arc<Backlog>, at_ns: i64) {
        backlog.enter(KEY).refused_at(TERM, &full(), at_ns);
    }

    #[test]
    fn a_refusal_counts_for_a_moment_and_for_that_supervisor_only() {
        let backlog = Arc::new(Backlog::default());
        assert!(backlog.check_at(KEY, TERM, 0).is_ok());
        refuse(&backlog, 7);
        let refused = backlog.check_at(KEY, TERM, 7 + FRESH_NS - 1).expect_err("as full as it was");
        assert_eq!(refused, full());
        assert!(
            backlog.check_at(KEY, TERM, 7 + FRESH_NS).is_ok()
                && backlog.check_at(KEY, Term(2), 8).is_ok()
        );
    }

    #[test]
    fn a_request_that_begins_or_ends_makes_room() {
        let backlog = Arc::new(Backlog::default());
        let place = backlog.enter(KEY);
        let moves: [&dyn Fn(QueuePlace) -> Option<QueuePlace>; 2] = [
            &|place| {
                place.begun();
                Some(place)
            },
            &|_ends| None,
        ];
        let mut place = Some(place);
        for happens in moves {
            refuse(&backlog, 0);
            assert!(backlog.check_at(KEY, TERM, 1).is_err());
            place = happens(place.expect("there"));
            assert!(backlog.check_at(KEY, TERM, 1).is_ok());
        }
        // What moved while the refusal was on its way is newer than it.
        let (refused, leaves) = (backlog.enter(KEY), backlog.enter(KEY));
        drop(leaves);
        refused.refused_at(TERM, &full(), 0);
        assert!(backlog.check_at(KEY, TERM, 1).is_ok());
    }

    #[test]
    fn a_refusal_of_one_key_does_not_count_for_another() {
        let backlog = Arc::new(Backlog::default());
        let (alice, bob) = (KeyId(1), KeyId(2));
        backlog.enter(alice).refused_at(TERM, &full(), 0);
        assert!(backlog.check_at(alice, TERM, 1).is_err());
        assert!(backlog.check_at(bob, TERM, 1).is_ok(), "he may have nothing waiting");
        backlog.enter(bob).refused_at(TERM, &full(), 1);
        assert!(
            backlog.check_at(alice, TERM, 2).is_err() && backlog.check_at(bob, TERM, 2).is_err()
        );
        // What is not fresh is not kept.
        backlog.enter(KeyId(3)).refused_at(TERM, &full(), FRESH_NS);
        assert_eq!(backlog.full.lock().expect("nobody panics").len(), 2);
    }

    #[test]
    fn refusals_for_other_reasons_do_not_count() {
        let backlog = Arc::new(Backlog::default());
        backlog.enter(KEY).refused_at(
            TERM,
            &InferenceError::new(Reason::KvExhausted, "too long"),
            0,
        );
        assert!(backlog.check_at(KEY, TERM, 1).is_ok());
    }
}
