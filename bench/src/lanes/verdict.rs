//! Figures of each cell over all runs: speeds, and whether the routed mode is as fast as the better
//! of the other two. Pure.

use paceline_client::answer::Answer;
use serde::Serialize;

use super::plan::Cell;
use crate::load::Sent;
use crate::mode::Mode;
use crate::requests::{RequestStatistics, RequestTimes, tokens_per_cycle};
use crate::statistics::{Estimate, Figure};

/// Least ratio of routed to the better of the other two, in a cell.
pub const CELL_BOUND: f64 = 0.95;
/// The same in the mean over the kinds at a number of requests.
pub const NUMBER_BOUND: f64 = 0.98;

/// Whether a ratio is less than `bound`, and surely less than 1.
pub fn falls_short(ratio: &Estimate, bound: f64) -> bool {
    ratio.median < bound && ratio.interval.is_some_and(|(_, high)| high < 1.0)
}

/// The figures of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellRun {
    /// Time from the first submission to the end of the last answer, by this process's clock. The
    /// sum of several passes.
    pub seconds: f64,
    /// Tokens of all answers.
    pub tokens: usize,
    /// The answers, in the order of the prompts.
    pub answers: Vec<Answer>,
    /// Times of the requests, in the same order.
    pub requests: Vec<RequestTimes>,
}

impl CellRun {
    /// The figures of answers that took this number of seconds together.
    pub fn of((sent, seconds): (Vec<Sent>, f64)) -> Self {
        let requests = sent.iter().filter_map(RequestTimes::of).collect();
        let answers: Vec<Answer> = sent.into_iter().map(|sent| sent.answer).collect();
        let tokens = answers.iter().map(|seen| seen.token_ids.len()).sum();
        Self { seconds, tokens, answers, requests }
    }

    /// Tokens per second of wall-clock time: the metric of the benchmark.
    pub fn tok_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// Adds one more pass of the same run.
    pub fn add(&mut self, pass: &CellRun) {
        self.seconds += pass.seconds;
        self.tokens += pass.tokens;
        self.answers.extend_from_slice(&pass.answers);
        self.requests.extend_from_slice(&pass.requests);
    }

    /// Answers that waited for admission. They did not run together with the others.
    pub fn waited(&self) -> usize {
        self.answers.iter().filter(|seen| seen.waited()).count()
    }
}

/// A cell in one mode, over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lane {
    /// The mode.
    pub mode: Mode,
    /// Tokens per second of wall-clock time, one value for each run.
    pub tok_s: Vec<f64>,
    /// Their median and interval.
    pub speed: Estimate,
    /// Time to the first token by the gateway's clock, median of all answers.
    pub ttft_ms: f64,
    /// Times of the requests at the client.
    pub requests: RequestStatistics,
    /// Tokens per second over those of one stream of the same kind and mode, within each run.
    /// `None` of one stream, and if one stream was not measured.
    pub speed_up: Option<Figure>,
    /// Draft-and-verify rounds.
    pub cycles: u64,
    /// Tokens proposed.
    pub drafted: u64,
    /// Proposed tokens that the target accepted.
    pub accepted: u64,
    /// Answers.
    pub answers: usize,
    /// Answers with at least one cycle.
    pub speculative: usize,
    /// Answers that waited for admission.
    pub waited: usize,
}

impl Lane {
    /// The figures of all runs; `None` without runs.
    pub fn of(mode: Mode, runs: &[CellRun]) -> Option<Self> {
        let tok_s: Vec<f64> = runs.iter().map(CellRun::tok_s).collect();
        let answers = || runs.iter().flat_map(|run| &run.answers);
        let ttfts: Vec<f64> = answers().map(|seen| seen.timing.ttft_ms).collect();
        Some(Self {
            mode,
            speed: Estimate::of(&tok_s)?,
            tok_s,
            ttft_ms: Estimate::of(&ttfts)?.median,
            requests: RequestStatistics::of(
                runs.iter().map(|run| -> &[RequestTimes] { &run.requests }),
            ),
            speed_up: None,
            cycles: answers().map(|seen| seen.speculation.cycles).sum(),
            drafted: answers().map(|seen| seen.speculation.drafted).sum(),
            accepted: answers().map(|seen| seen.speculation.accepted).sum(),
            answers: answers().count(),
            speculative: answers().filter(|seen| seen.speculation.cycles > 0).count(),
            waited: runs.iter().map(CellRun::waited).sum(),
        })
    }

    /// Tokens per cycle: in the forced mode, how well the drafter guesses this kind of text.
    pub fn tokens_per_cycle(&self) -> Option<f64> {
        tokens_per_cycle(self.accepted, self.cycles)
    }
}

/// LaneVerdict on a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictOutcome {
    /// Routed may be as fast as the better of the other modes.
    Passes,
    /// It is slower.
    Fails,
    /// With fewer than 6 runs there is no verdict.
    TooFewRuns,
}

