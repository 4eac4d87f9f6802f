//! A worker's life from its command line to its exit code.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::internal::v1::WorkerPhase;
use paceline_proto::internal::v1::worker_server::WorkerServer;
use tokio::sync::oneshot;
use tonic::service::RoutesBuilder;
use tonic::transport::Server;

use super::{Gate, Progress, Pulse, StopOrder, WorkerService};
use crate::runtime_dir::WorkerRecord;
use crate::{Clock, Config, Exit, Loaded, RuntimeDir, Signals, lifecycle, socket, task, telemetry};

/// How long a worker that cannot load waits for somebody to hear why.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the supervisor says to every worker it starts.
#[derive(Clone, Debug)]
pub struct Args {
    /// Name in the runtime directory: of socket, record, log.
    pub name: String,
    /// Number of this life.
    pub epoch: u64,
    /// Number of the supervisor's life that starts it.
    pub term: u64,
    /// Configuration file.
    pub config: Option<PathBuf>,
}

/// What a worker's parts are made from.
#[derive(Clone, Debug)]
pub struct Post {
    /// Everything that is set.
    pub config: Config,
    /// The runtime directory, prepared.
    pub dir: RuntimeDir,
    /// Stamps are checked by it.
    pub gate: Gate,
    /// Where the engine says what it does.
    pub progress: Arc<Progress>,
    /// Heartbeats.
    pub pulse: Pulse,
    /// The clock of this process.
    pub clock: Clock,
}

/// The engine: runs on a thread of its own until it is asked to stop, and says how it ended.
pub type Engine = Box<dyn FnOnce() -> Exit + Send>;

/// What one kind of worker consists of.
pub struct Parts {
    /// Its own services, beside `Worker`.
    pub services: RoutesBuilder,
    /// Asks its engine to stop.
    pub stop: StopOrder,
    /// Loads the model and runs it.
    pub engine: Engine,
}

/// Runs a worker to its end. `parts` is called once, before anything is loaded.
pub fn run(args: &Args, parts: impl FnOnce(&Post) -> Result<Parts, Exit>) -> Exit {
    lifecycle::settle();
    let loaded = match Loaded::find(args.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(error) => {
            telemetry::start(&Config::default().log);
            tracing::error!(%error, "configuration refused");
            return Exit::Config;
        }
    };
    telemetry::start(&loaded.config.log);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(live(args, loaded.config, parts)),
        Err(error) => {
            tracing::error!(%error, "no runtime");
            Exit::Bug
        }
    }
}

async fn live(args: &Args, config: Config, parts: impl FnOnce(&Post) -> Result<Parts, Exit>) -> Exit {
    let prepared = RuntimeDir::locate(&config).and_then(|dir| dir.prepare().map(|()| dir));
    let (dir, mut signals) = match (prepared, Signals::child()) {
        (Ok(dir), Ok(signals)) => (dir, signals),
        (Err(error), _) => {
            tracing::error!(%error, "no runtime directory");
            return Exit::Config;
        }
        (_, Err(error)) => {
            tracing::error!(%error, "no signals");
            return Exit::Bug;
        }
    };
    // Before anything that takes time: a supervisor must find us while we load.
    let listener = match socket::bind(&dir.socket(&args.name)) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot listen");
            return Exit::Unavailable;
        }
    };
    let record = WorkerRecord::of(std::process::id(), args.epoch);
    if let Some(Err(error)) = record.map(|record| dir.write_record(&args.name, &record)) {
        tracing::error!(%error, "cannot write down who we are");
        return Exit::Unavailable;
    }

    let clock = Clock::start();
    let progress = Arc::new(Progress::default());
    progress.set_phase(WorkerPhase::Loading);
    // The pulse begins before there is an engine to stop.
    let (lease_tx, mut lease_over) = oneshot::channel();
    let lease = Duration::from_secs(config.supervisor.lease_s);
    let pulse = Pulse::start(progress.clone(), args.epoch, lease, move || {
        // Nobody listens only if the process is ending by other means.
        let _ = lease_tx.send(());
    });
    let gate = Gate::new(args.epoch, args.term);
    let post = Post { config, dir, gate, progress, pulse, clock };
    let Parts { mut services, stop, engine } = match parts(&post) {
        Ok(parts) => parts,
        Err(exit) => return exit,
    };
    services.add_service(WorkerServer::new(WorkerService {
        gate: post.gate.clone(),
        pulse: post.pulse.clone(),
        stop: stop.clone(),
    }));
    let serving = Server::builder()
        .initial_stream_window_size(socket::STREAM_WINDOW)
        .initial_connection_window_size(socket::CONNECTION_WINDOW)
        .add_routes(services.routes())
        .serve_with_incoming(socket::accept_unix(listener));
    task::spawn("serve", async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the socket failed");
        }
    });

    let (ended, mut end) = oneshot::channel();
    let on_thread = move || {
        // Nobody listens only if the process is ending by other means.
        let _ = ended.send(engine());
    };
    if let Err(error) = std::thread::Builder::new().name("engine".into()).spawn(on_thread) {
        tracing::error!(%error, "no engine thread");
        return Exit::Bug;
    }
    let mut leased = true;
    let exit = loop {
        tokio::select! {
            biased;
            // A panic on the engine's thread drops the sender: its state is unknown, so is ours.
            exit = &mut end => break exit.unwrap_or_else(|_| std::process::abort()),
            () = signals.next() => {
                tracing::info!("asked to stop by signal");
                order_stop(&stop);
            }
            _ = &mut lease_over, if leased => {
                leased = false;
                tracing::warn!("the lease is over: no supervisor has come back");
                order_stop(&stop);
            }
        }
    };
    if exit != Exit::Asked {
        // So that the supervisor hears why; it need not be listening.
        post.pulse.now();
        let failed = post.progress.phase() == WorkerPhase::Failed;
        tokio::time::sleep(if failed { FAREWELL } else { Duration::ZERO }).await;
    }
    // Streams end in their last message; give the runtime the moment it needs to write it.
    tokio::time::sleep(Duration::from_millis(20)).await;
    if post.dir.record(&args.name).is_some_and(|record| record.epoch == args.epoch) {
        post.dir.clear(&args.name);
    }
    tracing::info!(?exit, "ended");
    exit
}

fn order_stop(stop: &StopOrder) {
    if !stop(0) {
        tracing::warn!("the engine takes no commands");
    }
}
