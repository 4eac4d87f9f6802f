//! The requests inside the gateway: a bounded number in all, and a bounded share for each key.
//!
//! When all slots are taken, the oldest request whose message has not arrived loses its slot to the
//! newcomer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_vocabulary::Reason;
use tokio::sync::watch;

use super::arrival::MessageArrival;
use crate::lock::lock;

/// Requests inside the gateway beyond those that run and those that the supervisor queues. They
/// arrive, or they are over and not read to the end.
const ON_THEIR_WAY: usize = 160;
/// Requests that a key may have for each free place. One key alone thus gets at most eight of nine
/// places. However many keys send as many requests as they can, some places stay free for others.
const REQUESTS_PER_FREE_PLACE: usize = 8;

/// The requests inside the gateway. Their number bounds the messages that are in memory; further
/// requests are refused, as the supervisor would refuse them. The supervisor decides how many
/// requests of a key run; here no key may take all places.
#[derive(Clone, Debug)]
pub struct RequestSlots {
    running: Arc<watch::Sender<usize>>,
    most: usize,
    /// Number of requests by the key's name. A key without requests has no entry.
    of_keys: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    /// Requests whose message is on its way, oldest first. Some messages have arrived since.
    arriving: Arc<Mutex<VecDeque<ArrivingRequest>>>,
}

/// A request whose message is on its way. It may lose its slot to a newer one.
#[derive(Debug)]
struct ArrivingRequest {
    message: Arc<MessageArrival>,
    slot: Weak<RequestSlot>,
}

impl RequestSlots {
    /// No requests. There are places for the requests that run at once (`target.max_sequences`),
    /// and for `queue` requests that wait.
    pub fn new(run_at_once: u32, queue: u32) -> Self {
        let (run_at_once, queue) = (run_at_once as usize, queue as usize);
        // An eighth more than wait: one key alone can fill the queue.
        let most = ON_THEIR_WAY + run_at_once + queue + queue.div_ceil(REQUESTS_PER_FREE_PLACE);
        Self {
            running: Arc::new(watch::Sender::new(0)),
            most,
            of_keys: Arc::default(),
            arriving: Arc::default(),
        }
    }

    /// Follows the number of requests.
    pub fn watch(&self) -> watch::Receiver<usize> {
        self.running.subscribe()
    }

    /// Takes a place for one more request, of this key if keys are set.
    ///
    /// # Errors
    /// All places are taken, or the key has as many as it may have.
    pub fn enter(&self, key: Option<&Arc<str>>) -> Result<RequestSlot> {
        let key = key.map(|name| self.enter_key(name)).transpose()?;
        let most = self.most;
        let refusal = || {
            InferenceError::new(
                Reason::QueueFull,
                format!("the gateway has {most} requests, the most it takes; try again shortly"),
            )
            .field("limits.queue")
            .fact("limit", most)
        };
        self.enter_all(key).ok_or_else(refusal)
    }

    fn enter_key(&self, name: &Arc<str>) -> Result<KeySlot> {
        let mut counts = lock(&self.of_keys);
        let count = counts.entry(Arc::clone(name)).or_insert(0);
        let left = self.most.saturating_sub(*self.running.borrow());
        let limit = left * REQUESTS_PER_FREE_PLACE;
        // Without any place left it is the gateway that is full, not the key.
        if *count >= limit && left > 0 {
            let message = format!(
                "there are {count} requests under this key and {left} places left for others, so it may have no more; try again \
                 when one has ended"
            );
            return Err(InferenceError::new(Reason::TooManyStreams, message)
                .field("limits.queue")
                .fact("limit", limit));
        }
        *count += 1;
        Ok(KeySlot { counts: Arc::clone(&self.of_keys), name: Arc::clone(name) })
    }

    fn enter_all(&self, key: Option<KeySlot>) -> Option<RequestSlot> {
        let mut entered = false;
        self.running.send_if_modified(|count| {
            entered = *count < self.most;
            *count += usize::from(entered);
            entered
        });
        let slot = || RequestSlot {
            running: Arc::clone(&self.running),
            is_displaced: AtomicBool::new(false),
            _key: key,
        };
        (entered || self.displace()).then(slot)
    }

