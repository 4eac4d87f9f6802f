//! What stands before the inference service: counts calls, turns them away before their message is read when the gateway is
//! stopping or full, and gives tonic's own refusal of a large message our code and reason. When all slots are taken, the
//! oldest call whose message has not arrived loses its slot to the newcomer.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use paceline_process::clock::monotonic_ns;
use paceline_proto::status::{Reason, Refusal};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::message::MessageProgress;
use crate::guard::keys::Principal;
use crate::standing::Standing;

/// Calls inside the gateway beyond those the supervisor queues: running ones, and ones on their way.
const BEYOND_QUEUE: usize = 192;

/// The calls inside the gateway. Their number bounds the messages that are in memory; who comes later is told so, as the
/// supervisor would tell them.
#[derive(Clone, Debug)]
pub struct Calls {
    running: Arc<watch::Sender<usize>>,
    most: usize,
    /// Of each key's name that has any.
    of_keys: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    most_of_key: usize,
    /// Calls whose message is on its way, and some that are past that, oldest first.
    arriving: Arc<Mutex<VecDeque<ArrivingCall>>>,
}

/// A call whose message is on its way. It may lose its slot to a newer one.
#[derive(Debug)]
struct ArrivingCall {
    message: Arc<MessageProgress>,
    slot: Weak<Slot>,
}

impl Calls {
    /// None yet; as many as may run, and `queue` that wait. At most `of_key` of them are of one key's name.
    pub fn new(queue: u32, of_key: u32) -> Self {
        Self {
            running: Arc::new(watch::Sender::new(0)),
            most: BEYOND_QUEUE + queue as usize,
            of_keys: Arc::default(),
            most_of_key: of_key as usize,
            arriving: Arc::default(),
        }
    }

    /// How many there are, as it changes.
    pub fn watch(&self) -> watch::Receiver<usize> {
        self.running.subscribe()
    }

    /// A place for one more of this key, if there are keys.
    fn enter(&self, key: Option<&Arc<str>>) -> Result<Slot, Refusal> {
        let key = key.map(|name| self.enter_key(name)).transpose()?;
        let most = self.most;
        let refusal = || {
            Refusal::new(Reason::QueueFull, format!("the gateway has {most} calls, the most it takes; try again shortly"))
                .field("limits.queue")
                .fact("limit", most)
        };
        self.enter_all(key).ok_or_else(refusal)
    }

    fn enter_key(&self, name: &Arc<str>) -> Result<OfKey, Refusal> {
        let mut counts = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(Arc::clone(name)).or_insert(0);
        let most = self.most_of_key;
        if *count >= most {
            let message = format!("there are {most} requests under this key already, as many as may be (limits.streams_per_key)");
            let refusal = Refusal::new(Reason::TooManyStreams, message + "; try again when one has ended");
            return Err(refusal.field("limits.streams_per_key").fact("limit", most));
        }
        *count += 1;
        Ok(OfKey { counts: Arc::clone(&self.of_keys), name: Arc::clone(name) })
    }

    fn enter_all(&self, key: Option<OfKey>) -> Option<Slot> {
        let mut entered = false;
        self.running.send_if_modified(|calls| {
            entered = *calls < self.most;
            *calls += usize::from(entered);
            entered
        });
        let slot = || Slot { running: Arc::clone(&self.running), is_displaced: AtomicBool::new(false), _key: key };
        (entered || self.displace()).then(slot)
    }

    /// Takes the slot of the oldest call whose message has not arrived. A sender of headers alone thus keeps out no call
    /// that sends its message at once. False if every message is there.
    fn displace(&self) -> bool {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(call) = arriving.pop_front() {
            if let Some(slot) = call.slot.upgrade()
                && call.message.displace()
            {
                slot.is_displaced.store(true, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Notes that the call with this slot may be displaced until its message is there.
    fn follow(&self, message: &Arc<MessageProgress>, slot: &Arc<Slot>) {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        // At most `most` of them are on their way, so this is bounded, and seldom done.
        if arriving.len() >= 2 * self.most {
            arriving.retain(|call| call.slot.strong_count() > 0 && call.message.is_arriving());
        }
        arriving.push_back(ArrivingCall { message: Arc::clone(message), slot: Arc::downgrade(slot) });
    }
}

/// One call's place; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    running: Arc<watch::Sender<usize>>,
    /// The place counts for another call now.
    is_displaced: AtomicBool,
    _key: Option<OfKey>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_displaced.load(Ordering::Relaxed) {
            self.running.send_modify(|calls| *calls -= 1);
        }
    }
}

/// One call's place among those of its key; given back when dropped.
#[derive(Debug)]
struct OfKey {
    counts: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    name: Arc<str>,
}

impl Drop for OfKey {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.name);
            }
        }
    }
}

/// What the gate tells the service about a call, in the request's extensions.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When its headers were read, by the monotonic clock.
    pub at_ns: i64,
    /// Its place among the calls.
    pub slot: Arc<Slot>,
}

/// The gate before a service.
#[derive(Clone, Debug)]
pub struct Gate<S> {
    inner: S,
    calls: Calls,
    standing: watch::Receiver<Standing>,
    max_message_bytes: u64,
}

impl<S> Gate<S> {
    /// A gate before `inner`.
    pub fn new(inner: S, calls: Calls, standing: watch::Receiver<Standing>, max_message_bytes: u64) -> Self {
        Self { inner, calls, standing, max_message_bytes }
    }

    fn admit(&self, principal: Option<&Principal>) -> Result<Slot, Refusal> {
        self.standing.borrow().open()?;
        self.calls.enter(principal.map(|principal| &principal.name))
    }
}

