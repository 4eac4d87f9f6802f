//! `paceline selftest --drafters A,B,lookup`: measures several drafters one after another on the
//! same prompts, beside one loaded target, and recommends one.

use paceline_client::Failure;
use paceline_client::failure::SELFTEST;
use paceline_client::own_service::report::Report;
use paceline_client::own_service::subject::Subject;
use paceline_client::print::{Table, number};
use serde::Serialize;

use super::report::SelftestReport;
use super::tester::Tester;
use super::verdict::EVEN;

/// Outcome of the selftest of one drafter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrafterResult {
    /// As it was named: a directory, or `lookup`.
    pub drafter: String,
    /// Why it was not measured.
    pub refused: Option<String>,
    /// Figures of the drafter, if it was measured.
    pub report: Option<SelftestReport>,
}

/// All figures of a run; the object of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DraftersReport {
    /// Program, machine and target.
    #[serde(flatten)]
    pub subject: Subject,
    /// In the order in which they were named.
    pub drafters: Vec<DrafterResult>,
    /// The one to use; `None` if decoding without any is as fast.
    pub recommended: Option<String>,
    /// The recommendation, in a sentence.
    pub verdict: String,
    /// Duration of the whole run.
    pub seconds: f64,
}

impl DraftersReport {
    /// The results, with a recommendation: the drafter with the shortest time over all answers, if
    /// it is shorter than without a drafter.
    pub fn of(subject: Subject, drafters: Vec<DrafterResult>) -> Self {
        let overall = |one: &DrafterResult| one.report.as_ref()?.overall_ratio;
        let best = drafters
            .iter()
            .filter(|one| one.report.as_ref().is_some_and(|report| report.is_identical()))
            .filter_map(|one| Some((one, overall(one)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let (recommended, verdict) = match best {
            Some((one, ratio)) if ratio >= 1.0 + EVEN => {
                let name = one.drafter.clone();
                let words = format!(
                    "Set drafter.model = {name:?}: over these prompts it is {ratio:.2} times as fast as no drafter, if it always drafts."
                );
                (Some(name), words)
            }
            Some(_) => (
                None,
                "None of them gains over these prompts as a whole. Prompts of one kind may gain; `paceline selftest --drafter` \
                 shows each kind."
                    .to_owned(),
            ),
            None => (None, "None of them could be measured.".to_owned()),
        };
        Self { subject, drafters, recommended, verdict, seconds: 0.0 }
    }
}

impl Report for DraftersReport {
    fn failures(&self) -> Vec<String> {
        let differs =
            |one: &&DrafterResult| one.report.as_ref().is_some_and(|report| !report.is_identical());
        let one = self.drafters.iter().find(differs);
        one.map(|one| format!("the lanes differ with {}", one.drafter)).into_iter().collect()
    }

    fn text(&self) -> String {
        let header =
            ["DRAFTER", "TOKENS/CYCLE", "PLAIN tok/s", "DRAFTER tok/s", "OVERALL", "LANES"];
        let mut table = Table::new(header);
        for one in &self.drafters {
            let Some(report) = &one.report else {
                let mut cells = vec!["-".to_owned(); header.len()];
                cells[0].clone_from(&one.drafter);
                "refused".clone_into(&mut cells[header.len() - 1]);
                table.row(cells);
                continue;
            };
            let all = &report.all;
            table.row([
                one.drafter.clone(),
                number(all.tokens_per_cycle, 2),
                number(all.plain_tok_s, 0),
                number(all.drafted_tok_s, 0),
                number(report.overall_ratio, 2),
                if report.is_identical() { "equal" } else { "DIFFERENT" }.to_owned(),
            ]);
        }
        let refused = |one: &DrafterResult| {
            Some(format!("{} was refused: {}\n", one.drafter, one.refused.as_ref()?))
        };
        let refused: String = self.drafters.iter().filter_map(refused).collect();
        let left_out = |one: &DrafterResult| {
            Some(format!("{}: {}", one.drafter, one.report.as_ref()?.left_out()?))
        };
        let left_out: String = self.drafters.iter().filter_map(left_out).collect();
        format!("{}\n{refused}{left_out}{}\n", table.text(), self.verdict)
    }
}

/// Measures each of the drafters. The service was started without one.
///
/// # Errors
/// The service does not come up, or cannot be asked.
pub(super) async fn compare(
    mut tester: Tester<'_>,
    drafters: &[String],
) -> Result<DraftersReport, Failure> {
    let (status, _) = tester.until_ready().await?;
    let mut client = tester.service.connect().await?;
    let mut results = vec![];
    for drafter in drafters {
        tester.screen.note(&format!("drafter {drafter}"));
        let result = match tester.service.start_drafter(drafter.clone()).await {
            // Further lines are the log of its process.
            Err(status) => Err(status.message().lines().next().unwrap_or_default().to_owned()),
            Ok(()) => {
                let status = tester.service.snapshot().await.unwrap_or_default();
                let report = tester.measure(&mut client, &status, true).await;
                let stopped = tester.service.stop_drafter().await;
                stopped.map_err(|status| Failure::measuring(SELFTEST, status.message()))?;
                report.map_err(|failure| failure.message)
            }
        };
        let drafter = drafter.clone();
        results.push(match result {
            Ok(report) => DrafterResult { drafter, refused: None, report: Some(report) },
            Err(reason) => DrafterResult { drafter, refused: Some(reason), report: None },
        });
    }
    Ok(DraftersReport::of(Subject::new(&status, false), results))
}

#[cfg(test)]
mod tests {
    use super::super::figures::{SelftestRow, TokenComparison};
    use super::*;
    use paceline_client::compare::{Difference, DifferencePlace};

    fn result(drafter: &str, overall: f64, differs: bool) -> DrafterResult {
        let all = SelftestRow { tokens_per_cycle: Some(3.5), ..SelftestRow::default() };
        let mut identity = TokenComparison::default();
        if differs {
            let difference =
                Difference { position: 3, plain_id: None, other_id: None, margin: None };
            let (kind, choice) = ("json".to_owned(), "greedy");
            identity.judged.differences.push(DifferencePlace {
                kind,
                prompt: 0,
                choice,
                difference,
            });
        }
        let report =
            SelftestReport { all, overall_ratio: Some(overall), identity, ..Default::default() };
        DrafterResult { drafter: drafter.to_owned(), refused: None, report: Some(report) }
    }

    fn refused(drafter: &str) -> DrafterResult {
        let reason = Some("hidden size: expected 64, found 65".to_owned());
        DrafterResult { drafter: drafter.to_owned(), refused: reason, report: None }
    }

    fn recommended(drafters: Vec<DrafterResult>) -> Option<String> {
        DraftersReport::of(Subject::default(), drafters).recommended
    }

    #[test]
    fn the_fastest_drafter_with_equal_lanes_is_recommended() {
        let all = || vec![result("a", 1.4, false), result("b", 2.0, true), refused("c")];
        assert_eq!(recommended(all()), Some("a".into()));
        let with_lookup = [all(), vec![result("lookup", 1.5, false)]].concat();
        assert_eq!(recommended(with_lookup), Some("lookup".into()));
        assert_eq!(recommended(vec![result("a", 1.02, false)]), None);
        assert_eq!(recommended(vec![refused("c")]), None);
    }

    #[test]
    fn a_refused_drafter_has_its_reason_below_the_table() {
        let drafters = vec![result("lookup", 1.5, false), refused("c"), result("b", 2.0, true)];
        let report = DraftersReport::of(Subject::default(), drafters);
        let text = report.text();
        let cells: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[1], ["lookup", "3.50", "-", "-", "1.50", "equal"]);
        assert_eq!(cells[2], ["c", "-", "-", "-", "-", "refused"]);
        assert!(text.contains("c was refused: hidden size: expected 64, found 65\n"), "{text}");
        assert!(text.ends_with("if it always drafts.\n"), "{text}");
        assert_eq!(report.failures(), ["the lanes differ with b"]);
    }
}
