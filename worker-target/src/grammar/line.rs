//! The compiler's one seat, and the requests that wait for it. Keys are served in turn, requests of
//! one key in the order of their arrival: many grammars of one client delay another client's grammar
//! by one compilation. A request that has gone gives up its place.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

/// Requests that may wait for the seat. Of more, the key with most waiting requests loses its newest.
pub(super) const MAX_WAITING: usize = 64;

/// The right to compile; a drop passes it on.
#[derive(Debug)]
pub(super) struct Seat(Option<Arc<Line>>);

/// More requests wait than may.
#[derive(Debug)]
pub(super) struct LineFull;

/// The seat and the line before it.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<LineState>);

#[derive(Debug, Default)]
struct LineState {
    is_taken: bool,
    /// Never an empty one.
    fifos: BTreeMap<u64, VecDeque<oneshot::Sender<Seat>>>,
    /// The keys of `fifos`, each once; the next to be served first.
    turns: VecDeque<u64>,
}

impl Line {
    /// Waits for the seat. Dropping the future gives the place up.
    ///
    /// # Errors
    /// Too many requests wait, and most of them are of this key.
    pub(super) async fn seat(self: &Arc<Self>, key: u64) -> Result<Seat, LineFull> {
        let turn = {
            let mut waiting = self.0.lock().expect("no panic while it is held");
            if !waiting.is_taken {
                waiting.is_taken = true;
                return Ok(Seat(Some(Arc::clone(self))));
            }
            waiting.join(key)?
        };
        turn.await.map_err(|_| LineFull)
    }

    /// Gives the seat to the next request that still waits.
    fn pass_on(self: &Arc<Self>) {
        let mut seat = Seat(Some(Arc::clone(self)));
        let mut waiting = self.0.lock().expect("no panic while it is held");
        while let Some(next) = waiting.next() {
            match next.send(seat) {
                Ok(()) => return,
                // The request has gone.
                Err(back) => seat = back,
            }
        }
        seat.0 = None;
        waiting.is_taken = false;
    }

    /// Requests that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let mut waiting = self.0.lock().expect("no panic while it is held");
        waiting.forget_gone();
        waiting.fifos.values().map(VecDeque::len).sum()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            line.pass_on();
        }
    }
}

impl LineState {
    /// Puts a request of this key at the end of its FIFO.
    fn join(&mut self, key: u64) -> Result<oneshot::Receiver<Seat>, LineFull> {
        self.forget_gone();
        if self.fifos.values().map(VecDeque::len).sum::<usize>() >= MAX_WAITING {
            self.displace(key)?;
        }
        let (seat, turn) = oneshot::channel();
        if !self.fifos.contains_key(&key) {
            self.turns.push_back(key);
        }
        self.fifos.entry(key).or_default().push_back(seat);
        Ok(turn)
    }

    /// Makes a place for a request of this key, if another key has at least two more requests.
    fn displace(&mut self, key: u64) -> Result<(), LineFull> {
        let own = self.fifos.get(&key).map_or(0, VecDeque::len);
        let longest = self.fifos.values_mut().max_by_key(|fifo| fifo.len());
        let longest = longest.filter(|fifo| fifo.len() > own + 1).ok_or(LineFull)?;
        longest.pop_back();
        Ok(())
    }

    fn next(&mut self) -> Option<oneshot::Sender<Seat>> {
        let key = self.turns.pop_front()?;
        let fifo = self.fifos.get_mut(&key)?;
        let next = fifo.pop_front();
        if fifo.is_empty() {
            self.fifos.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        next
    }

    fn forget_gone(&mut self) {
        self.fifos.values_mut().for_each(|fifo| fifo.retain(|seat| !seat.is_closed()));
        self.fifos.retain(|_, fifo| !fifo.is_empty());
        self.turns.retain(|key| self.fifos.contains_key(key));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt as _;

    use super::*;

    type Turn = Pin<Box<dyn Future<Output = Result<Seat, LineFull>>>>;

    /// A request of this key, in its place in the line.
    fn joined(line: &Arc<Line>, key: u64) -> Turn {
        let line = Arc::clone(line);
        let mut turn: Turn = Box::pin(async move { line.seat(key).await });
        assert!((&mut turn).now_or_never().is_none(), "the seat is taken");
        turn
    }

    fn first(line: &Arc<Line>) -> Seat {
        line.seat(1).now_or_never().expect("at once").expect("the seat")
    }

    fn seated(turn: &mut Turn) -> Option<Seat> {
        turn.now_or_never().map(|seat| seat.expect("the seat"))
    }

    #[test]
    fn a_key_with_one_request_waits_for_one_compilation_of_a_key_with_many() {
        let line = Arc::default();
        let seat = first(&line);
        let mut many: Vec<Turn> = (0..40).map(|_| joined(&line, 1)).collect();
        let mut other = joined(&line, 2);
        drop(seat);
        let seat = seated(&mut many[0]).expect("the first of all");
        drop(seat);
        let seat = seated(&mut other).expect("the other key's turn");
        drop(seat);
        drop(seated(&mut many[1]).expect("in the order of arrival"));
        assert!(seated(&mut many[3]).is_none());
    }

    #[test]
    fn requests_that_have_gone_are_passed_over_and_free_their_places() {
        let line = Arc::default();
        let seat = first(&line);
        let gone: Vec<Turn> = (0..MAX_WAITING).map(|_| joined(&line, 1)).collect();
        assert!(line.seat(1).now_or_never().expect("at once").is_err(), "full");
        drop(gone);
        let mut next = joined(&line, 1);
        assert_eq!(line.len(), 1);
        // The seat is on its way to a request that goes before it takes it.
        let late = joined(&line, 1);
        drop(seat);
        drop(seated(&mut next).expect("the seat"));
        drop(late);
        drop(first(&line));
    }

    #[test]
    fn in_a_full_line_the_key_with_most_requests_loses_its_newest() {
        let line = Arc::default();
        let _seat = first(&line);
        let mut many: Vec<Turn> = (0..MAX_WAITING).map(|_| joined(&line, 1)).collect();
        let _other = joined(&line, 2);
        let newest = many.last_mut().expect("many").now_or_never();
        assert!(newest.expect("at once").is_err(), "displaced");
        assert_eq!(line.len(), MAX_WAITING);
    }
}
