//! Who waits and who runs: a queue that serves API keys in turn ([`super::queue`]), and a count of
//! KV memory by which a request is admitted when there is room for what it is likely to hold
//! ([`super::likely`]). What it may hold at worst is checked once, when it comes: what could never
//! fit is refused.
//!
//! A request is in exactly one place: `queue`, `running`, or gone. `reserved` is the sum over
//! `running` (I11). Answers that become longer than was likely hold more than was reserved for
//! them, which the target's heartbeats say (`Room::held_bytes`): the larger of the two counts.
//! Between two heartbeats there may be too many all the same; then the target, which gives memory
//! as sequences grow, has its youngest sequence wait and begin again from the tokens it has.

use std::collections::BTreeMap;

use paceline_proto::v1::RouteWish;
use paceline_vocabulary::Millis;
use paceline_vocabulary::{Epoch, KeyId};

use super::denial::Denial;
use super::likely::Answers;
use super::outlook::Outlook;
use super::queue::{Queue, RunningByKey, Waiting};
use super::route::Permit;

/// One submission, numbered by the shell. Request ids are the gateway's and may come twice; these
/// do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What admission has to know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whose request it is.
    pub key: KeyId,
    /// Tokens of its prompt, continuation excluded.
    pub prompt_tokens: u32,
    /// Most tokens behind the prompt, continuation included.
    pub max_tokens: u32,
    /// Tokens it starts with: prompt and continuation.
    pub context_tokens: u32,
    /// When it is too late.
    pub deadline: Option<Millis>,
    /// The lane its caller asked for.
    pub wish: RouteWish,
    /// Patches of its pictures, all together; 0: it has none.
    pub patches: u64,
}

impl Ask {
    /// Whether it has pictures.
    pub fn images(&self) -> bool {
        self.patches > 0
    }

    /// Positions of KV it may come to hold.
    pub fn most_positions(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.max_tokens)
    }

    /// Positions it is likely to hold, where so many tokens are yet to come as a whole answer
    /// typically has: of one that is resumed is known only that it goes on.
    pub fn likely_positions(&self, typical_tokens: u32) -> u64 {
        let left = self.max_tokens.saturating_sub(self.continuation_tokens());
        u64::from(self.context_tokens) + u64::from(left.min(typical_tokens))
    }

    fn continuation_tokens(&self) -> u32 {
        self.context_tokens.saturating_sub(self.prompt_tokens)
    }
}

/// What a life of the target can hold, as it described itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// (positions, bytes), ascending: what a sequence of up to so many positions cannot do without.
    pub classes: Vec<(u32, u64)>,
    /// Sequences it runs at once.
    pub max_sequences: usize,
    /// Bytes for each patch of a sequence's pictures beside that.
    pub patch_bytes: u64,
}

impl Capacity {
    /// Whether something can be admitted by it at all.
    pub fn is_usable(&self) -> bool {
        self.max_sequences > 0
            && !self.classes.is_empty()
            && self.classes.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1)
    }

    /// What a sequence of so many positions holds; `None` if none is that long.
    pub fn cost(&self, positions: u64) -> Option<u64> {
        self.classes.iter().find(|(most, _)| u64::from(*most) >= positions).map(|(_, bytes)| *bytes)
    }

    /// What a request's sequence holds at so many positions, its pictures included.
    pub fn cost_of(&self, ask: &Ask, positions: u64) -> Option<u64> {
        Some(self.cost(positions)?.saturating_add(ask.patches.saturating_mul(self.patch_bytes)))
    }

    /// The longest sequence.
    pub fn longest(&self) -> u32 {
        self.classes.last().map_or(0, |(positions, _)| *positions)
    }
}

/// The target as admission sees it at this moment.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// Which life of it.
    pub epoch: Epoch,
    /// What it can hold.
    pub capacity: &'a Capacity,
    /// Bytes its sequences may hold together.
    pub budget_bytes: u64,
    /// Bytes they held by its last heartbeat; what the prefix cache holds and what is kept for a
    /// drafter is not among them, as it gives way.
    pub held_bytes: u64,
    /// Bytes the machine has for one more; `None`: it bounds nothing.
    pub spare_bytes: Option<u64>,
}

