//! The report of lanes: a table with its verdict.

use serde::Serialize;

use super::means::{Mean, means};
use super::verdict::{CELL_BOUND, CellRow, Lane, NUMBER_BOUND, VerdictOutcome, falls_short};
use crate::mode::Mode;
use crate::output::sheet::{Look, Sheet};
use crate::report::BenchReport;
use crate::requests::{COLUMNS, RequestStatistics};
use crate::same::Counts;
use crate::statistics::Estimate;

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
    pub rows: Vec<CellRow>,
    /// Means of routed over the better of the other modes.
    pub over_better: Vec<Mean>,
    /// Means of this build over the other one, by mode; empty without another build.
    pub over_other: Vec<(Mode, Vec<Mean>)>,
    /// Whether all answers were equal.
    pub same: Counts,
}

impl LaneReport {
    /// The report of these rows.
    pub fn new(
        sweep: bool,
        runs: usize,
        max_tokens: u32,
        rows: Vec<CellRow>,
        same: Counts,
    ) -> Self {
        let over_better = means(&rows, CellRow::over_better);
        let of_mode = |mode: Mode| {
            (mode, means(&rows, |row| row.over_other(mode).map(|figure| figure.values.as_slice())))
        };
        let modes = rows.first().map_or(&[][..], |row| &row.over_other);
        let over_other = modes.iter().map(|(mode, _)| of_mode(*mode)).collect();
        Self { sweep, runs, max_tokens, rows, over_better, over_other, same }
    }
}

impl BenchReport for LaneReport {
    fn sheets(&self) -> Vec<Sheet> {
        vec![self.requests()]
    }

    fn text(&self) -> String {
        self.speeds().text() + "\n" + &self.notes()
    }

    fn notes(&self) -> String {
        let (runs, tokens) = (self.runs, self.max_tokens);
        let passes = if self.sweep { " there and back" } else { "" };
        let mut text = format!(
            "tokens per second of wall-clock time from the first submission to the end of the last answer, {tokens} tokens an\n\
             answer in the mean (a quarter less to a quarter more); medians of {runs} runs{passes}, in brackets the 95 % interval of the median\n\
             \n{}\n{COLUMNS}THROUGHPUT: the speed above. SPEED-UP: over one stream of the kind, within each run\n\n",
            self.requests().text()
        );
        if self.rows.len() > 1 || !self.over_other.is_empty() {
            text.push_str(&self.ratios());
        }
        text.push_str(&self.same.text());
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

    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let fails = self.rows.iter().filter(|row| self.fails(row));
        let cells: Vec<_> = fails.map(|row| row.cell.to_string()).collect();
        if !cells.is_empty() {
            let cells = cells.join(", ");
            failures
                .push(format!("routed is slower than {CELL_BOUND} of the better lane in {cells}"));
        }
        let numbers: Vec<_> = self.slow_numbers().map(|mean| mean.of.as_str()).collect();
        if !numbers.is_empty() {
            let numbers = numbers.join(", ");
            failures.push(format!(
                "routed is slower than {NUMBER_BOUND} of the better lane in the mean of kinds, {numbers}"
            ));
        }
        failures.extend(self.same.failure());
        failures
    }
}

/// Words for some cells, and their ratios.
type RatioRow = (String, Vec<Option<Estimate>>);

impl LaneReport {
    /// The times of the requests, a row for each cell and mode.
    fn requests(&self) -> Sheet {
        let lanes = self.rows.iter().flat_map(|row| row.lanes.iter().map(move |lane| (row, lane)));
        let lanes: Vec<(&CellRow, &Lane)> = lanes.collect();
        let sheet = Sheet::of("lanes", &lanes)
            .plain("kind", "KIND", |(row, _)| &row.cell.kind)
            .plain("streams", "AT ONCE", |(row, _)| row.cell.streams)
            .plain("lane", "LANE", |(_, lane)| lane.mode.word());
        RequestStatistics::columns(sheet, |(_, lane)| &lane.requests)
            .number("throughput_tok_s", "THROUGHPUT tok/s", 0, |(_, lane)| Some(lane.speed))
            .number("speed_up", "SPEED-UP", 2, |(_, lane)| lane.speed_up.as_ref())
            .number("tokens_per_cycle", "TOKENS/CYCLE", 2, |(_, lane)| lane.tokens_per_cycle())
            .look(Look::Hidden)
            .number("over_better", "ROUTED/BETTER", 3, |(row, lane)| {
                row.ratio().filter(|_| lane.mode == Mode::Routed)
            })
            .look(Look::Hidden)
            .sheet()
    }

    fn fails(&self, row: &CellRow) -> bool {
        self.sweep && row.outcome() == Some(VerdictOutcome::Fails)
    }

    /// Numbers of requests at which routed is too slow in the mean over the kinds.
    fn slow_numbers(&self) -> impl Iterator<Item = &Mean> {
        let means = self.over_better.iter().filter(|mean| self.sweep && mean.of_number);
        means.filter(|mean| falls_short(&mean.figure.estimate, NUMBER_BOUND))
    }

