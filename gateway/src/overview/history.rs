//! The throughput of the last ten minutes, in a ring of samples. No clock here (I10).

use std::collections::VecDeque;
use std::time::Duration;

use paceline_vocabulary::Millis;
use serde::Serialize;
use utoipa::ToSchema;

/// Time between two samples: short enough to show the pauses between requests.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// Samples of ten minutes.
pub const SAMPLES: usize = 300;

const INTERVAL_MS: u64 = INTERVAL.as_millis() as u64;

/// One sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    tokens_per_s: f64,
    requests: usize,
}

/// Counter of tokens at the time of the last sample.
#[derive(Clone, Copy, Debug)]
struct Counted {
    tokens: u64,
    at: Millis,
}

/// The samples of the last ten minutes, oldest first.
#[derive(Debug, Default)]
pub struct History {
    last: Option<Counted>,
    samples: VecDeque<Sample>,
}

/// The throughput of the last ten minutes. The lists have a number for each interval, oldest first,
/// and at most 300.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Throughput {
    /// Seconds of an interval.
    pub interval_s: u64,
    /// Most numbers of a list.
    pub most: usize,
    /// Generated tokens per second, of all requests.
    pub tokens_per_s: Vec<f64>,
    /// Requests inside the gateway.
    pub calls: Vec<usize>,
}

impl History {
    /// Takes a sample: `tokens` were generated in all, and `requests` are inside the gateway now.
    /// A longer interval, as of a machine that slept, has one mean in all its places.
    pub fn take(&mut self, tokens: u64, requests: usize, now: Millis) {
        let Some(Counted { tokens: before, at }) = self.last else {
            self.last = Some(Counted { tokens, at: now });
            return;
        };
        let elapsed_ms = now.since(at);
        let places = (elapsed_ms + INTERVAL_MS / 2) / INTERVAL_MS;
        if places == 0 {
            return;
        }
        self.last = Some(Counted { tokens, at: now });
        let tokens_per_s = tokens.saturating_sub(before) as f64 * 1e3 / elapsed_ms as f64;
        for _ in 0..places.min(SAMPLES as u64) {
            if self.samples.len() == SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample { tokens_per_s, requests });
        }
    }

    /// All samples, rounded to a tenth of a token.
    pub fn throughput(&self) -> Throughput {
        let rounded = |sample: &Sample| (sample.tokens_per_s * 10.0).round() / 10.0;
        Throughput {
            interval_s: INTERVAL.as_secs(),
            most: SAMPLES,
            tokens_per_s: self.samples.iter().map(rounded).collect(),
            calls: self.samples.iter().map(|sample| sample.requests).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(samples: &[(u64, u64)]) -> Vec<f64> {
        let mut history = History::default();
        samples.iter().for_each(|(tokens, now)| history.take(*tokens, 0, Millis(*now)));
        history.throughput().tokens_per_s
    }

    #[test]
    fn a_sample_has_the_tokens_of_its_interval_per_second() {
        assert_eq!(taken(&[]), [0.0; 0]);
        assert_eq!(taken(&[(100, 0)]), [0.0; 0], "no interval yet");
        assert_eq!(taken(&[(100, 0), (140, 2_000), (140, 4_000)]), [20.0, 0.0]);
        // By the time that passed, not by the interval.
        assert_eq!(taken(&[(0, 0), (50, 2_500)]), [20.0]);
        // A total of another gateway would begin again.
        assert_eq!(taken(&[(90, 0), (10, 2_000)]), [0.0]);
    }

    #[test]
    fn a_long_interval_fills_its_places_with_its_mean_and_a_short_one_waits() {
        assert_eq!(taken(&[(0, 0), (60, 6_000)]), [10.0; 3]);
        assert_eq!(taken(&[(0, 0), (1_000, 10_000_000)]).len(), SAMPLES);
        assert_eq!(taken(&[(0, 0), (5, 900), (40, 2_000)]), [20.0]);
        assert_eq!(taken(&[(0, 0), (9, 0)]), [0.0; 0]);
    }

    #[test]
    fn the_oldest_samples_leave_for_new_ones() {
        let mut history = History::default();
        for n in 0..=SAMPLES as u64 + 5 {
            history.take(n * n, n as usize, Millis(n * INTERVAL_MS));
        }
        let Throughput { interval_s, most, tokens_per_s, calls } = history.throughput();
        assert_eq!((interval_s, most, tokens_per_s.len()), (2, SAMPLES, SAMPLES));
        assert_eq!((calls[0], calls[SAMPLES - 1]), (6, SAMPLES + 5));
        assert!(tokens_per_s.is_sorted(), "oldest first");
    }
}
