//! `paceline service start`, `stop`, `restart`, `status` and `logs`.

use std::path::Path;
use std::time::Duration;

use paceline_client::{Failure, Screen};
use paceline_process::lifecycle::supervisor_stop;
use paceline_system::Clock;

use super::facts::{ServiceKind, home, user_id};
use super::operator::Operator;
use super::orders::{Order, carry_out};
use super::systemd::systemctl;
use super::{installed, launchd, ready, systemd};
use crate::args::{ServiceLogs, ServiceStart};

/// Interval between two questions whether launchd still knows a job.
const POLL: Duration = Duration::from_millis(200);
/// Longest wait for `paceline restart`, in seconds: a large model may have to be loaded anew.
const RESTART_S: &str = "1800";

/// `paceline service start`
///
/// # Errors
/// None is installed, or it does not become ready.
pub async fn start(args: &ServiceStart, screen: &mut Screen) -> Result<(), Failure> {
    let kind = ServiceKind::of(args.scope)?;
    let (units, operator) = installed(kind)?;
    kind.check_runs()?;
    match kind.is_systemd() {
        true => systemctl(kind, &["start"], &units).carry_out().await?,
        false => start_jobs(&units).await?,
    }
    ready::wait(kind, &operator, Duration::from_secs(args.timeout.into()), screen).await
}

/// `paceline service stop`
///
/// # Errors
/// None is installed, or the manager refuses.
pub async fn stop(kind: ServiceKind, screen: &mut Screen) -> Result<(), Failure> {
    let (units, _) = installed(kind)?;
    kind.check_runs()?;
    match kind.is_systemd() {
        // With its sockets: the next client would start the gateway again.
        true => systemctl(kind, &["stop"], &units).carry_out().await?,
        false => unload_jobs(&units).await?,
    }
    let next = if kind == ServiceKind::SystemdSystem { "start of the machine" } else { "login" };
    screen.line(&format!(
        "stopped; it starts again at the next {next}, or by `paceline service start{}`",
        ready::scope_flag(kind)
    ));
    Ok(())
}

/// `paceline service restart`
///
/// # Errors
/// None is installed, or a process does not come back.
pub async fn restart(kind: ServiceKind, screen: &mut Screen) -> Result<(), Failure> {
    let (_, operator) = installed(kind)?;
    kind.check_runs()?;
    if operator.report().await?.is_none() {
        return Err(Failure::unreachable(format!(
            "expected a service that runs, found none that answers; `paceline service start{0}` starts it, `paceline service status{0}` shows its state",
            ready::scope_flag(kind)
        )));
    }
    let both: &[&str] = match kind.is_systemd() {
        true => &[systemd::SUPERVISOR, systemd::GATEWAY],
        false => &launchd::LABELS,
    };
    restart_in_order(both, &operator, screen).await
}

/// Restarts these processes by orders of their own, by which requests go on: workers wait for the
/// next supervisor, and a gateway ends its requests beside the next one.
pub(super) async fn restart_in_order(
    units: &[&str],
    operator: &Operator,
    screen: &mut Screen,
) -> Result<(), Failure> {
    for process in ["supervisor", "gateway"] {
        if units.iter().any(|unit| unit.contains(process)) {
            if process == "gateway" {
                ready::gateway_attached(operator).await?;
            }
            screen.line(&format!("restarting the {process}"));
            operator.run(&["restart", process, "--timeout", RESTART_S]).await?;
        }
    }
    Ok(())
}

/// `paceline service status`
///
/// # Errors
/// None is installed, or no supervisor answers.
pub async fn status(kind: ServiceKind, screen: &mut Screen) -> Result<(), Failure> {
    let (units, operator) = installed(kind)?;
    kind.check_runs()?;
    if kind.is_systemd() {
        let answer = systemd::show(kind).answer().await?.unwrap_or_default();
        for unit in systemd::report(&answer) {
            screen.line(&unit.line);
        }
    } else {
        for label in units {
            let answer = launchd::print(user_id(), label).answer().await?;
            screen.line(&answer.map_or_else(
                || format!("{label}: not loaded"),
                |answer| launchd::report(label, &answer),
            ));
        }
    }
    operator.run(&["status"]).await
}

/// `paceline service logs`
///
/// # Errors
/// The program that shows them cannot be started.
pub fn logs(args: &ServiceLogs) -> Result<(), Failure> {
    let kind = ServiceKind::of(args.scope)?;
    installed(kind)?;
    let order = match kind.is_systemd() {
        true => systemd::logs(kind, args.follow, args.lines),
        false => launchd::logs(&home()?, args.follow, args.lines),
    };
    Err(order.become_it())
}

/// Loads jobs anew, so that launchd reads their files.
pub(super) async fn load_jobs(dir: &Path, labels: &[&str]) -> Result<(), Failure> {
    unload_jobs(labels).await?;
    for label in labels {
        carry_out(&launchd::load(user_id(), label, &dir.join(launchd::file_name(label)))).await?;
    }
    Ok(())
}

/// Starts jobs, whether launchd knows them or not.
async fn start_jobs(labels: &[&str]) -> Result<(), Failure> {
    let dir = ServiceKind::LaunchdAgent.files_dir()?;
    for label in labels {
        let uid = user_id();
        let orders: Vec<Order> = match launchd::print(uid, label).answer().await? {
            Some(_) => vec![launchd::kickstart(uid, label)],
            None => launchd::load(uid, label, &dir.join(launchd::file_name(label))).into(),
        };
        carry_out(&orders).await?;
    }
    Ok(())
}

/// Unloads jobs and waits until they are gone: launchd refuses to load a job that still ends.
pub(super) async fn unload_jobs(labels: &[&str]) -> Result<(), Failure> {
    let (clock, uid) = (Clock::start(), user_id());
    for label in labels {
        launchd::unload(uid, label).carry_out().await?;
    }
    let limit = supervisor_stop(true);
    for label in labels {
        while launchd::print(uid, label).answer().await?.is_some() {
            if clock.now().0 >= limit.as_millis() as u64 {
                return Err(Failure::said_no(format!(
                    "expected the end of {label} within {} s, found it still loaded; `launchctl print gui/{uid}/{label}` shows its state",
                    limit.as_secs()
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}