    fn verdict(&self) -> String {
        if self.rows.iter().any(|row| row.outcome() == Some(VerdictOutcome::TooFewRuns)) {
            return format!("No verdict: an interval needs 6 runs, found {}.", self.runs);
        }
        let (cells, numbers) =
            (self.rows.iter().filter(|row| self.fails(row)).count(), self.slow_numbers().count());
        let word = if cells + numbers == 0 { "PASSED" } else { "FAILED" };
        format!(
            "{word}: routed over the better of the other two. Cells below {CELL_BOUND}: {cells} of {}. Numbers of requests whose mean over the kinds is \
             below {NUMBER_BOUND}: {numbers}. An interval that reaches 1 is not below.",
            self.rows.len()
        )
    }

    /// Means of routed over the better mode, and of this build over the other, with a row for each
    /// cell of the latter.
    fn ratios(&self) -> String {
        let compared = (!self.over_better.is_empty()).then_some(&self.over_better);
        let all: Vec<&Vec<Mean>> =
            compared.into_iter().chain(self.over_other.iter().map(|(_, means)| means)).collect();
        let mean = |at: usize| -> RatioRow {
            let of_column = |means: &&Vec<Mean>| means.get(at).map(|mean| mean.figure.estimate);
            (all[0][at].of.clone(), all.iter().map(of_column).collect())
        };
        let cell = |row: &CellRow| -> RatioRow {
            let other = self.over_other.iter().map(|(mode, _)| row.over_other(*mode));
            let other = other.map(|found| found.map(|figure| figure.estimate));
            let ratios = compared.map(|_| row.ratio()).into_iter().chain(other).collect();
            (row.cell.to_string(), ratios)
        };
        let means = (0..all.first().map_or(0, |means| means.len())).map(mean);
        let cells = self.rows.iter().filter(|row| !row.over_other.is_empty()).map(cell);
        let rows: Vec<RatioRow> = means.chain(cells).collect();
        let of_build = |(mode, _): &(Mode, Vec<Mean>)| {
            format!("{} OVER THE OTHER BUILD", mode.word().to_uppercase())
        };
        let better = compared.map(|_| "ROUTED/BETTER".to_owned());
        let titles = better.into_iter().chain(self.over_other.iter().map(of_build));
        let mut table = Sheet::of("means", &rows).plain("", "GEOMETRIC MEAN", |row| &row.0);
        for (at, title) in titles.enumerate() {
            table = table.number("", &title, 3, |row| row.1[at]).look(Look::Apart);
        }
        table.sheet().text() + "\n"
    }

