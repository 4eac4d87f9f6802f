//! The restart budget of one process: how soon after an unexpected end the next start may come, and
//! when the process is not started for a while. The supervisor uses it for its workers, `paceline
//! serve` for gateway and supervisor.
//!
//! The first restart has no pause. Later restarts of a process that came up pause for
//! `RestartPauses::first_ms`. Restarts of a process that did not come up pause longer each time. At
//! most `limit` starts are made in any period, the asked one included. The restart after them opens
//! the circuit: the next try is 60 s away, the one after that 120 s, up to 15 min, until an epoch
//! has lasted a whole period.

use std::collections::VecDeque;

use paceline_vocabulary::Millis;

/// First time that an open circuit stays open.
const OPEN_MS: u64 = 60_000;
/// It doubles to here.
const LONGEST_OPEN_MS: u64 = 900_000;

/// Pauses before restarts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPauses {
    /// Before the second restart; doubles with each restart of a process that does not come up ...
    pub first_ms: u64,
    /// ... to here.
    pub longest_ms: u64,
}

impl RestartPauses {
    /// Of a worker.
    pub const WORKER: Self = Self { first_ms: 500, longest_ms: 8_000 };
}

/// When the next start may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// At this time, which may be now.
    At(Millis),
    /// The budget is spent; the process is tried again at `retry`.
    Exhausted {
        /// Time of the next try.
        retry: Millis,
    },
}

/// One start of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    at: Millis,
    /// Nobody asked for it: it followed an unexpected end.
    unasked: bool,
}

/// The starts of one process.
#[derive(Clone, Debug)]
pub struct RestartBudget {
    limit: usize,
    period_ms: u64,
    pauses: RestartPauses,
    /// Starts within the last period.
    starts: VecDeque<Start>,
    /// How often the circuit was opened since an epoch last lasted a period.
    openings: u32,
}

impl RestartBudget {
    /// A full budget: `limit` starts in any `period_ms`.
    pub fn new(limit: u32, period_ms: u64, pauses: RestartPauses) -> Self {
        Self { limit: limit as usize, period_ms, pauses, starts: VecDeque::new(), openings: 0 }
    }

    /// The process is started at `now`; `unasked`: after an unexpected end, by
    /// [`RestartBudget::spend`].
    pub fn started(&mut self, unasked: bool, now: Millis) {
        self.forget(now);
        self.starts.push_back(Start { at: now, unasked });
    }

    /// Asks for a restart after an unexpected end at `now`; `came_up`: the process had been ready.
    pub fn spend(&mut self, came_up: bool, now: Millis) -> Restart {
        self.forget(now);
        // While the circuit is half open one failure is enough.
        if self.openings > 0 || self.starts.len() >= self.limit {
            return Restart::Exhausted { retry: self.open(now) };
        }
        let RestartPauses { first_ms, longest_ms } = self.pauses;
        let pause_ms = match self.starts.iter().filter(|start| start.unasked).count() as u32 {
            0 => 0,
            _ if came_up => first_ms,
            earlier => (first_ms << (earlier - 1).min(10)).min(longest_ms),
        };
        Restart::At(now + pause_ms)
    }

    fn forget(&mut self, now: Millis) {
        while self.starts.front().is_some_and(|start| now.since(start.at) >= self.period_ms) {
            self.starts.pop_front();
        }
    }

    /// Opens the circuit at once, after an end that an early start would only repeat; returns the
    /// time of the next try.
    pub fn open(&mut self, now: Millis) -> Millis {
        let pause = (OPEN_MS << self.openings.min(10)).min(LONGEST_OPEN_MS);
        self.openings = self.openings.saturating_add(1);
        now + pause
    }

    /// An epoch has lasted a whole period, or an operator starts over: nothing counts any more.
    pub fn clear(&mut self) {
        self.starts.clear();
        self.openings = 0;
    }

    /// Whether no restart counts at this time.
    pub fn is_clean(&self) -> bool {
        self.openings == 0 && !self.starts.iter().any(|start| start.unasked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_of_five_allows_five_starts_in_a_minute() {
        let mut budget = RestartBudget::new(5, 60_000, RestartPauses::WORKER);
        let mut now = Millis(1_000);
        budget.started(false, now);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let Restart::At(at) = budget.spend(false, now) else { panic!("within the budget") };
            pauses.push(at.since(now));
            budget.started(true, at);
            now = at + 100;
        }
        assert_eq!(pauses, [0, 500, 1_000, 2_000]);
        assert_eq!(budget.spend(false, now), Restart::Exhausted { retry: now + 60_000 });
    }

    #[test]
    fn a_process_that_came_up_pauses_half_a_second() {
        let mut budget = RestartBudget::new(1_000, 60_000, RestartPauses::WORKER);
        let mut pauses = Vec::new();
        for n in 0..20 {
            let Restart::At(at) = budget.spend(true, Millis(n * 1_000)) else {
                panic!("within the budget")
            };
            pauses.push(at.since(Millis(n * 1_000)));
            budget.started(true, at);
        }
        assert_eq!(pauses[..3], [0, 500, 500]);
        assert_eq!(pauses[19], 500);
    }

    #[test]
    fn an_open_circuit_doubles_to_fifteen_minutes_until_it_is_cleared() {
        let mut budget = RestartBudget::new(0, 60_000, RestartPauses::WORKER);
        let mut now = Millis(0);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let Restart::Exhausted { retry } = budget.spend(true, now) else {
                panic!("nothing is allowed")
            };
            pauses.push(retry.since(now) / 1_000);
            now = retry;
        }
        assert_eq!(pauses, [60, 120, 240, 480, 900, 900]);
        budget.clear();
        assert!(budget.is_clean());
        assert_eq!(budget.spend(true, now), Restart::Exhausted { retry: now + 60_000 });
    }

    #[test]
    fn starts_older_than_the_period_do_not_count() {
        let mut budget = RestartBudget::new(2, 60_000, RestartPauses::WORKER);
        budget.started(false, Millis(0));
        assert_eq!(budget.spend(true, Millis(1)), Restart::At(Millis(1)));
        budget.started(true, Millis(1));
        assert!(!budget.is_clean());
        assert_eq!(budget.spend(true, Millis(60_000)), Restart::At(Millis(60_500)));
        assert_eq!(budget.spend(true, Millis(60_001)), Restart::At(Millis(60_001)));
        assert!(budget.is_clean());
    }
}
