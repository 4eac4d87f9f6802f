//! What is known of the service and what a person is about to order. Inputs go in, actions come
//! out: no clock, no socket, no terminal.

use std::collections::VecDeque;

use paceline_proto::convert::service::ServiceStatus;
use paceline_proto::v1::Event;
use paceline_vocabulary::Millis;

use super::dialog::{Dialog, Outcome};
use super::key::Key;
use super::order::Order;
use super::rates::Rates;
use super::throughput::Throughput;

/// Events that are kept for the page: more than any terminal has rows.
const MOST_EVENTS: usize = 200;
/// Orders that may run at once. A drain may take long, and its undoing must be possible meanwhile.
const MOST_ORDERS: usize = 4;

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// The supervisor's snapshot, or why there is none.
    Status(Result<Box<ServiceStatus>, String>),
    /// The events begin anew: the past ones follow, then each new one.
    EventsBegin,
    /// A change of state.
    Changed(Box<Event>),
    /// The gateway's throughput, or why there is none.
    Throughput(Result<Throughput, String>),
    /// A key.
    Key(Key),
    /// An order ended, with a line about it or the reason why it was not carried out.
    Ended {
        /// The number of the order.
        number: u64,
        /// The line or the reason.
        outcome: Result<String, String>,
    },
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send an order, and report its end under this number.
    Send {
        /// Number of the order.
        number: u64,
        /// The order.
        order: Order,
    },
    /// End the command.
    Quit,
}

/// An order that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningOrder {
    number: u64,
    /// The order.
    pub order: Order,
    /// When it was given.
    pub since: Millis,
}

/// A line about the last order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The line.
    pub text: String,
    /// Whether it is a failure.
    pub is_failure: bool,
}

/// A snapshot of the supervisor.
#[derive(Debug)]
pub struct Snapshot {
    /// The snapshot.
    pub status: Box<ServiceStatus>,
    /// When it came.
    pub at: Millis,
}

/// Phase of the whole service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShownPhase {
    /// Term of the supervisor that reported it.
    term: u64,
    phase: String,
}

/// All that is known.
#[derive(Debug, Default)]
pub struct State {
    /// The last snapshot.
    pub snapshot: Option<Snapshot>,
    /// Why the supervisor does not answer now.
    pub silent: Option<String>,
    /// Figures of the last minute.
    pub rates: Rates,
    /// The gateway's throughput, or why there is none; `None` before the first answer.
    pub throughput: Option<Result<Throughput, String>>,
    /// The last events, oldest first.
    pub events: VecDeque<Event>,
    /// The question that waits for a key.
    pub dialog: Option<Dialog>,
    /// Orders that run, oldest first.
    pub orders: Vec<RunningOrder>,
    /// The line about the last order.
    pub message: Option<Message>,
    /// The last event about the whole service.
    service: Option<ShownPhase>,
    last_number: u64,
}

impl State {
    /// Takes an input in.
    pub fn on(&mut self, input: Input, now: Millis) -> Option<Action> {
        match input {
            Input::Status(Ok(status)) => {
                self.rates.take(&status, now);
                self.silent = None;
                self.snapshot = Some(Snapshot { status, at: now });
            }
            Input::Status(Err(why)) => self.silent = Some(why),
            Input::EventsBegin => {
                self.events.clear();
                self.service = None;
            }
            Input::Changed(event) => self.changed(*event),
            Input::Throughput(throughput) => self.throughput = Some(throughput),
            Input::Key(key) => return self.pressed(key, now),
            Input::Ended { number, outcome } => {
                self.orders.retain(|running| running.number != number);
                self.message = Some(match outcome {
                    Ok(text) => Message { text, is_failure: false },
                    Err(text) => Message { text, is_failure: true },
                });
            }
        }
        None
    }

    /// Whether an operator has drained the service, by the last event about it.
    pub fn is_drained(&self) -> bool {
        let term = self.snapshot.as_ref().map(|snapshot| snapshot.status.term);
        let held = |service: &ShownPhase| Some(service.term) == term && service.phase == "held";
        self.service.as_ref().is_some_and(held)
    }

