//! The table of open connections of all listeners: how many there are, of which peers, and which of
//! them are idle.
//!
//! A connection is idle while no call is open on it. When the table is full, the connection that
//! has been idle longest is shed: its slot goes to the newcomer at once, and it is closed
//! afterwards. Connections without an authenticated call so far are shed before the others. A
//! connection with an open call is never shed.
//!
//! ```text
//!        no authenticated call for 30 s, or the gateway stops
//!  Open ────────────────────────────────────────────────────▶ Leaving ──▶ closed
//!   │                 the slot is given away                     │
//!   └───────────────────────────────▶ Shed ◀─────────────────────┘
//!                                      │  more than MAX_SHED, or no descriptor is left
//!                                      └──────────────────────────▶ Cut ──▶ closed at once
//! ```
//!
//! At most `limits.connections` connections have a slot, and at most [`MAX_SHED`] without one are
//! being closed (I6).

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_process::config::LimitsConfig;
use paceline_vocabulary::Reason;
use tokio::sync::watch;

use crate::guard::peer::Peer;
use crate::inference::error::InferenceError;

/// Time for the first authenticated call. A client opens a connection in order to call; one that
/// waits for its user can connect again within a round trip.
pub const UNUSED: Duration = Duration::from_secs(30);
/// Time for an idle connection to close after it was asked to (GOAWAY): for the round trip of its peer, and for the
/// rest of an answer that waits in the connection for the peer to read. As long as a peer may take
/// to answer a ping.
pub const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// Shed connections that are being closed at once. Each is a descriptor beyond
/// `limits.connections`.
const MAX_SHED: usize = 64;

/// The open connections.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Table>);

#[derive(Debug)]
struct Table {
    most: usize,
    most_of_peer: usize,
    state: Mutex<State>,
    /// Open connections, those without a slot included.
    open: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<u64, Entry>,
    /// Connections without a slot that are not closed yet, oldest first.
    shed: VecDeque<(u64, Arc<watch::Sender<Activity>>)>,
    next_id: u64,
    /// Counts the moments at which a connection became idle: the order of shedding.
    next_idle: u64,
}

#[derive(Debug)]
struct Entry {
    /// `None` for this machine, whose clients share one address.
    peer: Option<Peer>,
    idle_since: u64,
    activity: Arc<watch::Sender<Activity>>,
}

/// What the task of a connection follows.
#[derive(Clone, Copy, Debug, Default)]
struct Activity {
    open_calls: usize,
    /// Whether there ever was an authenticated call.
    is_used: bool,
    stage: ConnectionStage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ConnectionStage {
    #[default]
    Open,
    /// GOAWAY was sent. The slot is still the connection's own.
    Leaving,
    /// Its slot is another connection's. It takes no call.
    Shed,
    /// It is not waited for.
    Cut,
}

/// Why a connection gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLimit {
    /// All slots are taken by connections with open calls.
    All,
    /// The same for the slots of one peer.
    OfPeer,
}

impl ConnectionLimit {
    /// The setting that is the bound.
    pub fn setting(self) -> &'static str {
        match self {
            ConnectionLimit::All => "limits.connections",
            ConnectionLimit::OfPeer => "limits.connections_per_peer",
        }
    }
}

impl Connections {
    /// An empty table with the bounds of these limits.
    pub fn new(limits: &LimitsConfig) -> Self {
        // A quarter: four peers at least have to agree before others are kept out.
        let of_peer = limits.connections_per_peer.or((limits.connections / 4).max(1));
        Self::bounded(limits.connections as usize, of_peer as usize)
    }

    fn bounded(most: usize, most_of_peer: usize) -> Self {
        let table =
            Table { most, most_of_peer, state: Mutex::default(), open: watch::Sender::new(0) };
        Self(Arc::new(table))
    }

    /// A slot for a connection from this address. Where there is none, an idle connection is shed:
    /// of the same peer when the peer has all it may have, else of any.
    ///
    /// # Errors
    /// Every connection in question has an open call.
    pub fn enter(&self, address: IpAddr) -> Result<ConnectionSlot, ConnectionLimit> {
        let peer = (!address.to_canonical().is_loopback()).then(|| Peer::from(address));
        let mut state = self.0.lock();
        if peer.is_some() {
            let of_peer = state.slots.values().filter(|entry| entry.peer == peer).count();
            if of_peer >= self.0.most_of_peer
                && !state.shed(ConnectionStage::Shed, |entry| entry.peer == peer)
            {
                return Err(ConnectionLimit::OfPeer);
            }
        }
        if state.slots.len() >= self.0.most && !state.shed(ConnectionStage::Shed, |_| true) {
            return Err(ConnectionLimit::All);
        }
        let (id, idle_since) = (state.next_id, state.next_idle);
        (state.next_id, state.next_idle) = (id + 1, idle_since + 1);
        let activity = Arc::new(watch::Sender::new(Activity::default()));
        state.slots.insert(id, Entry { peer, idle_since, activity: Arc::clone(&activity) });
        drop(state);
        self.0.open.send_modify(|open| *open += 1);
        Ok(ConnectionSlot(ConnectionHandle { table: Arc::clone(&self.0), id, activity }))
    }

