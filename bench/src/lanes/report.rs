//! The report of lanes: a table with its verdict.

use paceline_client::own_service::report::Report;
use paceline_client::print::{Table, number};
use serde::Serialize;

use super::load::CellRun;
use super::plan::{Cell, Mode};
use super::same::Counts;
use super::verdict::{BOUND, LaneRow, Outcome};
use crate::report::columns;

/// Figures of both lanes, of each cell in a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneReport {
    /// Whether it was a sweep.
    pub sweep: bool,
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer.
    pub max_tokens: u32,
    /// A row for each cell.
    pub rows: Vec<LaneRow>,
    /// Whether all answers were equal.
    pub same: Counts,
}

impl Report for LaneReport {
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let fails = self.rows.iter().filter(|row| self.fails(row));
        let cells: Vec<_> = fails.map(|row| row.cell.to_string()).collect();
        if !cells.is_empty() {
            let cells = cells.join(", ");
            failures.push(format!("routed is slower than {BOUND} of the better lane in {cells}"));
        }
        if let Some(place) = self.same.judged.differences.first() {
            failures.push(format!("answers differ: {place}"));
        }
        failures
    }

    fn text(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let passes = if self.sweep { " there and back" } else { "" };
        let mut text = self.table();
        text.push_str(&format!(
            "\ntokens per second of wall-clock time from the first submission to the end of the last answer, {tokens} tokens an\n\
             answer in the mean (a quarter less to a quarter more); medians of {runs} runs{passes}, in brackets the 95 % interval of the median\n"
        ));
        text.push_str(&self.identity());
        for row in &self.rows {
            let cell = &row.cell;
            for lane in row.lanes.iter().filter(|lane| lane.waited > 0) {
                let (mode, waited) = (lane.mode.word(), lane.waited);
                text.push_str(&format!("{cell}, {mode}: {waited} answers waited for admission\n"));
            }
            let forced = row.lane(Mode::Forced);
            if let Some(forced) = forced.filter(|lane| lane.speculative < lane.answers) {
                let (all, without) = (forced.answers, forced.answers - forced.speculative);
                text.push_str(&format!(
                    "{cell}, forced: {without} of {all} answers got no draft\n"
                ));
            }
        }
        if self.sweep {
            text.push_str(&format!("\n{}\n", self.verdict()));
        }
        text
    }
}

impl LaneReport {
    fn fails(&self, row: &LaneRow) -> bool {
        self.sweep && row.outcome() == Some(Outcome::Fails)
    }

    fn verdict(&self) -> String {
        let count = |wanted| self.rows.iter().filter(|row| row.outcome() == Some(wanted)).count();
        let (passes, fails) = (count(Outcome::Passes), count(Outcome::Fails));
        if count(Outcome::TooFewRuns) > 0 {
            return format!("No verdict: an interval needs 6 runs, found {}.", self.runs);
        }
        let bound = format!("whole interval below {BOUND} of the better of the other two");
        match fails {
            0 => format!("PASSED: in none of {passes} cells routed lies with its {bound}."),
            _ => {
                let all = passes + fails;
                format!("FAILED: in {fails} of {all} cells routed lies with its {bound}.")
            }
        }
    }

    fn table(&self) -> String {
        let lanes = self.rows.first().map_or(&[][..], |row| &row.lanes);
        let modes: Vec<Mode> = lanes.iter().map(|lane| lane.mode).collect();
        let compared = modes.len() > 1;
        let mut head = vec!["KIND".to_owned(), "AT ONCE".into()];
        for mode in &modes {
            head.extend([format!("{} tok/s", mode.word().to_uppercase()), "(95 %)".into()]);
        }
        if compared {
            head.extend(["TOKENS/CYCLE", "ROUTED/BETTER", "(95 %)", "OF"].map(String::from));
        }
        let mut table = Table::new(head);
        for row in &self.rows {
            let mut cells = vec![row.cell.kind.clone(), row.cell.streams.to_string()];
            for mode in &modes {
                cells.extend(columns(row.lane(*mode).map(|lane| &lane.speed), 0));
            }
            if compared {
                cells.push(number(tokens_per_cycle(row), 2));
                cells.extend(columns(row.verdict.as_ref().map(|verdict| &verdict.ratio), 3));
                let better = row.verdict.as_ref().map_or("-", |verdict| verdict.better.word());
                cells.push(format!("{better}{}", if self.fails(row) { "  FAILS" } else { "" }));
            }
            table.row(cells);
        }
        table.text()
    }

    fn identity(&self) -> String {
        let Counts { answers, tokens, different, judged } = &self.same;
        let outcome = match different.as_slice() {
            [] => "equal".to_owned(),
            modes => {
                let modes = modes.iter().map(|(mode, count)| format!("{count} {}", mode.word()));
                format!(
                    "{} differ; weighed: {} near-ties (margin below 1e-4), {} DIFFERENT",
                    modes.collect::<Vec<_>>().join(", "),
                    judged.near_ties.len(),
                    judged.differences.len()
                )
            }
        };
        let places = judged.lines();
        format!(
            "identity: {answers} answers, {tokens} tokens compared with the first to their prompt: {outcome}\n{places}"
        )
    }
}

/// Tokens per cycle in the forced mode: how well the drafter guesses this kind of text.
fn tokens_per_cycle(row: &LaneRow) -> Option<f64> {
    let forced = row.lane(Mode::Forced).filter(|lane| lane.cycles > 0)?;
    Some((forced.accepted + forced.cycles) as f64 / forced.cycles as f64)
}

