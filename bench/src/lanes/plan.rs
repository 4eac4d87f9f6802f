//! The cells that are measured, their modes, and the order of both. Pure.

use std::fmt;

use paceline_client::Failure;
use paceline_client::own_service::settings::Settings;
use paceline_client::prompts::{self, Prompt};
use paceline_proto::v1::RouteWish;
use serde::Serialize;

use crate::args::{ANSWER_TOKENS, BenchArgs};

/// Least number of requests of a measurement, and of requests one after the other in each stream.
/// In a single request a pause of the machine would be half the figure, and the start of a request
/// would count too much.
const REQUESTS: usize = 8;
const IN_TURN: usize = 2;
/// Requests at once of a sweep.
const STREAMS: [usize; 5] = [1, 2, 4, 8, 16];

/// Tokens of an answer of a sweep: those of llama-bench (tg128). In much shorter answers drafts
/// cannot save the time of the probes that measure whether they pay. Few real answers that a person
/// waits for are so short.
const SWEEP_TOKENS: u32 = 128;

/// How a cell is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No drafter process runs. Requests also ask for the plain lane, so that the target retains
    /// nothing for a later drafter. This is the service of a user without a drafter.
    Absent,
    /// Plain decoding while a drafter runs.
    Plain,
    /// Each request asks for drafts.
    Forced,
    /// The service decides.
    Routed,
}

impl Mode {
    /// The lane that requests ask for.
    pub fn wish(self) -> RouteWish {
        match self {
            Mode::Absent | Mode::Plain => RouteWish::Plain,
            Mode::Forced => RouteWish::Speculative,
            Mode::Routed => RouteWish::Auto,
        }
    }

    /// Name of the mode in reports.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Absent => "absent",
            Mode::Plain => "plain",
            Mode::Forced => "forced",
            Mode::Routed => "routed",
        }
    }
}

/// A kind of prompt, and a number of requests at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Kind of the prompts.
    pub kind: String,
    /// Requests at once.
    pub streams: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.kind, self.streams)
    }
}

impl Cell {
    /// The prompts of one measurement, the same in each mode and run. Their number is a multiple of
    /// the requests at once.
    pub fn prompts(&self) -> Vec<Prompt> {
        let turns = REQUESTS.div_ceil(self.streams).max(IN_TURN);
        // Prompts repeat if there are not enough different ones.
        let there = prompts::longest(&self.kind, usize::MAX).len();
        prompts::longest(&self.kind, self.streams * turns.min(there / self.streams).max(1))
    }
}

/// Plan of a measurement of the lanes.
#[derive(Clone, Debug)]
pub struct LanePlan {
    /// Settings of the service.
    pub settings: Settings,
    /// Whether a verdict is wanted.
    pub sweep: bool,
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// Tokens of each answer.
    pub max_tokens: u32,
    /// Kinds of prompts.
    pub kinds: Vec<String>,
    /// Requests at once, ascending.
    pub streams: Vec<usize>,
}

impl LanePlan {
    /// The plan of the arguments.
    ///
    /// # Errors
    /// The configuration cannot be used, or a named directory or kind does not exist.
    pub fn from_args(args: &BenchArgs) -> Result<Self, Failure> {
        let kinds = kinds(&args.kinds)?;
        let mut settings = args.settings(args.drafter.as_deref())?;
        // Every mode and run has the same prompts; with the cache the benchmark would measure hits.
        settings.config.kv.prefix_cache = false;
        let (runs, max_tokens, streams) =
            if args.sweep { (7, SWEEP_TOKENS, &STREAMS[..]) } else { (3, ANSWER_TOKENS, &[1][..]) };
        Ok(Self {
            settings,
            sweep: args.sweep,
            runs: args.runs(runs),
            max_tokens: args.max_tokens.unwrap_or(max_tokens),
            kinds,
            streams: args.streams(streams),
        })
    }

    /// The modes that are compared. A sweep compares with a service without a drafter. The short
    /// form measures the lanes while the drafter runs, or the plain lane alone without a drafter.
    pub fn modes(&self, drafter: bool) -> &'static [Mode] {
        match (self.sweep, drafter) {
            (true, _) => &[Mode::Absent, Mode::Forced, Mode::Routed],
            (false, true) => &[Mode::Plain, Mode::Forced, Mode::Routed],
            (false, false) => &[Mode::Plain],
        }
    }

    /// All cells, in the order of a run.
    pub fn cells(&self) -> Vec<Cell> {
        let cell = |streams: usize| move |kind: &String| Cell { kind: kind.clone(), streams };
        self.streams.iter().flat_map(|streams| self.kinds.iter().map(cell(*streams))).collect()
    }

    /// How often a run measures each mode of a cell. A sweep measures them there and back (A B C C
    /// B A). A machine may become slower steadily, because it becomes hot or has other work; this
    /// order then favours no mode.
    pub fn passes(&self) -> usize {
        if self.sweep { 2 } else { 1 }
    }

    /// Estimated seconds of `runs` runs. `few` and `many` are the seconds of a cell with the fewest
    /// and with the most requests at once. `change` are the seconds of the drafter's changes for a
    /// cell.
    pub fn estimate_s(&self, runs: usize, few: f64, many: f64, change: f64) -> f64 {
        self.cells().len() as f64 * (runs * self.passes()) as f64 * ((few + many) / 2.0 + change)
    }
}

