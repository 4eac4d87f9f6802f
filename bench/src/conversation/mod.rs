//! `--clean` and `--session` measure a conversation in two turns with a long prompt, and a short
//! prompt after it, as a person uses an assistant. One request runs at a time, as routed.
//!
//! [`plan`] what is measured │ [`report`] figures over all runs, and the table. This file has one
//! measurement.
//!
//! Both forms run on one service with its prefix cache, in turn. A clean prompt begins with words
//! that no prompt had before, so the cache has nothing of it. The prompts of the second turns have
//! the same length in both forms, and are compared within a run.

mod plan;
mod report;

use paceline_client::own_service::report::PrintedReport;
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::RouteWish;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_text::prompt::Tokens;
use tonic::transport::Channel;

use self::plan::{ConversationCell, Form, Turn};
use self::report::{ConversationReport, FormRun, MeasuredForm};
use crate::args::{ANSWER_TOKENS, BenchArgs, ascending};
use crate::experiment::{self, BenchPlan, Experiment};
use crate::load::FixedAnswer;
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
    let mut plan = BenchPlan::with_drafter(args, 3, ANSWER_TOKENS)?;
    // A clean prompt is one that the cache cannot know, so both forms run on one service.
    plan.settings.config.kv.prefix_cache = true;
    let BenchPlan { settings, runs, max_tokens } = plan;
    let forms = [(args.clean, Form::Clean), (args.session, Form::Session)];
    let forms: Vec<Form> =
        forms.into_iter().filter(|(wanted, _)| *wanted).map(|(_, form)| form).collect();
    let work = async |service: &MeasuredService, screen: &mut Screen| -> Result<_, Failure> {
        let context = service.status.model.as_ref().map_or(0, |model| model.context_length);
        let lengths = plan::lengths(&ascending(&args.lengths), max_tokens, context as usize)?;
        let mut bench = ConversationBench {
            client: service.own.connect().await?,
            tokenizer: tokenizer(&service.status)?,
            max_tokens,
            forms: forms.len(),
            texts: 0,
        };
        let in_forms = |text_tokens: usize| {
            forms.iter().map(move |form| ConversationCell { text_tokens, form: *form })
        };
        let cells: Vec<ConversationCell> = lengths.into_iter().flat_map(in_forms).collect();
        let measured = experiment::measure(&mut bench, runs, cells, screen).await?;
        let rows = measured.iter().flat_map(MeasuredForm::rows).collect();
        let gains = measured.iter().filter_map(|one| one.gain(&measured)).collect();
        Ok(ConversationReport { runs, max_tokens, rows, gains })
    };
    of_service(args, &settings, screen, work).await
}

/// Measures on a running service.
struct ConversationBench {
    client: InferenceClient<Channel>,
    tokenizer: Tokens,
    max_tokens: u32,
    /// Number of forms that are compared.
    forms: usize,
    /// Texts so far: each has a beginning of its own.
    texts: u64,
}

impl Experiment for ConversationBench {
    type Cell = ConversationCell;
    type Run = FormRun;

    fn warming(&self) -> usize {
        self.forms
    }

    fn order(&self, run: usize, cells: usize) -> Vec<usize> {
        plan::order(self.forms, run, cells)
    }

    fn work(&self, cell: &ConversationCell) -> f64 {
        cell.text_tokens as f64
    }

    /// The requests of a form, once.
    async fn measure(
        &mut self,
        cell: &ConversationCell,
        _: &mut Progress<'_>,
    ) -> Result<FormRun, Failure> {
        let mut report = self.report(cell.text_tokens)?;
        let mut found = FormRun::default();
        for (request, times) in Turn::ALL.into_iter().zip(&mut found) {
            if (cell.form, request) == (Form::Clean, Turn::Next) {
                report = self.report(cell.text_tokens)?;
            }
            self.texts += 1;
            *times = self.request(request, &report).await?;
        }
        Ok(found)
    }

    fn line(run: &FormRun) -> String {
        let times = Turn::ALL.iter().zip(run);
        let times = times.map(|(turn, times)| format!("{} {:.0}", turn.word(), times.ttft_ms));
        format!("first tokens after {} ms", times.collect::<Vec<_>>().join(", "))
    }
}

impl ConversationBench {
    /// A text that no request had before.
    fn report(&mut self, text_tokens: usize) -> Result<String, Failure> {
        self.texts += 1;
        made::document(&self.tokenizer, self.texts, text_tokens)
    }

    async fn request(&self, request: Turn, report: &str) -> Result<RequestTimes, Failure> {
        let (kind, max_tokens) = (request.word().to_owned(), self.max_tokens);
        let messages = request.messages(report, self.texts);
        let prompt = Prompt { kind, index: 0, messages, max_tokens };
        let sent =
            FixedAnswer::new(RouteWish::Auto, max_tokens).chat(&self.client, &prompt).await?;
        RequestTimes::of(&sent).ok_or_else(|| {
            failed(format!("{}: expected tokens, found an answer without any", request.word()))
        })
    }
}
