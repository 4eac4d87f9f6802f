//! The cells that are measured, and their modes. Pure but for the user's file and the tokenizer.

use std::fmt;
use std::path::Path;

use paceline_client::own_service::settings::Settings;
use paceline_client::program::within;
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, own_prompts};
use paceline_proto::v1::StatusResponse;
use serde::Serialize;

use crate::args::{ANSWER_TOKENS, BenchArgs};
use crate::experiment::BenchPlan;
use crate::mode::Mode;
use crate::prompts::{self, Kind, LONG_TOKENS, PromptSet, tokenizer};
use crate::report::failed;

/// Requests at once of a sweep.
const STREAMS: [usize; 5] = [1, 2, 4, 8, 16];

/// Tokens of an answer of a sweep: those of llama-bench (tg128). In much shorter answers drafts
/// cannot save the time of the probes that measure whether they pay. Few real answers that a person
/// waits for are so short.
const SWEEP_TOKENS: u32 = 128;

/// Positions of a prompt that are not of a made text: the template's, and those of its question.
const AROUND_TEXT: u32 = 256;
/// Fewest tokens of a made text that is worth the name.
const LEAST_TEXT: u32 = 64;

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

/// Plan of a measurement of the lanes.
#[derive(Clone, Debug)]
pub struct LanePlan {
    /// What all benchmarks plan.
    pub bench: BenchPlan,
    /// Settings of a service of another build, which is measured in turn with it.
    pub other: Option<Settings>,
    /// Whether a verdict is wanted.
    pub sweep: bool,
    /// Kinds of prompts.
    kinds: Vec<Kind>,
    /// Requests at once, ascending.
    streams: Vec<usize>,
}

impl LanePlan {
    /// The plan of the arguments.
    ///
    /// # Errors
    /// The configuration cannot be used, or a named directory, kind or build does not exist.
    pub fn from_args(args: &BenchArgs) -> Result<Self, Failure> {
        let kinds = match &args.prompts {
            Some(path) => {
                own_prompts::read("--prompts", path)?.into_iter().map(Kind::Own).collect()
            }
            None => Kind::of_words(&args.kinds)?,
        };
        let (runs, max_tokens, streams) =
            if args.sweep { (7, SWEEP_TOKENS, &STREAMS[..]) } else { (3, ANSWER_TOKENS, &[1][..]) };
        let mut bench = BenchPlan::with_drafter(args, runs, max_tokens)?;
        // Every mode and run has the same prompts; with the cache the benchmark would measure hits.
        bench.settings.config.kv.prefix_cache = false;
        // Refused before a model is loaded.
        let programs = args.against.as_deref().map(|dir| within(dir, "paceline").map(|_| dir));
        let of_build =
            |dir: &Path| Settings { programs: Some(dir.to_owned()), ..bench.settings.clone() };
        let other = programs.transpose()?.map(of_build);
        Ok(Self { bench, other, sweep: args.sweep, kinds, streams: args.streams(streams) })
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

    /// The prompts of each kind, for the served model. The second value is the number of tokens of
    /// a long text, if the model's context cuts it.
    ///
    /// # Errors
    /// The model's tokenizer cannot be read, or its context has no room for a long text.
    pub fn sets(
        &self,
        status: &StatusResponse,
    ) -> Result<(Vec<PromptSet>, Option<usize>), Failure> {
        let sets = |long: &[Prompt]| self.kinds.iter().map(|kind| kind.set(long)).collect();
        if !self.kinds.contains(&Kind::Long) {
            return Ok((sets(&[]), None));
        }
        let context = status.model.as_ref().map_or(0, |model| model.context_length);
        // Answers are a quarter longer at most.
        let mean = self.bench.max_tokens;
        let answer = mean.saturating_add(mean / 4 + 1);
        let most = context.saturating_sub(answer).saturating_sub(AROUND_TEXT);
        if most < LEAST_TEXT {
            return Err(failed(format!(
                "kind long: expected room for a text of {LONG_TOKENS} tokens, found a context of {context} positions"
            )));
        }
        let tokens = LONG_TOKENS.min(most as usize);
        let long = prompts::long(&tokenizer(status)?, tokens)?;
        Ok((sets(&long), (tokens < LONG_TOKENS).then_some(tokens)))
    }

    /// All cells, in the order of a run.
    pub fn cells(&self) -> Vec<Cell> {
        let cell = |streams| move |kind: &Kind| Cell { kind: kind.word().to_owned(), streams };
        self.streams.iter().flat_map(|streams| self.kinds.iter().map(cell(*streams))).collect()
    }

    /// How often a run measures each mode of a cell. A sweep measures them in both orders (A B C C
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

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sweep: bool, concurrency: &[u32]) -> LanePlan {
        let kinds = Kind::of_words(&["prose".into(), "json".into()]).expect("known");
        let args = BenchArgs { concurrency: concurrency.to_vec(), ..BenchArgs::default() };
        let streams = args.streams(if sweep { &STREAMS } else { &[1] });
        LanePlan { bench: BenchPlan::default(), other: None, sweep, kinds, streams }
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
    fn without_a_drafter_there_is_one_lane() {
        assert_eq!(plan(false, &[]).modes(false), [Mode::Plain]);
        assert_eq!(plan(false, &[]).modes(true).len(), 3);
    }

    #[test]
    fn an_estimate_counts_cells_runs_and_changes() {
        assert_eq!(plan(true, &[1, 4]).estimate_s(7, 1.0, 3.0, 0.5), 4.0 * 14.0 * 2.5);
    }
}
