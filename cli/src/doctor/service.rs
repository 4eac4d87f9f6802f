//! The service that runs: its processes, whether each runs the program that is on the disk, and
//! whether both lanes give the same tokens.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_client::answer::Answer;
use paceline_client::args::{ConfigArg, ServiceArgs};
use paceline_client::channel::Service;
use paceline_client::compare::first_difference;
use paceline_client::program::beside;
use paceline_client::{Failure, message};
use paceline_launcher::serve::progress::ready;
use paceline_process::RuntimeDir;
use paceline_proto::convert::service::{ProcessReport, ServiceStatus};
use paceline_proto::v1::ProcessState;
use paceline_system::clock::unix_seconds;
use paceline_system::platform::process_age;
use tokio::time::timeout;

use super::Check;
use crate::args::{HowArgs, Route};
use crate::generate::{Ask, chat};
use crate::status::uptime;

/// Longest wait for the answers of both lanes.
const LANES_LIMIT: Duration = Duration::from_secs(15);
/// Tokens of an answer: enough for some cycles of drafts, and few for a large model.
const TOKENS: u32 = 16;
/// The question of both lanes.
const QUESTION: &str = "Count from one to twenty.";

/// Checks each process, and then the lanes.
pub(super) async fn check(config: Option<&Path>, status: &ServiceStatus) -> Vec<Check> {
    let mut found: Vec<Check> =
        status.processes().into_iter().map(|(name, status)| process(name, status)).collect();
    found.push(match ready(status) {
        true => lanes(config).await,
        false => Check::warning(
            "lanes",
            "not compared, because the service is not ready",
            "run this again when `paceline status` shows it ready",
        ),
    });
    found
}

/// `paceline serve`, if the service is its own. No status has it, because it starts the supervisor.
pub(super) fn serve(dir: &RuntimeDir) -> Option<Check> {
    if !dir.is_locked("service") {
        return None;
    }
    let pid = std::fs::read_to_string(dir.lock_path("service")).ok()?.trim().parse().ok()?;
    let up = process_age(pid).map(|age| uptime(age.as_secs_f64())).unwrap_or_default();
    Some(running("serve", "paceline", pid, &up, "`paceline stop`, then `paceline serve`"))
}

/// A process that runs, and whether its program is the one that is on the disk.
fn running(name: &'static str, program: &str, pid: u32, up: &str, restart: &str) -> Check {
    match replaced_program(program, pid) {
        None => Check::ok(name, format!("ready, process {pid}, up {up}")),
        Some(path) => {
            let fact = format!("runs an older program than {} is now", path.display());
            Check::warning(name, fact, restart)
        }
    }
}

fn process(name: &'static str, process: &ProcessReport) -> Check {
    let state = process.state;
    let restart = format!("`paceline restart {name}`");
    let reason = process.reason.as_ref().map(|reason| format!(": {reason}"));
    let fact = format!("{}{}", state.word(), reason.unwrap_or_default());
    match state {
        ProcessState::Ready => {
            let (program, up) = (format!("paceline-{name}"), uptime(process.uptime_s));
            running(name, &program, process.pid.unwrap_or_default(), &up, &restart)
        }
        ProcessState::Absent | ProcessState::Stopped => Check::ok(name, fact),
        // A drafter costs speed, and nothing else (I3).
        ProcessState::Failed if name != "drafter" => {
            let remedy = format!("`paceline logs {name}` shows more; then {restart}");
            Check::problem(name, fact, &remedy)
        }
        _ => Check::warning(name, fact, &format!("`paceline logs {name}` shows more")),
    }
}

/// The program of a process, if its file was replaced after the process began. A process that lets
/// nobody read its memory does not name its program, so that times are compared.
fn replaced_program(program: &str, pid: u32) -> Option<PathBuf> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let started = PathBuf::from(String::from_utf8_lossy(first).into_owned());
    let path = match started.is_absolute() && started.is_file() {
        true => started,
        false => beside(program).ok()?,
    };
    let (changed, age) = (std::fs::metadata(&path).ok()?.ctime(), process_age(pid)?);
    is_replaced(changed, unix_seconds(), age).then_some(path)
}

/// Whether a file that changed at second `changed` is newer than a process of this age.
fn is_replaced(changed: i64, now: i64, age: Duration) -> bool {
    now.saturating_sub(changed) < i64::try_from(age.as_secs()).unwrap_or(i64::MAX)
}

