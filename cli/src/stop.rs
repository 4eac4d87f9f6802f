//! `paceline stop`: ends the service of this configuration in order. `paceline serve` gets SIGTERM;
//! a service of systemd or launchd is stopped by its manager, which would start it again.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use paceline_client::args::ConfigArg;
use paceline_client::{Failure, Screen};
use paceline_launcher::service;
use paceline_process::lifecycle::supervisor_stop;
use paceline_process::{Loaded, RuntimeDir};
use paceline_system::{Clock, platform};

/// Interval between two checks whether the service has ended.
const POLL: Duration = Duration::from_millis(50);
/// Time of `serve` itself, after its supervisor.
const MARGIN: Duration = Duration::from_secs(15);

/// Runs the command; returns when the service has ended.
///
/// # Errors
/// None runs, or it does not end.
pub async fn run(args: &ConfigArg, screen: &mut Screen) -> Result<(), Failure> {
    let Loaded { config, .. } = Loaded::find(args.config.as_deref())?;
    let dir = RuntimeDir::locate(&config)?;
    if dir.is_locked("service") {
        return end_serve(&dir, screen).await;
    }
    if dir.is_locked("supervisor") {
        return service::stop_of(dir.path(), screen).await;
    }
    Err(Failure::unreachable(format!(
        "expected a service that runs in {}, found none; `paceline serve` starts one",
        dir.path().display()
    )))
}

async fn end_serve(dir: &RuntimeDir, screen: &mut Screen) -> Result<(), Failure> {
    let path = dir.lock_path("service");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let pid: i32 = text.trim().parse().ok().filter(|pid| *pid > 1).ok_or_else(|| {
        Failure::refused_here(format!(
            "expected the id of `paceline serve` in {}, found {text:?}; end it by Ctrl-C in its terminal",
            path.display()
        ))
    })?;
    kill(Pid::from_raw(pid), Signal::SIGTERM).map_err(|error| {
        Failure::refused_here(format!("cannot stop `paceline serve` (pid {pid}): {error}"))
    })?;
    let (clock, limit) = (Clock::start(), supervisor_stop(platform::KILL_STRANDS_MEMORY) + MARGIN);
    screen.transient("running requests get 30 seconds");
    while dir.is_locked("service") {
        if u128::from(clock.now().0) >= limit.as_millis() {
            return Err(Failure::said_no(format!(
                "expected the end of `paceline serve` (pid {pid}) within {} s, found it still running; its logs are in {}",
                limit.as_secs(),
                dir.path().display()
            )));
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            // The order stands.
            _ = tokio::signal::ctrl_c() => return Err(Failure::interrupted()),
        }
    }
    screen.clear();
    screen.line("stopped");
    Ok(())
}
