//! A worker's life from its command line to its exit code.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::internal::v1::WorkerPhase;
use paceline_proto::internal::v1::worker_server::WorkerServer;
use paceline_system::exit_at_once;
use paceline_system::start;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tonic::service::RoutesBuilder;

use super::{Gate, Progress, Pulse, StopOrder, WorkerService};
use crate::runtime_dir::{Kept, RuntimeDirError, WorkerRecord};
use crate::telemetry::trace::{self, Origin};
use crate::{Config, Loaded, RuntimeDir, Signals, chain, socket, task, telemetry};
use paceline_system::{Clock, platform};
use paceline_vocabulary::Exit;

/// How long a worker that failed to load stays, so that a heartbeat brings the reason to the
/// supervisor: three intervals of heartbeats. An operator learns within a second that a drafter is
/// refused.
const FAILURE_REPORT_TIME: Duration = Duration::from_millis(750);

/// Interval between two checks of an engine that was ordered to end.
const TEARDOWN_POLL: Duration = Duration::from_millis(100);

/// Time for the runtime to write the last messages of ended streams.
const LAST_WRITES: Duration = Duration::from_millis(20);

/// Stack of the engine's thread. Everything that an engine calls runs on it, in every build.
pub const ENGINE_STACK_BYTES: usize = 2 << 20;

/// Arguments that the supervisor passes to every worker that it starts.
#[derive(Clone, Debug)]
pub struct Args {
    /// Name of the program.
    pub program: &'static str,
    /// Name in the runtime directory: of socket, record, log.
    pub name: String,
    /// Number of this life.
    pub epoch: u64,
    /// Number of the supervisor's life that starts it.
    pub term: u64,
    /// Configuration file.
    pub config: Option<PathBuf>,
}

/// Values from which a worker makes its parts.
#[derive(Clone, Debug)]
pub struct WorkerContext {
    /// All settings.
    pub config: Config,
    /// The runtime directory, prepared.
    pub dir: RuntimeDir,
    /// Checks the stamp of every message.
    pub gate: Gate,
    /// The engine's figures, which the engine writes.
    pub progress: Arc<Progress>,
    /// Sends the heartbeats.
    pub pulse: Pulse,
    /// The clock of this process.
    pub clock: Clock,
}

/// The engine: runs on a thread of its own until it is asked to stop, and returns the exit code of
/// the process.
pub type Engine = Box<dyn FnOnce() -> Exit + Send>;

/// The parts in which one kind of worker differs from another.
pub struct WorkerParts {
    /// Services of this kind of worker, beside `Worker`.
    pub services: RoutesBuilder,
    /// Asks its engine to stop.
    pub stop: StopOrder,
    /// Loads the model and runs it.
    pub engine: Engine,
}

/// Runs a worker to its end. `parts` is called once, before anything is loaded. If the engine was
/// ordered to end and does not, this does not return: the process exits with [`Exit::Bug`].
pub fn run(args: &Args, parts: impl FnOnce(&WorkerContext) -> Result<WorkerParts, Exit>) -> Exit {
    run_with(args, platform::TEARDOWN, parts)
}

fn run_with(
    args: &Args,
    teardown_timeout: Duration,
    parts: impl FnOnce(&WorkerContext) -> Result<WorkerParts, Exit>,
) -> Exit {
    start::settle();
    let loaded = match Loaded::find(args.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(error) => {
            telemetry::start(&Config::default().log);
            tracing::error!(error = chain(&error), "configuration refused");
            return Exit::Config;
        }
    };
    telemetry::start(&loaded.config.log);
    let numbers = vec![("paceline.epoch", args.epoch), ("paceline.term", args.term)];
    trace::start(&loaded.config.log, Origin { program: args.program, numbers });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => {
            let exit = runtime.block_on(live(args, loaded, teardown_timeout, parts));
            trace::finish();
            exit
        }
        Err(error) => {
            tracing::error!(%error, "no runtime");
            Exit::Bug
        }
    }
}

