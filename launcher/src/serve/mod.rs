//! `paceline serve`: the parent of gateway and supervisor. It holds the front listeners and the
//! service's lock, and starts both processes. It restarts either within a budget, replaces one that
//! gives no sign of life, shows the progress of loading, and stops everything in order.
//! `paceline_service_core` decides; [`child`] starts, [`progress`] and [`drafter_lines`] make the lines.
//! This file is the loop between them.

pub mod child;
pub mod drafter_lines;
pub mod listeners;
mod loadable;
pub mod progress;
mod refusal;

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use paceline_checkpoint::ModelPlaces;
use paceline_client::channel::reachable;
use paceline_client::failure::{INTERRUPTED, USAGE};
use paceline_client::own_service::remove_own_dir;
use paceline_client::print::indented;
use paceline_client::program::beside;
use paceline_client::{Failure, Screen};
use paceline_process::config::SupervisorConfig;
use paceline_process::lifecycle::{ParentWatch, supervisor_stop};
use paceline_process::notify::{SUCCESSOR_FAILED, SUCCESSOR_READY};
use paceline_process::runtime_dir::{Kept, RuntimeDirError, WorkerRecord};
use paceline_process::{Config, ConfigError, Loaded, RuntimeDir, Signals, chain, socket, task};
use paceline_proto::convert::service::ServiceStatus;
use paceline_proto::v1::StatusRequest;
use paceline_proto::v1::operations_client::OperationsClient;
use paceline_service_core::launch::{Action, Bounds, ChildEnd, Event, Notice, Service};
use paceline_service_core::member::{BOTH, Member};
use paceline_system::{Clock, platform};
use paceline_vocabulary::Exit;
use tokio::sync::mpsc;

use self::child::{Child, ChildSpawner, News};
use self::drafter_lines::DrafterLines;
use self::listeners::{FrontListener, FrontListeners, TurnedAway};
use self::progress::{Progress, Show};
use self::refusal::{EARLIER_SERVICE_TIMEOUT, Refusal, STATUS_POLL, refuse};
use crate::args::ServeArgs;
use crate::fetch::fetch_missing;
use crate::flags::{BadFlags, Flags};

/// Interval between two requests for the status once the service is ready: a laptop's cores may sleep in between.
const READY_STATUS_POLL: Duration = Duration::from_secs(1);

/// A failed supervisor is tried again so often within the lease of its workers, at least once in
/// the longest of these pauses, at most once in the shortest.
const TRIES_IN_LEASE: u64 = 3;
const LONGEST_SUPERVISOR_RETRY_MS: u64 = 10_000;
const SHORTEST_SUPERVISOR_RETRY_MS: u64 = 1_000;
/// Gateway and supervisor count as frozen after this many times `supervisor.hang_s` without a sign
/// of life: 30 s by default, as WatchdogSec of the units in deploy/.
const HANGS_TO_FREEZE: u64 = 3;
/// A day: more than that means never, and stays within what a watchdog's variable can hold.
const LONGEST_FREEZE_MS: u64 = 86_400_000;

/// Signals that come from outside of a process.
const KILLED: [i32; 2] = [Signal::SIGKILL as i32, Signal::SIGTERM as i32];

/// Longest wait for workers that the supervisor did not end.
const WORKERS_END_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks of these workers.
const WORKERS_END_POLL: Duration = Duration::from_millis(20);

/// Runs the command until it is asked to stop or cannot go on.
///
/// # Errors
/// The flags contradict each other.
pub async fn run(args: &ServeArgs, screen: &mut Screen) -> Result<Exit, Failure> {
    let loaded = match Flags::of_serve(args).and_then(|flags| flags.load(config_of(args))) {
        Ok(loaded) => Ok(loaded),
        Err(BadFlags::Config(message)) => Err(refuse(Exit::Config, message)),
        Err(conflict) => return Err(conflict.into()),
    };
    let outcome = match loaded {
        Ok(loaded) => serve(loaded, args.offline, screen).await,
        Err(refusal) => Err(refusal),
    };
    Ok(outcome.unwrap_or_else(|refusal| {
        screen.complain(&refusal.message);
        refusal.exit
    }))
}

fn config_of(args: &ServeArgs) -> Option<&Path> {
    args.config.config.as_deref()
}

