//! The restart budget of one process: how soon after a death the next start may come, and when it
//! is enough for now.
//!
//! The first restart has no pause. Later ones of a process that came up and died pause half a
//! second; ones of a process that did not come up pause longer and longer. The restart that would
//! be number `limit` in `period_ms`, counting the start that somebody asked for, is not made: at
//! most `limit` starts in any period. It opens the circuit: the next try is 60 s away, the one
//! after that 120 s, up to 15 min, until a life has lasted a whole period.

use std::collections::VecDeque;

use paceline_vocabulary::Millis;

const PAUSE_MS: u64 = 500;
const LONGEST_PAUSE_MS: u64 = 8_000;
const OPEN_MS: u64 = 60_000;
const LONGEST_OPEN_MS: u64 = 900_000;

/// When the next start may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Then, which may be now.
    At(Millis),
    /// The budget is spent; tried again by itself at `retry`.
    Exhausted {
        /// When.
        retry: Millis,
    },
}

/// Starts of one process, counted.
#[derive(Clone, Debug)]
pub struct RestartBudget {
    limit: usize,
    period_ms: u64,
    /// Starts within the last period, and whether nobody asked for them.
    starts: VecDeque<(Millis, bool)>,
    /// How often the circuit was opened since a life last lasted.
    openings: u32,
}

impl RestartBudget {
    /// A full budget: `limit` starts in any `period_ms`.
    pub fn new(limit: u32, period_ms: u64) -> Self {
        Self { limit: limit as usize, period_ms, starts: VecDeque::new(), openings: 0 }
    }

    /// The process is started at `now`; `unasked`: after a death, by [`RestartBudget::spend`].
    pub fn started(&mut self, unasked: bool, now: Millis) {
        self.forget(now);
        self.starts.push_back((now, unasked));
    }

    /// Asks for a restart after a death at `now`; `came_up`: that life had been ready.
    pub fn spend(&mut self, came_up: bool, now: Millis) -> Restart {
        self.forget(now);
        // While the circuit is half open one failure is enough.
        if self.openings > 0 || self.starts.len() >= self.limit {
            return Restart::Exhausted { retry: self.open(now) };
        }
        Restart::At(
            now + match self.starts.iter().filter(|(_, unasked)| *unasked).count() as u32 {
                0 => 0,
                _ if came_up => PAUSE_MS,
                earlier => (PAUSE_MS << (earlier - 1).min(10)).min(LONGEST_PAUSE_MS),
            },
        )
    }

    fn forget(&mut self, now: Millis) {
        while self.starts.front().is_some_and(|(at, _)| now.since(*at) >= self.period_ms) {
            self.starts.pop_front();
        }
    }

    /// Opens the circuit at once, after a death that another start right away cannot heal; returns
    /// when to try again.
    pub fn open(&mut self, now: Millis) -> Millis {
        let pause = (OPEN_MS << self.openings.min(10)).min(LONGEST_OPEN_MS);
        self.openings = self.openings.saturating_add(1);
        now + pause
    }

    /// A life has lasted a whole period, or an operator starts over: nothing counts any more.
    pub fn clear(&mut self) {
        self.starts.clear();
        self.openings = 0;
    }

    /// Whether no restart counts at this time.
    pub fn is_clean(&self) -> bool {
        self.openings == 0 && !self.starts.iter().any(|(_, unasked)| *unasked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_five_starts_in_a_minute_and_the_fifth_restart_is_refused() {
        let mut budget = RestartBudget::new(5, 60_000);
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
    fn a_process_that_comes_up_every_time_waits_half_a_second() {
        let mut budget = RestartBudget::new(1_000, 60_000);
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
    fn an_open_circuit_doubles_to_a_quarter_of_an_hour_until_a_life_lasts() {
        let mut budget = RestartBudget::new(0, 60_000);
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
        let mut budget = RestartBudget::new(2, 60_000);
        budget.started(false, Millis(0));
        assert_eq!(budget.spend(true, Millis(1)), Restart::At(Millis(1)));
        budget.started(true, Millis(1));
        assert!(!budget.is_clean());
        assert_eq!(budget.spend(true, Millis(60_000)), Restart::At(Millis(60_500)));
        assert_eq!(budget.spend(true, Millis(60_001)), Restart::At(Millis(60_001)));
        assert!(budget.is_clean());
    }
}
