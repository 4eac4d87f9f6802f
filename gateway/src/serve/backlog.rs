//! What the supervisor last reported of its queue: a request that would be refused there is refused
//! before its prompt is made.
//!
//! Under overload most requests are refused, and each that is made a prompt and carried to the
//! supervisor for that takes time from those that are served, where all processes share the
//! machine's cores. The queue is as full as it was while no request has left it or the model, and
//! all that do pass through here (what another gateway's do meanwhile is seen within [`FRESH`]).
//!
//! A refusal counts for the requests of the same API key only. A full queue takes a request of
//! another key that has fewer waiting ones, in place of the newest of the key with most. As long as
//! nothing leaves the queue, such exchanges do not make room for a key that was refused: they only
//! take from keys that have the most, and never leave it two behind another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_process::clock::monotonic_ns;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_vocabulary::KeyId;
use tonic::Status;

/// How long it is believed that the queue is full.
const FRESH: Duration = Duration::from_millis(50);

/// What is known of the supervisor's queue.
#[derive(Debug, Default)]
pub struct Backlog {
    /// How often a request left the queue or the model.
    moves: AtomicU64,
    /// The last refusal of each key, as long as it is fresh.
    full: Mutex<HashMap<KeyId, Full>>,
}

/// A refusal by the supervisor.
#[derive(Debug)]
struct Full {
    status: Status,
    /// The supervisor's that refused.
    term: u64,
    at_ns: i64,
    /// Moves before the request that was refused was submitted.
    moves: u64,
}

impl Full {
    fn is_fresh(&self, now_ns: i64) -> bool {
        now_ns - self.at_ns < FRESH.as_nanos() as i64
    }
}

/// A request at the supervisor, from its submission to its end.
#[derive(Debug)]
pub struct Place {
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
    pub fn look(&self, key: KeyId, term: u64) -> Result<(), Status> {
        self.look_at(key, term, monotonic_ns())
    }

    fn look_at(&self, key: KeyId, term: u64, now_ns: i64) -> Result<(), Status> {
        let full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let moves = self.moves.load(Ordering::Relaxed);
        let holds =
            |full: &&Full| full.term == term && full.moves == moves && full.is_fresh(now_ns);
        full.get(&key).filter(holds).map_or(Ok(()), |full| Err(full.status.clone()))
    }

    /// A request of this key is about to be submitted.
    pub fn enter(self: &Arc<Self>, key: KeyId) -> Place {
        Place {
            backlog: Arc::clone(self),
            key,
            moves: self.moves.load(Ordering::Relaxed),
            refused: false,
        }
    }
}

impl Place {
    /// Its first tokens are there: it has left the queue.
    pub fn begun(&self) {
        self.backlog.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// The supervisor of this term refused it.
    pub fn refused(self, term: u64, status: &Status) {
        self.refused_at(term, status, monotonic_ns());
    }

    fn refused_at(mut self, term: u64, status: &Status, at_ns: i64) {
        if Reason::of(status) != Some(Reason::QueueFull) {
            return;
        }
        // It never had a place that could come free, or another request has taken it.
        self.refused = true;
        let full = Full { status: status.clone(), term, at_ns, moves: self.moves };
        let mut all = self.backlog.full.lock().unwrap_or_else(PoisonError::into_inner);
        // No more than the refusals of one moment are kept.
        all.retain(|_, full| full.is_fresh(at_ns));
        all.insert(self.key, full);
    }
}

impl Drop for Place {
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

    fn full() -> Status {
        Reason::QueueFull.status("64 requests wait")
    }

    const KEY: KeyId = KeyId::NONE;

    fn refuse(backlog: &Arc<Backlog>, at_ns: i64) {
        backlog.enter(KEY).refused_at(1, &full(), at_ns);
    }

    #[test]
    fn a_full_queue_is_believed_for_a_moment_and_of_that_supervisor() {
        let backlog = Arc::new(Backlog::default());
        assert!(backlog.look_at(KEY, 1, 0).is_ok());
        refuse(&backlog, 7);
        let refused = backlog.look_at(KEY, 1, 7 + FRESH_NS - 1).expect_err("as full as it was");
        assert_eq!(
            (Reason::of(&refused), refused.message()),
            (Some(Reason::QueueFull), "64 requests wait")
        );
        assert!(
            backlog.look_at(KEY, 1, 7 + FRESH_NS).is_ok() && backlog.look_at(KEY, 2, 8).is_ok()
        );
    }

    #[test]
    fn who_begins_ends_or_leaves_makes_room() {
        let backlog = Arc::new(Backlog::default());
        let place = backlog.enter(KEY);
        let moves: [&dyn Fn(Place) -> Option<Place>; 2] = [
            &|place| {
                place.begun();
                Some(place)
            },
            &|_ends| None,
        ];
        let mut place = Some(place);
        for happens in moves {
            refuse(&backlog, 0);
            assert!(backlog.look_at(KEY, 1, 1).is_err());
            place = happens(place.expect("there"));
            assert!(backlog.look_at(KEY, 1, 1).is_ok());
        }
        // What moved while the refusal was on its way is newer than it.
        let (refused, leaves) = (backlog.enter(KEY), backlog.enter(KEY));
        drop(leaves);
        refused.refused_at(1, &full(), 0);
        assert!(backlog.look_at(KEY, 1, 1).is_ok());
    }

    #[test]
    fn a_refusal_of_one_key_says_nothing_of_another() {
        let backlog = Arc::new(Backlog::default());
        let (alice, bob) = (KeyId(1), KeyId(2));
        backlog.enter(alice).refused_at(1, &full(), 0);
        assert!(backlog.look_at(alice, 1, 1).is_err());
        assert!(backlog.look_at(bob, 1, 1).is_ok(), "he may have nothing waiting");
        backlog.enter(bob).refused_at(1, &full(), 1);
        assert!(backlog.look_at(alice, 1, 2).is_err() && backlog.look_at(bob, 1, 2).is_err());
        // What is not fresh is not kept.
        backlog.enter(KeyId(3)).refused_at(1, &full(), FRESH_NS);
        assert_eq!(backlog.full.lock().expect("nobody panics").len(), 2);
    }

    #[test]
    fn other_refusals_say_nothing_of_the_queue() {
        let backlog = Arc::new(Backlog::default());
        backlog.enter(KEY).refused_at(1, &Reason::KvExhausted.status("too long"), 0);
        assert!(backlog.look_at(KEY, 1, 1).is_ok());
    }
}
