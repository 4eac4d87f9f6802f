//! The table of open connections of all listeners: how many there are, of which peers, and which of
//! them are idle.
//!
//! A connection is idle while no request is open on it. When the table is full, the connection that
//! has been idle longest is shed: its slot goes to the newcomer at once, and it is closed
//! afterwards. Connections without an authenticated request so far are shed before the others,
//! whatever is open on them. Otherwise a client without a key could shut out those that have one.
//! Any other connection with an open request is never shed. A connection with an answer that was not
//! read in time leaves at once, and is closed after its other requests.
//!
//! ```text
//!        no authenticated request for 30 s, an unread answer, or the gateway stops
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
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_process::config::LimitsConfig;
use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_system::platform;
use paceline_vocabulary::Reason;
use tokio::sync::watch;

use crate::guard::peer::Peer;
use crate::lock::lock;
use crate::turns::Party;

/// Time for the first authenticated request. A client opens a connection in order to send one. A
/// client that waits for its user can connect again within a round trip.
pub const UNUSED: Duration = Duration::from_secs(30);
/// Time for an idle connection to close after it was asked to (GOAWAY): for the round trip of its
/// peer, and for the rest of an answer that waits in the connection for the peer to read. As long
/// as a peer may take to answer a ping.
pub const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// Time for the other requests of a connection with an unread answer: as long as a request may take
/// by default. The end of the connection is the end of what the answer left in it.
const UNREAD_GRACE: Duration = Duration::from_secs(600);
/// Shed connections that are being closed at once. Each is a descriptor beyond
/// `limits.connections`.
const MAX_SHED: usize = 64;
/// Time from the end of a connection until its memory is given back, so that connections which
/// close together are given back together.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(1);
/// Requests at once on a connection without an authenticated one so far. More than the watches of
/// health without a key that there may be in all. Each request takes some kilobytes.
const MAX_UNKNOWN_REQUESTS: usize = 40;

/// The open connections.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Table>);

#[derive(Debug)]
struct Table {
    most: usize,
    most_of_peer: usize,
    state: Mutex<State>,
    /// Connections that were accepted and are open. One with a slot, or whose slot was given away,
    /// counts twice.
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

/// State that the task of a connection follows.
#[derive(Clone, Copy, Debug, Default)]
struct Activity {
    open_requests: usize,
    /// Whether there ever was an authenticated request.
    is_used: bool,
    /// Whether an answer was not read in time.
    has_unread: bool,
    /// The task waits for a time without a request, so each request wakes it.
    awaits_idle: bool,
    stage: ConnectionStage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ConnectionStage {
    #[default]
    Open,
    /// GOAWAY was sent. The slot is still the connection's own.
    Leaving,
    /// The slot is another connection's. This connection takes no request.
    Shed,
    /// It is not waited for.
    Cut,
}

/// Why a connection gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLimit {
    /// All slots are taken by connections that have open requests and had an authenticated one.
    All,
    /// All slots of one peer are taken by such connections.
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

    /// A slot for a connection from this address. If there is none, a connection is shed that is
    /// idle or had no authenticated request: of the same peer when the peer has all it may have,
    /// else of any.
    ///
    /// # Errors
    /// Every connection in question had an authenticated request and has an open one.
    pub fn enter(&self, address: IpAddr) -> Result<ConnectionSlot, ConnectionLimit> {
        let peer = (!address.to_canonical().is_loopback()).then(|| Peer::from(address));
        let mut state = lock(&self.0.state);
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
        Ok(ConnectionSlot(ConnectionHandle { table: Arc::clone(&self.0), id, peer, activity }))
    }

    /// Closes a connection at once that would be shed, without GOAWAY: no connection can be
    /// accepted without its descriptor.
    pub fn free_descriptor(&self) {
        lock(&self.0.state).shed(ConnectionStage::Cut, |_| true);
    }

