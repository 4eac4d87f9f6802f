//! The report of bursts: a table with explanations.

use paceline_client::own_service::report::Report;
use paceline_client::print::number;
use serde::Serialize;

use super::row::{BurstRow, BurstRun};
use crate::mode::Mode;
use crate::output::sheet::{Column, Sheet};
use crate::report::BenchReport;

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

impl Report for BurstReport {
    fn failures(&self) -> Vec<String> {
        Vec::new()
    }

    fn text(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let mut text: String = self.sheets().iter().map(Sheet::text).collect();
        text.push_str(&format!(
            "\nBEFORE and AFTER: one stream, the same prompt, {tokens} tokens; AFTER is submitted when the last answer of the burst has ended. BURST: all\n\
             its requests at once, of all kinds. BACK: AFTER over BEFORE. TTFT OVER: time to the first token after the burst over that\n\
             before. RECOVERED: from the burst's end to the end of the first 16 tokens at 0.9 of the pace before or more, time to the\n\
             first token included. No prefix cache. Medians of {runs} runs, in brackets the 95 % interval; ratios within each run\n"
        ));
        for BurstRow { requests, mode, recovered_runs, .. } in &self.rows {
            let never = runs - recovered_runs;
            if never > 0 {
                text.push_str(&format!(
                    "{requests} requests, {}: in {never} of {runs} runs the speed was not back within the answer\n",
                    mode.word()
                ));
            }
        }
        text
    }
}

impl BenchReport for BurstReport {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheet = Sheet::new(
            "bursts",
            [
                Column::plain("requests", "BURST"),
                Column::plain("lane", "LANE"),
                Column::estimate("before_tok_s", "BEFORE tok/s", 1),
                Column::estimate("burst_tok_s", "BURST tok/s", 0),
                Column::estimate("burst_ttft_ms", "BURST TTFT ms", 0),
                Column::estimate("after_tok_s", "AFTER tok/s", 1),
                Column::estimate("back", "BACK", 3),
                Column::estimate("ttft_over", "TTFT OVER", 2),
                Column::estimate("recovered_ms", "RECOVERED ms", 0),
                Column::plain("recovered_runs", "RUNS"),
            ],
        );
        for row in &self.rows {
            sheet.row([
                row.requests.into(),
                row.mode.word().into(),
                row.before_tok_s.as_ref().into(),
                row.burst_tok_s.as_ref().into(),
                row.burst_ttft_ms.as_ref().into(),
                row.after_tok_s.as_ref().into(),
                row.back.as_ref().into(),
                row.ttft_over.as_ref().into(),
                row.recovered_ms.as_ref().into(),
                row.recovered_runs.into(),
            ]);
        }
        vec![sheet]
    }
}

/// A line about a burst of a run.
pub fn burst_line(
    run: usize,
    runs: usize,
    requests: usize,
    mode: Mode,
    found: &BurstRun,
) -> String {
    let BurstRun { before, burst_tok_s, after, recovered_ms, .. } = found;
    format!(
        "run {} of {runs}: {requests} requests, {}: before {:.0}, burst {burst_tok_s:.0}, after {:.0} tok/s, back after {} ms",
        run + 1,
        mode.word(),
        before.tok_s,
        after.tok_s,
        number(*recovered_ms, 0)
    )
}

#[cfg(test)]
mod tests {
    use super::super::recovery::Alone;
    use super::*;
    use crate::output::sheet::csv;

    fn run(recovered_ms: Option<f64>) -> BurstRun {
        BurstRun {
            before: Alone { ttft_ms: 10.0, tok_s: 200.0 },
            burst_tok_s: 600.0,
            burst_ttft_ms: 80.0,
            after: Alone { ttft_ms: 12.0, tok_s: 190.0 },
            recovered_ms,
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_mode() {
        let rows = vec![
            BurstRow::of(8, Mode::Plain, &[run(Some(90.0)), run(Some(90.0))]),
            BurstRow::of(8, Mode::Routed, &[run(Some(120.0)), run(None)]),
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
        let line = burst_line(1, 3, 8, Mode::Routed, &run(None));
        let expected = "run 2 of 3: 8 requests, routed: before 200, burst 600, after 190 tok/s, back after - ms";
        assert_eq!(line, expected);
    }
}