    /// The speeds of all modes, and in a comparison routed over the better of the others.
    fn speeds(&self) -> Sheet {
        let lanes = self.rows.first().map_or(&[][..], |row| &row.lanes);
        let mut table = Sheet::of("speeds", &self.rows)
            .plain("", "KIND", |row| &row.cell.kind)
            .plain("", "AT ONCE", |row| row.cell.streams);
        for mode in lanes.iter().map(|lane| lane.mode) {
            let title = format!("{} tok/s", mode.word().to_uppercase());
            let speed = |row: &CellRow| row.lane(mode).map(|lane| lane.speed);
            table = table.number("", &title, 0, speed).look(Look::Apart);
        }
        if lanes.len() > 1 {
            table = table
                .number("", "TOKENS/CYCLE", 2, |row| row.lane(Mode::Forced)?.tokens_per_cycle())
                .number("", "ROUTED/BETTER", 3, CellRow::ratio)
                .look(Look::Apart)
                .plain("", "OF", |row| {
                    let better = row.verdict.as_ref().map_or("-", |verdict| verdict.better.word());
                    format!("{better}{}", if self.fails(row) { "  FAILS" } else { "" })
                });
        }
        table.sheet()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Cell;
    use super::super::verdict::CellRun;
    use super::*;
    use crate::output::sheet::{csv, markdown};
    use crate::requests::RequestTimes;
    use paceline_client::answer::{Answer, Speculation, Timing};
    use paceline_client::compare::{Difference, DifferencePlace, JudgedDifferences};

    const REQUEST: RequestTimes = RequestTimes {
        ttft_ms: 20.0,
        e2e_ms: 120.0,
        tokens: 51,
        prompt_tokens: 40,
        cached_tokens: 0,
    };

    fn row(kind: &str, routed: f64) -> CellRow {
        let run = |tok_s: f64, cycles: u64| {
            let speculation = Speculation { cycles, drafted: 15 * cycles, accepted: 4 * cycles };
            let timing = Timing { ttft_ms: 9.0, ..Timing::default() };
            CellRun {
                seconds: 100.0 / tok_s,
                tokens: 100,
                answers: vec![Answer { timing, speculation, ..Answer::default() }],
                requests: vec![REQUEST],
            }
        };
        let runs = |tok_s: f64, cycles| (0..7).map(|_| run(tok_s, cycles)).collect::<Vec<_>>();
        let measured = [
            (Mode::Absent, runs(250.0, 0)),
            (Mode::Forced, runs(500.0, 2)),
            (Mode::Routed, runs(routed, 2)),
        ];
        CellRow::of(Cell { kind: kind.into(), streams: 4 }, &measured)
    }

    fn report(routed: f64) -> LaneReport {
        let rows = vec![row("json", 500.0), row("prose", routed)];
        let same = Counts { answers: 10, tokens: 640, ..Counts::default() };
        LaneReport::new(true, 7, 64, rows, same)
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
        let means = "\
GEOMETRIC MEAN  ROUTED/BETTER            (95 %)
at once: 4              0.894  (0.894 to 0.894)
json                    1.000  (1.000 to 1.000)
prose                   0.800  (0.800 to 0.800)
all                     0.894  (0.894 to 0.894)
";
        assert!(text.contains(means), "{text}");
        let verdict = "FAILED: routed over the better of the other two. Cells below 0.95: 1 of 2. Numbers of requests whose mean over the kinds is \
                       below 0.98: 1. An interval that reaches 1 is not below.\n";
        assert!(text.ends_with(verdict), "{text}");
        let failures = [
            "routed is slower than 0.95 of the better lane in prose x 4",
            "routed is slower than 0.98 of the better lane in the mean of kinds, at once: 4",
        ];
        assert_eq!(report(400.0).failures(), failures);
        assert_eq!(report(490.0).failures(), Vec::<String>::new());
        assert!(report(490.0).text().contains("PASSED: "));
    }

    #[test]
    fn another_build_has_a_column_for_each_mode_and_a_row_for_each_cell() {
        let mut rows = vec![row("json", 500.0), row("prose", 400.0)];
        rows[0].compare(&row("json", 250.0));
        rows[1].compare(&row("prose", 800.0));
        let text = LaneReport::new(true, 7, 64, rows, Counts::default()).text();
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let (one, equal) = ("1.000 (1.000 to 1.000)", "0.894 (0.894 to 0.894)");
        for line in [
            format!("all {equal} {one} {one} {one}"),
            format!("json x 4 {one} {one} {one} 2.000 (2.000 to 2.000)"),
            format!("prose x 4 0.800 (0.800 to 0.800) {one} {one} 0.500 (0.500 to 0.500)"),
        ] {
            assert!(lines.contains(&line), "{line}: {text}");
        }
    }

    /// The report of one kind, as the short form makes it with a single run.
    fn short() -> LaneReport {
        let run = |tok_s| {
            let speculation = Speculation { cycles: 4, drafted: 60, accepted: 12 };
            let answers = vec![Answer { speculation, ..Answer::default() }];
            CellRun { seconds: 51.0 / tok_s, tokens: 51, answers, requests: vec![REQUEST] }
        };
        let measured = [(Mode::Plain, vec![run(300.0)]), (Mode::Routed, vec![run(600.0)])];
        let rows = vec![CellRow::of(Cell { kind: "json".into(), streams: 1 }, &measured)];
        LaneReport { runs: 1, max_tokens: 51, rows, ..LaneReport::default() }
    }

    #[test]
    fn requests_have_a_row_for_each_mode() {
        let expected = "\
KIND  AT ONCE    LANE  TTFT ms  TPOT ms  PROMPT tok/s  DECODE tok/s  E2E ms  THROUGHPUT tok/s  SPEED-UP
json        1   plain     20.0     2.00          2000         500.0     120               300         -
json        1  routed     20.0     2.00          2000         500.0     120               600         -
";
        assert_eq!(short().requests().text(), expected);
        assert!(short().text().contains(expected), "{}", short().text());
    }

    #[test]
    fn csv_and_markdown_have_the_same_figures() {
        let expected = "\
table,kind,streams,lane,ttft_ms,ttft_ms_low,ttft_ms_high,tpot_ms,tpot_ms_low,tpot_ms_high,prompt_tok_s,prompt_tok_s_low,prompt_tok_s_high,\
decode_tok_s,decode_tok_s_low,decode_tok_s_high,e2e_ms,e2e_ms_low,e2e_ms_high,throughput_tok_s,throughput_tok_s_low,throughput_tok_s_high,\
speed_up,speed_up_low,speed_up_high,tokens_per_cycle,over_better,over_better_low,over_better_high
lanes,json,1,plain,20,,,2,,,2000,,,500,,,120,,,300,,,,,,4,,,
lanes,json,1,routed,20,,,2,,,2000,,,500,,,120,,,600,,,,,,4,2,,
";
        assert_eq!(csv(&short().sheets(), &[]), expected);
        let row =
            "| json | 1 | routed | 20.0 | 2.00 | 2000 | 500.0 | 120 | 600 | - | 4.00 | 2.000 |";
        assert_eq!(markdown(&short().sheets()).lines().last(), Some(row));
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
        let near =
            JudgedDifferences { near_ties: vec![place(0.000_02)], ..JudgedDifferences::default() };
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
        let few = CellRow::of(report.rows[1].cell.clone(), &[]);
        assert_eq!(few.verdict, None);
        for row in &mut report.rows {
            row.verdict.as_mut().expect("measured").outcome = VerdictOutcome::TooFewRuns;
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