    /// Takes the slot of the oldest request whose message has not arrived. A sender of headers
    /// alone thus keeps out no request with its message. False if every message is there.
    fn displace(&self) -> bool {
        let mut arriving = lock(&self.arriving);
        while let Some(request) = arriving.pop_front() {
            if let Some(slot) = request.slot.upgrade()
                && request.message.displace()
            {
                slot.is_displaced.store(true, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Notes that the request with this slot may be displaced until its message is there.
    pub fn follow(&self, message: &Arc<MessageArrival>, slot: &Arc<RequestSlot>) {
        let mut arriving = lock(&self.arriving);
        // At most `most` of them are on their way, so this is bounded, and seldom done.
        if arriving.len() >= 2 * self.most {
            arriving
                .retain(|request| request.slot.strong_count() > 0 && request.message.is_arriving());
        }
        arriving.push_back(ArrivingRequest {
            message: Arc::clone(message),
            slot: Arc::downgrade(slot),
        });
    }
}

/// One request's place; given back when dropped.
#[derive(Debug)]
pub struct RequestSlot {
    running: Arc<watch::Sender<usize>>,
    /// Whether another request has taken the place over.
    is_displaced: AtomicBool,
    _key: Option<KeySlot>,
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        if !self.is_displaced.load(Ordering::Relaxed) {
            self.running.send_modify(|count| *count -= 1);
        }
    }
}

/// One request's place among those of its key; given back when dropped.
#[derive(Debug)]
struct KeySlot {
    counts: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    name: Arc<str>,
}

impl Drop for KeySlot {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let requests = RequestSlots::new(32, 8);
        let seen = requests.watch();
        let slots: Vec<RequestSlot> =
            (0..ON_THEIR_WAY + 32 + 8 + 1).map(|_| requests.enter(None).expect("room")).collect();
        let error = requests.enter(None).expect_err("full");
        assert_eq!(error.kind, Reason::QueueFull);
        assert_eq!(*seen.borrow(), slots.len());
        drop(slots);
        assert_eq!(*seen.borrow(), 0);
        assert!(requests.enter(None).is_ok());
    }

    /// As many requests of this key as get in.
    fn fill(requests: &RequestSlots, key: &Arc<str>) -> Vec<RequestSlot> {
        std::iter::from_fn(|| requests.enter(Some(key)).ok()).collect()
    }

    #[test]
    fn a_key_can_fill_the_queue_and_leaves_places_for_others() {
        for queue in [0, 128, 10_000] {
            let requests = RequestSlots::new(32, queue);
            let (alice, bob, carol): (Arc<str>, Arc<str>, Arc<str>) =
                ("alice".into(), "bob".into(), "carol".into());
            let mut hers = fill(&requests, &alice);
            assert!(
                hers.len() >= 32 + queue as usize,
                "{} of hers beside a queue of {queue}",
                hers.len()
            );
            let error = requests.enter(Some(&alice)).expect_err("all she may have");
            assert_eq!(error.kind, Reason::TooManyStreams);
            let his = fill(&requests, &bob);
            assert!(his.len() >= 8, "{} of his beside a queue of {queue}", his.len());
            let others = requests.enter(Some(&carol)).expect("a third key has a place as well");
            // What ends makes room again.
            hers.truncate(hers.len() / 2);
            hers.push(requests.enter(Some(&alice)).expect("room again"));
            drop((hers, his, others));
            assert_eq!(
                (*requests.watch().borrow(), requests.of_keys.lock().expect("fine").len()),
                (0, 0)
            );
        }
    }

    #[test]
    fn without_free_places_the_gateway_is_full_and_not_the_key() {
        let requests = RequestSlots::new(32, 0);
        let slots: Vec<RequestSlot> =
            (0..requests.most).map(|_| requests.enter(None).expect("room")).collect();
        let error = requests.enter(Some(&"alice".into())).expect_err("full");
        assert_eq!(error.kind, Reason::QueueFull);
        assert!(
            requests.of_keys.lock().expect("fine").is_empty(),
            "a refused request is not counted"
        );
        drop(slots);
    }

    #[test]
    fn the_oldest_request_without_its_message_makes_room_for_a_newer_one() {
        let requests = RequestSlots::new(1, 0);
        let (most, seen) = (requests.most, requests.watch());
        let messages: Vec<Arc<MessageArrival>> = (0..most).map(|_| Arc::default()).collect();
        let enter = |message: &Arc<MessageArrival>| {
            let slot = Arc::new(requests.enter(None).expect("room"));
            requests.follow(message, &slot);
            slot
        };
        let mut slots: Vec<Arc<RequestSlot>> = messages.iter().map(enter).collect();
        assert!(messages.iter().all(|message| message.is_arriving()));
        slots.push(Arc::new(requests.enter(None).expect("the first one's")));
        assert!(!messages[0].is_arriving() && messages[1].is_arriving());
        // One that has ended made room by itself, and is no other's loss.
        drop(slots.remove(1));
        slots.push(enter(&Arc::default()));
        assert!(messages[2].is_arriving());
        for _ in 2..most {
            slots.push(Arc::new(requests.enter(None).expect("another one's")));
        }
        assert!(messages[2..].iter().all(|message| !message.is_arriving()));
        slots.push(Arc::new(
            requests.enter(None).expect("the last one's that came without its message"),
        ));
        assert!(requests.enter(None).is_err(), "all messages are there");
        assert_eq!(*seen.borrow(), most, "each place counts once");
        drop(slots);
        assert_eq!(*seen.borrow(), 0);
    }

    #[test]
    fn requests_whose_message_arrived_are_forgotten() {
        let requests = RequestSlots::new(1, 0);
        let most = requests.most;
        let message = Arc::<MessageArrival>::default();
        let first = Arc::new(requests.enter(None).expect("room"));
        requests.follow(&message, &first);
        for _ in 0..10 * most {
            requests.follow(&Arc::default(), &Arc::new(requests.enter(None).expect("room")));
        }
        let arriving = requests.arriving.lock().expect("fine");
        assert!(
            arriving.len() <= 2 * most && Arc::ptr_eq(&arriving[0].message, &message),
            "{}",
            arriving.len()
        );
    }
}
