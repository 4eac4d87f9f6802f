//! `--contexts` measures each lane by length of the prompt: time to the first token, speed of
//! prefill and of generation, and memory. One request runs alone.
//!
//! [`report`] figures over all runs, and the table. This file has the lengths and one measurement.
//!
//! The modes of a length are measured one after the other in each run, with the same prompt, as
//! [`crate::lanes`] does; ratios are taken within a run. Lengths ascend, so that the workers' peak
//! of memory in the first run is that of a length and of the shorter ones.

mod report;

use std::fmt;

use paceline_client::own_service::report::PrintedReport;
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_text::prompt::Tokens;
use tonic::transport::Channel;

use self::report::{ContextReport, ContextRun, LengthRow, LongerPrompts};
use crate::args::{BenchArgs, ascending};
use crate::experiment::{self, BenchPlan, Experiment, MeasuredCell};
use crate::load::{FixedAnswer, Sent};
use crate::mode::{Mode, by_mode, order};
use crate::progress::Progress;
use crate::prompts::{made, tokenizer};
use crate::report::{failed, of_service};
use crate::same::{AnswerComparison, Counts};
use crate::service::MeasuredService;

/// Tokens of an answer whose generation is timed: those of llama-bench (tg128). The first one of
/// the answer is not, because prefill makes it.
const ANSWER_TOKENS: u32 = 128;
/// Tokens of the untimed prompt and answer before a measurement: the first steps after a change of
/// the drafter are slow.
const WARM_PROMPT: usize = 32;
const WARM_TOKENS: u32 = 8;
/// Reasons of the service to refuse a prompt for its length. Longer ones would be refused too.
const TOO_LONG: [&str; 2] = ["PROMPT_TOO_LONG", "KV_EXHAUSTED"];

/// Tokens of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Length(usize);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0)
    }
}

/// Measures everything and makes the report.
///
/// # Errors
/// Nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let mut plan = BenchPlan::with_drafter(args, 3, ANSWER_TOKENS)?;
    // All modes of a run have the same prompt; with the cache only the first would prefill it.
    plan.settings.config.kv.prefix_cache = false;
    let lengths = ascending(&args.contexts);
    let work = async |service: &MeasuredService, screen: &mut Screen| {
        measure(&plan, &lengths, service, screen).await
    };
    of_service(args, &plan.settings, screen, work).await
}

async fn measure(
    plan: &BenchPlan,
    lengths: &[usize],
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<ContextReport, Failure> {
    let context = service.status.model.as_ref().map_or(0, |model| model.context_length) as usize;
    let answer_tokens = plan.max_tokens as usize;
    let (fitting, too_long) = in_context(lengths, answer_tokens, context);
    let mut bench = ContextBench {
        answer_tokens: plan.max_tokens,
        modes: modes(service.drafter),
        service,
        client: service.own.connect().await?,
        tokenizer: tokenizer(&service.status)?,
        same: AnswerComparison::default(),
        refused: None,
    };
    let cells = fitting.into_iter().map(Length).collect();
    let measured = experiment::measure(&mut bench, plan.runs, cells, screen).await?;
    let left_out = match bench.refused.take() {
        Some(why) => Some(LongerPrompts { prompt_tokens: lengths[measured.len()..].to_vec(), why }),
        None => LongerPrompts::than_context(&too_long, answer_tokens, context),
    };
    if measured.is_empty() {
        let why = left_out.map_or(String::new(), |left_out| left_out.why);
        return Err(failed(format!(
            "--contexts: expected a length that can be measured, found none: {why}"
        )));
    }
    let same = bench.weighed(screen).await?;
    let row = |MeasuredCell { cell: Length(length), runs }| {
        let peak_bytes = runs.first().and_then(|run: &LengthRun| run.peak_bytes);
        LengthRow::of(length, &by_mode(runs.into_iter().map(|run| run.modes)), peak_bytes)
    };
    let rows = measured.into_iter().map(row).collect();
    Ok(ContextReport { runs: plan.runs, answer_tokens, rows, left_out, same })
}

/// The modes that are compared.
fn modes(drafter: bool) -> &'static [Mode] {
    match drafter {
        true => &[Mode::Absent, Mode::Forced, Mode::Routed],
        false => &[Mode::Absent],
    }
}

/// The lengths that fit into a context of this number of positions, and those that do not.
fn in_context(lengths: &[usize], answer_tokens: usize, context: usize) -> (Vec<usize>, Vec<usize>) {
    let most = context.saturating_sub(answer_tokens + 1);
    lengths.iter().partition(|length| **length <= most)
}

/// Work of a measurement in one mode, in tokens that are prefilled. A token that is generated takes
/// about as long as this many of a prompt.
fn work(length: usize, answer_tokens: u32) -> f64 {
    const GENERATED: usize = 8;
    (length + GENERATED * answer_tokens as usize) as f64
}