    fn changed(&mut self, event: Event) {
        if event.kind == "service" {
            self.service = Some(ShownPhase { term: event.term, phase: event.to.clone() });
        }
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn pressed(&mut self, key: Key, now: Millis) -> Option<Action> {
        let Some(dialog) = self.dialog.take() else {
            return self.pressed_on_page(key);
        };
        match dialog.press(key) {
            Outcome::Ask(dialog) => self.dialog = Some(dialog),
            Outcome::Closed => {
                self.message =
                    Some(Message { text: "nothing was ordered".into(), is_failure: false })
            }
            Outcome::Give(order) => {
                self.last_number += 1;
                let number = self.last_number;
                self.message = None;
                self.orders.push(RunningOrder { number, order: order.clone(), since: now });
                return Some(Action::Send { number, order });
            }
        }
        None
    }

    fn pressed_on_page(&mut self, key: Key) -> Option<Action> {
        let opened = match key {
            Key::Char('q') | Key::Interrupt => return Some(Action::Quit),
            Key::Char(key) => Dialog::opened_by(key),
            _ => None,
        };
        if opened.is_some() && self.orders.len() >= MOST_ORDERS {
            let text = format!(
                "{MOST_ORDERS} orders run; the next one can be given when one of them has ended"
            );
            self.message = Some(Message { text, is_failure: true });
            return None;
        }
        // Any key says that the line was read.
        self.message = None;
        self.dialog = opened;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Process;

    const NOW: Millis = Millis(7_000);

    fn press(state: &mut State, keys: &str) -> Option<Action> {
        keys.chars().fold(None, |_, key| state.on(Input::Key(Key::Char(key)), NOW))
    }

    fn event(term: u64, number: u64, kind: &str, to: &str) -> Input {
        let (kind, to) = (kind.into(), to.into());
        Input::Changed(Box::new(Event { term, number, kind, to, ..Default::default() }))
    }

    fn status(term: u64) -> Input {
        Input::Status(Ok(Box::new(ServiceStatus { term, ..Default::default() })))
    }

    #[test]
    fn an_order_is_sent_after_its_question_and_its_end_becomes_a_line() {
        let mut state = State::default();
        assert_eq!(press(&mut state, "rt"), None);
        assert!(state.dialog.is_some());
        let order = Order::Restart(Process::Target);
        assert_eq!(press(&mut state, "y"), Some(Action::Send { number: 1, order }));
        assert_eq!((state.dialog.is_none(), state.orders[0].since), (true, NOW));
        state.on(Input::Ended { number: 1, outcome: Err("no".into()) }, NOW);
        let message = Message { text: "no".into(), is_failure: true };
        assert_eq!((state.orders.len(), state.message), (0, Some(message)));
    }

    #[test]
    fn q_ends_the_page_and_not_a_dialog() {
        let mut state = State::default();
        assert_eq!(press(&mut state, "rq"), None);
        assert!(state.dialog.is_some());
        assert_eq!(state.on(Input::Key(Key::Interrupt), NOW), None);
        assert_eq!(press(&mut state, "q"), Some(Action::Quit));
        assert_eq!(state.on(Input::Key(Key::Interrupt), NOW), Some(Action::Quit));
    }

    #[test]
    fn orders_at_once_are_bounded() {
        let mut state = State::default();
        for number in 1..=4 {
            let order = Order::Drain;
            assert_eq!(press(&mut state, "ddy"), Some(Action::Send { number, order }));
        }
        assert_eq!((press(&mut state, "d"), state.dialog.as_ref()), (None, None));
        assert!(state.message.as_ref().is_some_and(|message| message.is_failure));
        state.on(Input::Ended { number: 2, outcome: Ok("drained".into()) }, NOW);
        assert!(matches!(press(&mut state, "duy"), Some(Action::Send { number: 5, .. })));
    }

    #[test]
    fn events_are_bounded_and_begin_anew_with_each_connection() {
        let mut state = State::default();
        for number in 1..1_000 {
            state.on(event(2, number, "phase", "ready"), NOW);
        }
        assert_eq!((state.events.len(), state.events[0].number), (MOST_EVENTS, 800));
        state.on(status(1), NOW);
        state.on(event(1, 1_000, "service", "held"), NOW);
        state.on(Input::EventsBegin, NOW);
        assert!(!state.is_drained() && state.events.is_empty());
        // A service whose runtime directory was removed counts from one again.
        state.on(event(1, 1, "phase", "ready"), NOW);
        assert_eq!(state.events.len(), 1);
    }

    #[test]
    fn a_drain_is_known_by_its_event_and_ends_with_the_supervisor() {
        let mut state = State::default();
        state.on(status(3), NOW);
        state.on(event(3, 1, "service", "held"), NOW);
        assert!(state.is_drained());
        state.on(event(3, 2, "service", "serving"), NOW);
        assert!(!state.is_drained());
        state.on(event(3, 3, "service", "held"), NOW);
        state.on(status(4), NOW);
        assert!(!state.is_drained());
    }

    #[test]
    fn the_last_snapshot_stays_when_the_supervisor_is_silent() {
        let mut state = State::default();
        state.on(status(3), NOW);
        state.on(Input::Status(Err("gone".into())), NOW + 1);
        assert_eq!(state.silent.as_deref(), Some("gone"));
        assert_eq!(state.snapshot.as_ref().map(|snapshot| snapshot.at), Some(NOW));
        state.on(status(4), NOW + 2);
        assert_eq!(state.silent, None);
    }
}
