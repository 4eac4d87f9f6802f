//! Waits until a service that was started answers, and its model is loaded.

use std::time::Duration;

use paceline_client::{Failure, Screen};
use paceline_system::Clock;

use super::facts::ServiceKind;
use super::operator::{Operator, ServiceReport};
use super::systemd;

/// Interval between two questions. Each starts a process.
const POLL: Duration = Duration::from_millis(250);
/// Shortest time for the processes to start, within which no supervisor need answer.
const START_MS: u64 = 30_000;

/// What a report means for the wait.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ready,
    Failed(String),
    NotYet(String),
}

fn verdict(report: Option<&ServiceReport>) -> Verdict {
    let Some(report) = report else { return Verdict::NotYet("no supervisor answers".into()) };
    match (report.target.state.as_str(), report.gateway.state.as_str()) {
        ("failed", _) => Verdict::Failed(report.target.reason.clone()),
        ("ready", "ready") => Verdict::Ready,
        ("ready", gateway) => Verdict::NotYet(format!("gateway {gateway}")),
        (target, _) => Verdict::NotYet(format!("target {target}")),
    }
}

/// Waits for the service. A model that still loads when the time is over is no failure.
///
/// # Errors
/// The manager gave the supervisor up, the target failed, or nothing answers in time.
pub async fn wait(
    kind: ServiceKind,
    operator: &Operator,
    timeout: Duration,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let clock = Clock::start();
    let timeout_ms = timeout.as_millis() as u64;
    let more = format!("`paceline service logs{}` shows why", scope_flag(kind));
    loop {
        let report = operator.report().await?;
        let state = match verdict(report.as_ref()) {
            Verdict::Ready => {
                screen.line("ready");
                return Ok(());
            }
            Verdict::Failed(reason) => {
                return Err(Failure::said_no(format!("the target failed: {reason}; {more}")));
            }
            Verdict::NotYet(state) => state,
        };
        if report.is_none() && kind.is_systemd() {
            given_up(kind, &more).await?;
        }
        let waited = clock.now().0;
        if report.is_some() && waited >= timeout_ms {
            screen.line(&format!(
                "{state} after {} s; `paceline service status{}` shows how far it is",
                timeout.as_secs(),
                scope_flag(kind)
            ));
            return Ok(());
        }
        if report.is_none() && waited >= timeout_ms.max(START_MS) {
            let waited = waited / 1_000;
            return Err(Failure::said_no(format!(
                "expected an answer of the supervisor, found none within {waited} s; {more}"
            )));
        }
        screen.transient(&state);
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until the supervisor knows the gateway, which attaches anew to each next supervisor. Until
/// then no order can reach the gateway.
///
/// # Errors
/// It does not attach in time.
pub async fn gateway_attached(operator: &Operator) -> Result<(), Failure> {
    let clock = Clock::start();
    loop {
        let report = operator.report().await?;
        if report.is_some_and(|report| report.gateway.state == "ready") {
            return Ok(());
        }
        if clock.now().0 >= START_MS {
            return Err(Failure::said_no(format!(
                "expected a gateway that is attached to the supervisor, found none within {} s; `paceline service status` shows its state",
                START_MS / 1_000
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Fails if systemd does not start a process any more, as after a bad configuration.
async fn given_up(kind: ServiceKind, more: &str) -> Result<(), Failure> {
    let answer = systemd::show(kind).answer().await?.unwrap_or_default();
    let failed = systemd::report(&answer).into_iter().find(|unit| unit.active == "failed");
    match failed {
        Some(unit) => Err(Failure::said_no(format!("{}; {more}", unit.line))),
        None => Ok(()),
    }
}

/// The flag that has later commands mean this service.
pub fn scope_flag(kind: ServiceKind) -> &'static str {
    if kind == ServiceKind::SystemdSystem { " --system" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::super::operator::ProcessReport;
    use super::*;

    #[test]
    fn a_service_is_ready_when_target_and_gateway_are() {
        let check = |target: &str, gateway: &str, expected: Verdict| {
            let process = |state: &str| ProcessReport { state: state.into(), reason: "r".into() };
            let report = ServiceReport { gateway: process(gateway), target: process(target) };
            assert_eq!(verdict(Some(&report)), expected, "{target} {gateway}");
        };
        check("ready", "ready", Verdict::Ready);
        check("loading", "ready", Verdict::NotYet("target loading".into()));
        check("ready", "stopped", Verdict::NotYet("gateway stopped".into()));
        check("failed", "ready", Verdict::Failed("r".into()));
        assert_eq!(verdict(None), Verdict::NotYet("no supervisor answers".into()));
    }
}
