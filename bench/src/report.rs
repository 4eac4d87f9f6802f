//! The frame and the printer of all reports.

use paceline_client::failure::BENCH;
use paceline_client::own_service::report::{PrintedReport, Report};
use paceline_client::own_service::settings::Settings;
use paceline_client::own_service::subject::Subject;
use paceline_client::own_service::{self, OwnService};
use paceline_client::print::{interval, number};
use paceline_client::{Failure, Screen};
use paceline_process::Clock;
use paceline_proto::v1::StatusResponse;
use serde::Serialize;

use crate::args::BenchArgs;
use crate::statistics::Estimate;

/// The figures of one benchmark between their subject and the duration of all.
#[derive(Serialize)]
struct FramedReport<R> {
    #[serde(flatten)]
    subject: Subject,
    #[serde(flatten)]
    report: R,
    seconds: f64,
}

impl<R: Report> Report for FramedReport<R> {
    fn text(&self) -> String {
        self.report.text()
    }

    fn failures(&self) -> Vec<String> {
        self.report.failures()
    }
}

/// A service that is measured.
pub struct MeasuredService {
    /// The service that the measurement starts and stops.
    pub own: OwnService,
    /// Status of the service when it became ready.
    pub status: StatusResponse,
    /// Whether a drafter is linked.
    pub drafter: bool,
}

/// Starts a service with these settings, measures on it and makes the report.
///
/// # Errors
/// The service does not become ready, or `measure` fails.
pub async fn of_service<R: Report>(
    args: &BenchArgs,
    settings: &Settings,
    screen: &mut Screen,
    measure: impl AsyncFnOnce(MeasuredService, &mut Screen) -> Result<R, Failure>,
) -> Result<PrintedReport, Failure> {
    let work = async |own: OwnService, screen: &mut Screen| {
        let (status, drafter) = own.until_ready(|what| screen.note(what)).await?;
        let subject = Subject::new(&status, drafter);
        Ok((subject, measure(MeasuredService { own, status, drafter }, screen).await?))
    };
    let ((subject, report), seconds) = own_service::run(BENCH, settings, screen, work).await?;
    Ok(FramedReport { subject, report, seconds }.printed(args.json))
}

/// The benchmark found a fault, or could not run.
pub fn failed(message: impl Into<String>) -> Failure {
    Failure::measuring(BENCH, message)
}

/// The median and its interval in a column each; "-" for what is not known.
pub fn columns(found: Option<&Estimate>, digits: usize) -> [String; 2] {
    [
        number(found.map(|found| found.median), digits),
        interval(found.and_then(|found| found.interval), digits),
    ]
}

/// The median, and in brackets its interval if it is known.
pub fn cell(found: Option<&Estimate>, digits: usize) -> String {
    let median = number(found.map(|found| found.median), digits);
    match found.and_then(|found| found.interval) {
        None => median,
        ends => format!("{median} {}", interval(ends, digits)),
    }
}

/// Seconds in words.
pub fn duration(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// After a run that is not the last: shows how many are done, and how long the others will take.
pub fn note_time_left(clock: &Clock, run: usize, runs: usize, screen: &mut Screen) {
    let done = run + 1;
    let left_s = clock.now().0 as f64 / 1e3 / done as f64 * (runs - done) as f64;
    if left_s > 0.0 {
        screen.note(&format!("run {done} of {runs} done, about {} left", duration(left_s)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_framed_report_begins_with_its_subject_and_ends_with_its_duration() {
        let subject = Subject { version: "1", cores: 2, ..Subject::default() };
        let report = serde_json::json!({ "runs": 7 });
        let framed = FramedReport { subject, report, seconds: 1.5 };
        let expected = r#"{"version":"1","platform":"","cores":2,"target":{"model":"","weight_bytes":0},"drafter":null,"runs":7,"seconds":1.5}"#;
        assert_eq!(serde_json::to_string(&framed).expect("plain"), expected);
    }

    #[test]
    fn an_estimate_is_printed_in_one_column_or_in_two() {
        let known = Estimate { median: 2.0, interval: Some((1.0, 3.25)) };
        let few = Estimate { median: 2.0, interval: None };
        assert_eq!(columns(Some(&known), 1), ["2.0", "(1.0 to 3.2)"]);
        assert_eq!(
            (columns(Some(&few), 0), columns(None, 0)),
            (["2", "-"].map(String::from), ["-", "-"].map(String::from))
        );
        assert_eq!(
            [cell(Some(&known), 0), cell(Some(&few), 2), cell(None, 1)],
            ["2 (1 to 3)", "2.00", "-"]
        );
    }

    #[test]
    fn long_durations_are_in_minutes() {
        assert_eq!((duration(61.4), duration(1_260.0)), ("61 s".into(), "21 min".into()));
    }
}
