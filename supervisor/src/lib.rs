//! The supervisor: the shell of `paceline-supervisor-core`, which decides which processes run and
//! which request is served. Everything here carries out its actions and turns what happens into its
//! events.
//!
//! - A request: [`serve`] checks it, has its grammar compiled ([`preparation`]) and hands it to the
//!   [`handle`]. The [`actor`] puts it before
//!   the core. [`relay`] forwards it to the target and holds its place until its one end.
//! - A process: [`child`] starts and ends it, [`worker_client`] sends it requests ([`target_access`]), [`handover`] links target
//!   and drafter.
//! - The machine: [`boot_mark`] says whether it went down at work.
//! - [`wire`] converts protobuf, [`config`] the configuration; [`mailbox`] has the types that these
//!   share.
//! - [`events`] record each change of state, [`route_log`] each route. [`replay`] decides logged
//!   routes again. [`status`] is the operators' view.
//!
//! Not here: what a token means, and MLX.

pub mod actor;
pub mod boot_mark;
pub mod child;
pub mod config;
pub mod error;
pub mod events;
pub mod handle;
pub mod handover;
mod host;
mod identities;
pub mod lines;
pub mod mailbox;
pub mod notify;
pub mod preparation;
pub mod program;
pub mod relay;
pub mod replay;
pub mod route_log;
pub mod serve;
pub mod settings;
mod setup;
mod spans;
pub mod status;
pub mod target_access;
pub mod target_swap;
pub mod wire;
pub mod worker_client;

use std::path::Path;
use std::time::Duration;

use paceline_process::lifecycle::{ParentWatch, Signals};
use paceline_process::runtime_dir::{Kept, RuntimeDirError};
use paceline_process::telemetry::trace::{self, Origin};
use paceline_process::{Config, Loaded, Notifier, RuntimeDir, chain, socket, task, telemetry};
use paceline_proto::internal::v1::supervisor_server::SupervisorServer;
use paceline_proto::v1::operations_server::OperationsServer;
use paceline_supervisor_core::WorkerId;
use paceline_system::environment::env;
use paceline_system::start;
use paceline_system::start::PARENT_FD;
use paceline_vocabulary::Exit;
use paceline_vocabulary::Term;
use tokio::sync::{mpsc, oneshot};

use crate::actor::Actor;
use crate::boot_mark::BootMark;
use crate::child::{Host, Hosts, ProcessHost};
pub use crate::identities::WorkerIdentities;
use crate::mailbox::Stop;
use crate::serve::Services;
use crate::settings::SettingsDesk;
pub use crate::setup::Setup;
use crate::status::OwnProcess;
use crate::target_swap::{TargetPlanner, TargetSetup};
use crate::worker_client::MAX_MESSAGE_BYTES;

/// Time for which a thread that hands links over is kept for the next one.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest wait for open streams to end after the workers are gone.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A whole process: reads the configuration, takes the runtime directory, serves until it is asked
/// to stop. `flag` is `--config`.
pub fn start(flag: Option<&Path>) -> Exit {
    start::settle();
    match prepare(flag) {
        Ok((setup, hosts, lock)) => {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            // Handing a link over takes a thread for a moment; nothing else of ours does.
            let runtime = runtime.enable_all().thread_keep_alive(IDLE_THREAD_TIMEOUT).build();
            let exit = match runtime {
                Ok(runtime) => runtime.block_on(serve(setup, hosts)),
                Err(error) => refuse(Exit::Bug, &error),
            };
            trace::finish();
            // Held until here, so that the next supervisor finds nothing of this one.
            drop(lock);
            exit
        }
        Err(exit) => exit,
    }
}

type HeldLock = Box<dyn std::any::Any>;

fn prepare(flag: Option<&Path>) -> Result<(Setup, Hosts<ProcessHost>, HeldLock), Exit> {
    let mut loaded = Loaded::find(flag).map_err(|error| refuse(Exit::Config, &error))?;
    let used = loaded.settings().to_vec();
    telemetry::start(&loaded.config.log);
    for warning in &loaded.warnings {
        tracing::warn!(warning, "configuration");
    }
    // From here on the models are directories: a worker that is started again loads the same files.
    let missing = loaded.config.missing_drafters();
    let written = loaded.config.clone();
    loaded.config.resolve_models().map_err(|error| refuse(Exit::Config, &error))?;
    let unusable = |error: RuntimeDirError| refuse(error.exit(), &error);
    let dir = RuntimeDir::locate(&loaded.config).map_err(unusable)?;
    dir.prepare().map_err(unusable)?;
    let lock = dir.lock("supervisor").map_err(unusable)?;
    let boot_mark =
        BootMark::open(dir.path()).map_err(|error| refuse(Exit::MemoryStranded, &error))?;
    follow_swap(&dir, &written, &mut loaded);
    let target = TargetSetup::of(&loaded.config).map_err(|error| refuse(Exit::Config, &error))?;
    let term = Term(dir.count_up("term").map_err(unusable)?);
    let mut hosts = Hosts::new(&loaded, &dir).map_err(|error| refuse(Exit::Unavailable, &error))?;
    hosts.target.set_kv_percent(boot_mark.kv_percent());
    let own = OwnProcess {
        pid: std::process::id(),
        term: term.0,
        restarts: start::restarts(),
        kv_reduced: boot_mark.kv_percent().is_some(),
    };
    let numbers = vec![("paceline.term", term.0)];
    trace::start(&loaded.config.log, Origin { program: "paceline-supervisor", numbers });
    tracing::info!(term = term.0, pid = own.pid, dir = %dir.path().display(), "supervisor starts");
    for setting in loaded.changed_policy() {
        let (key, value, source) = (&setting.key, &setting.value, setting.source);
        tracing::info!(key, value, %source, "routing setting");
    }
    let (settings, plan) = (config::settings(&loaded.config), config::plan(&loaded.config));
    for error in missing {
        tracing::warn!(error = chain(&error), "requests are served without this drafter");
    }
    if let Some(warning) = loaded.config.long_drafts() {
        tracing::warn!(warning, "configuration");
    }
    let log = &loaded.config.routing.route_log;
    let route_log =
        (!log.is_empty()).then(|| std::path::absolute(log).unwrap_or_else(|_| log.into()));
    let planner = TargetPlanner::new(written, loaded.variables())
        .map_err(|error| refuse(Exit::Unavailable, &error))?;
    let planner = Some(planner);
    let desk = Some(SettingsDesk::new(flag.map(Path::to_path_buf), dir.clone(), &used));
    let setup =
        Setup { settings, plan, dir, term, own, route_log, target, boot_mark, desk, planner };
    Ok((setup, hosts, Box::new(lock)))
}