/// A run of a length in all modes.
struct LengthRun {
    modes: Vec<(Mode, ContextRun)>,
    /// The most memory that both workers held until then; of the first run.
    peak_bytes: Option<u64>,
}

/// Measures lengths on a running service.
struct ContextBench<'a> {
    answer_tokens: u32,
    modes: &'static [Mode],
    service: &'a MeasuredService,
    client: InferenceClient<Channel>,
    tokenizer: Tokens,
    same: AnswerComparison,
    /// Why the service refused a length.
    refused: Option<String>,
}

impl Experiment for ContextBench<'_> {
    type Cell = Length;
    type Run = LengthRun;

    fn work(&self, length: &Length) -> f64 {
        work(length.0, self.answer_tokens) * self.modes.len() as f64
    }

    /// Measures a length in each mode once.
    async fn measure(
        &mut self,
        length: &Length,
        progress: &mut Progress<'_>,
    ) -> Result<LengthRun, Failure> {
        let run = progress.run;
        let ids = self.ids(run, length.0)?;
        let mut modes = vec![];
        for mode in order(self.modes, run, progress.at) {
            let what = format!("{length}, {}", mode.word());
            progress.show(&what);
            let sent = self.one(mode, &ids).await?;
            progress.done += work(length.0, self.answer_tokens);
            self.same.take(mode, &[label(run, length)], std::slice::from_ref(&sent.answer));
            let found = ContextRun::of(&sent).ok_or_else(|| {
                failed(format!("{what}: expected tokens, found an answer without any"))
            })?;
            modes.push((mode, found));
        }
        modes.sort_by_key(|(mode, _)| *mode);
        let peak_bytes = if run == 0 { self.service.peak().await.sum() } else { None };
        Ok(LengthRun { modes, peak_bytes })
    }

    fn line(run: &LengthRun) -> String {
        let speeds = |(mode, ContextRun { times, .. }): &(Mode, ContextRun)| {
            let pp = f64::from(times.prompt_tokens) * 1e3 / times.ttft_ms;
            let tg = (times.tokens - 1) as f64 * 1e3 / (times.e2e_ms - times.ttft_ms);
            format!("{} pp {pp:.0}, tg {tg:.0}", mode.word())
        };
        let modes: Vec<String> = run.modes.iter().map(speeds).collect();
        format!("{} tok/s", modes.join("; "))
    }

    fn leave_out(&mut self, run: usize, failure: Failure) -> Result<(), Failure> {
        if run > 0 || !TOO_LONG.contains(&failure.reason.as_str()) {
            return Err(failure);
        }
        self.refused = Some(failure.message);
        Ok(())
    }
}

impl ContextBench<'_> {
    /// One request in a mode, after an untimed one.
    async fn one(&self, mode: Mode, ids: &[u32]) -> Result<Sent, Failure> {
        self.service.change(mode).await?;
        let warm = &ids[..ids.len().min(WARM_PROMPT)];
        FixedAnswer::new(mode.wish(), WARM_TOKENS).complete(&self.client, warm).await?;
        // The first token is prefill's.
        FixedAnswer::new(mode.wish(), self.answer_tokens + 1).complete(&self.client, ids).await
    }

    /// The prompt of a length in a run.
    fn ids(&self, run: usize, length: usize) -> Result<Vec<u32>, Failure> {
        made::ids(&self.tokenizer, ((run as u64) << 32) | length as u64, length)
    }

    /// Counts of the compared answers, with each difference judged.
    async fn weighed(mut self, screen: &mut Screen) -> Result<Counts, Failure> {
        let same = std::mem::take(&mut self.same);
        let again = async |prompt: &Prompt| {
            let ids = self.ids(prompt.index, prompt.max_tokens as usize)?;
            FixedAnswer::to_judge(self.answer_tokens + 1).complete(&self.client, &ids).await
        };
        same.weighed(&self.service.status, "between lanes", screen, again).await
    }
}

/// Stands for the prompt of a length in a run when answers are compared: its ids are made again.
fn label(run: usize, length: &Length) -> Prompt {
    let kind = length.to_string();
    Prompt { kind, index: run, messages: vec![], max_tokens: length.0 as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_end_where_prompt_and_answer_fill_the_context() {
        let found = in_context(&[1_024, 3_967, 3_968, 8_192], 128, 4_096);
        assert_eq!(found, (vec![1_024, 3_967], vec![3_968, 8_192]));
        assert_eq!(in_context(&[1_024], 128, 100), (vec![], vec![1_024]));
    }

    #[test]
    fn without_a_drafter_there_is_one_lane() {
        assert_eq!(modes(false), [Mode::Absent]);
        assert_eq!(modes(true).len(), 3);
    }

    #[test]
    fn longer_prompts_are_more_work() {
        assert_eq!((work(1_024, 128), work(4_096, 128)), (2_048.0, 5_120.0));
    }
}
