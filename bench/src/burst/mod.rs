//! `--burst` measures how soon and how completely the speed of one stream is back after a burst of
//! many requests at once. A batch that shrinks and a drafter that was of no use meanwhile may both
//! leave traces.
//!
//! [`recovery`] when the speed is back │ [`row`] figures over all runs │ [`report`] the table. This
//! file has the order of the steps.
//!
//! A measurement is one stream, the burst, and the same stream again, one directly after the other.
//! The plain lane shows what the machine and the batch do, the routed lane what routing adds.

mod recovery;
mod report;
mod row;

use paceline_client::answer::Answer;
use paceline_client::ask::{Ask, Choice};
use paceline_client::own_service::report::PrintedReport;
use paceline_client::own_service::settings::Settings;
use paceline_client::prompts::{self, Prompt};
use paceline_client::{Failure, Screen};
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::clock::monotonic_ns;
use tonic::transport::Channel;

use self::recovery::{Alone, recovered_ms};
use self::report::{BurstReport, burst_line};
use self::row::{BurstRow, BurstRun};
use crate::args::{BenchArgs, ascending};
use crate::load::{Sent, answer_tokens, at_once};
use crate::mode::{Mode, order};
use crate::progress::Progress;
use crate::report::{failed, of_service};
use crate::requests::{RequestMeans, RequestTimes};
use crate::service::MeasuredService;

/// Tokens of an answer: some windows of tokens after the first one.
const ANSWER_TOKENS: u32 = 128;
/// Kind of the stream alone: neither the easiest to draft nor the hardest.
const KIND: &str = "code";

/// What is measured.
struct BurstPlan {
    settings: Settings,
    runs: usize,
    max_tokens: u32,
    /// Requests of each burst.
    bursts: Vec<usize>,
}

/// Measures everything and makes the report.
///
/// # Errors
/// Nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let mut settings = args.settings(args.drafter.as_deref())?;
    // The same prompt is sent before and after.
    settings.config.kv.prefix_cache = false;
    let plan = BurstPlan {
        settings,
        runs: args.runs(3),
        max_tokens: args.max_tokens.unwrap_or(ANSWER_TOKENS),
        bursts: ascending(&args.burst),
    };
    let work = async |service: &MeasuredService, screen: &mut Screen| {
        measure(&plan, service, screen).await
    };
    of_service(args, &plan.settings, screen, work).await
}

async fn measure(
    plan: &BurstPlan,
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<BurstReport, Failure> {
    let modes: &[Mode] =
        if service.drafter { &[Mode::Plain, Mode::Routed] } else { &[Mode::Plain] };
    let alone = prompts::longest(KIND, 1).pop().ok_or_else(|| {
        failed(format!("expected embedded prompts of the kind {KIND}, found none"))
    })?;
    let client = service.own.connect().await?;
    let bench = BurstBench { client, alone, max_tokens: plan.max_tokens };
    // The first steps of a process are slow in many ways.
    screen.transient("warming up");
    for mode in modes {
        bench.burst(*mode, plan.bursts[0]).await?;
    }
    let mut measured: Vec<(usize, Mode, Vec<BurstRun>)> = vec![];
    for requests in &plan.bursts {
        measured.extend(modes.iter().map(|mode| (*requests, *mode, vec![])));
    }
    let of_burst = |requests: usize| (requests + 2) as f64;
    let all: f64 = plan.bursts.iter().map(|requests| of_burst(*requests)).sum();
    let mut progress = Progress::begin(all * (modes.len() * plan.runs) as f64);
    for run in 0..plan.runs {
        for (at, requests) in plan.bursts.iter().enumerate() {
            for mode in order(modes, run, at) {
                let what = format!("{requests} requests, {}", mode.word());
                progress.show(run, plan.runs, &what, screen);
                let found = bench.burst(mode, *requests).await?;
                progress.add(of_burst(*requests));
                screen.note(&burst_line(run, plan.runs, *requests, mode, &found));
                let row = measured.iter_mut().find(|(of, by, _)| (of, *by) == (requests, mode));
                row.expect("there is one for each burst and mode").2.push(found);
            }
        }
        progress.note(run, plan.runs, screen);
    }
    let rows = measured.iter().map(|(of, mode, runs)| BurstRow::of(*of, *mode, runs)).collect();
    Ok(BurstReport { runs: plan.runs, max_tokens: plan.max_tokens, rows })
}

/// Measures on a running service.
struct BurstBench {
    client: InferenceClient<Channel>,
    /// Prompt of the stream alone.
    alone: Prompt,
    max_tokens: u32,
}

impl BurstBench {
    /// One stream, a burst, and the stream again.
    async fn burst(&self, mode: Mode, requests: usize) -> Result<BurstRun, Failure> {
        let wish = mode.wish();
        let before = self.one(wish).await?;
        let prompts: Vec<Prompt> =
            prompts::embedded(usize::MAX).into_iter().cycle().take(requests).collect();
        let ask = |prompt: &Prompt| {
            let max_tokens = answer_tokens(prompt.index, self.max_tokens);
            send(self.client.clone(), prompt.clone(), wish, max_tokens)
        };
        let (answers, seconds) = at_once(&prompts, requests, ask).await?;
        let burst_end_ns = monotonic_ns();
        let after = self.one(wish).await?;

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

    /// The stream alone.
    async fn one(&self, wish: RouteWish) -> Result<Sent<Answer>, Failure> {
        let sent_ns = monotonic_ns();
        let answer = send(self.client.clone(), self.alone.clone(), wish, self.max_tokens).await?;
        Ok(Sent { answer, sent_ns })
    }
}

async fn send(
    mut client: InferenceClient<Channel>,
    prompt: Prompt,
    lane: RouteWish,
    max_tokens: u32,
) -> Result<Answer, Failure> {
    let (prompt, choice) = (&prompt, Choice::Greedy);
    Ask { prompt, choice, lane, max_tokens, margins: false, ignore_eos: true }
        .send(&mut client)
        .await
}
