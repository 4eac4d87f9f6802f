//! Figures of each burst over all runs, and their report: a table with explanations. Pure.

use serde::Serialize;

use super::Burst;
use super::recovery::Alone;
use crate::output::sheet::Sheet;
use crate::report::BenchReport;
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
    /// Number of requests in the burst, and their mode.
    #[serde(flatten)]
    burst: Burst,
    /// Tokens per second of one stream before the burst.
    before_tok_s: Option<Figure>,
    /// Tokens per second of the burst.
    burst_tok_s: Option<Figure>,
    /// Mean time to the first token in the burst.
    burst_ttft_ms: Option<Figure>,
    /// Tokens per second of one stream after the burst.
    after_tok_s: Option<Figure>,
    /// Speed after the burst over that before, within each run.
    back: Option<Figure>,
    /// Time to the first token after the burst over that before, within each run.
    ttft_over: Option<Figure>,
    /// Milliseconds from the burst's end until the speed was back, of the runs in which it was.
    recovered_ms: Option<Figure>,
    /// Runs in which it was.
    recovered_runs: usize,
}

impl BurstRow {
    /// The figures of a burst in a mode, run by run.
    pub fn of(burst: Burst, runs: &[BurstRun]) -> Self {
        let figure = |of: fn(&BurstRun) -> f64| Figure::of(runs.iter().map(of));
        let recovered: Vec<f64> = runs.iter().filter_map(|run| run.recovered_ms).collect();
        Self {
            burst,
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

/// Figures of `--burst`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BurstReport {
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of an answer.
    pub max_tokens: u32,
    /// A row for each number of requests and mode.
    pub rows: Vec<BurstRow>,
}

impl BenchReport for BurstReport {
    fn sheets(&self) -> Vec<Sheet> {
        let sheet = Sheet::of("bursts", &self.rows)
            .plain("requests", "BURST", |row| row.burst.requests)
            .plain("lane", "LANE", |row| row.burst.mode.word())
            .number("before_tok_s", "BEFORE tok/s", 1, |row| row.before_tok_s.as_ref())
            .number("burst_tok_s", "BURST tok/s", 0, |row| row.burst_tok_s.as_ref())
            .number("burst_ttft_ms", "BURST TTFT ms", 0, |row| row.burst_ttft_ms.as_ref())
            .number("after_tok_s", "AFTER tok/s", 1, |row| row.after_tok_s.as_ref())
            .number("back", "BACK", 3, |row| row.back.as_ref())
            .number("ttft_over", "TTFT OVER", 2, |row| row.ttft_over.as_ref())
            .number("recovered_ms", "RECOVERED ms", 0, |row| row.recovered_ms.as_ref())
            .plain("recovered_runs", "RUNS", |row| row.recovered_runs);
        vec![sheet.sheet()]
    }

    fn notes(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let mut text = format!(
            "BEFORE and AFTER: one stream, the same prompt, {tokens} tokens; AFTER is submitted when the last answer of the burst has ended. BURST: all\n\
             its requests at once, of all kinds. BACK: AFTER over BEFORE. TTFT OVER: time to the first token after the burst over that\n\
             before. RECOVERED: from the burst's end to the end of the first 16 tokens at 0.9 of the pace before or more, time to the\n\
             first token included. No prefix cache. Medians of {runs} runs, in brackets the 95 % interval; ratios within each run\n"
        );
        for BurstRow { burst, recovered_runs, .. } in &self.rows {
            let never = runs - recovered_runs;
            if never > 0 {
                text.push_str(&format!(
                    "{burst}: in {never} of {runs} runs the speed was not back within the answer\n"
                ));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::BurstBench;
    use super::*;
    use crate::experiment::Experiment as _;
    use crate::mode::Mode;
    use crate::output::sheet::csv;

    fn burst(mode: Mode) -> Burst {
        Burst { requests: 8, mode }
    }

    fn run(slow: f64, recovered_ms: Option<f64>) -> BurstRun {
        BurstRun {
            before: Alone { ttft_ms: 10.0 * slow, tok_s: 200.0 / slow },
            burst_tok_s: 600.0 / slow,
            burst_ttft_ms: 80.0 * slow,
            after: Alone { ttft_ms: 12.0 * slow, tok_s: 190.0 / slow },
            recovered_ms,
        }
    }

    #[test]
    fn speeds_are_compared_within_a_run() {
        let row = BurstRow::of(burst(Mode::Routed), &[run(1.0, Some(90.0)), run(2.0, None)]);
        assert_eq!(row.back.map(|figure| figure.values), Some(vec![0.95, 0.95]));
        assert_eq!(row.ttft_over.map(|figure| figure.values), Some(vec![1.2, 1.2]));
        assert_eq!(row.recovered_ms.map(|figure| figure.values), Some(vec![90.0]));
        assert_eq!(row.recovered_runs, 1);
        assert_eq!(BurstRow::of(burst(Mode::Plain), &[]).back, None);
    }

    #[test]
    fn the_table_has_a_row_for_each_mode() {
        let rows = vec![
            BurstRow::of(burst(Mode::Plain), &[run(1.0, Some(90.0)), run(1.0, Some(90.0))]),
            BurstRow::of(burst(Mode::Routed), &[run(1.0, Some(120.0)), run(1.0, None)]),
        ];
        let report = BurstReport { runs: 2, max_tokens: 128, rows };
        let expected = "\
BURST    LANE  BEFORE tok/s  BURST tok/s  BURST TTFT ms  AFTER tok/s   BACK  TTFT OVER  RECOVERED ms  RUNS
8       plain         200.0          600             80        190.0  0.950       1.20            90     2
8      routed         200.0          600             80        190.0  0.950       1.20           120     1
";
        let text = report.text();
        assert!(text.starts_with(expected), "{text}");
        let never = "8 requests, routed: in 1 of 2 runs the speed was not back within the answer\n";
        assert!(text.ends_with(never), "{text}");
        let line = "bursts,8,plain,200,,,600,,,80,,,190,,,0.95,,,1.2,,,90,,,2\n";
        assert!(csv(&report.sheets(), &[]).contains(line));
    }

    #[test]
    fn a_burst_of_a_run_is_a_line() {
        let line = format!("{}: {}", burst(Mode::Routed), BurstBench::line(&run(1.0, None)));
        let expected =
            "8 requests, routed: before 200, burst 600, after 190 tok/s, back after - ms";
        assert_eq!(line, expected);
    }
}