    /// Closes the longest idle connection at once, without GOAWAY: no connection can be accepted
    /// without its descriptor.
    pub fn free_descriptor(&self) {
        self.0.lock().shed(ConnectionStage::Cut, |_| true);
    }

    /// Resolves when no connection is open.
    pub async fn all_closed(&self) {
        // This table owns the sender, so the wait ends by the condition alone.
        let _ = self.0.open.subscribe().wait_for(|open| *open == 0).await;
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No panic can happen between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the slot of the longest idle connection that `fits`, connections without an
    /// authenticated call first. False if every one has an open call.
    fn shed(&mut self, stage: ConnectionStage, fits: impl Fn(&Entry) -> bool) -> bool {
        let candidates = self.slots.iter().filter_map(|(id, entry)| {
            let Activity { open_calls, is_used, .. } = *entry.activity.borrow();
            (open_calls == 0 && fits(entry)).then_some((is_used, entry.idle_since, *id))
        });
        let Some((_, _, id)) = candidates.min() else { return false };
        if let Some(entry) = self.slots.remove(&id) {
            entry.activity.send_modify(|activity| activity.stage = stage);
            tracing::debug!(connection = id, ?stage, "an idle connection gives its slot away");
            self.shed.push_back((id, entry.activity));
        }
        if self.shed.len() > MAX_SHED
            && let Some((_, oldest)) = self.shed.pop_front()
        {
            oldest.send_modify(|activity| activity.stage = ConnectionStage::Cut);
        }
        true
    }
}

/// The slot of one connection; given back when dropped, which is when the connection is closed.
#[derive(Debug)]
pub struct ConnectionSlot(ConnectionHandle);

impl ConnectionSlot {
    /// For the calls of this connection.
    pub fn handle(&self) -> ConnectionHandle {
        self.0.clone()
    }

    /// Resolves when the connection has to be closed: its slot was given away, or it had no call
    /// for [`UNUSED`] and never an authenticated one.
    pub async fn leaves(&self) {
        let mut changes = self.0.activity.subscribe();
        loop {
            let Activity { open_calls, is_used, stage } = *changes.borrow_and_update();
            if stage != ConnectionStage::Open {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(UNUSED), if open_calls == 0 && !is_used => return,
                // This slot owns the sender.
                _ = changes.changed() => {}
            }
        }
    }

    /// Resolves when a connection that is being closed is waited for no longer: it was cut, or had
    /// no open call for [`CLOSE_GRACE`].
    pub async fn is_overdue(&self) {
        {
            let _ordered = self.0.table.lock();
            self.0.activity.send_modify(|activity| {
                if activity.stage == ConnectionStage::Open {
                    activity.stage = ConnectionStage::Leaving;
                }
            });
        }
        let mut changes = self.0.activity.subscribe();
        loop {
            let Activity { open_calls, stage, .. } = *changes.borrow_and_update();
            if stage == ConnectionStage::Cut {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(CLOSE_GRACE), if open_calls == 0 => return,
                _ = changes.changed() => {}
            }
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.0.table.lock();
        if state.slots.remove(&self.0.id).is_none() {
            state.shed.retain(|(id, _)| *id != self.0.id);
        }
        drop(state);
        self.0.table.open.send_modify(|open| *open -= 1);
    }
}

/// The connection, for its calls.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    table: Arc<Table>,
    id: u64,
    activity: Arc<watch::Sender<Activity>>,
}

impl ConnectionHandle {
    /// Opens a call. The connection is not idle until the returned value is dropped.
    ///
    /// # Errors
    /// The connection's slot was given away a moment ago.
    pub fn begin(&self, authenticated: bool) -> Result<OpenCall, InferenceError> {
        let _ordered = self.table.lock();
        let mut begun = false;
        self.activity.send_if_modified(|activity| {
            begun = matches!(activity.stage, ConnectionStage::Open | ConnectionStage::Leaving);
            if !begun {
                return false;
            }
            let matters = activity.matters();
            activity.open_calls += 1;
            activity.is_used |= authenticated;
            matters
        });
        let closing = || {
            let message = "this connection was idle and is being closed to make room for another one; call again on a new one";
            InferenceError {
                retry_after: Duration::ZERO,
                ..InferenceError::new(Reason::ConnectionClosing, message)
            }
        };
        begun.then(|| OpenCall(self.clone())).ok_or_else(closing)
    }