    /// Counts a connection that was accepted and has no slot yet, until the returned value is
    /// dropped.
    pub fn accepted(&self) -> OpenConnection {
        self.0.open.send_modify(|open| *open += 1);
        OpenConnection(Arc::clone(&self.0))
    }

    /// After connections closed, gives the memory of their answers back to the system, at most once
    /// a second. Never ends.
    pub async fn give_back_memory(self) {
        let mut open = self.0.open.subscribe();
        let mut before = 0;
        // This table owns the sender, so there is always a next change.
        while open.changed().await.is_ok() {
            if *open.borrow_and_update() < before {
                tokio::time::sleep(GIVE_BACK_AFTER).await;
                // Not on a thread that serves others: the allocator looks at all that it holds. If
                // it cannot run, the memory waits for the next connection that closes.
                let _ = tokio::task::spawn_blocking(platform::give_back_freed_memory).await;
            }
            before = *open.borrow_and_update();
        }
    }

    /// Resolves when no connection is open.
    pub async fn all_closed(&self) {
        // This table owns the sender, so the wait ends by the condition alone.
        let _ = self.0.open.subscribe().wait_for(|open| *open == 0).await;
    }
}

/// A connection from its acceptance to its end.
#[derive(Debug)]
pub struct OpenConnection(Arc<Table>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

impl State {
    /// Takes the slot of the longest idle connection that `fits`, connections without an
    /// authenticated request first, whether requests are open on them or not. False if every other
    /// one has an open request.
    fn shed(&mut self, stage: ConnectionStage, fits: impl Fn(&Entry) -> bool) -> bool {
        let candidates = self.slots.iter().filter_map(|(id, entry)| {
            let Activity { open_requests, is_used, .. } = *entry.activity.borrow();
            let may_go = open_requests == 0 || !is_used;
            (may_go && fits(entry)).then_some((is_used, open_requests > 0, entry.idle_since, *id))
        });
        let Some((.., id)) = candidates.min() else { return false };
        if let Some(entry) = self.slots.remove(&id) {
            entry.activity.send_modify(|activity| activity.stage = stage);
            tracing::debug!(connection = id, ?stage, "a connection gives its slot away");
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
    /// For the requests of this connection.
    pub fn handle(&self) -> ConnectionHandle {
        self.0.clone()
    }

    /// Resolves when the connection has to be closed: its slot was given away, an answer on it was
    /// not read in time, or it had no request for [`UNUSED`] and never an authenticated one.
    pub async fn leaves(&self) {
        let mut changes = self.0.activity.subscribe();
        loop {
            let Activity { open_requests, is_used, has_unread, stage, .. } =
                *changes.borrow_and_update();
            if has_unread || stage != ConnectionStage::Open {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(UNUSED), if open_requests == 0 && !is_used => return,
                // This slot owns the sender.
                _ = changes.changed() => {}
            }
        }
    }

    /// Resolves when no request has been open on the connection for this time, counted from now.
    pub async fn idle_for(&self, time: Duration) {
        {
            let _ordered = lock(&self.0.table.state);
            self.0.activity.send_modify(|activity| activity.awaits_idle = true);
        }
        let mut changes = self.0.activity.subscribe();
        loop {
            let open_requests = changes.borrow_and_update().open_requests;
            tokio::select! {
                () = tokio::time::sleep(time), if open_requests == 0 => return,
                // This slot owns the sender.
                _ = changes.changed() => {}
            }
        }
    }

    /// Resolves when a connection that is being closed is waited for no longer: it was cut, had no
    /// open request for [`CLOSE_GRACE`], was shed that long ago and had no authenticated one, or has
    /// an unread answer for longer than [`UNREAD_GRACE`].
    pub async fn is_overdue(&self) {
        {
            let _ordered = lock(&self.0.table.state);
            self.0.activity.send_modify(|activity| {
                if activity.stage == ConnectionStage::Open {
                    activity.stage = ConnectionStage::Leaving;
                }
            });
        }
        let mut changes = self.0.activity.subscribe();
        let mut unknown = std::pin::pin!(tokio::time::sleep(CLOSE_GRACE));
        let mut unread = std::pin::pin!(tokio::time::sleep(UNREAD_GRACE));
        loop {
            let Activity { open_requests, is_used, has_unread, stage, .. } =
                *changes.borrow_and_update();
            if stage == ConnectionStage::Cut {
                return;
            }
            let is_unknown = stage == ConnectionStage::Shed && !is_used;
            tokio::select! {
                () = tokio::time::sleep(CLOSE_GRACE), if open_requests == 0 => return,
                () = &mut unknown, if is_unknown => return,
                () = &mut unread, if has_unread => return,
                _ = changes.changed() => {}
            }
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = lock(&self.0.table.state);
        if state.slots.remove(&self.0.id).is_none() {
            state.shed.retain(|(id, _)| *id != self.0.id);
        }
        drop(state);
        self.0.table.open.send_modify(|open| *open -= 1);
    }
}

/// The connection, for its requests.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    table: Arc<Table>,
    id: u64,
    /// `None` for this machine.
    peer: Option<Peer>,
    activity: Arc<watch::Sender<Activity>>,
}

impl ConnectionHandle {
    /// Party whose turns and bytes the requests without a key count as.
    pub fn party(&self) -> Party {
        self.peer.map_or_else(|| Party::of_connection(self.id), Party::of_peer)
    }

    /// Opens a request. The connection is not idle until the returned value is dropped.
    ///
    /// # Errors
    /// The connection's slot was given away a moment ago, or it has as many requests as it may have
    /// without a key.
    pub fn begin(&self, authenticated: bool) -> Result<TrackedRequest> {
        let _ordered = lock(&self.table.state);
        let (mut begun, mut full) = (false, false);
        self.activity.send_if_modified(|activity| {
            let is_open =
                matches!(activity.stage, ConnectionStage::Open | ConnectionStage::Leaving);
            let is_known = authenticated || activity.is_used;
            full = is_open && !is_known && activity.open_requests >= MAX_UNKNOWN_REQUESTS;
            begun = is_open && !full;
            if !begun {
                return false;
            }
            let matters = activity.matters();
            activity.open_requests += 1;
            activity.is_used |= authenticated;
            matters
        });
        let closing = || {
            let message = "this connection was idle and is being closed to make room for another one; try again on a new one";
            InferenceError {
                retry_after: Duration::ZERO,
                ..InferenceError::new(Reason::ConnectionClosing, message)
            }
        };
        if full {
            return Err(too_many_unknown_requests());
        }
        begun.then(|| TrackedRequest(self.clone())).ok_or_else(closing)
    }

    fn end(&self) {
        let mut state = lock(&self.table.state);
        let mut is_idle = false;
        self.activity.send_if_modified(|activity| {
            activity.open_requests -= 1;
            is_idle = activity.open_requests == 0;
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

fn too_many_unknown_requests() -> InferenceError {
    let message = format!(
        "a connection without a key may have {MAX_UNKNOWN_REQUESTS} requests at once, and has them; end one, or send a key"
    );
    let error = InferenceError::new(Reason::TooManyStreams, message).field("connection");
    error.fact("limit", MAX_UNKNOWN_REQUESTS)
}

impl Activity {
    /// Whether a request changes what the connection's task waits for. If not, the task is not
    /// woken for each of them.
    fn matters(&self) -> bool {
        !self.is_used || self.awaits_idle || self.stage != ConnectionStage::Open
    }
}

/// A request that is open, until it is dropped.
#[derive(Debug)]
pub struct TrackedRequest(ConnectionHandle);

impl TrackedRequest {
    /// Ends a request whose answer was not read in time. Its connection leaves.
    pub fn unread(self) {
        // Its drop takes the table's lock.
        self.0.activity.send_modify(|activity| activity.has_unread = true);
    }
}

impl Drop for TrackedRequest {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
