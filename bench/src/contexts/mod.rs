//! `--contexts` measures each lane by length of the prompt: time to the first token, speed of
//! prefill and of generation, and memory. One request runs alone.
//!
//! [`plan`] which lengths │ [`load`] one measurement │ [`row`] figures over all runs │ [`report`]
//! the table. This file has the order of the steps.
//!
//! The modes of a length are measured one after the other in each run, with the same prompt, as
//! [`crate::lanes`] does; ratios are taken within a run. Lengths ascend, so that the workers' peak
//! of memory in the first run is that of a length and of the shorter ones.

mod load;
mod plan;
mod report;
mod row;

use paceline_client::answer::Answer;
use paceline_client::ask::Choice;
use paceline_client::compare::{JudgedDifferences, weigh};
use paceline_client::own_service::report::PrintedReport;
use paceline_client::print::number;
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_text::prompt::Tokens;
use tonic::transport::Channel;

use self::load::ContextRequest;
use self::plan::{ContextPlan, work};
use self::report::{ContextReport, LeftOut};
use self::row::{ContextRow, ContextRun};
use crate::args::BenchArgs;
use crate::load::Sent;
use crate::mode::{Mode, order};
use crate::progress::Progress;
use crate::prompts::{made, tokenizer};
use crate::report::{failed, of_service};
use crate::same::{Counts, TokenComparison};
use crate::service::MeasuredService;

/// Tokens of the untimed prompt and answer before a measurement: the first steps after a change of
/// the drafter are slow.
const WARM_PROMPT: usize = 32;
const WARM_TOKENS: usize = 8;
/// Reasons of the service to refuse a prompt for its length. Longer ones would be refused too.
const TOO_LONG: [&str; 2] = ["PROMPT_TOO_LONG", "KV_EXHAUSTED"];

/// Measures everything and makes the report.
///
/// # Errors
/// Nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let plan = ContextPlan::from_args(args)?;
    let work = async |service: &MeasuredService, screen: &mut Screen| {
        measure(&plan, service, screen).await
    };
    of_service(args, &plan.settings, screen, work).await
}

/// A length in all modes, and the memory of the workers after its first run.
struct Measured {
    length: usize,
    modes: Vec<(Mode, Vec<ContextRun>)>,
    peak_bytes: Option<u64>,
}

impl Measured {
    fn begin(length: usize, modes: &[Mode]) -> Self {
        let modes = modes.iter().map(|mode| (*mode, Vec::new())).collect();
        Self { length, modes, peak_bytes: None }
    }
}

async fn measure(
    plan: &ContextPlan,
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<ContextReport, Failure> {
    let context = service.status.model.as_ref().map_or(0, |model| model.context_length) as usize;
    let modes = ContextPlan::modes(service.drafter);
    let lengths = plan.lengths(context);
    let mut left_out = LeftOut::of_context(&lengths.too_long, plan.answer_tokens, context);
    let mut bench = ContextBench {
        plan,
        service,
        client: service.own.connect().await?,
        tokenizer: tokenizer(&service.status)?,
        same: TokenComparison::default(),
    };
    let mut measured: Vec<Measured> =
        lengths.measured.iter().map(|length| Measured::begin(*length, modes)).collect();
    let of_length = |length: usize| work(length, plan.answer_tokens) * modes.len() as f64;
    let all: f64 = lengths.measured.iter().map(|length| of_length(*length)).sum();
    let mut progress = Progress::begin(all * plan.runs as f64);
    for run in 0..plan.runs {
        let mut refused = None;
        for (at, measured) in measured.iter_mut().enumerate() {
            match bench.length(run, at, measured, &mut progress, screen).await {
                Ok(()) => {}
                Err(failure) if run == 0 && TOO_LONG.contains(&failure.reason.as_str()) => {
                    refused = Some((at, failure.message));
                    break;
                }
                Err(failure) => return Err(failure),
            }
        }
        if let Some((at, why)) = refused {
            let longer: Vec<usize> = measured.drain(at..).map(|one| one.length).collect();
            let work: f64 = longer.iter().map(|length| of_length(*length)).sum();
            progress.leave_out(work * plan.runs as f64);
            let prompt_tokens = [longer, lengths.too_long.clone()].concat();
            left_out = Some(LeftOut { prompt_tokens, why });
        }
        progress.note(run, plan.runs, screen);
    }
    if measured.is_empty() {
        let why = left_out.map_or(String::new(), |left_out| left_out.why);
        return Err(failed(format!(
            "--contexts: expected a length that can be measured, found none: {why}"
        )));
    }
    let same = bench.weighed(screen).await?;
    let row = |one: &Measured| ContextRow::of(one.length, &one.modes, one.peak_bytes);
    Ok(ContextReport {
        runs: plan.runs,
        answer_tokens: plan.answer_tokens,
        rows: measured.iter().map(row).collect(),
        left_out,
        same,
    })
}

/// Measures lengths on a running service.
struct ContextBench<'a> {
    plan: &'a ContextPlan,
    service: &'a MeasuredService,
    client: InferenceClient<Channel>,
    tokenizer: Tokens,
    same: TokenComparison,
}