impl<S: NamedService> NamedService for Gate<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let slot = match self.admit(request.extensions().get()) {
            Ok(slot) => Arc::new(slot),
            Err(refusal) => {
                let response = Status::from(refusal).into_http();
                return Box::pin(async { Ok(response) });
            }
        };
        if let Some(message) = request.extensions().get() {
            self.calls.follow(message, &slot);
        }
        request.extensions_mut().insert(Arrival { at_ns: monotonic_ns(), slot });
        let answer = self.inner.call(request);
        let limit = self.max_message_bytes;
        Box::pin(async move { Ok(with_our_code(answer.await?, limit)) })
    }
}

/// Only tonic itself says OUT_OF_RANGE here, and only of a message over the limit.
fn with_our_code(response: Response<Body>, limit: u64) -> Response<Body> {
    let status = Status::from_header_map(response.headers());
    match status {
        Some(status) if status.code() == Code::OutOfRange => {
            let found: Option<u64> = status.message().split_whitespace().find_map(|word| word.parse().ok());
            let found = found.map_or_else(|| "more".to_owned(), |bytes| bytes.to_string());
            let message =
                format!("message: expected at most {limit} bytes (limits.max_message_bytes of this service), found {found}");
            let refusal = Refusal::new(Reason::MessageTooLarge, message).field("message");
            Status::from(refusal.fact("limit_bytes", limit).fact("found_bytes", found)).into_http()
        }
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let calls = Calls::new(8, 3);
        let seen = calls.watch();
        let slots: Vec<Slot> = (0..BEYOND_QUEUE + 8).map(|_| calls.enter(None).expect("room")).collect();
        let status: Status = calls.enter(None).expect_err("full").into();
        assert_eq!(Reason::of(&status), Some(Reason::QueueFull));
        assert_eq!(*seen.borrow(), slots.len());
        drop(slots);
        assert_eq!(*seen.borrow(), 0);
        assert!(calls.enter(None).is_ok());
    }

    #[test]
    fn a_key_has_a_bound_of_its_own() {
        let calls = Calls::new(0, 3);
        let (alice, bob): (Arc<str>, Arc<str>) = ("alice".into(), "bob".into());
        let mut slots: Vec<Slot> = (0..3).map(|_| calls.enter(Some(&alice)).expect("room")).collect();
        let status: Status = calls.enter(Some(&alice)).expect_err("all of hers").into();
        assert_eq!((status.code(), Reason::of(&status)), (Code::ResourceExhausted, Some(Reason::TooManyStreams)));
        let others: Vec<Slot> = (0..3).map(|_| calls.enter(Some(&bob)).expect("room")).collect();
        slots.pop();
        slots.push(calls.enter(Some(&alice)).expect("room again"));
        assert_eq!(*calls.watch().borrow(), 6);
        drop((slots, others));
        assert_eq!((*calls.watch().borrow(), calls.of_keys.lock().expect("fine").len()), (0, 0));
    }

    #[test]
    fn the_oldest_call_without_its_message_makes_room_for_a_newer_one() {
        let calls = Calls::new(0, 1);
        let seen = calls.watch();
        let messages: Vec<Arc<MessageProgress>> = (0..BEYOND_QUEUE).map(|_| Arc::default()).collect();
        let enter = |message: &Arc<MessageProgress>| {
            let slot = Arc::new(calls.enter(None).expect("room"));
            calls.follow(message, &slot);
            slot
        };
        let mut slots: Vec<Arc<Slot>> = messages.iter().map(enter).collect();
        assert!(messages.iter().all(|message| message.is_arriving()));
        slots.push(Arc::new(calls.enter(None).expect("the first one's")));
        assert!(!messages[0].is_arriving() && messages[1].is_arriving());
        // One that has ended made room by itself, and is no other's loss.
        drop(slots.remove(1));
        slots.push(enter(&Arc::default()));
        assert!(messages[2].is_arriving());
        for _ in 2..BEYOND_QUEUE {
            slots.push(Arc::new(calls.enter(None).expect("another one's")));
        }
        assert!(messages[2..].iter().all(|message| !message.is_arriving()));
        slots.push(Arc::new(calls.enter(None).expect("the last one's that came without its message")));
        assert!(calls.enter(None).is_err(), "all messages are there");
        assert_eq!(*seen.borrow(), BEYOND_QUEUE, "each place counts once");
        drop(slots);
        assert_eq!(*seen.borrow(), 0);
    }

    #[test]
    fn calls_that_are_past_their_message_are_not_kept_in_mind_for_ever() {
        let calls = Calls::new(0, 1);
        let message = Arc::<MessageProgress>::default();
        let first = Arc::new(calls.enter(None).expect("room"));
        calls.follow(&message, &first);
        for _ in 0..10 * BEYOND_QUEUE {
            calls.follow(&Arc::default(), &Arc::new(calls.enter(None).expect("room")));
        }
        let arriving = calls.arriving.lock().expect("fine");
        assert!(arriving.len() <= 2 * BEYOND_QUEUE && Arc::ptr_eq(&arriving[0].message, &message), "{}", arriving.len());
    }

    #[test]
    fn only_tonics_refusal_changes_its_code() {
        let large = Status::out_of_range("Error, decoded message length too large: found 50 bytes, the limit is: 40 bytes");
        let status = Status::from_header_map(with_our_code(large.into_http(), 40).headers()).expect("a status");
        assert_eq!((status.code(), Reason::of(&status)), (Code::ResourceExhausted, Some(Reason::MessageTooLarge)));
        assert!(status.message().contains("at most 40 bytes") && status.message().contains("found 50"), "{}", status.message());
        let other = Status::from_header_map(with_our_code(Status::not_found("x").into_http(), 40).headers());
        assert_eq!(other.expect("a status").code(), Code::NotFound);
    }
}
