//! `--burst` measures how soon and how completely the speed of one stream is back after a burst of
//! many requests at once. A batch that shrinks and a drafter that was of no use meanwhile may both
//! leave traces.
//!
//! [`recovery`] when the speed is back │ [`report`] figures over all runs, and the table. This file
//! has one measurement.
//!
//! A measurement is one stream, the burst, and the same stream again, one directly after the other.
//! The plain lane shows what the machine and the batch do, the routed lane what routing adds.

mod recovery;
mod report;

use std::fmt;

use paceline_client::own_service::report::PrintedReport;
use paceline_client::print::number;
use paceline_client::prompts::{self, Prompt};
use paceline_client::{Failure, Screen};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::clock::monotonic_ns;
use serde::Serialize;
use tonic::transport::Channel;

use self::recovery::{Alone, recovered_ms};
use self::report::{BurstReport, BurstRow, BurstRun};
use crate::args::{BenchArgs, ascending};
use crate::experiment::{self, BenchPlan, Experiment};
use crate::load::FixedAnswer;
use crate::mode::{Mode, places};
use crate::progress::Progress;
use crate::report::{failed, of_service};
use crate::requests::{RequestMeans, RequestTimes};
use crate::service::MeasuredService;

/// Tokens of an answer: some windows of tokens after the first one.
const ANSWER_TOKENS: u32 = 128;
/// Kind of the stream alone: neither the easiest to draft nor the hardest.
const KIND: &str = "code";

/// A burst in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Burst {
    /// Requests of the burst.
    pub requests: usize,
    /// How all requests are served.
    pub mode: Mode,
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests, {}", self.requests, self.mode.word())
    }
}

/// Measures everything and makes the report.
///
/// # Errors
/// Nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let mut plan = BenchPlan::with_drafter(args, 3, ANSWER_TOKENS)?;
    // The same prompt is sent before and after.
    plan.settings.config.kv.prefix_cache = false;
    let BenchPlan { settings, runs, max_tokens } = plan;
    let work = async |service: &MeasuredService, screen: &mut Screen| -> Result<_, Failure> {
        let modes: &[Mode] =
            if service.drafter { &[Mode::Plain, Mode::Routed] } else { &[Mode::Plain] };
        let alone = prompts::longest(KIND, 1).pop().ok_or_else(|| {
            failed(format!("expected embedded prompts of the kind {KIND}, found none"))
        })?;
        let client = service.own.connect().await?;
        let mut bench = BurstBench { client, alone, max_tokens, modes };
        let bursts = ascending(&args.burst);
        let in_modes =
            |requests: usize| modes.iter().map(move |mode| Burst { requests, mode: *mode });
        let cells: Vec<Burst> = bursts.into_iter().flat_map(in_modes).collect();
        let measured = experiment::measure(&mut bench, runs, cells, screen).await?;
        let rows = measured.iter().map(|one| BurstRow::of(one.cell, &one.runs)).collect();
        Ok(BurstReport { runs, max_tokens, rows })
    };
    of_service(args, &settings, screen, work).await
}

/// Measures on a running service.
struct BurstBench {
    client: InferenceClient<Channel>,
    /// Prompt of the stream alone.
    alone: Prompt,
    max_tokens: u32,
    modes: &'static [Mode],
}

impl Experiment for BurstBench {
    type Cell = Burst;
    type Run = BurstRun;

    fn warming(&self) -> usize {
        self.modes.len()
    }

    fn order(&self, run: usize, cells: usize) -> Vec<usize> {
        places(self.modes, run, cells)
    }

    fn work(&self, burst: &Burst) -> f64 {
        (burst.requests + 2) as f64
    }

    /// One stream, a burst, and the stream again.
    async fn measure(&mut self, burst: &Burst, _: &mut Progress<'_>) -> Result<BurstRun, Failure> {
        let Self { client, alone, max_tokens, .. } = self;
        let wish = FixedAnswer::new(burst.mode.wish(), *max_tokens);
        let before = wish.chat(client, alone).await?;
        let prompts: Vec<Prompt> =
            prompts::embedded(usize::MAX).into_iter().cycle().take(burst.requests).collect();
        let (answers, seconds) = wish.chats(client, &prompts, burst.requests).await?;
        let burst_end_ns = monotonic_ns();
        let after = wish.chat(client, alone).await?;

        let times: Vec<RequestTimes> = answers.iter().filter_map(RequestTimes::of).collect();
        let tokens: usize = times.iter().map(|times| times.tokens).sum();
        let alone = |sent| {
            let slow = || {
                failed(
                    "expected tokens at different times, found an answer all at once: raise --max-tokens",
                )
            };
            Alone::of(sent).ok_or_else(slow)
        };
        Ok(BurstRun {
            before: alone(&before)?,
            burst_tok_s: tokens as f64 / seconds,
            burst_ttft_ms: RequestMeans::of(&times).map_or(0.0, |means| means.ttft_ms),
            after: alone(&after)?,
            recovered_ms: recovered_ms(&before.answer, &after.answer, burst_end_ns),
        })
    }

    fn line(run: &BurstRun) -> String {
        let BurstRun { before, burst_tok_s, after, recovered_ms, .. } = run;
        format!(
            "before {:.0}, burst {burst_tok_s:.0}, after {:.0} tok/s, back after {} ms",
            before.tok_s,
            after.tok_s,
            number(*recovered_ms, 0)
        )
    }
}