async fn serve(mut loaded: Loaded, offline: bool, screen: &mut Screen) -> Result<Exit, Refusal> {
    let unusable = |error: RuntimeDirError| refuse(error.exit(), chain(&error));
    let mut signals = Signals::interactive()
        .map_err(|error| refuse(Exit::Bug, format!("cannot watch signals: {error}")))?;
    // A program that starts us for a while (the self-test) is not outlived by us.
    let parent = ParentWatch::inherited().map_err(|error| refuse(Exit::Config, error))?;
    match fetch_missing(&loaded, offline, screen, async || signals.next().await).await {
        Ok(unfetched) => {
            let stand_in = loaded.settle_default_model(&ModelPlaces::of_user(), &unfetched);
            stand_in.iter().for_each(|line| screen.line(line));
        }
        Err(failure) if failure.exit == INTERRUPTED => return Ok(Exit::Asked),
        Err(failure) if failure.exit == USAGE => return Err(refuse(Exit::Config, failure.message)),
        Err(failure) => return Err(refuse(Exit::Unavailable, failure.message)),
    }
    note_warnings(&loaded, screen);
    let bad = |error: ConfigError| refuse(Exit::Config, chain(&error));
    loaded.config.resolve_models().map_err(bad)?;
    let config = &loaded.config;
    let model_dir = config.model_dir().map_err(bad)?;
    let programs = programs().map_err(|failure| refuse(Exit::Unavailable, failure.message))?;
    let dir = RuntimeDir::locate(config).map_err(unusable)?;
    dir.prepare().map_err(unusable)?;
    let _lock = dir.lock("service").map_err(unusable)?;
    // Later a child that cannot be started is tried again; a log that can never be is for a person.
    for member in BOTH {
        child::open_log(&dir, member).map_err(|error| refuse(Exit::Config, error))?;
    }
    let waited = tokio::select! {
        waited = earlier_service_ended(&dir, screen) => waited.map_err(unusable)?,
        () = signals.next() => return Ok(Exit::Asked),
    };
    loadable::check(&loaded, &model_dir, screen).await?;
    let listeners = FrontListeners::open(&config.gateway, waited).await?;
    let address = listeners.grpc.address.clone();
    let next_steps = next_steps(&listeners, config);
    greet(&listeners, !config.gateway.tls_cert.is_empty(), &dir, screen);
    note_policy(&loaded, screen);
    dir.keep_up(Kept { locks: vec!["service".to_owned()], ..Kept::default() });
    let bounds = bounds(&config.supervisor);
    let beat_within = Duration::from_millis(bounds.frozen_ms);
    let spawner = ChildSpawner::new(programs, loaded.clone(), dir.clone(), listeners, beat_within)
        .map_err(|error| refuse(Exit::Unavailable, format!("cannot make a pipe: {error}")))?;
    let progress = Progress::new(config.model_name(), address, !screen.shows_transient());
    let mut shell = Shell {
        service: Service::new(bounds),
        spawner,
        dir,
        screen,
        progress,
        next_steps,
        drafter_lines: DrafterLines::default(),
        supervisor: None,
        gateway: None,
        second_gateway: None,
        turned_away: None,
        clock: Clock::start(),
    };
    Ok(shell.run(&mut signals, parent).await)
}

/// Notes what is odd about the configuration.
fn note_warnings(loaded: &Loaded, screen: &mut Screen) {
    for warning in &loaded.warnings {
        screen.note(&format!("warning: {warning}"));
    }
    for error in loaded.config.missing_drafters() {
        let error = chain(&error);
        screen.note(&format!("warning: {error}; requests are served without this drafter"));
    }
    if let Some(warning) = loaded.config.long_drafts() {
        screen.note(&format!("warning: {warning}"));
    }
}

/// Shows the routing settings that are not at their default: they decide which requests are drafted
/// for.
fn note_policy(loaded: &Loaded, screen: &mut Screen) {
    for setting in loaded.changed_policy() {
        screen.line(&format!("{} = {} ({})", setting.key, setting.value, setting.source));
    }
}