/// If an operator swapped the target under an earlier supervisor and the swap still holds, its
/// model takes the place of the configured one.
fn follow_swap(dir: &RuntimeDir, written: &Config, loaded: &mut Loaded) {
    let Some(model) = dir.swapped_model(WorkerId::Target.name()) else {
        return dir.forget_swap();
    };
    let mut config = written.with_target(&model);
    match config.resolve_models() {
        Ok(()) => {
            tracing::info!(model, "the model that an operator swapped in is served");
            loaded.config = config;
        }
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(model, error, "the swapped model is gone; the configured one is loaded");
        }
    }
}

fn refuse(exit: Exit, error: &dyn std::error::Error) -> Exit {
    // Before the log has a form, and for a person who started this process in a terminal.
    telemetry::complain(&format!("paceline-supervisor: {}", chain(error)));
    exit
}

async fn serve(setup: Setup, hosts: Hosts<ProcessHost>) -> Exit {
    let signals = if env(PARENT_FD).is_some() { Signals::child() } else { Signals::interactive() };
    let (mut signals, mut parent) = match (signals, ParentWatch::inherited()) {
        (Ok(signals), Ok(parent)) => (signals, parent),
        (Err(error), _) | (_, Err(error)) => return refuse(Exit::Config, &error),
    };
    telemetry::keep_own_log_bounded();
    let locks = vec!["supervisor".to_owned()];
    let upkeep = setup.dir.keep_up(Kept { locks, ..Kept::default() });
    let (stop, stops) = mpsc::channel(4);
    task::spawn("signals", async move {
        let mut orphaned = false;
        loop {
            let order = tokio::select! {
                () = signals.next() => Stop::Asked,
                () = parent.gone(), if !orphaned => Stop::ParentGone,
            };
            orphaned |= order == Stop::ParentGone;
            if stop.send(order).await.is_err() {
                return;
            }
        }
    });
    let exit = run(setup, hosts, stops).await;
    upkeep.abort();
    exit
}

/// Serves on the runtime directory's `supervisor.sock` until it was asked to stop and the workers
/// are gone, or to be started again and nothing runs. The service manager is notified.
pub async fn run<H: Host>(setup: Setup, hosts: Hosts<H>, stops: mpsc::Receiver<Stop>) -> Exit {
    let path = setup.dir.socket("supervisor");
    let listener = match socket::bind(&path) {
        Ok(listener) => listener,
        Err(error) => return refuse(Exit::Unavailable, &error),
    };
    let (planner, desk) = (setup.planner.clone(), setup.desk.clone());
    let (actor, handle) = Actor::new(setup, hosts, stops);
    let notifier = Notifier::inherited();
    if notifier.listens() {
        // It listens: who connects from now on is answered as soon as the server below runs.
        notifier.ready("starting");
        task::spawn("notify", notify::attend(notifier.clone(), handle.clone()));
    }
    let services = Services::new(handle, planner, desk);
    let (close, closed) = oneshot::channel::<()>();
    let mut server = task::spawn("server", async move {
        socket::server()
            .add_service(
                SupervisorServer::new(services.clone())
                    .max_decoding_message_size(MAX_MESSAGE_BYTES),
            )
            .add_service(OperationsServer::new(services))
            .serve_with_incoming_shutdown(socket::accept_unix(listener), async {
                // Closed by being dropped.
                let _ = closed.await;
            })
            .await
    });
    let exit = tokio::select! {
        // A task, because a panic in the core has to end the process.
        exit = task::spawn("actor", actor.run()) => exit.unwrap_or(Exit::Bug),
        // No client can reach this process any more. The workers live on for their lease, and the
        // next supervisor adopts them.
        ended = &mut server => {
            tracing::error!(?ended, "the server ended by itself");
            return Exit::Bug;
        }
    };
    notifier.stopping();
    drop(close);
    if tokio::time::timeout(CLOSE_TIMEOUT, &mut server).await.is_err() {
        server.abort();
    }
    // This process still holds the lock, so the socket is its own.
    let _ = std::fs::remove_file(&path);
    tracing::info!(?exit, "supervisor ends");
    exit
}