/// One line of progress: a cell of a run in all its modes.
pub fn progress(run: usize, runs: usize, cell: &Cell, measured: &[(Mode, Vec<CellRun>)]) -> String {
    let speed = |(mode, runs): &(Mode, Vec<CellRun>)| {
        format!("{} {}", mode.word(), number(runs.last().map(CellRun::tok_s), 0))
    };
    let modes: Vec<_> = measured.iter().map(speed).collect();
    format!("run {} of {runs}: {cell}: {} tok/s", run + 1, modes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_client::answer::{Answer, Speculation, Timing};
    use paceline_client::compare::{Difference, DifferencePlace, JudgedDifferences};

    fn row(kind: &str, routed: f64) -> LaneRow {
        let run = |tok_s: f64, cycles: u64| {
            let speculation = Speculation { cycles, drafted: 15 * cycles, accepted: 4 * cycles };
            let timing = Timing { ttft_ms: 9.0, ..Timing::default() };
            CellRun {
                seconds: 100.0 / tok_s,
                tokens: 100,
                answers: vec![Answer { timing, speculation, ..Answer::default() }],
            }
        };
        let runs = |tok_s: f64, cycles| (0..7).map(|_| run(tok_s, cycles)).collect::<Vec<_>>();
        let measured = [
            (Mode::Absent, runs(250.0, 0)),
            (Mode::Forced, runs(500.0, 2)),
            (Mode::Routed, runs(routed, 2)),
        ];
        LaneRow::of(Cell { kind: kind.into(), streams: 4 }, &measured)
    }

    fn report(routed: f64) -> LaneReport {
        let rows = vec![row("json", 500.0), row("prose", routed)];
        let same = Counts { answers: 10, tokens: 640, ..Counts::default() };
        LaneReport { sweep: true, runs: 7, max_tokens: 64, rows, same }
    }

    #[test]
    fn the_table_has_all_modes_and_marks_what_fails() {
        let text = report(400.0).text();
        let expected = [
            "KIND   AT ONCE  ABSENT tok/s        (95 %)  FORCED tok/s        (95 %)  ROUTED tok/s        (95 %)  TOKENS/CYCLE  \
             ROUTED/BETTER            (95 %)             OF",
            "json         4           250  (250 to 250)           500  (500 to 500)           500  (500 to 500)          5.00          1.000  (1.000 to 1.000)         forced",
            "prose        4           250  (250 to 250)           500  (500 to 500)           400  (400 to 400)          5.00          0.800  (0.800 to 0.800)  forced  FAILS",
        ];
        let lines: Vec<_> = text.lines().take(3).collect();
        assert_eq!(lines, expected);
        assert!(
            text.contains(
                "identity: 10 answers, 640 tokens compared with the first to their prompt: equal\n"
            ),
            "{text}"
        );
        assert!(text.ends_with(
            "FAILED: in 1 of 2 cells routed lies with its whole interval below 0.97 of the better of the other two.\n"
        ));
        assert_eq!(
            report(400.0).failures(),
            ["routed is slower than 0.97 of the better lane in prose x 4"]
        );
        assert_eq!(report(490.0).failures(), Vec::<String>::new());
        assert!(report(490.0).text().contains("PASSED: in none of 2 cells"));
    }

    #[test]
    fn a_partial_sweep_passes_no_verdict() {
        let report = LaneReport { sweep: false, ..report(400.0) };
        assert_eq!(report.failures(), Vec::<String>::new());
        assert!(!report.text().contains("FAIL"), "{}", report.text());
    }

    #[test]
    fn answers_that_differ_fail_unless_they_are_near_ties() {
        let place = |margin| {
            let difference =
                Difference { position: 3, plain_id: Some(8), other_id: None, margin: Some(margin) };
            DifferencePlace { kind: "code".into(), prompt: 1, choice: "greedy", difference }
        };
        let near = JudgedDifferences { near_ties: vec![place(0.000_02)], differences: vec![] };
        let same =
            |judged| Counts { different: vec![(Mode::Forced, 2)], judged, ..Counts::default() };
        let tied = LaneReport { same: same(near.clone()), ..report(500.0) };
        assert_eq!(tied.failures(), Vec::<String>::new());
        assert!(tied.text().contains("2 forced differ; weighed: 1 near-ties"), "{}", tied.text());
        let real = JudgedDifferences { differences: vec![place(0.5)], ..near };
        let different = LaneReport { same: same(real), ..report(500.0) };
        assert!(
            different.failures()[0].contains("code prompt 2, greedy, token 3"),
            "{:?}",
            different.failures()
        );
    }

    #[test]
    fn few_runs_give_no_verdict() {
        let mut report = report(400.0);
        let few = LaneRow::of(report.rows[1].cell.clone(), &[]);
        assert_eq!(few.verdict, None);
        for row in &mut report.rows {
            row.verdict.as_mut().expect("measured").outcome = Outcome::TooFewRuns;
        }
        assert!(
            LaneReport { runs: 2, ..report }
                .text()
                .ends_with("No verdict: an interval needs 6 runs, found 2.\n")
        );
    }

    #[test]
    fn the_object_has_everything() {
        let object = serde_json::to_value(report(400.0)).expect("plain");
        assert_eq!(object["rows"][1]["kind"], "prose");
        assert_eq!(object["rows"][1]["streams"], 4);
        assert_eq!(object["rows"][1]["verdict"]["outcome"], "fails");
        assert_eq!(object["rows"][0]["lanes"][0]["mode"], "absent");
        assert_eq!(object["rows"][0]["lanes"][0]["tok_s"].as_array().map(Vec::len), Some(7));
        assert_eq!(object["same"]["differences"], serde_json::json!([]));
    }
}
