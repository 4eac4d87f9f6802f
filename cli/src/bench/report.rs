//! The report: a table with its verdict, or one JSON object with all figures.

use serde::Serialize;

use super::load::CellRun;
use super::plan::{Cell, Mode};
use super::same::Counts;
use super::statistics::Estimate;
use super::verdict::{BOUND, LaneRow, Outcome};
use crate::selftest::report::{Subject, aligned, place_line};

/// All figures; the object of `--json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneReport {
    /// Program, machine and models.
    #[serde(flatten)]
    pub subject: Subject,
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
    /// Duration of the whole benchmark.
    pub seconds: f64,
}

impl LaneReport {
    /// Reasons to fail; empty if there is none.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let fails: Vec<&LaneRow> = self
            .rows
            .iter()
            .filter(|row| self.sweep && outcome(row) == Some(Outcome::Fails))
            .collect();
        if !fails.is_empty() {
            let cells: Vec<_> = fails
                .iter()
                .map(|row| format!("{} x {}", row.cell.kind, row.cell.streams))
                .collect();
            failures.push(format!(
                "routed is slower than {BOUND} of the better lane in {}",
                cells.join(", ")
            ));
        }
        if let Some(place) = self.same.differences.first() {
            failures.push(format!("answers differ: {}", place_line(place)));
        }
        failures
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let passes = if self.sweep { " there and back" } else { "" };
        let mut text = self.table();
        text.push_str(&format!(
            "\ntokens per second of wall-clock time from the first submission to the end of the last answer, {tokens} tokens an\n\
             answer in the mean (a quarter less to a quarter more); medians of {runs} runs{passes}, in brackets the 95 % interval of the median\n"
        ));
        text.push_str(&self.identity());
        for row in &self.rows {
            let name = format!("{} x {}", row.cell.kind, row.cell.streams);
            for lane in row.lanes.iter().filter(|lane| lane.waited > 0) {
                text.push_str(&format!(
                    "{name}, {}: {} answers waited for admission\n",
                    lane.mode.word(),
                    lane.waited
                ));
            }
            if let Some(forced) =
                row.lane(Mode::Forced).filter(|lane| lane.speculative < lane.answers)
            {
                let without = forced.answers - forced.speculative;
                text.push_str(&format!(
                    "{name}, forced: {without} of {} answers got no draft\n",
                    forced.answers
                ));
            }
        }
        if self.sweep {
            text.push_str(&format!("\n{}\n", self.verdict()));
        }
        text
    }

    fn verdict(&self) -> String {
        let count = |wanted| self.rows.iter().filter(|row| outcome(row) == Some(wanted)).count();
        let (passes, fails, unknown) =
            (count(Outcome::Passes), count(Outcome::Fails), count(Outcome::TooFewRuns));
        if unknown > 0 {
            return format!("No verdict: an interval needs 6 runs, found {}.", self.runs);
        }
        let bound = format!("whole interval below {BOUND} of the better of the other two");
        match fails {
            0 => format!("PASSED: in none of {passes} cells routed lies with its {bound}."),
            _ => format!(
                "FAILED: in {fails} of {} cells routed lies with its {bound}.",
                passes + fails
            ),
        }
    }

    fn table(&self) -> String {
        let modes: Vec<Mode> = self
            .rows
            .first()
            .map(|row| row.lanes.iter().map(|lane| lane.mode).collect())
            .unwrap_or_default();
        let compared = modes.len() > 1;
        let mut head = vec!["KIND".to_owned(), "AT ONCE".into()];
        for mode in &modes {
            head.extend([format!("{} tok/s", mode.word().to_uppercase()), "(95 %)".into()]);
        }
        if compared {
            head.extend(["TOKENS/CYCLE", "ROUTED/BETTER", "(95 %)", "OF"].map(String::from));
        }
        let mut lines = vec![head];
        for row in &self.rows {
            let mut cells = vec![row.cell.kind.clone(), row.cell.streams.to_string()];
            for mode in &modes {
                cells.extend(
                    row.lane(*mode).map_or(["-".into(), "-".into()], |lane| pair(&lane.speed, 0)),
                );
            }
            if compared {
                cells.push(per_cycle(row));
                match &row.verdict {
                    Some(verdict) => {
                        cells.extend(pair(&verdict.ratio, 3));
                        let fails = self.sweep && verdict.outcome == Outcome::Fails;
                        cells.push(format!(
                            "{}{}",
                            verdict.better.word(),
                            if fails { "  FAILS" } else { "" }
                        ));
                    }
                    None => cells.extend(["-", "-", "-"].map(String::from)),
                }
            }
            lines.push(cells);
        }
        aligned(&lines)
    }

    fn identity(&self) -> String {
        let Counts { answers, tokens, different, near_ties, differences } = &self.same;
        let outcome = match different.as_slice() {
            [] => "equal".to_owned(),
            modes => {
                let modes: Vec<_> =
                    modes.iter().map(|(mode, count)| format!("{count} {}", mode.word())).collect();
                let weighed = format!(
                    "{} near-ties (margin below 1e-4), {} DIFFERENT",
                    near_ties.len(),
                    differences.len()
                );
                format!("{} differ; weighed: {weighed}", modes.join(", "))
            }
        };
        let mut text = format!(
            "identity: {answers} answers, {tokens} tokens compared with the first to their prompt: {outcome}\n"
        );
        for (word, places) in [("near-tie", near_ties), ("DIFFERENT", differences)] {
            for place in places {
                text.push_str(&format!("  {word}: {}\n", place_line(place)));
            }
        }
        text
    }
}

