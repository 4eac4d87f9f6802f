//! `paceline selftest` checks the user's own model and machine. It reports whether the lanes are
//! identical, how many drafted tokens are accepted for each kind of prompt, how fast each lane is,
//! and what to change. It starts a service of its own and uses it like any client.
//!
//! [`plan`] what is tested │ `pace` how far it is │ `tester` asks in both lanes in turn and compares │ [`figures`] numbers │
//! [`verdict`] words │ [`report`] the table │ [`drafters`] several drafters in turn. This file has
//! the order of the steps: start, wait, test, stop, report.

pub mod drafters;
pub mod figures;
mod pace;
pub mod plan;
pub mod report;
mod tester;
pub mod verdict;

use paceline_client::failure::SELFTEST;
use paceline_client::own_service::report::{PrintedReport, Report};
use paceline_client::own_service::{self, OwnService};
use paceline_client::{Failure, Screen, program};

use self::drafters::DraftersReport;
use self::plan::SelftestPlan;
use self::report::SelftestReport;
use self::tester::Tester;
use crate::args::SelftestArgs;

/// Runs the command.
///
/// # Errors
/// The lanes differ, the service or its drafter does not come up, or it cannot be asked. With
/// `--json` it has been printed as an object too.
pub async fn run(args: &SelftestArgs, screen: &mut Screen) -> Result<(), Failure> {
    let outcome = test(args, screen).await;
    program::show_object(outcome, args.json, screen)?.print(SELFTEST, screen)
}

/// Result of a self-test.
enum Outcome {
    /// The configured drafter, or the one that was named.
    One(Box<SelftestReport>),
    /// Each of several drafters.
    Several(DraftersReport),
}

/// Starts the service, tests it and stops it, whatever happens in between.
async fn test(args: &SelftestArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let plan = SelftestPlan::from_args(args)?;
    let work = async |service: OwnService, screen: &mut Screen| {
        work(Tester::new(&plan, service, screen)).await
    };
    let (outcome, seconds) = own_service::run(SELFTEST, &plan.settings, screen, work).await?;
    Ok(match outcome {
        Outcome::One(report) => SelftestReport { seconds, ..*report }.printed(args.json),
        Outcome::Several(report) => DraftersReport { seconds, ..report }.printed(args.json),
    })
}

async fn work(mut tester: Tester<'_>) -> Result<Outcome, Failure> {
    if !tester.plan.drafters.is_empty() {
        let drafters = &tester.plan.drafters;
        return drafters::compare(tester, drafters).await.map(Outcome::Several);
    }
    let (status, drafter) = tester.until_ready().await?;
    let mut client = tester.service.connect().await?;
    let report = tester.measure(&mut client, &status, drafter).await?;
    Ok(Outcome::One(Box::new(report)))
}