    fn end(&self) {
        let mut state = self.table.lock();
        let mut is_idle = false;
        self.activity.send_if_modified(|activity| {
            activity.open_calls -= 1;
            is_idle = activity.open_calls == 0;
            activity.matters()
        });
        if is_idle {
            let now = state.next_idle;
            state.next_idle += 1;
            if let Some(entry) = state.slots.get_mut(&self.id) {
                entry.idle_since = now;
            }
        }
    }
}

impl Activity {
    /// Whether calls change what the connection's task waits for. Else it is not woken for each of
    /// them.
    fn matters(&self) -> bool {
        !self.is_used || self.stage != ConnectionStage::Open
    }
}

/// A call that is open, until it is dropped.
#[derive(Debug)]
pub struct OpenCall(ConnectionHandle);

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const HERE: &str = "127.0.0.1";

    fn enter(connections: &Connections, address: &str) -> Result<ConnectionSlot, ConnectionLimit> {
        connections.enter(address.parse().expect("an address"))
    }

    fn some(connections: &Connections, count: usize) -> Vec<ConnectionSlot> {
        (0..count).map(|_| enter(connections, HERE).expect("room")).collect()
    }

    fn stage(slot: &ConnectionSlot) -> ConnectionStage {
        slot.0.activity.borrow().stage
    }

    /// Places of those that are not open any more.
    fn gone(slots: &[ConnectionSlot]) -> Vec<usize> {
        (0..slots.len()).filter(|at| stage(&slots[*at]) != ConnectionStage::Open).collect()
    }

    #[test]
    fn the_longest_idle_connection_is_shed_for_a_newcomer() {
        let connections = Connections::bounded(4, 1);
        let mut slots = some(&connections, 4);
        // Idle since: 1, 3, 0, 2.
        for at in [2, 0, 3, 1] {
            drop(slots[at].handle().begin(true).expect("open"));
        }
        for expected in [&[2][..], &[0, 2], &[0, 2, 3], &[0, 1, 2, 3]] {
            let newcomer = enter(&connections, HERE).expect("an idle one is shed");
            drop(newcomer.handle().begin(true).expect("open"));
            slots.push(newcomer);
            assert_eq!(gone(&slots), expected);
        }
        assert_eq!(connections.0.lock().slots.len(), 4);
        assert_eq!(*connections.0.open.borrow(), 8, "the shed ones are not closed yet");
        drop(slots);
        assert!(connections.all_closed().now_or_never().is_some());
    }

    #[test]
    fn a_connection_with_an_open_call_is_never_shed() {
        let connections = Connections::bounded(2, 1);
        let slots = some(&connections, 2);
        let first = slots[0].handle().begin(true).expect("open");
        let second = slots[1].handle().begin(false).expect("open");
        assert_eq!(enter(&connections, HERE).expect_err("all are busy"), ConnectionLimit::All);
        drop(first);
        let third = enter(&connections, HERE).expect("the first is idle");
        assert_eq!(gone(&slots), [0]);
        let _call = third.handle().begin(true).expect("open");
        assert_eq!(
            enter(&connections, HERE).expect_err("all are busy").setting(),
            "limits.connections"
        );
        connections.free_descriptor();
        assert_eq!(gone(&slots), [0]);
        drop(second);
        connections.free_descriptor();
        assert_eq!((stage(&slots[1]), connections.0.lock().slots.len()), (ConnectionStage::Cut, 1));
    }

    #[test]
    fn unused_connections_are_shed_before_used_ones() {
        let connections = Connections::bounded(3, 1);
        let mut slots = some(&connections, 3);
        drop(slots[0].handle().begin(true).expect("open"));
        drop(slots[1].handle().begin(false).expect("open"));
        for expected in [&[2][..], &[1, 2]] {
            let newcomer = enter(&connections, HERE).expect("an idle one is shed");
            drop(newcomer.handle().begin(true).expect("open"));
            slots.push(newcomer);
            assert_eq!(gone(&slots), expected);
        }
    }