/// The modes of a cell in the order of this run. Over the runs each mode is first, in the middle
/// and last equally often, and follows each other mode equally often; the next cell begins with
/// another mode. So no effect of the order favours a mode.
pub fn order(modes: &[Mode], run: usize, cell: usize) -> Vec<Mode> {
    let mut modes = modes.to_vec();
    if run % 2 == 1 {
        modes.reverse();
    }
    let places = modes.len().max(1);
    modes.rotate_left((run + cell) % places);
    modes
}

/// That order for each pass, reversed in every second pass.
pub fn alternate_direction(order: Vec<Mode>, passes: usize) -> Vec<Mode> {
    let back: Vec<Mode> = order.iter().rev().copied().collect();
    (0..passes).flat_map(|pass| if pass % 2 == 0 { order.clone() } else { back.clone() }).collect()
}

fn kinds(words: &[String]) -> Result<Vec<String>, Failure> {
    let known = prompts::kinds();
    match words.iter().find(|word| !known.contains(word)) {
        Some(word) => Err(Failure::usage(format!(
            "--kinds: expected some of {}, found {word:?}",
            known.join(",")
        ))),
        None => {
            Ok(known.into_iter().filter(|kind| words.is_empty() || words.contains(kind)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sweep: bool, concurrency: &[u32]) -> LanePlan {
        let kinds = kinds(&["prose".into(), "json".into()]).expect("known");
        let args = BenchArgs { concurrency: concurrency.to_vec(), ..BenchArgs::default() };
        let streams = args.streams(if sweep { &STREAMS } else { &[1] });
        LanePlan { settings: Settings::default(), sweep, runs: 7, max_tokens: 64, kinds, streams }
    }

    #[test]
    fn each_mode_runs_equally_often_at_each_position() {
        let modes = plan(true, &[]).modes(true);
        assert_eq!(order(modes, 0, 0), [Mode::Absent, Mode::Forced, Mode::Routed]);
        for cell in 0..5 {
            for place in 0..3 {
                for mode in modes {
                    let times =
                        (0..6).filter(|run| order(modes, *run, cell)[place] == *mode).count();
                    assert_eq!(times, 2, "{mode:?} at {place}");
                }
            }
        }
        let behind = |run| {
            order(modes, run, 0)
                .windows(2)
                .filter(|pair| pair == &[Mode::Forced, Mode::Routed])
                .count()
        };
        assert_eq!((0..6).map(behind).sum::<usize>(), 2);
        assert_eq!(order(&[], 3, 1), []);
    }

    #[test]
    fn a_steady_drift_favours_no_mode() {
        let modes = plan(true, &[]).modes(true);
        for run in 0..6 {
            let places = alternate_direction(order(modes, run, 2), plan(true, &[]).passes());
            let sum = |mode| {
                places
                    .iter()
                    .enumerate()
                    .filter(|(_, other)| **other == mode)
                    .map(|(place, _)| place)
                    .sum::<usize>()
            };
            assert_eq!(
                modes.iter().map(|mode| sum(*mode)).collect::<Vec<_>>(),
                [5, 5, 5],
                "{places:?}"
            );
        }
        assert_eq!(alternate_direction(order(modes, 0, 0), plan(false, &[]).passes()), modes);
    }

    #[test]
    fn cells_are_all_kinds_at_each_concurrency() {
        let cells: Vec<_> = plan(true, &[4, 1, 4])
            .cells()
            .into_iter()
            .map(|cell| (cell.streams, cell.kind))
            .collect();
        assert_eq!(
            cells,
            [(1, "json".into()), (1, "prose".into()), (4, "json".into()), (4, "prose".into())]
        );
        assert_eq!(plan(true, &[]).cells().len(), 10);
        assert_eq!(plan(false, &[]).cells().len(), 2);
    }

    #[test]
    fn a_cell_has_enough_prompts_to_keep_all_streams_busy() {
        for (streams, requests) in [(1, 8), (2, 8), (4, 8), (5, 10), (6, 12), (16, 32), (32, 32)] {
            let prompts = Cell { kind: "facts".into(), streams }.prompts();
            assert_eq!(prompts.len(), requests, "{streams}");
            assert!((0..requests).all(|at| !prompts[..at].contains(&prompts[at])));
        }
    }

    #[test]
    fn without_a_drafter_there_is_one_lane() {
        assert_eq!(plan(false, &[]).modes(false), [Mode::Plain]);
        assert_eq!(plan(false, &[]).modes(true).len(), 3);
    }

    #[test]
    fn unknown_kinds_are_named_with_the_known_ones() {
        let failure = kinds(&["json".into(), "verse".into()]).expect_err("unknown");
        assert!(
            failure.message.contains("verse") && failure.message.contains("arithmetic"),
            "{failure}"
        );
        assert_eq!(kinds(&[]).expect("all").len(), 6);
    }

    #[test]
    fn an_estimate_counts_cells_runs_and_changes() {
        assert_eq!(plan(true, &[1, 4]).estimate_s(7, 1.0, 3.0, 0.5), 4.0 * 14.0 * 2.5);
    }
}
