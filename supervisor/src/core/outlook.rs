//! Whether a first token can come before a deadline, as far as measurements say. A request that has
//! no chance is refused when it comes: it would cost others time and its client nothing but
//! waiting.
//!
//! Refusing wrongly is worse than serving in vain, so both figures are what the *fastest* of lately
//! measured requests showed, less a margin: a prompt that the prefix cache knows, or a machine that
//! has just become free, is never counted on to be slow. Nothing is refused before there are enough
//! measurements.

use std::collections::VecDeque;

/// Measurements that are remembered.
const KEPT: usize = 64;
/// Fewer than this say nothing.
const ENOUGH: usize = 8;
/// A measurement of fewer tokens is one of what a request costs however short it is.
const FEWEST_TOKENS: u64 = 32;
/// Share of the fastest that is counted on.
const MARGIN: f64 = 0.8;
/// Of so many that have no chance one is tried all the same: if the machine has become faster,
/// nobody else would show it.
const TRIED: u64 = 16;

/// The fastest of what was measured lately.
#[derive(Clone, Debug, Default)]
struct Fastest(VecDeque<f64>);

impl Fastest {
    fn learn(&mut self, value: f64) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    fn bound(&self) -> Option<f64> {
        (self.0.len() >= ENOUGH)
            .then(|| self.0.iter().copied().fold(f64::INFINITY, f64::min) * MARGIN)
    }
}

/// What is known of how long first tokens take.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// Milliseconds from admission to the first token, for each token of the prompt.
    token_ms: Fastest,
    /// Milliseconds between two that were let out of a queue, one behind the other.
    place_ms: Fastest,
    hopeless: u64,
}

impl Outlook {
    /// A request with `tokens` to read had its first token `ms` after it was let in.
    pub fn first_token(&mut self, tokens: u64, ms: u64) {
        if tokens >= FEWEST_TOKENS {
            self.token_ms.learn(ms as f64 / tokens as f64);
        }
    }

    /// Somebody was let out of the queue, `ms` after the one before, with others waiting all that
    /// time.
    pub fn let_out(&mut self, ms: u64) {
        self.place_ms.learn(ms as f64);
    }

    /// The earliest that a request with `tokens` to read can have its first token, behind `ahead`
    /// who wait: milliseconds from now. 0 where nothing was measured.
    pub fn earliest_ms(&self, tokens: u64, ahead: usize) -> u64 {
        let reading = self.token_ms.bound().unwrap_or(0.0) * tokens as f64;
        let waiting = self.place_ms.bound().unwrap_or(0.0) * ahead as f64;
        (reading + waiting) as u64
    }

    /// Whether it can be as early as `patience_ms` from now.
    ///
    /// # Errors
    /// The earliest it can be.
    pub fn is_in_time(&mut self, tokens: u64, ahead: usize, patience_ms: u64) -> Result<(), u64> {
        let earliest_ms = self.earliest_ms(tokens, ahead);
        if earliest_ms <= patience_ms {
            return Ok(());
        }
        self.hopeless += 1;
        if self.hopeless.is_multiple_of(TRIED) { Ok(()) } else { Err(earliest_ms) }
    }

    /// A new life of the target may be a faster one.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::dice::Dice;

    #[test]
    fn nothing_measured_refuses_nothing() {
        let mut outlook = Outlook::default();
        assert_eq!(outlook.earliest_ms(1 << 20, 64), 0);
        for _ in 0..ENOUGH - 1 {
            outlook.first_token(1_000, 500);
        }
        // What is short says nothing of how fast prompts are read.
        outlook.first_token(FEWEST_TOKENS - 1, 500);
        assert_eq!(outlook.earliest_ms(1 << 20, 64), 0);
        outlook.first_token(1_000, 500);
        assert_eq!(outlook.earliest_ms(10_000, 0), 4_000);
        outlook.forget();
        assert_eq!(outlook.earliest_ms(10_000, 0), 0);
    }

    #[test]
    fn the_fastest_counts_and_is_forgotten_in_time() {
        let mut outlook = Outlook::default();
        for _ in 0..KEPT {
            outlook.first_token(1_000, 1_000);
            outlook.let_out(100);
        }
        assert_eq!(outlook.earliest_ms(1_000, 10), 800 + 800);
        // The prefix cache had all of it.
        outlook.first_token(1_000, 0);
        assert_eq!(outlook.earliest_ms(1_000, 0), 0);
        for _ in 0..KEPT {
            outlook.first_token(1_000, 1_000);
        }
        assert_eq!(outlook.earliest_ms(1_000, 0), 800);
    }

    #[test]
    fn one_of_many_is_tried_and_shows_that_it_is_faster_now() {
        let mut outlook = Outlook::default();
        for _ in 0..KEPT {
            outlook.first_token(1_000, 10_000);
        }
        let tries = (0..TRIED).filter(|_| outlook.is_in_time(1_000, 0, 2_000) == Ok(())).count();
        assert_eq!(tries, 1);
        outlook.first_token(1_000, 100);
        assert_eq!(outlook.is_in_time(1_000, 0, 2_000), Ok(()));
    }

    /// One who reads prompts one behind the other, at a speed that wanders, some of them known
    /// already.
    struct Reader {
        dice: Dice,
        now: f64,
        speed: f64,
        /// Of one hundred prompts, how many are known.
        known: u64,
    }

    impl Reader {
        fn time_for(&mut self, tokens: u64) -> f64 {
            let wander = 0.97 + 0.06 * self.dice.roll(1_000) as f64 / 1_000.0;
            self.speed = (self.speed * wander).clamp(0.2, 2.0);
            let noise = 1.0 + 0.3 * self.dice.roll(1_000) as f64 / 1_000.0;
            let tokens = if self.dice.roll(100) < self.known { tokens / 20 } else { tokens };
            5.0 + tokens as f64 * self.speed * noise
        }
    }

    /// Requests with deadlines of all lengths: (refused wrongly, refused, those that would have
    /// made it).
    fn simulate(seed: u64, known: u64) -> (u64, u64, u64) {
        let mut reader = Reader { dice: Dice::new(seed), now: 0.0, speed: 0.5, known };
        let mut outlook = Outlook::default();
        let (mut wrong, mut refused, mut in_time) = (0, 0, 0);
        for _ in 0..4_000 {
            let tokens = 50 + reader.dice.roll(8_000);
            let patience_ms = 50 + reader.dice.roll(6_000);
            let infeasible = outlook.is_in_time(tokens, 0, patience_ms).is_err();
            // What would have been, had it been served.
            let took_ms = reader.time_for(tokens);
            let makes_it = took_ms <= patience_ms as f64;
            (refused, in_time) = (refused + u64::from(infeasible), in_time + u64::from(makes_it));
            wrong += u64::from(infeasible && makes_it);
            if !infeasible {
                outlook.first_token(tokens, took_ms as u64);
            }
            reader.now += took_ms;
        }
        (wrong, refused, in_time)
    }

    #[test]
    fn hardly_anybody_is_refused_wrongly() {
        for (known, least_refused) in [(0, 200), (5, 0), (50, 0)] {
            for seed in 0..8 {
                let (wrong, refused, in_time) = simulate(seed, known);
                assert!(
                    wrong * 100 <= in_time,
                    "seed {seed}, {known} % known: {wrong} of {in_time} refused wrongly"
                );
                assert!(
                    refused >= least_refused,
                    "seed {seed}, {known} % known: only {refused} refused"
                );
            }
        }
    }
}
