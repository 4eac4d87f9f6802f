//! What stands before the inference service: counts calls, turns them away before their message is
//! read when the gateway is stopping or full, and gives tonic's own refusal of a large message our
//! code and reason. When all slots are taken, the oldest call whose message has not arrived loses
//! its slot to the newcomer.

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

/// Calls inside the gateway beyond those that run and those that the supervisor queues: on their
/// way, or over and unread.
const ON_THEIR_WAY: usize = 160;
/// A key may have so many times as many calls as there are places left. So one key alone may have
/// eight of nine places, and however many keys send as many calls as they can, places are left for
/// others.
const CALLS_PER_FREE_PLACE: usize = 8;

/// The calls inside the gateway. Their number bounds the messages that are in memory; those that
/// come later are refused, as the supervisor would refuse them. How many of a key run is for the
/// supervisor to decide; here no key may take all places.
#[derive(Clone, Debug)]
pub struct Calls {
    running: Arc<watch::Sender<usize>>,
    most: usize,
    /// Of each key's name that has any.
    of_keys: Arc<Mutex<HashMap<Arc<str>, usize>>>,
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
    /// None yet; places for as many as run at once (`target.max_sequences`), and for `queue` that
    /// wait.
    pub fn new(run_at_once: u32, queue: u32) -> Self {
        let (run_at_once, queue) = (run_at_once as usize, queue as usize);
        // An eighth more than wait: one key alone can fill the queue.
        let most = ON_THEIR_WAY + run_at_once + queue + queue.div_ceil(CALLS_PER_FREE_PLACE);
        Self {
            running: Arc::new(watch::Sender::new(0)),
            most,
            of_keys: Arc::default(),
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
            Refusal::new(
                Reason::QueueFull,
                format!("the gateway has {most} calls, the most it takes; try again shortly"),
            )
            .field("limits.queue")
            .fact("limit", most)
        };
        self.enter_all(key).ok_or_else(refusal)
    }