/// A cell, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellRow {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// The figures of each mode.
    pub lanes: Vec<Lane>,
    /// Routed over the others; `None` if it was not measured.
    pub verdict: Option<LaneVerdict>,
    /// Speed of this build over that of the other one in each mode, within each run; empty without
    /// another build.
    pub over_other: Vec<(Mode, Figure)>,
}

/// Routed against the better of the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneVerdict {
    /// The better of the others, by the medians of all runs. It is not chosen anew in each run,
    /// because the greater of two noisy values exceeds the true speed.
    pub better: Mode,
    /// Routed over that one within each run, because a slow period of the machine affects both.
    pub ratios: Vec<f64>,
    /// Their median and interval.
    pub ratio: Estimate,
    /// The verdict.
    pub outcome: VerdictOutcome,
}

impl CellRow {
    /// The figures of a cell, with what was measured in each mode, run by run. Modes that were not
    /// measured are left out.
    pub fn of(cell: Cell, measured: &[(Mode, Vec<CellRun>)]) -> Self {
        let lanes: Vec<Lane> =
            measured.iter().filter_map(|(mode, runs)| Lane::of(*mode, runs)).collect();
        let verdict = verdict(&lanes);
        Self { cell, lanes, verdict, over_other: vec![] }
    }

    /// Compares with the same cell of another build.
    pub fn compare(&mut self, other: &Self) {
        let over = |lane: &Lane| {
            let other = other.lane(lane.mode)?;
            let ratios = lane.tok_s.iter().zip(&other.tok_s).map(|(own, other)| own / other);
            Some((lane.mode, Figure::of(ratios)?))
        };
        self.over_other = self.lanes.iter().filter_map(over).collect();
    }

    /// Ratios to the better of the other modes, one for each run.
    pub fn over_better(&self) -> Option<&[f64]> {
        self.verdict.as_ref().map(|verdict| verdict.ratios.as_slice())
    }

    /// Routed over the better of the other modes.
    pub fn ratio(&self) -> Option<Estimate> {
        self.verdict.as_ref().map(|verdict| verdict.ratio)
    }

    /// This build over the other one in a mode.
    pub fn over_other(&self, mode: Mode) -> Option<&Figure> {
        self.over_other.iter().find(|(known, _)| *known == mode).map(|(_, figure)| figure)
    }

    /// The verdict, if there is one.
    pub fn outcome(&self) -> Option<VerdictOutcome> {
        self.verdict.as_ref().map(|verdict| verdict.outcome)
    }

    /// The lane of a mode.
    pub fn lane(&self, mode: Mode) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.mode == mode)
    }
}

/// Compares the speeds of several streams with those of one, for each kind and mode.
pub fn compare_with_one_stream(rows: &mut [CellRow]) {
    let alone: Vec<CellRow> = rows.iter().filter(|row| row.cell.streams == 1).cloned().collect();
    for row in rows.iter_mut().filter(|row| row.cell.streams > 1) {
        let Some(one) = alone.iter().find(|one| one.cell.kind == row.cell.kind) else { continue };
        for lane in &mut row.lanes {
            let Some(base) = one.lane(lane.mode) else { continue };
            lane.speed_up =
                Figure::of(lane.tok_s.iter().zip(&base.tok_s).map(|(all, one)| all / one));
        }
    }
}

