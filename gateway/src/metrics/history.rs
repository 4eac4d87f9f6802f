//! The throughput of the last ten minutes, in a ring of samples, and what the load of the service
//! needs of the last minutes. No clock here (I10).

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
/// Samples of the present throughput, four seconds: a pause of one step of a long prompt is no end
/// of a stream.
const PRESENT_SAMPLES: usize = 2;
/// Samples of recent shares, five minutes: long enough for some turns of a conversation, short
/// enough to follow another kind of traffic.
const RECENT_SAMPLES: usize = 150;

/// Totals since the gateway's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Generated tokens, those of running requests included.
    pub generated: u64,
    /// Prompt tokens of requests that are over and had a first token.
    pub prompt_tokens: u64,
    /// Those of them that the prefix cache had.
    pub cached_tokens: u64,
    /// Cycles of drafting and verifying, of samples that ended.
    pub cycles: u64,
    /// Drafted tokens of these samples.
    pub drafted: u64,
    /// Drafted tokens that the target accepted.
    pub accepted: u64,
}

impl Totals {
    /// What was counted since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            generated: self.generated.saturating_sub(before.generated),
            prompt_tokens: self.prompt_tokens.saturating_sub(before.prompt_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(before.cached_tokens),
            cycles: self.cycles.saturating_sub(before.cycles),
            drafted: self.drafted.saturating_sub(before.drafted),
            accepted: self.accepted.saturating_sub(before.accepted),
        }
    }
}

/// One sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    tokens_per_s: f64,
    requests: usize,
    /// Totals at its end.
    totals: Totals,
}

/// Totals at the time of the last sample.
#[derive(Clone, Copy, Debug)]
struct Counted {
    totals: Totals,
    at: Millis,
}

/// Figures of the last seconds and minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentFigures {
    /// Generated tokens per second, of the last samples.
    pub tokens_per_s: f64,
    /// Share of prompt tokens that the prefix cache had, of requests that ended in the last five
    /// minutes; if none did, since the gateway's start.
    pub cached_share: f64,
    /// What came of drafts in the last five minutes; `None` without a draft.
    pub speculation: Option<SpeculationLoad>,
}

/// What came of recent drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpeculationLoad {
    /// Tokens of a cycle: the accepted ones, and one of the target's own.
    pub accept_length: f64,
    /// Accepted tokens divided by drafted ones; 0 to 1.
    pub accept_rate: f64,
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
    /// Takes a sample of these totals, while `requests` are inside the gateway. A longer interval,
    /// as of a machine that slept, has one mean in all its places.
    pub fn take(&mut self, totals: Totals, requests: usize, now: Millis) {
        let Some(Counted { totals: before, at }) = self.last else {
            self.last = Some(Counted { totals, at: now });
            return;
        };
        let elapsed_ms = now.since(at);
        let places = (elapsed_ms + INTERVAL_MS / 2) / INTERVAL_MS;
        if places == 0 {
            return;
        }
        self.last = Some(Counted { totals, at: now });
        let tokens_per_s = totals.since(before).generated as f64 * 1e3 / elapsed_ms as f64;
        for _ in 0..places.min(SAMPLES as u64) {
            if self.samples.len() == SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample { tokens_per_s, requests, totals });
        }
    }

    /// Figures of the last seconds and minutes, up to `now`.
    pub fn recent(&self, now: Totals) -> RecentFigures {
        let present = self.samples.iter().rev().take(PRESENT_SAMPLES);
        let (sum, count) =
            present.fold((0.0, 0), |(sum, count), one| (sum + one.tokens_per_s, count + 1));
        let before = self.samples.len().checked_sub(RECENT_SAMPLES);
        let before = before.and_then(|at| self.samples.get(at)).map(|sample| sample.totals);
        let recent = now.since(before.unwrap_or_default());
        let of_prompts = if recent.prompt_tokens > 0 { recent } else { now };
        let speculation = (recent.cycles > 0).then(|| SpeculationLoad {
            accept_length: recent.accepted as f64 / recent.cycles as f64 + 1.0,
            accept_rate: share(recent.accepted, recent.drafted),
        });
        RecentFigures {
            tokens_per_s: sum / f64::from(count.max(1)),
            cached_share: share(of_prompts.cached_tokens, of_prompts.prompt_tokens),
            speculation,
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

/// `part` of `whole`; 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(generated: u64) -> Totals {
        Totals { generated, ..Default::default() }
    }

    fn taken(samples: &[(u64, u64)]) -> Vec<f64> {
        let mut history = History::default();
        samples.iter().for_each(|(tokens, now)| history.take(generated(*tokens), 0, Millis(*now)));
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
            history.take(generated(n * n), n as usize, Millis(n * INTERVAL_MS));
        }
        let Throughput { interval_s, most, tokens_per_s, calls } = history.throughput();
        assert_eq!((interval_s, most, tokens_per_s.len()), (2, SAMPLES, SAMPLES));
        assert_eq!((calls[0], calls[SAMPLES - 1]), (6, SAMPLES + 5));
        assert!(tokens_per_s.is_sorted(), "oldest first");
    }

    #[test]
    fn the_present_throughput_is_that_of_the_last_four_seconds() {
        let mut history = History::default();
        assert_eq!(history.recent(generated(0)), RecentFigures::default());
        let mut at = 0;
        let mut rate_after = |tokens: u64| {
            history.take(generated(tokens), 1, Millis(at));
            at += INTERVAL_MS;
            history.recent(generated(tokens)).tokens_per_s
        };
        let totals = [0, 100, 100, 100, 140, 180];
        assert_eq!(totals.map(&mut rate_after), [0.0, 50.0, 25.0, 0.0, 10.0, 20.0]);
    }

    #[test]
    fn shares_are_those_of_the_last_five_minutes_and_the_cached_one_outlives_a_pause() {
        let mut history = History::default();
        let mut at = 0;
        let mut recent = |samples: usize, totals: Totals| {
            for _ in 0..samples {
                at += INTERVAL_MS;
                history.take(totals, 0, Millis(at));
            }
            history.recent(totals)
        };
        let first = Totals {
            prompt_tokens: 100,
            cached_tokens: 20,
            cycles: 10,
            drafted: 30,
            accepted: 15,
            ..Default::default()
        };
        let load =
            |accept_length, accept_rate| Some(SpeculationLoad { accept_length, accept_rate });
        let early = recent(2, first);
        assert_eq!((early.cached_share, early.speculation), (0.2, load(2.5, 0.5)));
        let quiet = recent(RECENT_SAMPLES, first);
        assert_eq!((quiet.cached_share, quiet.speculation), (0.2, None));
        // Cycles whose draft was empty have no drafted token.
        let later = Totals { prompt_tokens: 200, cached_tokens: 110, cycles: 12, ..first };
        let later = recent(RECENT_SAMPLES - 1, later);
        assert_eq!((later.cached_share, later.speculation), (0.9, load(1.0, 0.0)));
    }
}
