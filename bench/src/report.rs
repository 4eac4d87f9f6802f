//! The frame and the printer of all reports.

use paceline_client::failure::BENCH;
use paceline_client::own_service::report::PrintedReport;
use paceline_client::own_service::settings::Settings;
use paceline_client::own_service::subject::{Model, Subject};
use paceline_client::own_service::{self, OwnService};
use paceline_client::print::bytes;
use paceline_client::{Failure, Screen};
use serde::Serialize;

use crate::args::BenchArgs;
use crate::output::ReportForm;
use crate::output::llama_bench::{LlamaSubject, LlamaTest};
use crate::output::sheet::{self, Sheet};
use crate::service::{MeasuredService, PeakMemory};

/// A report of a benchmark, which has all forms of [`ReportForm`]. As JSON it has all figures.
pub trait BenchReport: Serialize {
    /// Its tables.
    fn sheets(&self) -> Vec<Sheet>;

    /// Explanations below the tables on a terminal.
    fn notes(&self) -> String;

    /// The tables and their explanations for a terminal.
    fn text(&self) -> String {
        let tables: String = self.sheets().iter().map(Sheet::text).collect();
        tables + "\n" + &self.notes()
    }

    /// Reasons why the command fails; empty if there is none.
    fn failures(&self) -> Vec<String> {
        Vec::new()
    }

    /// Speeds of one stream, if it has such as llama-bench measures.
    fn llama_tests(&self) -> Vec<LlamaTest> {
        Vec::new()
    }
}

/// The figures of one benchmark between their subject and the duration of all.
#[derive(Serialize)]
struct FramedReport<R> {
    #[serde(flatten)]
    subject: Subject,
    #[serde(flatten)]
    report: R,
    peak_memory: PeakMemory,
    seconds: f64,
}

impl<R: BenchReport> FramedReport<R> {
    fn printed(&self, output: ReportForm, llama: &LlamaSubject) -> PrintedReport {
        let Self { subject, report, peak_memory, .. } = self;
        let drafter = subject.drafter.as_ref().map_or("", |drafter| &drafter.model);
        let constants = [("target", subject.target.model.as_str()), ("drafter", drafter)];
        let text = match output {
            ReportForm::Text => report.text() + &peak_memory.line(),
            ReportForm::Json => serde_json::to_string(self).expect("a report is plain JSON") + "\n",
            ReportForm::Csv => sheet::csv(&report.sheets(), &constants),
            ReportForm::Markdown => self.markdown(),
            ReportForm::LlamaBench => llama.array(&report.llama_tests()),
        };
        PrintedReport::new(text, report.failures())
    }

    fn markdown(&self) -> String {
        let Subject { version, platform, cores, target, drafter } = &self.subject;
        let model = |model: &Model| format!("{} ({})", model.model, bytes(model.weight_bytes));
        let drafter = drafter.as_ref().map_or("none".to_owned(), model);
        let mut text = format!(
            "paceline {version}, {platform}, {cores} cores. Target: {}. Drafter: {drafter}.\n\n",
            model(target)
        );
        text.push_str(&sheet::markdown(&self.report.sheets()));
        text.push_str(
            "\nMedians, in brackets their 95 % intervals. Definitions: `paceline bench --help`.\n",
        );
        text.push_str(&self.peak_memory.line());
        text
    }
}

/// Starts a service with these settings, measures on it and makes the report.
///
/// # Errors
/// The service does not become ready, or `measure` fails.
pub async fn of_service<R: BenchReport>(
    args: &BenchArgs,
    settings: &Settings,
    screen: &mut Screen,
    measure: impl AsyncFnOnce(&MeasuredService, &mut Screen) -> Result<R, Failure>,
) -> Result<PrintedReport, Failure> {
    let work = async |own: OwnService, screen: &mut Screen| {
        let service = MeasuredService::ready(own, screen).await?;
        let subject = Subject::new(&service.status, service.drafter);
        let llama = LlamaSubject::new(&subject, settings);
        let report = measure(&service, screen).await?;
        Ok((subject, llama, report, service.peak().await))
    };
    let ((subject, llama, report, peak_memory), seconds) =
        own_service::run(BENCH, settings, screen, work).await?;
    let framed = FramedReport { subject, report, peak_memory, seconds };
    Ok(framed.printed(args.output(), &llama))
}

/// The benchmark found a fault, or could not run.
pub fn failed(message: impl Into<String>) -> Failure {
    Failure::measuring(BENCH, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Runs {
        runs: usize,
    }

    impl BenchReport for Runs {
        fn sheets(&self) -> Vec<Sheet> {
            vec![Sheet::of("runs", &[self.runs]).plain("runs", "RUNS", |runs| *runs).sheet()]
        }

        fn notes(&self) -> String {
            format!("{} runs\n", self.runs)
        }
    }

    fn framed() -> FramedReport<Runs> {
        let target = Model { model: "/m".into(), weight_bytes: 2_048 };
        let subject = Subject { version: "1", cores: 2, target, ..Subject::default() };
        let peak_memory = PeakMemory { target_bytes: Some(4_096), drafter_bytes: None };
        FramedReport { subject, report: Runs { runs: 7 }, peak_memory, seconds: 1.5 }
    }

    #[test]
    fn a_framed_report_begins_with_its_subject_and_ends_with_its_duration() {
        let expected = r#"{"version":"1","platform":"","cores":2,"target":{"model":"/m","weight_bytes":2048},"drafter":null,"runs":7,"peak_memory":{"target_bytes":4096,"drafter_bytes":null},"seconds":1.5}"#;
        assert_eq!(serde_json::to_string(&framed()).expect("plain"), expected);
    }

    #[test]
    fn markdown_names_the_subject_and_the_peak_of_memory() {
        let expected = "\
paceline 1, , 2 cores. Target: /m (2.0 KiB). Drafter: none.

| RUNS |
|---|
| 7 |

Medians, in brackets their 95 % intervals. Definitions: `paceline bench --help`.
peak memory: target 4.0 KiB (the most that each worker held, from its start on)
";
        assert_eq!(framed().markdown(), expected);
    }
}