    fn enter_key(&self, name: &Arc<str>) -> Result<OfKey, Refusal> {
        let mut counts = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(Arc::clone(name)).or_insert(0);
        let left = self.most.saturating_sub(*self.running.borrow());
        let limit = left * CALLS_PER_FREE_PLACE;
        // Without any place left it is the gateway that is full, not the key.
        if *count >= limit && left > 0 {
            let message = format!(
                "there are {count} calls under this key and {left} places left for others, so it may have no more; try again \
                 when one has ended"
            );
            return Err(Refusal::new(Reason::TooManyStreams, message)
                .field("limits.queue")
                .fact("limit", limit));
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
        let slot = || Slot {
            running: Arc::clone(&self.running),
            is_displaced: AtomicBool::new(false),
            _key: key,
        };
        (entered || self.displace()).then(slot)
    }

    /// Takes the slot of the oldest call whose message has not arrived. A sender of headers alone
    /// thus keeps out no call that sends its message at once. False if every message is there.
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
        arriving
            .push_back(ArrivingCall { message: Arc::clone(message), slot: Arc::downgrade(slot) });
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
    pub fn new(
        inner: S,
        calls: Calls,
        standing: watch::Receiver<Standing>,
        max_message_bytes: u64,
    ) -> Self {
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
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
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
            let found: Option<u64> =
                status.message().split_whitespace().find_map(|word| word.parse().ok());
            let found = found.map_or_else(|| "more".to_owned(), |bytes| bytes.to_string());
            let message = format!(
                "message: expected at most {limit} bytes (limits.max_message_bytes of this service), found {found}"
            );
            let refusal = Refusal::new(Reason::MessageTooLarge, message).field("message");
            Status::from(refusal.fact("limit_bytes", limit).fact("found_bytes", found)).into_http()
        }
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::status::ReasonStatus as _;

    #[test]
    fn places_are_bounded_and_given_back() {
        let calls = Calls::new(32, 8);
        let seen = calls.watch();
        let slots: Vec<Slot> =
            (0..ON_THEIR_WAY + 32 + 8 + 1).map(|_| calls.enter(None).expect("room")).collect();
        let status: Status = calls.enter(None).expect_err("full").into();
        assert_eq!(Reason::of(&status), Some(Reason::QueueFull));
        assert_eq!(*seen.borrow(), slots.len());
        drop(slots);
        assert_eq!(*seen.borrow(), 0);
        assert!(calls.enter(None).is_ok());
    }

    /// As many calls of this key as get in.
    fn fill(calls: &Calls, key: &Arc<str>) -> Vec<Slot> {
        std::iter::from_fn(|| calls.enter(Some(key)).ok()).collect()
    }

    #[test]
    fn a_key_can_fill_the_queue_and_leaves_places_for_others() {
        for queue in [0, 128, 10_000] {
            let calls = Calls::new(32, queue);
            let (alice, bob, carol): (Arc<str>, Arc<str>, Arc<str>) =
                ("alice".into(), "bob".into(), "carol".into());
            let mut hers = fill(&calls, &alice);
            assert!(
                hers.len() >= 32 + queue as usize,
                "{} of hers beside a queue of {queue}",
                hers.len()
            );
            let status: Status = calls.enter(Some(&alice)).expect_err("all she may have").into();
            assert_eq!(
                (status.code(), Reason::of(&status)),
                (Code::ResourceExhausted, Some(Reason::TooManyStreams))
            );
            let his = fill(&calls, &bob);
            assert!(his.len() >= 8, "{} of his beside a queue of {queue}", his.len());
            let others = calls.enter(Some(&carol)).expect("a third key has a place as well");
            // What ends makes room again.
            hers.truncate(hers.len() / 2);
            hers.push(calls.enter(Some(&alice)).expect("room again"));
            drop((hers, his, others));
            assert_eq!(
                (*calls.watch().borrow(), calls.of_keys.lock().expect("fine").len()),
                (0, 0)
            );
        }
    }

    #[test]
    fn where_no_place_is_left_the_gateway_is_full_and_no_key() {
        let calls = Calls::new(32, 0);
        let slots: Vec<Slot> = (0..calls.most).map(|_| calls.enter(None).expect("room")).collect();
        let status: Status = calls.enter(Some(&"alice".into())).expect_err("full").into();
        assert_eq!(Reason::of(&status), Some(Reason::QueueFull));
        assert!(calls.of_keys.lock().expect("fine").is_empty(), "who was refused is not counted");
        drop(slots);
    }

    #[test]
    fn the_oldest_call_without_its_message_makes_room_for_a_newer_one() {
        let calls = Calls::new(1, 0);
        let (most, seen) = (calls.most, calls.watch());
        let messages: Vec<Arc<MessageProgress>> = (0..most).map(|_| Arc::default()).collect();
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
        for _ in 2..most {
            slots.push(Arc::new(calls.enter(None).expect("another one's")));
        }
        assert!(messages[2..].iter().all(|message| !message.is_arriving()));
        slots.push(Arc::new(
            calls.enter(None).expect("the last one's that came without its message"),
        ));
        assert!(calls.enter(None).is_err(), "all messages are there");
        assert_eq!(*seen.borrow(), most, "each place counts once");
        drop(slots);
        assert_eq!(*seen.borrow(), 0);
    }

    #[test]
    fn calls_that_are_past_their_message_are_not_kept_in_mind_for_ever() {
        let calls = Calls::new(1, 0);
        let most = calls.most;
        let message = Arc::<MessageProgress>::default();
        let first = Arc::new(calls.enter(None).expect("room"));
        calls.follow(&message, &first);
        for _ in 0..10 * most {
            calls.follow(&Arc::default(), &Arc::new(calls.enter(None).expect("room")));
        }
        let arriving = calls.arriving.lock().expect("fine");
        assert!(
            arriving.len() <= 2 * most && Arc::ptr_eq(&arriving[0].message, &message),
            "{}",
            arriving.len()
        );
    }

    #[test]
    fn only_tonics_refusal_changes_its_code() {
        let large = Status::out_of_range(
            "Error, decoded message length too large: found 50 bytes, the limit is: 40 bytes",
        );
        let status = Status::from_header_map(with_our_code(large.into_http(), 40).headers())
            .expect("a status");
        assert_eq!(
            (status.code(), Reason::of(&status)),
            (Code::ResourceExhausted, Some(Reason::MessageTooLarge))
        );
        assert!(
            status.message().contains("at most 40 bytes") && status.message().contains("found 50"),
            "{}",
            status.message()
        );
        let other = Status::from_header_map(
            with_our_code(Status::not_found("x").into_http(), 40).headers(),
        );
        assert_eq!(other.expect("a status").code(), Code::NotFound);
    }
}