/// The bounds of the service by its settings.
fn bounds(settings: &SupervisorConfig) -> Bounds {
    let lease_ms = settings.lease_s.saturating_mul(1_000);
    Bounds {
        restarts: settings.restarts,
        period_ms: settings.restart_period_s.saturating_mul(1_000),
        supervisor_retry_ms: (lease_ms / TRIES_IN_LEASE)
            .clamp(SHORTEST_SUPERVISOR_RETRY_MS, LONGEST_SUPERVISOR_RETRY_MS),
        supervisor_stop_ms: supervisor_stop(platform::KILL_STRANDS_MEMORY).as_millis() as u64,
        frozen_ms: settings.hang_s.saturating_mul(1_000 * HANGS_TO_FREEZE).min(LONGEST_FREEZE_MS),
    }
}

/// Shows where clients connect and where the logs are.
fn greet(listeners: &FrontListeners, tls: bool, dir: &RuntimeDir, screen: &mut Screen) {
    let (version, logs) = (env!("CARGO_PKG_VERSION"), dir.path().display());
    let scheme = if tls { "https" } else { "http" };
    let at = |name: &str, front: &Option<FrontListener>| match front {
        Some(front) => format!(", {name} at {scheme}://{}", front.address),
        None => String::new(),
    };
    let (http, ollama) = (at("HTTP", &listeners.http), at("Ollama's API", &listeners.ollama));
    let grpc = &listeners.grpc.address;
    screen.line(&format!("paceline {version}: gRPC at {grpc}{http}{ollama}, logs in {logs}"));
}

/// Lines for a person who does not know what to do with a service that runs.
fn next_steps(listeners: &FrontListeners, config: &Config) -> Vec<String> {
    let scheme = if config.gateway.tls_cert.is_empty() { "http" } else { "https" };
    let http = listeners.http.as_ref().map(|http| {
        let address = reachable(&http.address);
        format!("clients: {scheme}://{address}/v1, page: {scheme}://{address}/")
    });
    http.into_iter().chain(["talk to it: paceline chat".to_owned()]).collect()
}

/// The directory of this program, which must have the programs of both children.
fn programs() -> Result<PathBuf, Failure> {
    let paths = [beside("paceline-supervisor")?, beside("paceline-gateway")?];
    Ok(paths[0].parent().map(PathBuf::from).unwrap_or_default())
}

/// Waits until the supervisor of an earlier service that was killed has ended its workers. True if
/// there was one.
async fn earlier_service_ended(
    dir: &RuntimeDir,
    screen: &mut Screen,
) -> Result<bool, RuntimeDirError> {
    let clock = Clock::start();
    let mut announced = false;
    loop {
        match dir.lock("supervisor") {
            Ok(_released_again) => return Ok(announced),
            Err(RuntimeDirError::Taken { .. })
                if clock.now().0 < EARLIER_SERVICE_TIMEOUT.as_millis() as u64 =>
            {
                if !std::mem::replace(&mut announced, true) {
                    screen.line("waiting for an earlier service in this runtime directory to stop");
                }
                tokio::time::sleep(STATUS_POLL).await;
            }
            Err(error) => return Err(error),
        }
    }
}

struct Shell<'a> {
    service: Service,
    spawner: ChildSpawner,
    dir: RuntimeDir,
    screen: &'a mut Screen,
    progress: Progress,
    /// Shown once, when the service is ready.
    next_steps: Vec<String>,
    drafter_lines: DrafterLines,
    supervisor: Option<Child>,
    gateway: Option<Child>,
    /// A successor that starts, or a predecessor that drains.
    second_gateway: Option<Child>,
    /// Set while the gateway has failed.
    turned_away: Option<TurnedAway>,
    clock: Clock,
}

