//! `paceline service install`: files, then the manager's orders, then the wait for the service.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{User, getuid};
use paceline_client::{Failure, Screen};
use paceline_process::RuntimeDir;

use super::control::{load_jobs, restart_in_order};
use super::facts::{Facts, ServiceConfig, ServiceKind, user_id};
use super::orders::{Order, carry_out};
use super::plan::{Changes, Found, PlannedFile, decide};
use super::systemd::systemctl;
use super::{disk, known_files, launchd, operator, ready, systemd};
use crate::args::ServiceInstall;

/// Runs the command.
///
/// # Errors
/// As [`super::run`].
pub async fn run(args: &ServiceInstall, screen: &mut Screen) -> Result<(), Failure> {
    let kind = ServiceKind::of(args.start.scope)?;
    let config = ServiceConfig::read(kind, args.config.as_deref())?;
    let facts = Facts::gather(kind, &config)?;
    let known = known_files(kind)?;
    let files = planned(&facts);
    let changes =
        decide(files.clone(), &known, args.force).map_err(|places| in_the_way(&places))?;
    if args.dry_run {
        return print(&files, &changes, &orders(&facts, &changes, !args.no_start), screen);
    }
    kind.check_runs()?;
    refuse_beside_serve(&config)?;
    let before = operator(kind, &known).report().await.ok().flatten();
    for path in &changes.remove {
        if kind.is_systemd() {
            let unit = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let unit = unit.unwrap_or_default();
            systemctl(kind, &["disable", "--now"], &[&unit]).may_fail().carry_out().await?;
        }
        disk::remove(path)?;
        screen.line(&format!("removed {}", path.display()));
    }
    for file in &changes.write {
        disk::write(&file.path, &file.text)?;
        screen.line(&format!("wrote {}", file.path.display()));
    }
    if changes.write.is_empty() && changes.remove.is_empty() {
        screen.line(&format!("the files in {} are as they should be", facts.files_dir.display()));
    }
    carry_out(&orders(&facts, &changes, !args.no_start)).await?;
    let operator = operator(kind, &known_files(kind)?);
    if args.no_start {
        let flag = ready::scope_flag(kind);
        screen.line(&format!("enabled, not started; `paceline service start{flag}` starts it"));
    } else {
        start(&facts, &changes, before.is_some(), &operator, screen).await?;
        let timeout = Duration::from_secs(args.start.timeout.into());
        ready::wait(kind, &operator, timeout, screen).await?;
    }
    explain(&facts, &config, screen);
    Ok(())
}

/// The files of a service of this kind.
pub fn planned(facts: &Facts) -> Vec<PlannedFile> {
    if facts.kind.is_systemd() { systemd::files(facts) } else { launchd::files(facts) }
}

/// Names of the units that the files are for.
fn units(facts: &Facts) -> Vec<&'static str> {
    let units = systemd::UNITS.into_iter();
    units.filter(|unit| *unit != systemd::HTTP || facts.http.is_some()).collect()
}

/// Orders after the files were written. Those of launchd depend on what runs, and follow in
/// [`load_jobs`].
pub fn orders(facts: &Facts, changes: &Changes, start: bool) -> Vec<Order> {
    let kind = facts.kind;
    if !kind.is_systemd() {
        let enable = launchd::LABELS.iter().map(|label| launchd::enable(user_id(), label));
        return enable.collect();
    }
    let units = units(facts);
    let mut orders = systemd::enable(kind, &units);
    if start {
        // A socket cannot be bound anew while the gateway has it.
        if changes.installed && changes.touches(".socket") {
            let gateway = [systemd::GATEWAY, systemd::GRPC, systemd::HTTP];
            orders.push(systemctl(kind, &["stop"], &gateway).may_fail());
        }
        orders.push(systemctl(kind, &["start"], &units));
    }
    orders
}