fn outcome(row: &LaneRow) -> Option<Outcome> {
    row.verdict.as_ref().map(|verdict| verdict.outcome)
}

/// Tokens per cycle in the forced mode: how well the drafter guesses this kind of text.
fn per_cycle(row: &LaneRow) -> String {
    let forced = row.lane(Mode::Forced).filter(|lane| lane.cycles > 0);
    forced.map_or("-".into(), |lane| {
        format!("{:.2}", (lane.accepted + lane.cycles) as f64 / lane.cycles as f64)
    })
}

fn pair(found: &Estimate, digits: usize) -> [String; 2] {
    let interval = found
        .interval
        .map_or("-".into(), |(low, high)| format!("({low:.digits$} to {high:.digits$})"));
    [format!("{:.digits$}", found.median), interval]
}

/// One line of progress: a cell of a run in all its modes.
pub fn progress(run: usize, runs: usize, cell: &Cell, measured: &[(Mode, Vec<CellRun>)]) -> String {
    let last = |(mode, runs): &(Mode, Vec<CellRun>)| {
        let speed = runs.last().map_or("-".into(), |found| format!("{:.0}", found.tok_s()));
        format!("{} {speed}", mode.word())
    };
    let modes: Vec<_> = measured.iter().map(last).collect();
    format!(
        "run {} of {runs}: {} x {}: {} tok/s",
        run + 1,
        cell.kind,
        cell.streams,
        modes.join(", ")
    )
}

/// Seconds in words.
pub fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::super::super::answer::Speculation;
    use super::*;
    use crate::selftest::compare::Difference;
    use crate::selftest::figures::{DifferencePlace, LaneAnswer};

    fn row(kind: &str, routed: f64) -> LaneRow {
        let run = |tok_s: f64, cycles: u64| {
            let speculation = Speculation { cycles, drafted: 15 * cycles, accepted: 4 * cycles };
            CellRun {
                seconds: 100.0 / tok_s,
                tokens: 100,
                answers: vec![LaneAnswer { ttft_ms: 9.0, speculation, ..LaneAnswer::default() }],
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
        LaneReport { sweep: true, runs: 7, max_tokens: 64, rows, same, ..LaneReport::default() }
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
        let near = Counts {
            different: vec![(Mode::Forced, 2)],
            near_ties: vec![place(0.000_02)],
            ..Counts::default()
        };
        let tied = LaneReport { same: near.clone(), ..report(500.0) };
        assert_eq!(tied.failures(), Vec::<String>::new());
        assert!(tied.text().contains("2 forced differ; weighed: 1 near-ties"), "{}", tied.text());
        let different =
            LaneReport { same: Counts { differences: vec![place(0.5)], ..near }, ..report(500.0) };
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
        assert_eq!((duration(61.4), duration(1_260.0)), ("61 s".into(), "21 min".into()));
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