impl Shell<'_> {
    async fn run(&mut self, signals: &mut Signals, mut parent: ParentWatch) -> Exit {
        let mut snapshots = watch(&self.dir);
        let mut orphaned = false;
        let mut events = vec![Event::Begun];
        loop {
            while let Some(event) = events.pop() {
                for action in self.service.on_event(event, self.clock.now()) {
                    match action {
                        Action::Finish(exit) => {
                            let exit = self.finish(exit).await;
                            if orphaned {
                                remove_own_dir();
                            }
                            return exit;
                        }
                        other => events.extend(self.perform(other)),
                    }
                }
            }
            let deadline = self.service.next_deadline();
            let pause = deadline.map_or(Duration::MAX, |at| self.clock.until(at));
            let event = tokio::select! {
                biased;
                event = news(Member::Supervisor, &mut self.supervisor) => Some(event),
                event = news(Member::Gateway, &mut self.gateway) => Some(event),
                event = news(Member::SecondGateway, &mut self.second_gateway) => Some(event),
                () = signals.next() => Some(Event::StopAsked),
                () = parent.gone(), if !orphaned => {
                    orphaned = true;
                    Some(Event::StopAsked)
                }
                () = tokio::time::sleep(pause), if deadline.is_some() => Some(Event::Tick),
                Some(snapshot) = snapshots.recv() => {
                    self.show(&snapshot);
                    None
                }
            };
            events.extend(event);
        }
    }

    fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Start(member, restarts) => return self.start(member, restarts),
            Action::Term(member) => {
                // The gateway closes its copies of the listeners when it begins to drain. Copies
                // here would keep connections waiting.
                self.spawner.close_door();
                self.turned_away = None;
                if let Some(child) = self.child(member) {
                    child.ask_to_stop();
                }
            }
            Action::Hurry(member) => self.signal(member, Signal::SIGUSR1),
            Action::Kill(member) => self.signal(member, Signal::SIGKILL),
            Action::HandOver => {
                if let Some(gateway) = &self.gateway {
                    gateway.send(SUCCESSOR_READY);
                }
                std::mem::swap(&mut self.gateway, &mut self.second_gateway);
            }
            Action::Promote => self.gateway = self.second_gateway.take(),
            Action::Decline => {
                if let Some(gateway) = &self.gateway {
                    gateway.send(SUCCESSOR_FAILED);
                }
            }
            Action::KillWorkers => {
                for (_, worker) in
                    self.dir.records().into_iter().filter(|(_, worker)| worker.alive())
                {
                    let _ = nix::sys::signal::kill(
                        nix::unistd::Pid::from_raw(worker.pid as i32),
                        Signal::SIGKILL,
                    );
                }
            }
            Action::Report(notice) => {
                if matches!(notice, Notice::Failed(Member::Gateway, ..)) {
                    self.turned_away = self.spawner.turn_away();
                }
                self.report(notice);
            }
            Action::Finish(_) => {}
        }
        None
    }

    /// Starts a child; an event if that fails.
    fn start(&mut self, member: Member, restarts: u32) -> Option<Event> {
        if member == Member::Gateway {
            self.turned_away = None;
        }
        match self.spawner.start(member, restarts) {
            Ok(child) => {
                *self.child(member) = Some(child);
                None
            }
            Err(error) => {
                *self.child(member) = None;
                Some(Event::Exited(member, ChildEnd::NotStarted(error.to_string())))
            }
        }
    }

    fn child(&mut self, member: Member) -> &mut Option<Child> {
        match member {
            Member::Supervisor => &mut self.supervisor,
            Member::Gateway => &mut self.gateway,
            Member::SecondGateway => &mut self.second_gateway,
        }
    }

    fn signal(&mut self, member: Member, signal: Signal) {
        if let Some(child) = self.child(member) {
            child.signal(signal);
        }
    }

    /// Ends workers whose supervisor is gone. SIGKILL only where nothing else helps: with Metal it
    /// can strand memory, and the lease ends all but those that are stopped by job control.
    async fn end_workers(&self) {
        let records = self.dir.records().into_iter().map(|(_, worker)| worker);
        // The list is made once: a worker removes its record before its process is gone.
        let workers: Vec<WorkerRecord> = records.filter(WorkerRecord::alive).collect();
        for worker in &workers {
            let signal = if platform::process_stopped(worker.pid) {
                Signal::SIGKILL
            } else {
                Signal::SIGTERM
            };
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.pid as i32), signal);
        }
        let clock = Clock::start();
        while workers.iter().any(WorkerRecord::alive)
            && clock.now().0 < WORKERS_END_TIMEOUT.as_millis() as u64
        {
            tokio::time::sleep(WORKERS_END_POLL).await;
        }
    }

    fn report(&mut self, notice: Notice) {
        let text = match notice {
            Notice::Restarting(member, ChildEnd::Code(code), 0)
                if code == Exit::RestartMe as i32 =>
            {
                let line = format!("the {} is restarted, as it was asked to", member.name());
                return self.screen.line(&line);
            }
            Notice::Restarting(member, end, pause_ms) => {
                let when = match pause_ms {
                    0 => "now".to_owned(),
                    _ => format!("in {:.2} s", pause_ms as f64 / 1e3),
                };
                // A process that a signal from outside ended logged no reason. One that aborts did.
                let words = match end {
                    ChildEnd::Signal(signal) if KILLED.contains(&signal) => String::new(),
                    _ => self.last_words(member),
                };
                format!("the {} {end}; starting it again {when}{words}", member.name())
            }
            Notice::Failed(member, end, pause_ms) => {
                let (name, words) = (member.name(), self.last_words(member));
                let stays = match member {
                    Member::Gateway | Member::SecondGateway => "the model stays loaded",
                    Member::Supervisor => "the model stays loaded for supervisor.lease_s",
                };
                format!(
                    "the {name} {end} and has failed, as supervisor.restarts is spent; trying \
                     again in {} s, {stays}{words}",
                    pause_ms.div_ceil(1_000)
                )
            }
            Notice::HandedOver => {
                let line = "a new gateway accepts connections; the earlier one ends its requests";
                return self.screen.line(line);
            }
            Notice::NoSuccessor(end) => {
                let words = self.last_words(Member::SecondGateway);
                format!("the next gateway {end}; the present one goes on{words}")
            }
            Notice::Frozen(member) => {
                let (name, s) = (member.name(), self.spawner.beat_within().as_secs());
                format!("the {name} gave no sign of life for {s} s; killing it")
            }
            Notice::Fatal(member, end) => {
                format!("the {} {end}; stopping{}", member.name(), self.last_words(member))
            }
            Notice::Stopping => return self.screen.line("stopping; again to cancel what runs"),
            Notice::Hurrying => return self.screen.line("cancelling what runs; again to kill"),
            Notice::Killing => return self.screen.line("killing"),
            Notice::Late(member) => {
                format!("the {} did not stop in time; killing it", member.name())
            }
        };
        self.screen.complain(&text);
    }

    fn last_words(&mut self, member: Member) -> String {
        let words = self.child(member).as_ref().map(Child::last_words).unwrap_or_default();
        if words.is_empty() { words } else { format!("\n    {}", indented(&words)) }
    }

    fn show(&mut self, snapshot: &ServiceStatus) {
        let first = !self.progress.has_served();
        match self.progress.update(snapshot, self.clock.now()) {
            Some(Show::Line(line)) => {
                self.screen.line(&line);
                // The last lines of a start: where clients connect, and what to type next.
                if first && self.progress.has_served() {
                    self.next_steps.iter().for_each(|line| self.screen.line(line));
                }
            }
            Some(Show::Passing(line)) => self.screen.transient(&line),
            None => {}
        }
        for line in self.drafter_lines.update(snapshot) {
            self.screen.line(&line);
        }
    }

    /// Both children are gone. A supervisor that did not end in order left its workers on their
    /// lease, and files.
    async fn finish(&mut self, exit: Exit) -> Exit {
        self.end_workers().await;
        let dead = self
            .dir
            .records()
            .into_iter()
            .filter(|(_, worker)| !worker.alive())
            .map(|(name, _)| name);
        for process in dead.chain(["supervisor".to_owned()]) {
            self.dir.clear(&process);
        }
        if exit == Exit::Asked {
            self.screen.line("stopped");
        }
        exit
    }
}

async fn news(member: Member, child: &mut Option<Child>) -> Event {
    let Some(child) = child else { return std::future::pending().await };
    match child.next().await {
        News::Ended(end) => Event::Exited(member, end),
        News::Alive => Event::Beat(member),
        News::Ready => Event::Ready(member),
        News::SuccessorWanted => Event::SuccessorWanted(member),
    }
}

/// Sends the service's status again and again. While no supervisor answers it is asked again.
fn watch(dir: &RuntimeDir) -> mpsc::Receiver<ServiceStatus> {
    let mut client = OperationsClient::new(socket::channel(dir.socket("supervisor")));
    let (tx, rx) = mpsc::channel(1);
    task::spawn("watch", async move {
        loop {
            let asked =
                tokio::time::timeout(Duration::from_secs(5), client.status(StatusRequest {})).await;
            let mut pause = STATUS_POLL;
            if let Ok(Ok(response)) = asked {
                let snapshot = ServiceStatus::from(response.into_inner());
                if progress::ready(&snapshot) {
                    pause = READY_STATUS_POLL;
                }
                if tx.send(snapshot).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(pause).await;
        }
    });
    rx
}
