//! Waiting in turn: parties take turns, and within a party the first that came is the first that is
//! served. A party that asks for much thus delays itself, and another one by one turn at most.
//!
//! [`Turns`] is the order, and [`seats::Seats`] are places for work that takes long.

pub mod seats;

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

/// Whose turns and bytes are counted together. With keys that is a key's name. Without keys it is
/// the peer, as for connections. Clients on this machine share one address: there it is the
/// connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Party(Option<Arc<str>>);

impl Party {
    /// The owner of the key with this name.
    pub fn of_key(name: &str) -> Self {
        Self(Some(format!("key {name}").into()))
    }

    /// The client at this peer, as the table of connections writes it.
    pub fn of_peer(peer: impl Display) -> Self {
        Self(Some(format!("peer {peer}").into()))
    }

    /// The client of this connection.
    pub fn of_connection(id: u64) -> Self {
        Self(Some(format!("connection {id}").into()))
    }
}

impl Display for Party {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("no client"))
    }
}

/// Whether the one whose turn it is can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is served.
    Fits,
    /// It has its share already. The others may be served before it.
    PassOver,
    /// It keeps its turn, and nothing else is served before it.
    Blocks,
}

/// Those that wait.
#[derive(Debug)]
pub struct Turns<W> {
    /// Parties that wait, the next one first.
    order: VecDeque<Party>,
    /// Waiting entries of each party, first come first. A party without any has no entry.
    waiting: HashMap<Party, VecDeque<W>>,
}

impl<W> Default for Turns<W> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashMap::new() }
    }
}

impl<W> Turns<W> {
    /// One more waits.
    pub fn push(&mut self, party: &Party, waiter: W) {
        let queue = self.waiting.entry(party.clone()).or_insert_with(|| {
            self.order.push_back(party.clone());
            VecDeque::new()
        });
        queue.push_back(waiter);
    }

    /// Takes out the one that is served next. Its party is the last one from then on.
    pub fn next(&mut self, fit: impl Fn(&Party, &W) -> Fit) -> Option<(Party, W)> {
        let mut place = None;
        for (at, party) in self.order.iter().enumerate() {
            let first = self.waiting.get(party)?.front()?;
            match fit(party, first) {
                Fit::PassOver => {}
                Fit::Blocks => return None,
                Fit::Fits => {
                    place = Some(at);
                    break;
                }
            }
        }
        let party = self.order.remove(place?)?;
        let queue = self.waiting.get_mut(&party)?;
        let first = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&party);
        } else {
            self.order.push_back(party.clone());
        }
        Some((party, first))
    }

    /// Takes out those of the party that do not wait any more. Returns how many there were.
    pub fn leave(&mut self, party: &Party, left: impl Fn(&W) -> bool) -> usize {
        let Some(queue) = self.waiting.get_mut(party) else { return 0 };
        let before = queue.len();
        queue.retain(|waiter| !left(waiter));
        let gone = before - queue.len();
        if queue.is_empty() {
            self.waiting.remove(party);
            self.order.retain(|one| one != party);
        }
        gone
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(waiting: &[(&str, u32)]) -> Turns<u32> {
        let mut turns = Turns::default();
        for (party, waiter) in waiting {
            turns.push(&Party::of_key(party), *waiter);
        }
        turns
    }

    fn all(turns: &mut Turns<u32>) -> Vec<u32> {
        std::iter::from_fn(|| turns.next(|_, _| Fit::Fits)).map(|(_, waiter)| waiter).collect()
    }

    #[test]
    fn parties_take_turns_and_each_is_served_in_the_order_of_arrival() {
        let mut flood =
            turns(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("a", 5), ("c", 6), ("b", 7)]);
        assert_eq!(flood.len(), 7);
        assert_eq!(all(&mut flood), [1, 4, 6, 2, 7, 3, 5]);
        assert!(flood.is_empty() && flood.waiting.is_empty());
    }

    #[test]
    fn a_party_at_its_share_is_passed_over_and_one_that_does_not_fit_keeps_its_turn() {
        let fit = |party: &Party, waiter: &u32| match waiter {
            0 => Fit::Blocks,
            _ if *party == Party::of_key("a") => Fit::PassOver,
            _ => Fit::Fits,
        };
        let mut some = turns(&[("a", 1), ("b", 2), ("c", 0), ("b", 3)]);
        assert_eq!(some.next(fit), Some((Party::of_key("b"), 2)));
        assert_eq!(some.next(fit), None, "c keeps its turn before b");
        assert_eq!(some.leave(&Party::of_key("c"), |waiter| *waiter == 0), 1);
        assert_eq!(some.next(fit), Some((Party::of_key("b"), 3)));
        assert_eq!((some.next(fit), some.len()), (None, 1));
    }
}