async fn live(
    args: &Args,
    loaded: Loaded,
    teardown_timeout: Duration,
    parts: impl FnOnce(&WorkerContext) -> Result<WorkerParts, Exit>,
) -> Exit {
    let Opened { dir, mut signals, listener, kept } = match open(args, &loaded) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let upkeep = dir.keep_up(kept);
    let (context, mut lease_over) = begin_heartbeats(args, loaded.config, dir);
    let WorkerParts { services, stop, engine } = match parts(&context) {
        Ok(parts) => parts,
        Err(exit) => return exit,
    };
    serve(listener, services, &context, &stop);
    let mut end = match start_engine(engine) {
        Ok(end) => end,
        Err(exit) => return exit,
    };
    let ended = tokio::select! {
        biased;
        exit = &mut end => Some(or_abort(exit)),
        () = signals.next() => {
            tracing::info!("asked to stop by signal");
            None
        }
        _ = &mut lease_over => {
            tracing::warn!("the lease is over: no supervisor has come back");
            None
        }
    };
    let clear = || {
        upkeep.abort();
        if context.dir.record(&args.name).is_some_and(|record| record.epoch == args.epoch) {
            context.dir.clear(&args.name);
        }
    };
    let exit = match ended {
        Some(exit) => exit,
        None => {
            let exit = await_teardown(&mut end, &stop, &context.progress, teardown_timeout).await;
            exit.unwrap_or_else(|| {
                clear();
                exit_at_once(Exit::Bug)
            })
        }
    };
    if exit != Exit::Asked {
        // The supervisor need not be there to read why.
        context.pulse.now();
        let failed = context.progress.phase() == WorkerPhase::Failed;
        tokio::time::sleep(if failed { FAILURE_REPORT_TIME } else { Duration::ZERO }).await;
    }
    tokio::time::sleep(LAST_WRITES).await;
    clear();
    tracing::info!(?exit, "ended");
    exit
}

/// Resources that a worker opens before it makes its parts.
struct Opened {
    dir: RuntimeDir,
    signals: Signals,
    listener: UnixListener,
    /// The record of this process, where the system says who it is, and its settings.
    kept: Kept,
}

/// Prepares the runtime directory, listens on the socket and writes the record. All this comes
/// before anything that takes time: a supervisor must find a worker that still loads.
fn open(args: &Args, loaded: &Loaded) -> Result<Opened, Exit> {
    let dir = RuntimeDir::locate(&loaded.config).and_then(|dir| dir.prepare().map(|()| dir));
    let dir = dir.map_err(|error| {
        tracing::error!(error = chain(&error), "no runtime directory");
        Exit::Config
    })?;
    let signals = Signals::child().map_err(|error| {
        tracing::error!(%error, "cannot watch signals");
        Exit::Bug
    })?;
    if let Some(pid) = living_namesake(&dir, args) {
        tracing::error!(
            pid,
            "expected no other living process as {}, found one in its record; stop that process",
            args.name
        );
        return Err(Exit::Unavailable);
    }
    let listener = socket::bind(&dir.socket(&args.name)).map_err(|error| {
        tracing::error!(%error, "cannot listen");
        Exit::Unavailable
    })?;
    let record = WorkerRecord::of(std::process::id(), args.epoch);
    match record.as_ref().map(|record| dir.write_record(&args.name, record)) {
        Some(Err(error @ RuntimeDirError::Full { .. })) => {
            tracing::warn!(error = chain(&error), "no record; no other supervisor takes this over");
        }
        Some(Err(error)) => {
            tracing::error!(error = chain(&error), "cannot write the record of this process");
            return Err(Exit::Unavailable);
        }
        Some(Ok(())) | None => {}
    }
    let record = record.map(|record| (args.name.clone(), record));
    let settings = Some((args.name.clone(), loaded.settings().to_vec()));
    let kept = Kept { record, settings, ..Kept::default() };
    Ok(Opened { dir, signals, listener, kept })
}

