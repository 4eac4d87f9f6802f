//! Figures of each burst over all runs. Pure.

use serde::Serialize;

use super::recovery::Alone;
use crate::mode::Mode;
use crate::statistics::Figure;

/// One run of a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstRun {
    /// One stream before the burst.
    pub before: Alone,
    /// Tokens per second of all requests of the burst together.
    pub burst_tok_s: f64,
    /// Mean time to the first token of the burst's requests.
    pub burst_ttft_ms: f64,
    /// The same prompt alone after the burst.
    pub after: Alone,
    /// Milliseconds from the burst's end until the speed was back. `None` if it was not.
    pub recovered_ms: Option<f64>,
}

/// A burst over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BurstRow {
    /// Requests of the burst.
    pub requests: usize,
    /// How all requests were served.
    pub mode: Mode,
    /// Tokens per second of one stream before the burst.
    pub before_tok_s: Option<Figure>,
    /// Tokens per second of the burst.
    pub burst_tok_s: Option<Figure>,
    /// Mean time to the first token in the burst.
    pub burst_ttft_ms: Option<Figure>,
    /// Tokens per second of one stream after the burst.
    pub after_tok_s: Option<Figure>,
    /// Speed after the burst over that before, within each run.
    pub back: Option<Figure>,
    /// Time to the first token after the burst over that before, within each run.
    pub ttft_over: Option<Figure>,
    /// Milliseconds from the burst's end until the speed was back, of the runs in which it was.
    pub recovered_ms: Option<Figure>,
    /// Runs in which it was.
    pub recovered_runs: usize,
}

impl BurstRow {
    /// The figures of a burst in a mode, run by run.
    pub fn of(requests: usize, mode: Mode, runs: &[BurstRun]) -> Self {
        let figure = |of: fn(&BurstRun) -> f64| Figure::of(runs.iter().map(of));
        let recovered: Vec<f64> = runs.iter().filter_map(|run| run.recovered_ms).collect();
        Self {
            requests,
            mode,
            before_tok_s: figure(|run| run.before.tok_s),
            burst_tok_s: figure(|run| run.burst_tok_s),
            burst_ttft_ms: figure(|run| run.burst_ttft_ms),
            after_tok_s: figure(|run| run.after.tok_s),
            back: figure(|run| run.after.tok_s / run.before.tok_s),
            ttft_over: figure(|run| run.after.ttft_ms / run.before.ttft_ms),
            recovered_runs: recovered.len(),
            recovered_ms: Figure::of(recovered),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_compared_within_a_run() {
        let run = |slow: f64, recovered_ms| BurstRun {
            before: Alone { ttft_ms: 10.0 * slow, tok_s: 200.0 / slow },
            burst_tok_s: 600.0 / slow,
            burst_ttft_ms: 80.0 * slow,
            after: Alone { ttft_ms: 12.0 * slow, tok_s: 190.0 / slow },
            recovered_ms,
        };
        let row = BurstRow::of(8, Mode::Routed, &[run(1.0, Some(90.0)), run(2.0, None)]);
        assert_eq!(row.back.map(|figure| figure.values), Some(vec![0.95, 0.95]));
        assert_eq!(row.ttft_over.map(|figure| figure.values), Some(vec![1.2, 1.2]));
        assert_eq!(row.recovered_ms.map(|figure| figure.values), Some(vec![90.0]));
        assert_eq!(row.recovered_runs, 1);
        assert_eq!(BurstRow::of(8, Mode::Plain, &[]).back, None);
    }
}