/// Has what ran before run with the new files and programs.
async fn start(
    facts: &Facts,
    changes: &Changes,
    ran_before: bool,
    operator: &super::Operator,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let changed = |label: &str| changes.touches(&launchd::file_name(label));
    if !facts.kind.is_systemd() {
        let labels: Vec<_> = launchd::LABELS.into_iter().filter(|label| changed(label)).collect();
        load_jobs(&facts.files_dir, &labels).await?;
        let rest: Vec<_> = launchd::LABELS.into_iter().filter(|label| !changed(label)).collect();
        if !ran_before || rest.is_empty() {
            return Ok(());
        }
        return restart_in_order(&rest, operator, screen).await;
    }
    screen.line(&format!("enabled and started {}", units(facts).join(" ")));
    if !ran_before {
        return Ok(());
    }
    // The gateway was stopped for its sockets, and runs anew already.
    let gateway = (!changes.touches(".socket")).then_some(systemd::GATEWAY);
    let restart: Vec<_> = std::iter::once(systemd::SUPERVISOR).chain(gateway).collect();
    restart_in_order(&restart, operator, screen).await
}

fn in_the_way(places: &[PathBuf]) -> Failure {
    let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    Failure::refused_here(format!(
        "expected no file, or one that `paceline service install` wrote, found another at {}; move it away, or replace it with --force",
        places.join(", ")
    ))
}

/// Two supervisors cannot share a runtime directory.
fn refuse_beside_serve(config: &ServiceConfig) -> Result<(), Failure> {
    let dir = RuntimeDir::locate(&config.config)?;
    if dir.is_locked("service") {
        return Err(Failure::refused_here(format!(
            "expected that nothing serves from {}, found `paceline serve`; stop it, then install the service",
            dir.path().display()
        )));
    }
    Ok(())
}

/// `--dry-run`
fn print(
    files: &[PlannedFile],
    changes: &Changes,
    orders: &[Order],
    screen: &mut Screen,
) -> Result<(), Failure> {
    for file in files {
        let what = if changes.write.contains(file) { "write" } else { "is as it should be" };
        screen.text(&format!("== {}: {what}\n{}\n", file.path.display(), file.text))?;
    }
    for path in &changes.remove {
        screen.text(&format!("== {}: remove\n", path.display()))?;
    }
    screen.text("== run\n")?;
    for order in orders {
        screen.text(&format!("{order}\n"))?;
    }
    Ok(())
}

/// Shows where things are.
fn explain(facts: &Facts, config: &ServiceConfig, screen: &mut Screen) {
    let kind = facts.kind;
    let flag = ready::scope_flag(kind);
    let http = facts.http.map_or_else(String::new, |http| format!(", HTTP at {http}"));
    screen.line(&format!("clients: gRPC at {}{http}", facts.grpc));
    let place = config.place.display();
    screen.line(&match config.file {
        Some(_) => format!("configuration: {place}"),
        None => format!(
            "configuration: defaults; {place} is read at the next `paceline service restart{flag}`"
        ),
    });
    let run = match config.config.supervisor.runtime_dir.is_empty() {
        true => kind.runtime_dir(),
        false => Some(PathBuf::from(&config.config.supervisor.runtime_dir)),
    };
    let run = run.map_or_else(String::new, |run| format!(", of the workers in {}", run.display()));
    screen.line(&format!("logs: `paceline service logs{flag}`{run}"));
    if kind == ServiceKind::SystemdUser && !lingers() {
        screen.note(
            "note: the service stops when you log out; `loginctl enable-linger` keeps it running",
        );
    }
}

/// Whether systemd keeps this user's manager without a session.
fn lingers() -> bool {
    let name = User::from_uid(getuid()).ok().flatten().map(|user| user.name);
    name.is_some_and(|name| Path::new("/var/lib/systemd/linger").join(name).exists())
}

/// Whether a file of these is of `install`.
pub fn is_installed(known: &[(PathBuf, Found)]) -> bool {
    known.iter().any(|(_, found)| matches!(found, Found::Ours(_)))
}