/// Starts the heartbeats, before there is an engine to stop. The receiver resolves when the lease
/// is over.
fn begin_heartbeats(
    args: &Args,
    config: Config,
    dir: RuntimeDir,
) -> (WorkerContext, oneshot::Receiver<()>) {
    let clock = Clock::start();
    let progress = Arc::new(Progress::default());
    progress.set_phase(WorkerPhase::Loading);
    let (lease_tx, lease_over) = oneshot::channel();
    let lease = Duration::from_secs(config.supervisor.lease_s);
    let pulse = Pulse::start(progress.clone(), args.epoch, lease, move || {
        // The receiver is gone only if the process is ending by other means.
        let _ = lease_tx.send(());
    });
    let gate = Gate::new(args.epoch, args.term);
    (WorkerContext { config, dir, gate, progress, pulse, clock }, lease_over)
}

/// Serves `Worker` and the worker's own services on its socket.
fn serve(
    listener: UnixListener,
    mut services: RoutesBuilder,
    context: &WorkerContext,
    stop: &StopOrder,
) {
    services.add_service(WorkerServer::new(WorkerService {
        gate: context.gate.clone(),
        pulse: context.pulse.clone(),
        stop: stop.clone(),
    }));
    let serving = socket::server()
        .add_routes(services.routes())
        .serve_with_incoming(socket::accept_unix(listener));
    task::spawn("serve", async move {
        if let Err(error) = serving.await {
            tracing::error!(error = chain(&error), "the socket failed");
        }
    });
}

/// Starts the engine's thread. The receiver resolves with the engine's exit code.
fn start_engine(engine: Engine) -> Result<oneshot::Receiver<Exit>, Exit> {
    let (ended, end) = oneshot::channel();
    let on_thread = move || {
        // The receiver is gone only if the process is ending by other means.
        let _ = ended.send(engine());
    };
    let thread = std::thread::Builder::new().name("engine".into()).stack_size(ENGINE_STACK_BYTES);
    match thread.spawn(on_thread) {
        Ok(_) => Ok(end),
        Err(error) => {
            tracing::error!(%error, "no engine thread");
            Err(Exit::Bug)
        }
    }
}

/// A panic on the engine's thread drops the sender. The engine's state is then unknown, and so is
/// that of this process.
fn or_abort(exit: Result<Exit, oneshot::error::RecvError>) -> Exit {
    exit.unwrap_or_else(|_| std::process::abort())
}

/// The pid in the record of this worker's name, if that is a living process of another epoch. Its
/// socket may refuse connections all the same: macOS refuses them while a backlog is full. A record
/// of this epoch is of this life, also if the supervisor started a script that started this
/// process.
fn living_namesake(dir: &RuntimeDir, args: &Args) -> Option<u32> {
    let other =
        dir.record(&args.name).filter(|record| record.epoch != args.epoch && record.alive());
    other.map(|record| record.pid)
}

/// Orders the engine to end, until it takes the order, and waits for its end. Returns `None` if the
/// teardown makes no progress for `timeout`. The process then exits by itself: nothing else ends a
/// worker whose engine hangs or still reads a large model.
async fn await_teardown(
    end: &mut oneshot::Receiver<Exit>,
    stop: &StopOrder,
    progress: &Progress,
    timeout: Duration,
) -> Option<Exit> {
    let (mut taken, mut left, mut waited) = (stop(0), progress.teardown(), Duration::ZERO);
    while waited < timeout {
        if let Ok(exit) = tokio::time::timeout(TEARDOWN_POLL, &mut *end).await {
            return Some(or_abort(exit));
        }
        waited += TEARDOWN_POLL;
        taken = taken || stop(0);
        let now = progress.teardown();
        if now != left {
            (left, waited) = (now, Duration::ZERO);
        }
    }
    let (phase, waited_s) = (progress.phase(), timeout.as_secs_f64());
    tracing::error!(
        ?phase,
        taken,
        ?left,
        waited_s,
        "the engine was ordered to end and gets no further; exiting without it"
    );
    None
}

#[cfg(test)]
mod tests;
