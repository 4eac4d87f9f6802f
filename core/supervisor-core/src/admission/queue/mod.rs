//! The requests that wait: a FIFO for each API key, and the order in which keys are served.
//!
//! ```text
//! turns:  bob ▶ alice ▶ carol          the order in which keys are served
//! fifos:  bob:   r7
//!         alice: r1 r2 r3 r5           within a key: first come, first served
//!         carol: r4 r6
//! ```
//!
//! Keys are served in turn (round robin). A key that begins to wait comes after all that wait;
//! a key that was served goes to the end. Two rules decide which keys may be served
//! ([`Queue::next`]):
//!
//! - A key that runs as many requests as one may (`limits.streams_per_key`) is passed over until
//!   one of them ends.
//! - A key at its share of the running requests, counted with the one to be admitted, is passed
//!   over while another key waits that is below it. The share is the number of running requests
//!   divided by the number of keys that run or wait, rounded up. It is never more than the same
//!   part of `target.max_sequences`, and it holds also where memory lets fewer run. Where every key
//!   that waits is at its share (others run and do not wait), the one that runs the fewest is next:
//!   capacity is never left unused.
//!
//! Within a key, requests that were interrupted and go on come first, the shortest of them first.
//! They are as many as ran at the interruption.
//!
//! A passed key keeps its place in the order of turns.
//!
//! **No starvation.** The turn stays with a key whose first request does not fit the free memory,
//! and no request is admitted meanwhile. So a large request gets the memory that running ones give
//! back. A key that comes later can be served before it only while this key is at its share. At the
//! latest when its own running requests have ended it is not, and those before it in the order of
//! turns have had theirs. With one key, or without keys, all this is a plain queue in the order of
//! arrival.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use paceline_vocabulary::{KeyId, Millis};

use crate::ids::Ticket;
use crate::request::RequestSummary;

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    /// The request.
    pub ticket: Ticket,
    /// Summary of the request.
    pub summary: RequestSummary,
    /// When it arrived.
    pub since: Millis,
    /// End of its time in the queue, by `limits.queue_wait_s` or by its deadline.
    pub until: Millis,
}

/// A request in its FIFO, numbered in the order of arrival over all FIFOs.
#[derive(Clone, Copy, Debug)]
struct Queued {
    arrival: u64,
    waiting: WaitingRequest,
}

/// Whether `new` is served before `other` of the same key, which came first. Resumed requests had
/// their turn before the interruption. Of them the shortest goes first: its client waits least.
fn goes_before(new: &WaitingRequest, other: &WaitingRequest) -> bool {
    let length = |waiting: &WaitingRequest| waiting.summary.context_tokens;
    new.summary.resumed && (!other.summary.resumed || length(new) < length(other))
}

/// How many requests each key runs.
#[derive(Clone, Debug)]
pub struct RunningByKey {
    counts: BTreeMap<KeyId, usize>,
    total: usize,
    /// Most of one key. Requests without a key have no such limit.
    limit: usize,
}

impl RunningByKey {
    /// Counts `keys`, one for each running request; a key may have at most `limit`.
    pub fn new(keys: impl Iterator<Item = KeyId>, limit: usize) -> Self {
        let (mut counts, mut total) = (BTreeMap::new(), 0);
        for key in keys {
            *counts.entry(key).or_insert(0) += 1;
            total += 1;
        }
        Self { counts, total, limit }
    }

    /// Requests of this key.
    pub fn of(&self, key: KeyId) -> usize {
        self.counts.get(&key).copied().unwrap_or(0)
    }

    /// How many more this key may run; `None`: it has no limit of its own.
    pub fn left(&self, key: KeyId) -> Option<usize> {
        (key != KeyId::NONE).then(|| self.limit.saturating_sub(self.of(key)))
    }
}

/// All requests that wait.
#[derive(Debug, Default)]
pub struct Queue {
    /// Never an empty fifo.
    fifos: BTreeMap<KeyId, VecDeque<Queued>>,
    /// The keys of `fifos`, each once; the next to be served first.
    turns: VecDeque<KeyId>,
    arrivals: u64,
    len: usize,
}

impl Queue {
    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Requests of one key that wait.
    pub fn len_of(&self, key: KeyId) -> usize {
        self.fifos.get(&key).map_or(0, VecDeque::len)
    }