impl ContextBench<'_> {
    /// Measures a length in each mode once.
    async fn length(
        &mut self,
        run: usize,
        at: usize,
        measured: &mut Measured,
        progress: &mut Progress,
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let (length, runs) = (measured.length, self.plan.runs);
        let ids = self.ids(run, length)?;
        let modes: Vec<Mode> = measured.modes.iter().map(|(mode, _)| *mode).collect();
        for mode in order(&modes, run, at) {
            let what = format!("{length} tokens, {}", mode.word());
            progress.show(run, runs, &what, screen);
            let sent = self.one(mode, &ids).await?;
            progress.add(work(length, self.plan.answer_tokens));
            self.same.take(mode, &[label(run, length)], std::slice::from_ref(&sent.answer));
            let found = ContextRun::of(&sent).ok_or_else(|| {
                failed(format!("{what}: expected tokens, found an answer without any"))
            })?;
            let lane = measured.modes.iter_mut().find(|(known, _)| *known == mode);
            lane.expect("the modes are those of the measurement").1.push(found);
        }
        if run == 0 {
            measured.peak_bytes = self.service.peak().await.sum();
        }
        screen.note(&line(run, runs, measured));
        Ok(())
    }

    /// One request in a mode, after an untimed one.
    async fn one(&mut self, mode: Mode, ids: &[u32]) -> Result<Sent<Answer>, Failure> {
        self.service.change(mode).await?;
        // The first token is prefill's.
        let (max_tokens, wish) = (self.plan.answer_tokens + 1, mode.wish());
        let request = ContextRequest { ids, wish, max_tokens, margins: false };
        let warm = &ids[..ids.len().min(WARM_PROMPT)];
        ContextRequest { ids: warm, max_tokens: WARM_TOKENS, ..request }
            .send(&mut self.client)
            .await?;
        request.send(&mut self.client).await
    }

    /// The prompt of a length in a run.
    fn ids(&self, run: usize, length: usize) -> Result<Vec<u32>, Failure> {
        made::ids(&self.tokenizer, ((run as u64) << 32) | length as u64, length)
    }

    /// Counts of the compared answers. Each answer that differs is judged by the margins of one
    /// more plain answer.
    async fn weighed(mut self, screen: &mut Screen) -> Result<Counts, Failure> {
        let (mut counts, suspects) = std::mem::take(&mut self.same).finish();
        counts.judged = JudgedDifferences::of(&self.service.status);
        if !suspects.is_empty() {
            screen.note(&format!("{} answers differ between lanes: weighing them", suspects.len()));
        }
        for suspect in suspects {
            let Prompt { index: run, max_tokens: length, .. } = suspect.prompt;
            let ids = self.ids(run, length as usize)?;
            let max_tokens = self.plan.answer_tokens + 1;
            let request =
                ContextRequest { ids: &ids, wish: RouteWish::Plain, max_tokens, margins: true };
            let again = request.send(&mut self.client).await?.answer;
            let difference =
                weigh(&suspect.first, &suspect.other, &again.token_ids, &again.margins);
            counts.judged.add(&suspect.prompt, Choice::Greedy, difference);
        }
        Ok(counts)
    }
}

/// Stands for the prompt of a length in a run when answers are compared: its ids are made again.
fn label(run: usize, length: usize) -> Prompt {
    let kind = format!("{length} tokens");
    Prompt { kind, index: run, messages: vec![], max_tokens: length as u32 }
}

/// A line about a length of a run in all its modes.
fn line(run: usize, runs: usize, measured: &Measured) -> String {
    let speeds = |(mode, runs): &(Mode, Vec<ContextRun>)| {
        let times = runs.last().map(|run| run.times);
        let pp = times.map(|times| f64::from(times.prompt_tokens) * 1e3 / times.ttft_ms);
        let tg =
            times.map(|times| (times.tokens - 1) as f64 * 1e3 / (times.e2e_ms - times.ttft_ms));
        format!("{} pp {}, tg {}", mode.word(), number(pp, 0), number(tg, 0))
    };
    let modes: Vec<String> = measured.modes.iter().map(speeds).collect();
    format!("run {} of {runs}: {} tokens: {} tok/s", run + 1, measured.length, modes.join("; "))
}
