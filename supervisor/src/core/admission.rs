//! Who waits and who runs: one strict first-in-first-out queue, and a mirror of the target's KV ledger by which a request
//! is let through only when there is room for all it may come to hold.
//!
//! A request is in exactly one place: `queue`, `running`, or gone. `reserved` is the sum over `running` (I11).

use std::collections::{BTreeMap, VecDeque};

use paceline_process::Millis;
use paceline_proto::ids::Epoch;
use paceline_proto::v1::RouteWish;

use super::denial::Denial;
use super::route::Permit;

/// One submission, numbered by the shell. Request ids are the gateway's and may come twice; these do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What admission has to know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
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
    /// It has pictures.
    pub images: bool,
}

impl Ask {
    /// Positions of KV it may come to hold.
    pub fn positions(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.max_tokens)
    }
}

/// What a life of the target can hold, as it described itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// (positions, bytes), ascending: what a sequence of up to so many positions reserves.
    pub classes: Vec<(u32, u64)>,
    /// Sequences it runs at once.
    pub max_sequences: usize,
}

impl Capacity {
    /// Whether something can be admitted by it at all.
    pub fn is_usable(&self) -> bool {
        self.max_sequences > 0
            && !self.classes.is_empty()
            && self.classes.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1)
    }

    /// What so many positions reserve; `None` if no sequence is that long.
    pub fn cost(&self, positions: u64) -> Option<u64> {
        self.classes.iter().find(|(most, _)| u64::from(*most) >= positions).map(|(_, bytes)| *bytes)
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
struct Waiting {
    ticket: Ticket,
    ask: Ask,
    cost_bytes: u64,
    since: Millis,
    /// End of its time in the queue, by `queue_wait_s` or its deadline.
    until: Millis,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    ask: Ask,
    cost_bytes: u64,
    epoch: Epoch,
    /// Its route, once it has one.
    permit: Option<Permit>,
}

/// Queue and ledger.
#[derive(Debug)]
pub struct Admission {
    places: usize,
    wait_ms: u64,
    queue: VecDeque<Waiting>,
    running: BTreeMap<Ticket, Running>,
    reserved_bytes: u64,
}

impl Admission {
    /// An empty queue with so many places, each for so long.
    pub fn new(places: usize, wait_ms: u64) -> Self {
        Self { places, wait_ms, queue: VecDeque::new(), running: BTreeMap::new(), reserved_bytes: 0 }
    }

    /// Takes a request in, behind all others. Whether it may run at once is for [`Admission::admit`] to say.
    ///
    /// # Errors
    /// It can never run, its time is over, or there is no place.
    pub fn submit(&mut self, ticket: Ticket, ask: Ask, room: &Room<'_>, now: Millis) -> Result<(), Denial> {
        let Some(cost_bytes) = room.capacity.cost(ask.positions()) else {
            let context = room.capacity.longest();
            return Err(Denial::TooLong { prompt_tokens: ask.prompt_tokens, max_tokens: ask.max_tokens, context });
        };
        if cost_bytes > room.budget_bytes {
            let positions = ask.positions();
            return Err(Denial::KvExhausted { positions, need_bytes: cost_bytes, budget_bytes: room.budget_bytes });
        }
        if ask.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Denial::DeadlinePassed { waited_ms: 0 });
        }
        let runs_at_once = self.queue.is_empty() && self.fits(cost_bytes, room);
        if !runs_at_once && self.queue.len() >= self.places {
            return Err(Denial::QueueFull { limit: self.places });
        }
        let patience = now + self.wait_ms;
        let until = ask.deadline.map_or(patience, |deadline| deadline.min(patience));
        self.queue.push_back(Waiting { ticket, ask, cost_bytes, since: now, until });
        Ok(())
    }

    /// Lets the queue's head through while there is room for it. The head blocks all behind it: a long request is not
    /// overtaken for ever by short ones.
    pub fn admit(&mut self, room: &Room<'_>, now: Millis) -> Option<Admitted> {
        let head = *self.queue.front()?;
        if !self.fits(head.cost_bytes, room) {
            return None;
        }
        self.queue.pop_front();
        self.running.insert(head.ticket, Running { ask: head.ask, cost_bytes: head.cost_bytes, epoch: room.epoch, permit: None });
        self.reserved_bytes += head.cost_bytes;
        Some(Admitted { ticket: head.ticket, ask: head.ask, queued_ms: now.since(head.since) })
    }

    fn fits(&self, cost_bytes: u64, room: &Room<'_>) -> bool {
        self.fits_ledger(cost_bytes, room) && room.spare_bytes.is_none_or(|spare| cost_bytes <= spare)
    }

    fn fits_ledger(&self, cost_bytes: u64, room: &Room<'_>) -> bool {
        self.running.len() < room.capacity.max_sequences && self.reserved_bytes.saturating_add(cost_bytes) <= room.budget_bytes
    }

    /// Whether the queue's head waits for the machine's memory and for nothing else.
    pub fn is_squeezed(&self, room: &Room<'_>) -> bool {
        self.queue.front().is_some_and(|head| self.fits_ledger(head.cost_bytes, room) && !self.fits(head.cost_bytes, room))
    }

    /// A request is over, wherever it was. One that was denied or abandoned before is not here any more.
    pub fn ended(&mut self, ticket: Ticket) {
        match self.running.remove(&ticket) {
            Some(running) => self.reserved_bytes -= running.cost_bytes,
            None => self.queue.retain(|waiting| waiting.ticket != ticket),
        }
    }

    /// The requests of this life and their places, the longest running first as place 1: all, or those that are held
    /// back.
    pub fn running(&self, epoch: Epoch, all: bool) -> impl Iterator<Item = (Ticket, Ask, u32)> {
        let running = self.running.iter().filter(move |(_, running)| running.epoch == epoch);
        let held_back = |running: &Running| running.permit.is_some_and(|permit| permit.is_held_back());
        let places = (1..).zip(running).filter(move |(_, (_, running))| all || held_back(running));
        places.map(|(place, (ticket, running))| (*ticket, running.ask, place))
    }

    /// A running request got this route; returns whether it had another.
    pub fn routed(&mut self, ticket: Ticket, permit: Permit) -> bool {
        self.running.get_mut(&ticket).is_some_and(|running| running.permit.replace(permit) != Some(permit))
    }

    /// Whether a running request has such a permit.
    pub fn is_anybody(&self, such: impl Fn(&Permit) -> bool) -> bool {
        self.running.values().any(|running| running.permit.as_ref().is_some_and(&such))
    }

    /// A life of the target is over: what ran in it holds nothing any more.
    pub fn abandon(&mut self, epoch: Epoch) {
        self.running.retain(|_, running| running.epoch != epoch);
        self.reserved_bytes = self.running.values().map(|running| running.cost_bytes).sum();
    }

    /// Takes out who has waited too long.
    pub fn expire(&mut self, now: Millis) -> Vec<(Ticket, Denial)> {
        let mut over = Vec::new();
        self.queue.retain(|waiting| {
            if waiting.until > now {
                return true;
            }
            let waited_ms = now.since(waiting.since);
            let late = waiting.ask.deadline.is_some_and(|deadline| deadline <= now);
            over.push((
                waiting.ticket,
                if late { Denial::DeadlinePassed { waited_ms } } else { Denial::QueueWait { waited_ms } },
            ));
            false
        });
        over
    }

    /// Takes out everybody who waits.
    pub fn turn_away(&mut self) -> Vec<Ticket> {
        self.queue.drain(..).map(|waiting| waiting.ticket).collect()
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

    /// What the running ones may come to hold.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity() -> Capacity {
        Capacity { classes: vec![(256, 100), (512, 200), (1024, 400)], max_sequences: 2 }
    }

    #[test]
    fn a_request_costs_the_first_class_that_holds_it() {
        let cost = |positions| capacity().cost(positions);
        assert_eq!([cost(1), cost(256), cost(257), cost(1024), cost(1025)], [Some(100), Some(100), Some(200), Some(400), None]);
        assert!(capacity().is_usable());
        assert!(!Capacity::default().is_usable());
        assert!(!Capacity { classes: vec![(512, 1), (256, 2)], max_sequences: 1 }.is_usable());
    }

    #[test]
    fn a_queue_without_places_still_lets_through_what_fits() {
        let capacity = capacity();
        let room = Room { epoch: Epoch(1), capacity: &capacity, budget_bytes: 250, spare_bytes: None };
        let mut admission = Admission::new(0, 1_000);
        let ask = Ask {
            prompt_tokens: 100,
            max_tokens: 300,
            context_tokens: 100,
            deadline: None,
            wish: RouteWish::Auto,
            images: false,
        };
        assert_eq!(admission.submit(Ticket(1), ask, &room, Millis(0)), Ok(()));
        assert!(admission.admit(&room, Millis(0)).is_some());
        assert_eq!(admission.submit(Ticket(2), ask, &room, Millis(0)), Err(Denial::QueueFull { limit: 0 }));
        admission.ended(Ticket(1));
        assert_eq!(admission.reserved_bytes(), 0);
    }

    #[test]
    fn a_full_machine_lets_nobody_in_whatever_the_ledger_says() {
        let capacity = capacity();
        let room = |spare_bytes| Room { epoch: Epoch(1), capacity: &capacity, budget_bytes: 1_000, spare_bytes };
        let mut admission = Admission::new(4, 1_000);
        let ask = Ask {
            prompt_tokens: 100,
            max_tokens: 300,
            context_tokens: 100,
            deadline: None,
            wish: RouteWish::Auto,
            images: false,
        };
        assert_eq!(admission.submit(Ticket(1), ask, &room(Some(199)), Millis(0)), Ok(()));
        assert_eq!(admission.admit(&room(Some(199)), Millis(0)), None);
        assert!(admission.is_squeezed(&room(Some(199))) && !admission.is_squeezed(&room(Some(200))));
        assert!(!admission.is_squeezed(&Room { budget_bytes: 100, ..room(Some(199)) }), "the ledger is full as well");
        assert!(admission.admit(&room(Some(200)), Millis(0)).is_some());
        assert_eq!(admission.reserved_bytes(), 200);
        assert!(!admission.is_squeezed(&room(Some(0))), "nobody waits");
    }
}