/// A request that may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Which.
    pub ticket: Ticket,
    /// What it asked for.
    pub ask: Ask,
    /// How long it waited.
    pub queued_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    ask: Ask,
    /// What it was likely to hold when it was let in.
    cost_bytes: u64,
    epoch: Epoch,
    /// Its route, once it has one.
    permit: Option<Permit>,
    /// Whether the target knows it.
    delivered: Delivered,
}

/// How far the target knows a request's permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivered {
    /// It has it, or is being told.
    Yes,
    /// It has another and is to be told.
    Due,
    /// It was to be told, and did not take it.
    Missed,
}

/// What came and went since the target's last heartbeat, in bytes as admission counts them.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    admitted: u64,
    ended: u64,
}

/// Queue and ledger.
#[derive(Debug)]
pub struct Admission {
    places: usize,
    wait_ms: u64,
    streams_per_key: usize,
    queue: Queue,
    running: BTreeMap<Ticket, Running>,
    reserved_bytes: u64,
    since: Since,
    answers: Answers,
    outlook: Outlook,
    /// When the last one was let out of the queue.
    let_out: Option<Millis>,
}

impl Admission {
    /// An empty queue with so many places, each for so long. One API key runs at most
    /// `streams_per_key` requests at once.
    pub fn new(places: usize, wait_ms: u64, streams_per_key: usize) -> Self {
        Self {
            places,
            wait_ms,
            streams_per_key,
            queue: Queue::default(),
            running: BTreeMap::new(),
            reserved_bytes: 0,
            since: Since::default(),
            answers: Answers::default(),
            outlook: Outlook::default(),
            let_out: None,
        }
    }