    /// Puts a request at the end of its key's fifo.
    pub fn push(&mut self, waiting: WaitingRequest) {
        let key = waiting.summary.key;
        self.arrivals += 1;
        self.len += 1;
        let fifo = self.fifos.entry(key).or_default();
        if fifo.is_empty() {
            self.turns.push_back(key);
        }
        let place = fifo.iter().position(|queued| goes_before(&waiting, &queued.waiting));
        let queued = Queued { arrival: self.arrivals, waiting };
        fifo.insert(place.unwrap_or(fifo.len()), queued);
    }

    /// The request to be admitted next, whether there is memory for it or not. `None`: no request
    /// waits, or every key that waits runs as many as it may.
    pub fn next(&self, running: &RunningByKey) -> Option<WaitingRequest> {
        let below_limit = |key: &KeyId| running.left(*key) != Some(0);
        let able: Vec<KeyId> = self.turns.iter().copied().filter(below_limit).collect();
        let key = match able[..] {
            [] => return None,
            [only] => only,
            _ => self.next_key(&able, running)?,
        };
        Some(self.fifos.get(&key)?.front()?.waiting)
    }

    /// Of keys that are able to run one more, in their order, the one whose turn it is.
    fn next_key(&self, able: &[KeyId], running: &RunningByKey) -> Option<KeyId> {
        let keys: BTreeSet<KeyId> = running.counts.keys().chain(&self.turns).copied().collect();
        let share = (running.total + 1).div_ceil(keys.len().max(1));
        let below_share = able.iter().find(|key| running.of(**key) < share);
        below_share.or_else(|| able.iter().min_by_key(|key| running.of(**key))).copied()
    }

    /// Takes out the first request of a key, which is admitted: the key's next turn comes after
    /// those of all others.
    pub fn take(&mut self, key: KeyId) -> Option<WaitingRequest> {
        let taken = self.fifos.get_mut(&key)?.pop_front()?;
        self.len -= 1;
        self.turns.retain(|other| *other != key);
        self.turns.push_back(key);
        self.forget_empty();
        Some(taken.waiting)
    }

    /// Takes out a request that is over.
    pub fn remove(&mut self, ticket: Ticket) {
        self.take_where(|waiting| waiting.ticket == ticket);
    }

    /// Makes a place for the newest request of `key`, which is in the queue already: takes out the
    /// newest request of the key with most waiting requests, if that key has at least two more than
    /// `key` had without its newest. So the FIFOs of a full queue become equally long, and two keys
    /// never take a place from each other in turn.
    pub fn displace(&mut self, key: KeyId) -> Option<WaitingRequest> {
        let own = self.len_of(key);
        let others = self.fifos.iter_mut().filter(|(other, _)| **other != key);
        let newest = |fifo: &VecDeque<Queued>| fifo.back().map(|queued| queued.arrival);
        let (_, longest) = others.max_by_key(|(_, fifo)| (fifo.len(), newest(fifo)))?;
        if longest.len() <= own {
            return None;
        }
        let displaced = longest.pop_back()?;
        self.len -= 1;
        self.forget_empty();
        Some(displaced.waiting)
    }

    /// Takes out all requests that are `such`, in the order of their arrival.
    pub fn take_where(&mut self, such: impl Fn(&WaitingRequest) -> bool) -> Vec<WaitingRequest> {
        let mut taken = Vec::new();
        for fifo in self.fifos.values_mut() {
            fifo.retain(|queued| {
                let stays = !such(&queued.waiting);
                if !stays {
                    taken.push(*queued);
                }
                stays
            });
        }
        self.len -= taken.len();
        self.forget_empty();
        taken.sort_unstable_by_key(|queued| queued.arrival);
        taken.into_iter().map(|queued| queued.waiting).collect()
    }

    /// All requests, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &WaitingRequest> {
        self.fifos.values().flatten().map(|queued| &queued.waiting)
    }

    /// Tokens that all requests begin with: prompts and continuations. It is counted anew each time:
    /// status reports need it, admission does not.
    pub fn tokens(&self) -> u64 {
        self.iter().map(|waiting| u64::from(waiting.summary.context_tokens)).sum()
    }

    fn forget_empty(&mut self) {
        self.fifos.retain(|_, fifo| !fifo.is_empty());
        self.turns.retain(|key| self.fifos.contains_key(key));
    }
}

#[cfg(test)]
mod tests;
