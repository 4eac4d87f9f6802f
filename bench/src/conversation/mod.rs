//! `--clean` and `--session` measure a conversation in two turns with a long prompt, and a short
//! prompt after it, as a person uses an assistant. One request runs at a time, as routed.
//!
//! [`plan`] what is measured │ [`row`] figures over all runs │ [`report`] the table. This file has
//! the order of the steps.
//!
//! Both forms run on one service with its prefix cache, in turn. A clean prompt begins with words
//! that no prompt had before, so the cache has nothing of it. The prompts of the second turns have
//! the same length in both forms, and are compared within a run.

mod plan;
mod report;
mod row;

use paceline_client::ask::{Ask, Choice};
use paceline_client::own_service::report::PrintedReport;
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::clock::monotonic_ns;
use paceline_text::prompt::Tokens;
use tonic::transport::Channel;

use self::plan::{ConversationPlan, Form, Turn};
use self::report::{ConversationReport, form_line};
use self::row::{FormRun, MeasuredForm};
use crate::args::BenchArgs;
use crate::load::Sent;
use crate::progress::Progress;
use crate::prompts::{made, tokenizer};
use crate::report::{failed, of_service};
use crate::requests::RequestTimes;
use crate::service::MeasuredService;

/// Measures everything and makes the report.
///
/// # Errors
/// Nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let plan = ConversationPlan::from_args(args)?;
    let work = async |service: &MeasuredService, screen: &mut Screen| {
        measure(&plan, service, screen).await
    };
    of_service(args, &plan.settings, screen, work).await
}

async fn measure(
    plan: &ConversationPlan,
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<ConversationReport, Failure> {
    let context = service.status.model.as_ref().map_or(0, |model| model.context_length);
    let lengths = plan.lengths(context as usize)?;
    let mut bench = ConversationBench {
        client: service.own.connect().await?,
        tokenizer: tokenizer(&service.status)?,
        max_tokens: plan.max_tokens as u32,
        texts: 0,
    };
    // The first steps of a process are slow in many ways.
    screen.transient("warming up");
    for form in &plan.forms {
        bench.form(*form, lengths[0]).await?;
    }
    let mut measured: Vec<MeasuredForm> = vec![];
    for text_tokens in &lengths {
        let begun =
            |form: &Form| MeasuredForm { text_tokens: *text_tokens, form: *form, runs: vec![] };
        measured.extend(plan.forms.iter().map(begun));
    }
    let all = lengths.iter().sum::<usize>() * plan.forms.len() * plan.runs;
    let mut progress = Progress::begin(all as f64);
    for run in 0..plan.runs {
        for text_tokens in &lengths {
            for form in plan.order(run) {
                let place = format!("{text_tokens} tokens, {}", form.word());
                progress.show(run, plan.runs, &place, screen);
                let found = bench.form(form, *text_tokens).await?;
                progress.add(*text_tokens as f64);
                screen.note(&form_line(run, plan.runs, &place, &found));
                let of_form =
                    |one: &&mut MeasuredForm| one.form == form && one.text_tokens == *text_tokens;
                measured.iter_mut().filter(of_form).for_each(|one| one.runs.push(found));
            }
        }
        progress.note(run, plan.runs, screen);
    }
    Ok(ConversationReport {
        runs: plan.runs,
        max_tokens: plan.max_tokens,
        rows: measured.iter().flat_map(MeasuredForm::rows).collect(),
        gains: measured.iter().filter_map(|one| one.gain(&measured)).collect(),
    })
}

/// Measures on a running service.
struct ConversationBench {
    client: InferenceClient<Channel>,
    tokenizer: Tokens,
    max_tokens: u32,
    /// Texts so far: each has a beginning of its own.
    texts: u64,
}

impl ConversationBench {
    /// The requests of a form, once.
    async fn form(&mut self, form: Form, text_tokens: usize) -> Result<FormRun, Failure> {
        let mut report = self.report(text_tokens)?;
        let mut found = FormRun::default();
        for (turn, times) in Turn::ALL.into_iter().zip(&mut found) {
            if (form, turn) == (Form::Clean, Turn::Next) {
                report = self.report(text_tokens)?;
            }
            self.texts += 1;
            *times = self.turn(turn, &report).await?;
        }
        Ok(found)
    }

    /// A text that no request had before.
    fn report(&mut self, text_tokens: usize) -> Result<String, Failure> {
        self.texts += 1;
        made::document(&self.tokenizer, self.texts, text_tokens)
    }

    async fn turn(&mut self, turn: Turn, report: &str) -> Result<RequestTimes, Failure> {
        let prompt = Prompt {
            kind: turn.word().to_owned(),
            index: 0,
            messages: turn.messages(report, self.texts),
            max_tokens: self.max_tokens,
        };
        let ask = Ask {
            prompt: &prompt,
            choice: Choice::Greedy,
            lane: RouteWish::Auto,
            max_tokens: self.max_tokens,
            margins: false,
            ignore_eos: true,
        };
        let sent_ns = monotonic_ns();
        let answer = ask.send(&mut self.client).await?;
        let times = RequestTimes::of(&Sent { answer, sent_ns });
        times.ok_or_else(|| {
            failed(format!("{}: expected tokens, found an answer without any", turn.word()))
        })
    }
}
