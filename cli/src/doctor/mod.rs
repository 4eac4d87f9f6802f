//! `paceline doctor`: what is wrong on this machine, a line for each check: whether it is in order, the
//! fact, and what to do. It changes nothing, and each question has a bound of some seconds.
//!
//! [`programs`] their versions · [`places`] addresses, directories, files, limits · [`model`] model,
//! drafters, memory · [`service`] the processes that run, and their lanes. This file has the order of
//! the checks.

mod model;
mod places;
mod programs;
mod service;

use std::path::Path;

use paceline_client::{Failure, Screen};
use paceline_process::config::Source;
use paceline_process::{Loaded, RuntimeDir, chain};
use paceline_proto::convert::service::ServiceStatus;
use serde::Serialize;
use serde_json::json;

use crate::args::ShowArgs;
use crate::status::{self, aligned};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It is in order.
    Ok,
    /// The service works, but less well than it could.
    Warning,
    /// The service does not work, or will not.
    Problem,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    check: &'static str,
    state: State,
    fact: String,
    /// What to do. Empty if there is nothing to do, or if the fact says it.
    remedy: String,
}

impl Check {
    fn new(check: &'static str, state: State, fact: impl Into<String>, remedy: &str) -> Self {
        Self { check, state, fact: fact.into(), remedy: remedy.to_owned() }
    }

    fn ok(check: &'static str, fact: impl Into<String>) -> Self {
        Self::new(check, State::Ok, fact, "")
    }

    fn warning(check: &'static str, fact: impl Into<String>, remedy: &str) -> Self {
        Self::new(check, State::Warning, fact, remedy)
    }

    fn problem(check: &'static str, fact: impl Into<String>, remedy: &str) -> Self {
        Self::new(check, State::Problem, fact, remedy)
    }
}

/// Runs the command.
///
/// # Errors
/// There is a problem. The report has it.
pub async fn run(args: &ShowArgs, screen: &mut Screen) -> Result<(), Failure> {
    screen.transient("checking programs, settings, model and service");
    let checks = tokio::select! {
        checks = all(args.config.config.as_deref()) => checks,
        _ = tokio::signal::ctrl_c() => Err(Failure::interrupted())?,
    };
    screen.clear();
    let problems = checks.iter().filter(|check| check.state == State::Problem).count();
    screen.text(&match args.json {
        true => format!("{}\n", json!({ "problems": problems, "checks": checks })),
        false => text(&checks),
    })?;
    if problems == 0 { Ok(()) } else { Err(Failure::refused_here("")) }
}

async fn all(config: Option<&Path>) -> Vec<Check> {
    let mut checks = programs::check().await;
    let loaded = match Loaded::find(config) {
        Ok(loaded) => loaded,
        Err(error) => {
            checks.push(Check::problem("configuration", chain(&error), ""));
            return checks;
        }
    };
    checks.extend(configuration(&loaded));
    let status = running(config, &loaded).await;
    checks.extend(model::check(&loaded, status.as_ref().ok()).await);
    checks.extend(places::addresses(&loaded, status != Err(None)).await);
    checks.extend(places::directories(&loaded));
    checks.push(places::open_files());
    checks.extend(places::key_files(&loaded.config.gateway));
    match status {
        Ok(status) => {
            checks
                .extend(RuntimeDir::locate(&loaded.config).ok().as_ref().and_then(service::serve));
            checks.extend(service::check(config, &status).await);
        }
        Err(Some(problem)) => checks.push(problem),
        Err(None) => checks.extend([
            Check::ok("service", "none runs, which is no fault; `paceline serve` starts one"),
            Check::ok("lanes", "not compared without a service; `paceline selftest` compares them"),
        ]),
    }
    checks
}

/// The status of the service that runs. Without an answer: the problem of one that runs and is
/// silent; `None` if none runs.
async fn running(config: Option<&Path>, loaded: &Loaded) -> Result<ServiceStatus, Option<Check>> {
    let failure = match status::ask(config).await {
        Ok(status) => return Ok(status),
        Err(failure) => failure.message,
    };
    // A directory that cannot be used has a line of its own.
    let dir = RuntimeDir::locate(&loaded.config).map_err(|_| None)?;
    let held = ["service", "supervisor"].into_iter().find(|what| dir.is_locked(what));
    Err(held.map(|what| {
        let fact = format!("its {what} runs, but no supervisor answers: {failure}");
        let remedy = "`paceline logs supervisor` shows why; `paceline stop` ends the service";
        Check::problem("service", fact, remedy)
    }))
}

/// The files of the settings, and what an operator should know of the settings.
fn configuration(loaded: &Loaded) -> Vec<Check> {
    let file = match &loaded.file {
        Some(file) => file.display().to_string(),
        None => "no file".to_owned(),
    };
    let kept = loaded.kept_file.as_ref().filter(|path| path.exists());
    let kept = kept.map(|path| format!(" and {}", path.display())).unwrap_or_default();
    let changed = loaded.settings().iter().filter(|setting| setting.source != Source::Default);
    let fact = format!("{file}{kept}; changed settings: {}", changed.count());
    let warned = loaded.warnings.iter().cloned().chain(loaded.config.long_drafts());
    let warned = warned.map(|warning| Check::warning("configuration", warning, ""));
    std::iter::once(Check::ok("configuration", fact)).chain(warned).collect()
}

/// The report for people.
fn text(checks: &[Check]) -> String {
    let row = |check: &Check| {
        let state = match check.state {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Problem => "problem",
        };
        let words = format!("{}; {}", check.fact, check.remedy);
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        [state, check.check, words.trim_end_matches(';')].map(str::to_owned)
    };
    let rows: Vec<[String; 3]> = checks.iter().map(row).collect();
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let (problems, warnings) = (count(State::Problem), count(State::Warning));
    format!("{}problems: {problems}, warnings: {warnings}\n", aligned(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_is_one_line_with_its_fact_and_what_to_do() {
        let checks = [
            Check::ok("model", "fits"),
            Check::warning("lanes", "a token\n  differs", "`paceline selftest`"),
            Check::problem("gateway.http", "in use", ""),
        ];
        assert_eq!(
            text(&checks),
            "\
ok       model         fits
warning  lanes         a token differs; `paceline selftest`
problem  gateway.http  in use
problems: 1, warnings: 1
"
        );
        assert!(text(&checks[..1]).ends_with("\nproblems: 0, warnings: 0\n"));
    }

    #[test]
    fn warnings_of_the_settings_have_lines_of_their_own() {
        let loaded = Loaded::from_text("log.prompts = true\n", &[]).expect("accepted");
        let found = configuration(&loaded);
        assert_eq!(found[0], Check::ok("configuration", "no file; changed settings: 1"));
        assert_eq!((found.len(), found[1].state), (2, State::Warning));
        assert!(found[1].fact.starts_with("log.prompts is on"), "{found:?}");
    }
}