fn verdict(lanes: &[Lane]) -> Option<LaneVerdict> {
    let routed = lanes.iter().find(|lane| lane.mode == Mode::Routed)?;
    let others = lanes.iter().filter(|lane| lane.mode != Mode::Routed);
    let better = others.max_by(|one, two| one.speed.median.total_cmp(&two.speed.median))?;
    let ratios: Vec<f64> =
        routed.tok_s.iter().zip(&better.tok_s).map(|(routed, better)| routed / better).collect();
    let ratio = Estimate::of(&ratios)?;
    let outcome = match ratio.interval {
        None => VerdictOutcome::TooFewRuns,
        Some(_) if falls_short(&ratio, CELL_BOUND) => VerdictOutcome::Fails,
        Some(_) => VerdictOutcome::Passes,
    };
    Some(LaneVerdict { better: better.mode, ratios, ratio, outcome })
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_client::answer::{Speculation, Timing};

    fn run(tok_s: f64) -> CellRun {
        let seen = |cycles| Answer {
            token_ids: vec![1; 50],
            timing: Timing { ttft_ms: 10.0, ..Timing::default() },
            speculation: Speculation { cycles, drafted: 15 * cycles, accepted: 4 * cycles },
            ..Answer::default()
        };
        let answers = vec![seen(10), seen(0)];
        CellRun { seconds: 100.0 / tok_s, tokens: 100, answers, ..CellRun::default() }
    }

    fn row(absent: &[f64], forced: &[f64], routed: &[f64]) -> CellRow {
        let runs = |values: &[f64]| values.iter().map(|value| run(*value)).collect();
        let measured = [
            (Mode::Absent, runs(absent)),
            (Mode::Forced, runs(forced)),
            (Mode::Routed, runs(routed)),
        ];
        CellRow::of(Cell { kind: "json".into(), streams: 2 }, &measured)
    }

    fn check(forced: &[f64], routed: &[f64], better: Mode, outcome: VerdictOutcome) {
        let verdict = row(&[100.0; 7], forced, routed).verdict.expect("all were measured");
        assert_eq!(
            (verdict.better, verdict.outcome),
            (better, outcome),
            "{forced:?} {routed:?}: {:?}",
            verdict.ratio
        );
    }

    #[test]
    fn a_cell_fails_when_its_median_is_below_the_bound_and_its_interval_below_1() {
        check(&[50.0; 7], &[100.0; 7], Mode::Absent, VerdictOutcome::Passes);
        check(&[50.0; 7], &[95.5; 7], Mode::Absent, VerdictOutcome::Passes);
        check(&[50.0; 7], &[94.5; 7], Mode::Absent, VerdictOutcome::Fails);
        check(&[200.0; 7], &[189.0; 7], Mode::Forced, VerdictOutcome::Fails);
        check(&[200.0; 7], &[230.0; 7], Mode::Forced, VerdictOutcome::Passes);
        // The middle is below, and the interval reaches over 1.
        check(
            &[50.0; 7],
            &[90.0, 90.0, 93.0, 95.0, 99.0, 101.0, 102.0],
            Mode::Absent,
            VerdictOutcome::Passes,
        );
        // One fast run does not change the verdict.
        check(
            &[50.0; 7],
            &[90.0, 90.0, 90.0, 91.0, 91.0, 91.0, 105.0],
            Mode::Absent,
            VerdictOutcome::Fails,
        );
    }

    #[test]
    fn builds_are_compared_in_each_mode_and_run() {
        let mut own = row(&[100.0, 50.0], &[60.0, 30.0], &[90.0, 45.0]);
        own.compare(&row(&[50.0, 50.0], &[60.0, 60.0], &[45.0, 45.0]));
        let values = |mode| own.over_other(mode).map(|figure| figure.values.as_slice());
        assert_eq!(values(Mode::Absent), Some(&[2.0, 1.0][..]));
        assert_eq!(values(Mode::Forced), Some(&[1.0, 0.5][..]));
        assert_eq!(values(Mode::Routed), Some(&[2.0, 1.0][..]));
        assert_eq!(values(Mode::Plain), None);
    }

    #[test]
    fn ratios_are_taken_within_a_run() {
        // The whole machine became four times as slow: no lane lost anything.
        let slow = [200.0, 200.0, 200.0, 50.0, 50.0, 50.0, 50.0];
        let verdict = row(&[10.0; 7], &slow, &slow).verdict.expect("measured");
        assert_eq!((verdict.better, verdict.outcome), (Mode::Forced, VerdictOutcome::Passes));
        assert_eq!(verdict.ratio, Estimate { median: 1.0, interval: Some((1.0, 1.0)) });
    }

    #[test]
    fn few_runs_or_one_lane_give_no_verdict() {
        let verdict = row(&[100.0; 2], &[100.0; 2], &[10.0; 2]).verdict.expect("measured");
        assert_eq!(verdict.outcome, VerdictOutcome::TooFewRuns);
        let alone = CellRow::of(
            Cell { kind: "json".into(), streams: 1 },
            &[(Mode::Plain, vec![run(10.0)])],
        );
        assert_eq!(alone.verdict, None);
    }

    #[test]
    fn several_streams_are_compared_with_one_within_a_run() {
        let of = |kind: &str, streams, tok_s: &[f64]| {
            let runs = tok_s.iter().map(|tok_s| run(*tok_s)).collect();
            CellRow::of(Cell { kind: kind.into(), streams }, &[(Mode::Plain, runs)])
        };
        let mut rows = [
            of("json", 1, &[100.0, 50.0]),
            of("json", 4, &[300.0, 200.0]),
            of("code", 4, &[300.0, 200.0]),
        ];
        compare_with_one_stream(&mut rows);
        let speed_up = |row: &CellRow| row.lanes[0].speed_up.clone().map(|figure| figure.values);
        assert_eq!(speed_up(&rows[1]), Some(vec![3.0, 4.0]));
        assert_eq!((speed_up(&rows[0]), speed_up(&rows[2])), (None, None), "no single stream");
    }

    #[test]
    fn a_lane_sums_up_its_answers() {
        let row = row(&[100.0; 2], &[100.0; 2], &[50.0, 150.0]);
        let routed = row.lane(Mode::Routed).expect("measured");
        assert_eq!((routed.tok_s.as_slice(), routed.speed.median), (&[50.0, 150.0][..], 100.0));
        assert_eq!((routed.cycles, routed.drafted, routed.accepted), (20, 300, 80));
        assert_eq!(
            (routed.answers, routed.speculative, routed.waited, routed.ttft_ms),
            (4, 2, 0, 10.0)
        );
    }
}
