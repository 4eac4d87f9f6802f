//! A bounded number of seats for work that takes long, given in turn.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::{Fit, Party, Turns};
use crate::lock::lock;

/// The seats.
#[derive(Clone, Debug)]
pub struct Seats(Arc<Mutex<Room>>);

#[derive(Debug)]
struct Room {
    free: usize,
    turns: Turns<Waiter>,
    next_id: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    given: oneshot::Sender<()>,
}

/// A seat; given back when dropped.
#[derive(Debug)]
pub struct Seat(Seats);

impl Seats {
    /// This number of seats, and one at least.
    pub fn new(seats: usize) -> Self {
        let room = Room { free: seats.max(1), turns: Turns::default(), next_id: 0 };
        Self(Arc::new(Mutex::new(room)))
    }

    /// Waits for a seat. A caller that stops waiting leaves the queue.
    pub async fn take(&self, party: &Party) -> Seat {
        let mut waiting = {
            let mut room = lock(&self.0);
            if room.free > 0 && room.turns.is_empty() {
                room.free -= 1;
                return Seat(self.clone());
            }
            let (id, (given, taken)) = (room.next_id, oneshot::channel());
            room.next_id += 1;
            room.turns.push(party, Waiter { id, given });
            Waiting { seats: self.clone(), party: party.clone(), id, taken: Some(taken) }
        };
        if let Some(taken) = &mut waiting.taken {
            // The sender stays in the queue until it is used.
            let _ = taken.await;
        }
        waiting.taken = None;
        Seat(self.clone())
    }

    /// Seats that are not taken.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        lock(&self.0).free
    }
}

impl Room {
    fn give_back(&mut self) {
        match self.turns.next(|_, _| Fit::Fits) {
            // The receiver leaves the queue before it goes, so it is there.
            Some((_, Waiter { given, .. })) => drop(given.send(())),
            None => self.free += 1,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.0.0).give_back();
    }
}

/// A place in the queue.
struct Waiting {
    seats: Seats,
    party: Party,
    id: u64,
    /// `None` once the seat is taken.
    taken: Option<oneshot::Receiver<()>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.taken.is_none() {
            return;
        }
        let mut room = lock(&self.seats.0);
        let id = self.id;
        // One that is not in the queue was given a seat that it did not take.
        if room.turns.leave(&self.party, |waiter| waiter.id == id) == 0 {
            room.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt as _;

    use super::*;

    type Taking<'a> = Pin<Box<dyn Future<Output = Seat> + 'a>>;

    /// Begins to wait.
    fn wait<'a>(seats: &'a Seats, party: &'a Party) -> Taking<'a> {
        let mut taking: Taking<'a> = Box::pin(seats.take(party));
        assert!((&mut taking).now_or_never().is_none(), "no seat is free");
        taking
    }

    fn ready(taking: &mut Taking<'_>) -> Option<Seat> {
        taking.now_or_never()
    }

    #[test]
    fn one_message_beside_a_flood_of_another_party_is_served_after_one_of_the_flood() {
        let (seats, alice, bob) = (Seats::new(1), Party::of_key("a"), Party::of_key("b"));
        let first = seats.take(&alice).now_or_never().expect("free");
        let mut flood: Vec<_> = (0..24).map(|_| wait(&seats, &alice)).collect();
        let mut his = wait(&seats, &bob);
        drop(first);
        let second = ready(&mut flood[0]).expect("the flood's turn");
        assert!(ready(&mut his).is_none() && ready(&mut flood[1]).is_none());
        drop(second);
        assert!(ready(&mut flood[1]).is_none());
        drop(ready(&mut his).expect("his turn"));
        assert!(ready(&mut flood[1]).is_some());
    }

    #[test]
    fn a_caller_that_leaves_takes_no_seat_with_it() {
        let (seats, party) = (Seats::new(2), Party::default());
        let taken = [(); 2].map(|()| seats.take(&party).now_or_never().expect("free"));
        let (leaves, given, mut stays) =
            (wait(&seats, &party), wait(&seats, &party), wait(&seats, &party));
        drop(leaves);
        drop(taken);
        // Given a seat, and gone before it was taken.
        drop(given);
        let seat = ready(&mut stays).expect("a seat");
        assert_eq!(seats.free(), 1);
        drop((seat, stays));
        assert_eq!(seats.free(), 2);
    }
}