/// Asks one question in each lane.
async fn lanes(config: Option<&Path>) -> Check {
    match timeout(LANES_LIMIT, both(config)).await {
        Ok(Ok([plain, other])) => compared(&plain, &other),
        Ok(Err(failure)) if ["UNAUTHENTICATED", "RESOURCE_EXHAUSTED"].contains(&failure.code) => {
            let remedy = "set PACELINE_API_KEY if the service has keys, and run this again";
            Check::warning("lanes", failure.to_string(), remedy)
        }
        Ok(Err(failure)) => Check::problem("lanes", failure.to_string(), "see `paceline status`"),
        Err(_) => {
            let seconds = LANES_LIMIT.as_secs();
            let fact = format!("no two answers of {TOKENS} tokens within {seconds} s");
            Check::warning("lanes", fact, "`paceline status` shows the load")
        }
    }
}

async fn both(config: Option<&Path>) -> Result<[Answer; 2], Failure> {
    let config = ConfigArg { config: config.map(Into::into) };
    let service = Service::find(&ServiceArgs { config, ..ServiceArgs::default() }).await?;
    let mut client = service.connect().await?;
    let mut ask = async |route| {
        let (max_tokens, temperature) = (Some(TOKENS), Some(0.0));
        let how = HowArgs { max_tokens, temperature, route, ..HowArgs::default() };
        let request = chat(String::new(), vec![message::text("user", QUESTION.to_owned())], &how);
        let mut stream = Ask::Chat(request).send(&mut client, &service.address).await?;
        Answer::read(&mut stream, |_| Ok(())).await
    };
    Ok([ask(Route::Plain).await?, ask(Route::Speculative).await?])
}

fn compared(plain: &Answer, other: &Answer) -> Check {
    let (equal, different) = first_difference(&plain.token_ids, &other.token_ids);
    if different {
        let fact = format!("plain and speculative differ after {equal} equal tokens");
        return Check::warning(
            "lanes",
            fact,
            "`paceline selftest` judges whether rounding does it",
        );
    }
    let fact = match other.route.lane.as_str() {
        "speculative" => format!("plain and speculative give the same {equal} tokens"),
        _ => format!("plain answers; not drafted, because {}", other.route.reason),
    };
    Check::ok("lanes", fact)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn a_process_is_older_than_a_program_that_changed_after_its_start() {
        let age = Duration::from_millis(10_900);
        assert!(is_replaced(995, 1_000, age), "it changed five seconds ago");
        assert!(!is_replaced(985, 1_000, age), "it is older than the process");
        // In the second of the start the order is not known.
        assert!(!is_replaced(990, 1_000, age));
    }

    #[test]
    fn a_failed_target_is_a_problem_and_a_failed_drafter_a_warning() {
        let of = |name, state: ProcessState, reason: &str| {
            let reason = (!reason.is_empty()).then(|| reason.to_owned());
            process(name, &ProcessReport { state, reason, ..Default::default() })
        };
        let failed = of("target", ProcessState::Failed, "no room");
        assert_eq!((failed.state, failed.fact.as_str()), (State::Problem, "failed: no room"));
        assert_eq!(of("drafter", ProcessState::Failed, "").state, State::Warning);
        assert_eq!(of("drafter", ProcessState::Absent, ""), Check::ok("drafter", "absent"));
        assert_eq!(of("target", ProcessState::Loading, "").state, State::Warning);
    }

    #[test]
    fn lanes_that_differ_are_a_warning_that_names_the_selftest() {
        let answer = |ids: &[u32], lane: &str| {
            let mut answer = Answer { token_ids: ids.to_vec(), ..Answer::default() };
            answer.route.lane = lane.to_owned();
            answer.route.reason = "drafter_absent".to_owned();
            answer
        };
        let plain = answer(&[1, 2], "plain");
        let same = compared(&plain, &answer(&[1, 2], "speculative"));
        assert_eq!(same, Check::ok("lanes", "plain and speculative give the same 2 tokens"));
        let differs = compared(&plain, &answer(&[1, 3], "speculative"));
        assert_eq!(differs.state, State::Warning);
        assert!(differs.fact.contains("after 1 equal") && differs.remedy.contains("selftest"));
        let alone = compared(&plain, &answer(&[1, 2], "plain"));
        assert!(alone.fact.ends_with("drafter_absent"), "{alone:?}");
    }
}
