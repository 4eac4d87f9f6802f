//! Whether a first token can arrive before a deadline, by measurements. A request that has no
//! chance is refused when it arrives: it would cost other requests time, and its client would wait
//! in vain.
//!
//! A wrong refusal is worse than a request served in vain. So both figures are those of the fastest
//! recently measured request, less a margin: a prompt in the prefix cache, or a machine that has
//! just become free, is never assumed to be slow. Nothing is refused before there are enough
//! measurements.

use std::collections::VecDeque;

/// Measurements that are kept.
const MAX_MEASUREMENTS: usize = 64;
/// Fewer measurements than this give no bound.
const MIN_MEASUREMENTS: usize = 8;
/// Shortest prompt that is measured, in tokens: below it the fixed cost of a request dominates.
const FEWEST_TOKENS: u64 = 32;
/// Share of the fastest measurement that is assumed.
const MARGIN: f64 = 0.8;
/// One of this many requests without a chance is served all the same: if the machine has become
/// faster, no other request would show it.
const TRY_ONE_OF: u64 = 16;

/// The fastest of the last measurements.
#[derive(Clone, Debug, Default)]
struct Fastest(VecDeque<f64>);

impl Fastest {
    fn learn(&mut self, value: f64) {
        if self.0.len() == MAX_MEASUREMENTS {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    fn bound(&self) -> Option<f64> {
        (self.0.len() >= MIN_MEASUREMENTS)
            .then(|| self.0.iter().copied().fold(f64::INFINITY, f64::min) * MARGIN)
    }
}

/// The earliest time of a first token.
#[derive(Clone, Debug, Default)]
pub struct FirstTokenEstimate {
    /// Milliseconds from admission to the first token, for each token of the prompt.
    token_ms: Fastest,
    /// Milliseconds between two admissions from the queue, one after the other.
    turn_ms: Fastest,
    refusable: u64,
}

impl FirstTokenEstimate {
    /// A request with a prompt of `tokens` had its first token `ms` after its admission.
    pub fn first_token(&mut self, tokens: u64, ms: u64) {
        if tokens >= FEWEST_TOKENS {
            self.token_ms.learn(ms as f64 / tokens as f64);
        }
    }

    /// A request was admitted from the queue, `ms` after the one before. Requests waited all that
    /// time.
    pub fn admitted(&mut self, ms: u64) {
        self.turn_ms.learn(ms as f64);
    }

    /// The earliest first token of a request with a prompt of `tokens`, after `ahead` waiting
    /// requests: milliseconds from now; 0 before anything was measured.
    pub fn earliest_ms(&self, tokens: u64, ahead: usize) -> u64 {
        let reading = self.token_ms.bound().unwrap_or(0.0) * tokens as f64;
        let waiting = self.turn_ms.bound().unwrap_or(0.0) * ahead as f64;
        (reading + waiting) as u64
    }

    /// Whether the first token can arrive within `remaining_ms`.
    ///
    /// # Errors
    /// The earliest time it can arrive, in milliseconds from now.
    pub fn is_in_time(&mut self, tokens: u64, ahead: usize, remaining_ms: u64) -> Result<(), u64> {
        let earliest_ms = self.earliest_ms(tokens, ahead);
        if earliest_ms <= remaining_ms {
            return Ok(());
        }
        self.refusable += 1;
        if self.refusable.is_multiple_of(TRY_ONE_OF) { Ok(()) } else { Err(earliest_ms) }
    }

    /// A new epoch of the target may be faster: every measurement is dropped.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::testing::Random;

    #[test]
    fn without_measurements_nothing_is_refused() {
        let mut estimate = FirstTokenEstimate::default();
        assert_eq!(estimate.earliest_ms(1 << 20, 64), 0);
        for _ in 0..MIN_MEASUREMENTS - 1 {
            estimate.first_token(1_000, 500);
        }
        // A short prompt says nothing about the speed of prefill.
        estimate.first_token(FEWEST_TOKENS - 1, 500);
        assert_eq!(estimate.earliest_ms(1 << 20, 64), 0);
        estimate.first_token(1_000, 500);
        assert_eq!(estimate.earliest_ms(10_000, 0), 4_000);
        estimate.forget();
        assert_eq!(estimate.earliest_ms(10_000, 0), 0);
    }

    #[test]
    fn the_fastest_measurement_counts_until_64_newer_ones() {
        let mut estimate = FirstTokenEstimate::default();
        for _ in 0..MAX_MEASUREMENTS {
            estimate.first_token(1_000, 1_000);
            estimate.admitted(100);
        }
        assert_eq!(estimate.earliest_ms(1_000, 10), 800 + 800);
        // The prefix cache had all of it.
        estimate.first_token(1_000, 0);
        assert_eq!(estimate.earliest_ms(1_000, 0), 0);
        for _ in 0..MAX_MEASUREMENTS {
            estimate.first_token(1_000, 1_000);
        }
        assert_eq!(estimate.earliest_ms(1_000, 0), 800);
    }

    #[test]
    fn one_of_sixteen_is_served_and_shows_that_the_machine_is_faster() {
        let mut estimate = FirstTokenEstimate::default();
        for _ in 0..MAX_MEASUREMENTS {
            estimate.first_token(1_000, 10_000);
        }
        let tries =
            (0..TRY_ONE_OF).filter(|_| estimate.is_in_time(1_000, 0, 2_000) == Ok(())).count();
        assert_eq!(tries, 1);
        estimate.first_token(1_000, 100);
        assert_eq!(estimate.is_in_time(1_000, 0, 2_000), Ok(()));
    }

    /// A target that prefills one prompt after the other, at a speed that wanders. Some prompts are
    /// in its prefix cache.
    struct SimulatedTarget {
        random: Random,
        now: f64,
        speed: f64,
        /// Of one hundred prompts, how many are known.
        known: u64,
    }

    impl SimulatedTarget {
        fn time_for(&mut self, tokens: u64) -> f64 {
            let wander = 0.97 + 0.06 * self.random.below(1_000) as f64 / 1_000.0;
            self.speed = (self.speed * wander).clamp(0.2, 2.0);
            let noise = 1.0 + 0.3 * self.random.below(1_000) as f64 / 1_000.0;
            let tokens = if self.random.below(100) < self.known { tokens / 20 } else { tokens };
            5.0 + tokens as f64 * self.speed * noise
        }
    }

    /// Numbers of requests of a simulation.
    #[derive(Default)]
    struct SimulatedCounts {
        /// Refused, although they would have met their deadlines.
        wrong: u64,
        refused: u64,
        /// Served within their deadlines, or refused wrongly.
        in_time: u64,
    }

    /// Sends requests with deadlines of all lengths.
    fn simulate(seed: u64, known: u64) -> SimulatedCounts {
        let mut target = SimulatedTarget { random: Random::new(seed), now: 0.0, speed: 0.5, known };
        let mut estimate = FirstTokenEstimate::default();
        let mut counts = SimulatedCounts::default();
        for _ in 0..4_000 {
            let tokens = 50 + target.random.below(8_000);
            let remaining_ms = 50 + target.random.below(6_000);
            let infeasible = estimate.is_in_time(tokens, 0, remaining_ms).is_err();
            // What would have been, had it been served.
            let took_ms = target.time_for(tokens);
            let makes_it = took_ms <= remaining_ms as f64;
            counts.refused += u64::from(infeasible);
            counts.in_time += u64::from(makes_it);
            counts.wrong += u64::from(infeasible && makes_it);
            if !infeasible {
                estimate.first_token(tokens, took_ms as u64);
            }
            target.now += took_ms;
        }
        counts
    }

    #[test]
    fn at_most_one_percent_is_refused_wrongly() {
        for (known, least_refused) in [(0, 200), (5, 0), (50, 0)] {
            for seed in 0..8 {
                let SimulatedCounts { wrong, refused, in_time } = simulate(seed, known);
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
