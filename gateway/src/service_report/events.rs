//! The last changes of state, in a ring. The supervisor sends them, those of its predecessors
//! included; each has the supervisor's term and a number within it.

use std::collections::VecDeque;
use std::sync::Mutex;

use paceline_protocols::shorten::shorten;
use serde::Serialize;
use utoipa::ToSchema;

use crate::lock::lock;

/// Events that are kept and shown.
pub const SHOWN: usize = 30;
/// Characters of a cause. The cause of a crash has the last lines of a log; `paceline events` shows
/// all of them.
const MAX_CAUSE_CHARS: usize = 400;

/// A change of state, as `paceline events --json` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServiceEvent {
    /// When, RFC 3339 in UTC.
    pub time: String,
    /// Number of the supervisor's life.
    pub term: u64,
    /// Number of the event within the term.
    pub number: u64,
    /// `phase` of a worker, `link`, `drafter`, `service`, `gateway`, `supervisor`, `order` or
    /// `policy`.
    pub kind: String,
    /// The process, the key of the policy or the drafter.
    pub subject: String,
    /// State before; empty if it had none.
    pub from: String,
    /// State after.
    pub to: String,
    /// Why; at most 400 characters.
    pub cause: String,
}

/// The last events.
#[derive(Debug, Default)]
pub struct EventLog {
    /// Oldest first.
    events: Mutex<VecDeque<ServiceEvent>>,
}

impl EventLog {
    /// Adds an event. One that is not newer than the last one is known already: a stream that is
    /// opened again begins with known events.
    pub fn add(&self, mut event: ServiceEvent) {
        shorten(&mut event.cause, MAX_CAUSE_CHARS);
        let mut events = lock(&self.events);
        let place = |event: &ServiceEvent| (event.term, event.number);
        if events.back().is_some_and(|last| place(last) >= place(&event)) {
            return;
        }
        if events.len() == SHOWN {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// All events, newest first.
    pub fn newest_first(&self) -> Vec<ServiceEvent> {
        let events = lock(&self.events);
        events.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(term: u64, number: u64) -> ServiceEvent {
        ServiceEvent { term, number, ..ServiceEvent::default() }
    }

    fn places(log: &EventLog) -> Vec<(u64, u64)> {
        log.newest_first().iter().map(|event| (event.term, event.number)).collect()
    }

    #[test]
    fn events_come_newest_first_and_each_once() {
        let log = EventLog::default();
        // The second stream begins with what the first one had, and its supervisor is another.
        for (term, number) in [(1, 1), (1, 2), (1, 1), (1, 2), (1, 3), (2, 1), (1, 9), (2, 1)] {
            log.add(event(term, number));
        }
        assert_eq!(places(&log), [(2, 1), (1, 3), (1, 2), (1, 1)]);
    }

    #[test]
    fn the_number_of_events_and_the_length_of_causes_are_bounded() {
        let log = EventLog::default();
        let cause = "é".repeat(MAX_CAUSE_CHARS + 1);
        for number in 0..100 {
            log.add(ServiceEvent { cause: cause.clone(), ..event(1, number) });
        }
        let events = log.newest_first();
        assert_eq!((events.len(), events[0].number), (SHOWN, 99));
        assert_eq!(events[0].cause, "é".repeat(MAX_CAUSE_CHARS) + "...");
        log.add(ServiceEvent { cause: "é".repeat(MAX_CAUSE_CHARS), ..event(2, 1) });
        assert!(log.newest_first()[0].cause.ends_with('é'));
    }
}