    /// Takes a request in, behind all others of its key. Whether it may run at once is for
    /// [`Admission::admit`] to say. Where the queue is full, a key with few waiting requests takes
    /// the place of the newest request of the key with most: that one is returned, with its denial.
    ///
    /// # Errors
    /// It can never run, its time is over or would be before its first token, or there is no place
    /// for it.
    pub fn submit(
        &mut self,
        ticket: Ticket,
        ask: Ask,
        room: &Room<'_>,
        now: Millis,
    ) -> Result<Option<(Ticket, Denial)>, Denial> {
        let positions = ask.most_positions();
        let Some(need_bytes) = room.capacity.cost_of(&ask, positions) else {
            let context = room.capacity.longest();
            return Err(Denial::TooLong {
                prompt_tokens: ask.prompt_tokens,
                max_tokens: ask.max_tokens,
                context,
            });
        };
        if need_bytes > room.budget_bytes {
            return Err(Denial::KvExhausted {
                positions,
                need_bytes,
                budget_bytes: room.budget_bytes,
            });
        }
        if ask.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Denial::DeadlinePassed { waited_ms: 0 });
        }
        if let Some(deadline) = ask.deadline {
            let patience_ms = deadline.since(now);
            // Those of its own key are ahead of it for certain. How many turns other keys take
            // before is not known, and a request must not be refused for a guess.
            let ahead = self.queue.len_of(ask.key);
            let earliest = self.outlook.is_in_time(ask.context_tokens.into(), ahead, patience_ms);
            earliest
                .map_err(|earliest_ms| Denial::DeadlineInfeasible { earliest_ms, patience_ms })?;
        }
        let patience = now + self.wait_ms;
        let until = ask.deadline.map_or(patience, |deadline| deadline.min(patience));
        self.queue.push(Waiting { ticket, ask, since: now, until });
        if self.queue.len() <= self.places || self.runs_at_once(ticket, room) {
            return Ok(None);
        }
        let denial = Denial::QueueFull { limit: self.places };
        match self.queue.displace(ask.key) {
            Some(displaced) => Ok(Some((displaced.ticket, denial))),
            None => {
                self.queue.remove(ticket);
                Err(denial)
            }
        }
    }

    fn runs_at_once(&self, ticket: Ticket, room: &Room<'_>) -> bool {
        let next = self.next().filter(|next| next.ticket == ticket);
        next.is_some_and(|next| self.fits(self.likely_bytes(&next.ask, room), room))
    }

    fn running_by_key(&self) -> RunningByKey {
        RunningByKey::new(
            self.running.values().map(|running| running.ask.key),
            self.streams_per_key,
        )
    }

    /// The request to be admitted next.
    fn next(&self) -> Option<Waiting> {
        // Nobody waits nearly always, and this is asked at every event.
        if self.queue.is_empty() { None } else { self.queue.next(&self.running_by_key()) }
    }

    /// Admits the request whose turn it is, if there is room for it. Else nobody is admitted: a
    /// long request is not overtaken for ever by short ones.
    pub fn admit(&mut self, room: &Room<'_>, now: Millis) -> Option<Admitted> {
        let head = self.next()?;
        let cost_bytes = self.likely_bytes(&head.ask, room);
        if !self.fits(cost_bytes, room) {
            return None;
        }
        self.queue.take(head.ask.key);
        // One that was waiting already when the one before was admitted has been waiting for a
        // place ever since; unless it waited for its own key's limit, which says nothing of places.
        let limited = self.running_by_key().left(head.ask.key) == Some(1);
        if let Some(before) = self.let_out.replace(now)
            && head.since <= before
            && !limited
        {
            self.outlook.let_out(now.since(before));
        }
        self.running.insert(
            head.ticket,
            Running {
                ask: head.ask,
                cost_bytes,
                epoch: room.epoch,
                permit: None,
                delivered: Delivered::Yes,
            },
        );
        self.reserved_bytes += cost_bytes;
        self.since.admitted += cost_bytes;
        Some(Admitted { ticket: head.ticket, ask: head.ask, queued_ms: now.since(head.since) })
    }

    /// What a request is likely to hold in this target, by the answers there were until now.
    fn likely_bytes(&self, ask: &Ask, room: &Room<'_>) -> u64 {
        // One that is longer than this life's longest came for an earlier one: the target says so
        // to its caller.
        let longest = u64::from(room.capacity.longest());
        room.capacity
            .cost_of(ask, ask.likely_positions(self.answers.typical()).min(longest))
            .unwrap_or(u64::MAX)
    }

    /// Bytes that are not free for another request.
    fn taken_bytes(&self, room: &Room<'_>) -> u64 {
        // What is held all the same is of requests that are over, and on its way back.
        if self.running.is_empty() {
            return 0;
        }
        let held = (room.held_bytes + self.since.admitted).saturating_sub(self.since.ended);
        self.reserved_bytes.max(held)
    }

    fn fits(&self, cost_bytes: u64, room: &Room<'_>) -> bool {
        self.fits_ledger(cost_bytes, room)
            && room.spare_bytes.is_none_or(|spare| cost_bytes <= spare)
    }

    fn fits_ledger(&self, cost_bytes: u64, room: &Room<'_>) -> bool {
        self.running.len() < room.capacity.max_sequences
            && self.taken_bytes(room).saturating_add(cost_bytes) <= room.budget_bytes
    }

    /// Whether the request whose turn it is waits for the machine's memory and for nothing else.
    pub fn is_squeezed(&self, room: &Room<'_>) -> bool {
        self.next().is_some_and(|head| {
            let cost_bytes = self.likely_bytes(&head.ask, room);
            self.fits_ledger(cost_bytes, room) && !self.fits(cost_bytes, room)
        })
    }

    /// The target said anew what its sequences hold.
    pub fn heard(&mut self) {
        self.since = Since::default();
    }

    /// A running request had its first token so long after it was let in.
    pub fn first_token(&mut self, ticket: Ticket, ms: u64) {
        if let Some(running) = self.running.get(&ticket) {
            self.outlook.first_token(running.ask.context_tokens.into(), ms);
        }
    }

    /// A running request ends well, with so many tokens more than it began with.
    pub fn served(&mut self, ticket: Ticket, tokens: u64) {
        let Some(running) = self.running.get(&ticket) else { return };
        let ask = running.ask;
        let tokens = u64::from(ask.continuation_tokens()) + tokens;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.answers.learn(tokens, tokens >= ask.max_tokens);
    }

    /// A request is over, wherever it was. One that was denied or abandoned before is not here any
    /// more.
    pub fn ended(&mut self, ticket: Ticket) {
        match self.running.remove(&ticket) {
            Some(running) => {
                self.reserved_bytes -= running.cost_bytes;
                self.since.ended += running.cost_bytes;
            }
            None => self.queue.remove(ticket),
        }
    }

    /// The requests of this life and their places, the longest running first as place 1: all, or
    /// those that are held back.
    pub fn running(&self, epoch: Epoch, all: bool) -> impl Iterator<Item = (Ticket, Ask, u32)> {
        let running = self.running.iter().filter(move |(_, running)| running.epoch == epoch);
        let held_back =
            |running: &Running| running.permit.is_some_and(|permit| permit.is_held_back());
        let places = (1..).zip(running).filter(move |(_, (_, running))| all || held_back(running));
        places.map(|(place, (ticket, running))| (*ticket, running.ask, place))
    }

    /// A running request got this route; returns whether it had another, or none. Its first goes to
    /// the target with it.
    pub fn routed(&mut self, ticket: Ticket, permit: Permit) -> bool {
        let Some(running) = self.running.get_mut(&ticket) else { return false };
        let before = running.permit.replace(permit);
        if before.is_some_and(|before| before != permit) {
            running.delivered = Delivered::Due;
        }
        before != Some(permit)
    }

    /// The permits that the target is to be told: the new ones, and with them, or when it is time
    /// for that (`again`), those that it has missed. From now on they count as told.
    pub fn untold(&mut self, epoch: Epoch, again: bool) -> Vec<(Ticket, Permit)> {
        let of_it = |running: &Running| running.epoch == epoch;
        if !again
            && !self
                .running
                .values()
                .any(|running| of_it(running) && running.delivered == Delivered::Due)
        {
            return Vec::new();
        }
        let untold = self
            .running
            .iter_mut()
            .filter(|(_, running)| of_it(running) && running.delivered != Delivered::Yes);
        let permits = untold.filter_map(|(ticket, running)| {
            running.delivered = Delivered::Yes;
            Some((*ticket, running.permit?))
        });
        permits.collect()
    }

    /// The target did not take the permit this request had; one that came since is to be told
    /// anyway. Returns whether the request still runs.
    pub fn missed(&mut self, ticket: Ticket) -> bool {
        let Some(running) = self.running.get_mut(&ticket) else { return false };
        if running.delivered == Delivered::Yes {
            running.delivered = Delivered::Missed;
        }
        true
    }

    /// The route of a running request.
    #[cfg(test)]
    pub fn permit(&self, ticket: Ticket) -> Option<Permit> {
        self.running.get(&ticket)?.permit
    }

    /// Whether a running request has such a permit.
    pub fn is_anybody(&self, such: impl Fn(&Permit) -> bool) -> bool {
        self.running.values().any(|running| running.permit.as_ref().is_some_and(&such))
    }

    /// A life of the target is over: what ran in it holds nothing any more.
    pub fn abandon(&mut self, epoch: Epoch) {
        self.running.retain(|_, running| running.epoch != epoch);
        self.outlook.forget();
        self.since = Since::default();
        self.reserved_bytes = self.running.values().map(|running| running.cost_bytes).sum();
    }

    /// Takes out who has waited too long.
    pub fn expire(&mut self, now: Millis) -> Vec<(Ticket, Denial)> {
        let over =
            self.queue.take_where(|waiting| waiting.until <= now).into_iter().map(|waiting| {
                let waited_ms = now.since(waiting.since);
                let late = waiting.ask.deadline.is_some_and(|deadline| deadline <= now);
                let denial = if late {
                    Denial::DeadlinePassed { waited_ms }
                } else {
                    Denial::QueueWait { waited_ms }
                };
                (waiting.ticket, denial)
            });
        over.collect()
    }

    /// Takes out everybody who waits.
    pub fn turn_away(&mut self) -> Vec<Ticket> {
        self.queue.take_where(|_| true).into_iter().map(|waiting| waiting.ticket).collect()
    }

    /// When somebody has waited too long.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.queue.iter().map(|waiting| waiting.until).min()
    }

    /// Requests that run.
    pub fn active(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// What the running ones were likely to hold when they were let in.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Tokens that three of four answers do not exceed.
    pub fn typical_tokens(&self) -> u32 {
        self.answers.typical()
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
