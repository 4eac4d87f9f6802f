//! `paceline service`: the service of systemd or launchd, installed from the files in deploy/.
//!
//! - [`facts`] · whose service, where the programs are, settings that stand in the files
//! - [`systemd`], [`launchd`] · texts of the files and orders, decided without touching anything
//! - [`plan`] · which files are written, removed, or in the way
//! - [`disk`], [`orders`], [`operator`] · files, commands of the manager, commands of this program
//! - [`ready`] · the wait for the service
//! - [`install`], [`uninstall`], [`control`] · the commands

pub mod control;
pub mod disk;
pub mod facts;
pub mod install;
pub mod launchd;
pub mod operator;
pub mod orders;
pub mod plan;
pub mod ready;
pub mod systemd;
pub mod uninstall;

use std::path::{Path, PathBuf};

use paceline_client::{Failure, Screen};

use self::facts::ServiceKind;
use self::operator::Operator;
use self::plan::Found;
use crate::args::{ServiceCommand, ServiceScope};

/// Runs the command.
///
/// # Errors
/// The service manager is not there or refuses, files of others are in the way, or the service does
/// not become ready.
pub async fn run(command: &ServiceCommand, screen: &mut Screen) -> Result<(), Failure> {
    match command {
        ServiceCommand::Install(args) => install::run(args, screen).await,
        ServiceCommand::Uninstall(args) => uninstall::run(args, screen).await,
        ServiceCommand::Start(args) => control::start(args, screen).await,
        ServiceCommand::Stop(scope) => control::stop(ServiceKind::of(*scope)?, screen).await,
        ServiceCommand::Restart(scope) => control::restart(ServiceKind::of(*scope)?, screen).await,
        ServiceCommand::Status(scope) => control::status(ServiceKind::of(*scope)?, screen).await,
        ServiceCommand::Logs(args) => control::logs(args),
    }
}

/// Stops the service whose runtime directory is `dir`, as its manager does it.
///
/// # Errors
/// No manager runs a service there, or it refuses.
pub async fn stop_of(dir: &Path, screen: &mut Screen) -> Result<(), Failure> {
    let mut kinds = installed_kinds();
    match kinds.find(|kind| kind.runtime_dir().is_some_and(|own| own == dir)) {
        Some(kind) => control::stop(kind, screen).await,
        None => Err(Failure::refused_here(format!(
            "expected a service of `paceline serve` or `paceline service` in {}, found a supervisor that something else started; stop it there, or try `paceline service stop`",
            dir.display()
        ))),
    }
}

/// Whether a manager has a service of this user or of this machine.
pub fn is_installed() -> bool {
    installed_kinds().next().is_some()
}

fn installed_kinds() -> impl Iterator<Item = ServiceKind> {
    let user = ServiceKind::of(ServiceScope::default()).ok();
    let kinds = user.into_iter().chain([ServiceKind::SystemdSystem]);
    kinds.filter(|kind| installed(*kind).is_ok())
}

/// All places at which an installation may have a file, with what is there.
fn known_files(kind: ServiceKind) -> Result<Vec<(PathBuf, Found)>, Failure> {
    let dir = kind.files_dir()?;
    let mut places: Vec<PathBuf> = match kind.is_systemd() {
        true => systemd::UNITS.iter().map(|unit| dir.join(unit)).collect(),
        false => launchd::LABELS.iter().map(|label| dir.join(launchd::file_name(label))).collect(),
    };
    if kind == ServiceKind::SystemdSystem {
        places.push(systemd::SYSUSERS.into());
    }
    places.into_iter().map(|path| Ok((path.clone(), disk::found(&path)?))).collect()
}

/// Names of the units or jobs among files that `install` wrote.
fn installed_units(known: &[(PathBuf, Found)]) -> Vec<&'static str> {
    let all = systemd::UNITS.into_iter().chain(launchd::LABELS);
    let is_ours = |unit: &&str| {
        known.iter().any(|(path, found)| {
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
            matches!(found, Found::Ours(_))
                && file.is_some_and(|file| file == **unit || file == launchd::file_name(unit))
        })
    };
    all.filter(is_ours).collect()
}

/// How commands reach the service of these files.
fn operator(kind: ServiceKind, known: &[(PathBuf, Found)]) -> Operator {
    let supervisor = known.iter().find_map(|(path, found)| match found {
        Found::Ours(text) if is_supervisor(path) => Some(text),
        _ => None,
    });
    let variables = supervisor.map(|text| match kind.is_systemd() {
        true => systemd::variables(text),
        false => launchd::variables(text),
    });
    Operator::new(kind, variables.unwrap_or_default())
}

fn is_supervisor(path: &Path) -> bool {
    path.ends_with(systemd::SUPERVISOR) || path.ends_with(launchd::file_name(launchd::LABELS[0]))
}

/// The installed service: its units, and how commands reach it.
///
/// # Errors
/// None is installed.
fn installed(kind: ServiceKind) -> Result<(Vec<&'static str>, Operator), Failure> {
    let known = known_files(kind)?;
    let units = installed_units(&known);
    if !known.iter().any(|(path, found)| matches!(found, Found::Ours(_)) && is_supervisor(path)) {
        return Err(Failure::refused_here(format!(
            "no service is installed: expected files of `paceline service install` in {}, found none; run `paceline service install{}`",
            kind.files_dir()?.display(),
            ready::scope_flag(kind)
        )));
    }
    Ok((units, operator(kind, &known)))
}

#[cfg(test)]
mod tests;
