//! `paceline service uninstall`: stops the service and removes all that `install` and the running
//! service made. Not the configuration, not models.

use std::fs;
use std::path::{Path, PathBuf};

use paceline_client::{Failure, Screen};
use paceline_process::RuntimeDir;

use super::control::unload_jobs;
use super::facts::{ServiceConfig, ServiceKind, home, user_id};
use super::install::is_installed;
use super::orders::{Order, carry_out};
use super::plan::Found;
use super::systemd::systemctl;
use super::{disk, installed_units, known_files, launchd, systemd};
use crate::args::ServiceUninstall;

/// Runs the command.
///
/// # Errors
/// As [`super::run`].
pub async fn run(args: &ServiceUninstall, screen: &mut Screen) -> Result<(), Failure> {
    let kind = ServiceKind::of(args.scope)?;
    let known = known_files(kind)?;
    let dir = kind.files_dir()?;
    for (path, _) in known.iter().filter(|(_, found)| *found == Found::Foreign) {
        let path = path.display();
        screen.note(&format!("note: {path} stays: `paceline service install` did not write it"));
    }
    if !is_installed(&known) {
        screen
            .line(&format!("nothing to remove: no file of `service install` in {}", dir.display()));
        return Ok(());
    }
    let units = installed_units(&known);
    let ours = known.iter().filter(|(_, found)| matches!(found, Found::Ours(_)));
    let mut files: Vec<PathBuf> = ours.map(|(path, _)| path.clone()).collect();
    files.extend(links(&dir, &units));
    let (first, last) = orders(kind, &units);
    if args.dry_run {
        return print(&first, &files, &last, screen);
    }
    match kind.check_runs() {
        Ok(()) if kind.is_systemd() => carry_out(&first).await?,
        Ok(()) => unload_jobs(&units).await?,
        // Without a manager of this user nothing of it runs.
        Err(failure) if kind == ServiceKind::SystemdUser => {
            screen.note(&format!("note: nothing was stopped: {}", failure.message));
        }
        Err(failure) => return Err(failure),
    }
    for path in &files {
        if path.symlink_metadata().is_ok() {
            disk::remove(path)?;
            screen.line(&format!("removed {}", path.display()));
        }
    }
    remove_empty_dirs(kind, &dir);
    if kind.is_systemd() && kind.check_runs().is_ok() {
        carry_out(&last).await?;
    }
    remove_traces(kind, screen)?;
    let place = ServiceConfig::read(kind, None).map(|config| config.place.display().to_string());
    let place = place.unwrap_or_else(|_| "its file".into());
    screen.line(&format!(
        "the service is gone; models and the configuration ({place}) stay, and so do the programs"
    ));
    Ok(())
}

/// Orders before and after the removal of the files.
fn orders(kind: ServiceKind, units: &[&'static str]) -> (Vec<Order>, Vec<Order>) {
    if kind.is_systemd() {
        let stop = systemctl(kind, &["disable", "--now"], units);
        return (vec![stop], systemd::forget(kind, units));
    }
    (units.iter().map(|label| launchd::unload(user_id(), label)).collect(), vec![])
}

/// Links by which `systemctl enable` has units start. Without a manager they would stay.
fn links(dir: &Path, units: &[&str]) -> Vec<PathBuf> {
    let wants = ["default.target.wants", "multi-user.target.wants", "sockets.target.wants"];
    let links =
        wants.iter().flat_map(|wants| units.iter().map(move |unit| dir.join(wants).join(unit)));
    links.filter(|link| link.is_symlink()).collect()
}

fn remove_empty_dirs(kind: ServiceKind, dir: &Path) {
    if kind == ServiceKind::SystemdUser {
        let wants = ["default.target.wants", "sockets.target.wants"].map(|wants| dir.join(wants));
        disk::remove_empty(&[&wants[0], &wants[1], dir, dir.parent().unwrap_or(dir)]);
    }
}

/// Removes sockets, counters, records and logs, unless a process of ours still uses them, or the
/// configuration names their place.
fn remove_traces(kind: ServiceKind, screen: &mut Screen) -> Result<(), Failure> {
    let mut places = vec![];
    if let Ok(config) = ServiceConfig::read(kind, None)
        && config.config.supervisor.runtime_dir.is_empty()
        && let Some(run) = kind.runtime_dir()
        && run.is_dir()
    {
        let mut settings = config.config;
        settings.supervisor.runtime_dir = run.display().to_string();
        let in_use = RuntimeDir::locate(&settings).is_ok_and(|dir| {
            ["service", "supervisor", "gateway"].iter().any(|what| dir.is_locked(what))
        });
        match in_use {
            true => screen.note(&format!("note: {} stays: a process uses it", run.display())),
            false => places.push(run),
        }
    }
    if kind == ServiceKind::LaunchdAgent {
        places.push(home()?.join("Library/Logs/Paceline"));
    }
    for place in places.iter().filter(|place| place.is_dir()) {
        fs::remove_dir_all(place).map_err(|error| {
            Failure::refused_here(format!("cannot remove {}: {error}", place.display()))
        })?;
        screen.line(&format!("removed {}", place.display()));
    }
    Ok(())
}

/// `--dry-run`
fn print(
    first: &[Order],
    files: &[PathBuf],
    last: &[Order],
    screen: &mut Screen,
) -> Result<(), Failure> {
    let orders = |orders: &[Order]| {
        orders.iter().map(|order| format!("{order}\n")).collect::<Vec<_>>().concat()
    };
    let removed = files.iter().map(|file| format!("rm {}\n", file.display()));
    let removed = removed.collect::<Vec<_>>().concat();
    screen.text(&format!("== run\n{}{removed}{}", orders(first), orders(last)))
}