    #[test]
    fn a_peer_has_a_bound_of_its_own_and_this_machine_has_none() {
        let connections = Connections::bounded(100, 2);
        let busy = |address: &str| {
            let slot = enter(&connections, address).expect("room");
            let call = slot.handle().begin(true).expect("open");
            (slot, call)
        };
        let mut held = vec![];
        for (first, second, third) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"),
            ("192.0.2.2", "192.0.2.2", "::ffff:192.0.2.2"),
            ("2001:db8::1", "2001:db8::2", "2001:db8::3"),
            ("2001:db8:0:1::1", "2001:db8:0:1::1", "2001:db8:0:1::1"),
        ] {
            held.extend([busy(first), busy(second)]);
            let refused = enter(&connections, third).expect_err("both are busy");
            assert_eq!(
                (refused, refused.setting()),
                (ConnectionLimit::OfPeer, "limits.connections_per_peer")
            );
        }
        for local in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
            held.extend([busy(local), busy(local), busy(local)]);
        }
        // An idle connection of the peer itself makes room, and one of another peer does not.
        let idle = enter(&connections, "192.0.2.3").expect("room");
        assert!(enter(&connections, "192.0.2.1").is_err());
        let (slot, call) = held.swap_remove(0);
        drop(call);
        assert!(enter(&connections, "192.0.2.1").is_ok());
        assert_eq!((stage(&slot), stage(&idle)), (ConnectionStage::Shed, ConnectionStage::Open));
    }

    #[test]
    fn a_quarter_of_all_connections_may_be_one_peers() {
        let of = |connections, per_peer| {
            let limits =
                LimitsConfig { connections, connections_per_peer: per_peer, ..Default::default() };
            Connections::new(&limits).0.most_of_peer
        };
        use paceline_process::config::Auto;
        assert_eq!([of(512, Auto::Auto), of(2, Auto::Auto), of(512, Auto::Is(7))], [128, 1, 7]);
    }

    #[test]
    fn a_shed_connection_refuses_calls_with_a_retryable_reason() {
        let connections = Connections::bounded(1, 1);
        let first = enter(&connections, HERE).expect("room");
        let _second = enter(&connections, HERE).expect("the first is shed");
        assert!(first.leaves().now_or_never().is_some());
        let error = first.handle().begin(true).expect_err("shed");
        assert_eq!(error.kind, Reason::ConnectionClosing);
        assert!(error.kind.retryable() && error.retry_after.is_zero());
    }

    #[test]
    fn shed_connections_that_are_not_closed_yet_are_bounded() {
        let connections = Connections::bounded(1, 1);
        let slots = some(&connections, MAX_SHED + 1);
        assert!(slots.iter().all(|slot| stage(slot) != ConnectionStage::Cut));
        let _next = some(&connections, 2);
        assert_eq!(
            [0, 1, 2].map(|at| stage(&slots[at])),
            [ConnectionStage::Cut, ConnectionStage::Cut, ConnectionStage::Shed]
        );
        assert!(slots[0].is_overdue().now_or_never().is_some(), "it is not waited for");
        assert_eq!(connections.0.lock().shed.len(), MAX_SHED);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_an_authenticated_call_leaves_after_thirty_seconds_without_any() {
        let connections = Connections::bounded(9, 1);
        let slot = enter(&connections, HERE).expect("room");
        let just_before = UNUSED - Duration::from_millis(1);
        let after = async |slot: &ConnectionSlot, time| {
            tokio::time::timeout(time, slot.leaves()).await.is_ok()
        };
        assert!(!after(&slot, just_before).await && after(&slot, UNUSED).await);
        // Any open call keeps it; the time begins again with its end.
        let slot = enter(&connections, HERE).expect("room");
        let watch = slot.handle().begin(false).expect("open");
        assert!(!after(&slot, UNUSED * 100).await);
        drop(watch);
        assert!(!after(&slot, just_before).await && after(&slot, UNUSED).await);
        // After an authenticated call it stays.
        let slot = enter(&connections, HERE).expect("room");
        drop(slot.handle().begin(true).expect("open"));
        assert!(!after(&slot, UNUSED * 100).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_closed_is_waited_for_while_it_has_calls() {
        let connections = Connections::bounded(9, 1);
        let slot = enter(&connections, HERE).expect("room");
        let call = slot.handle().begin(true).expect("open");
        let overdue = async |time| tokio::time::timeout(time, slot.is_overdue()).await.is_ok();
        assert!(!overdue(CLOSE_GRACE * 100).await);
        let last = slot.handle().begin(true).expect("its slot is its own until it is closed");
        drop(call);
        assert!(!overdue(CLOSE_GRACE * 100).await);
        drop(last);
        assert!(
            !overdue(CLOSE_GRACE - Duration::from_millis(1)).await && overdue(CLOSE_GRACE).await
        );
    }
}
