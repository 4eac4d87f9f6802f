//! The worker's life: socket and record first, then the weights, then service until it is asked to stop or its lease ends.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, atomic::AtomicU64};
use std::time::Duration;

use clap::Parser;
use paceline_models::{DeviceChoice, KvStore, device, load_target};
use paceline_process::clock::unix_seconds;
use paceline_process::config::{Auto, Config, Device};
use paceline_process::runtime_dir::WorkerRecord;
use paceline_process::{Clock, Exit, Loaded as LoadedConfig, RuntimeDir, Signals, lifecycle, platform, socket, task, telemetry};
use paceline_proto::internal::v1::target_server::TargetServer;
use paceline_proto::internal::v1::{KvClass, WorkerPhase};
use tokio::sync::oneshot;
use tonic::transport::Server;

use crate::core::{Ledger, Scheduler};
use crate::engine::{Command, Engine};
use crate::heartbeat::Pulse;
use crate::progress::Progress;
use crate::serve::{Loaded, TargetService};

/// Name of this process in the runtime directory.
const NAME: &str = "target";
/// Sequences the engine runs at once.
const MAX_SEQUENCES: usize = 32;
/// Commands that may wait for the engine: more than the supervisor sends, which holds `MAX_SEQUENCES` requests at most.
const COMMANDS: usize = 4 * MAX_SEQUENCES;
/// Share of free memory for the KV when the configuration says nothing.
const KV_SHARE: f64 = 0.5;
/// MLX may keep so many freed bytes; without a bound it keeps most of the machine.
const MLX_CACHE_BYTES: u64 = 512 << 20;
/// Largest message: a prompt of a million tokens fits.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// How long a worker that cannot load waits for somebody to hear why.
const FAREWELL: Duration = Duration::from_secs(2);

/// The worker's command line; written by the supervisor.
#[derive(Clone, Debug, Parser)]
#[command(version, about = "Paceline's target worker; started by paceline-supervisor")]
pub struct Args {
    /// Number of this worker's life in the runtime directory.
    #[arg(long)]
    pub epoch: u64,
    /// Number of the supervisor's life that starts it.
    #[arg(long)]
    pub term: u64,
    /// Configuration file.
    #[arg(long)]
    pub config: Option<PathBuf>,
}

/// Runs the worker to its end.
pub fn run(args: &Args) -> Exit {
    lifecycle::settle();
    let loaded = match LoadedConfig::find(args.config.as_deref()) {
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
        Ok(runtime) => runtime.block_on(live(args, loaded.config)),
        Err(error) => {
            tracing::error!(%error, "no runtime");
            Exit::Bug
        }
    }
}

async fn live(args: &Args, config: Config) -> Exit {
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
    let bound = socket::bind(&dir.socket(NAME));
    let listener = match bound {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot listen");
            return Exit::Unavailable;
        }
    };
    let record = WorkerRecord::of(std::process::id(), args.epoch);
    if let Some(Err(error)) = record.map(|record| dir.write_record(NAME, &record)) {
        tracing::error!(%error, "cannot write down who we are");
        return Exit::Unavailable;
    }

    let clock = Clock::start();
    let progress = Arc::new(Progress::default());
    progress.set_phase(WorkerPhase::Loading);
    let (commands, inbox) = sync_channel(COMMANDS);
    let lease_over = {
        let commands = commands.clone();
        move || {
            tracing::warn!("the lease is over: no supervisor has come back");
            stop(&commands, &clock, 0);
        }
    };
    let pulse = Pulse::start(progress.clone(), args.epoch, Duration::from_secs(config.supervisor.lease_s), lease_over);
    let known = Arc::new(OnceLock::new());
    let service = TargetService {
        epoch: args.epoch,
        term: Arc::new(AtomicU64::new(args.term)),
        config_digest: config.digest(),
        loaded: known.clone(),
        progress: progress.clone(),
        pulse: pulse.clone(),
        commands: commands.clone(),
        clock,
    };
    let serving = Server::builder()
        .initial_stream_window_size(socket::STREAM_WINDOW)
        .initial_connection_window_size(socket::CONNECTION_WINDOW)
        .add_service(TargetServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .serve_with_incoming(socket::accept_unix(listener));
    task::spawn("serve", async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the socket failed");
        }
    });

    let (ended, mut end) = oneshot::channel();
    let engine = {
        let (progress, pulse, config) = (progress.clone(), pulse.clone(), config.clone());
        move || {
            // Nobody listens only if the process is ending by other means.
            let _ = ended.send(engine_thread(&config, &inbox, &known, progress, &pulse, clock));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("engine".into()).spawn(engine) {
        tracing::error!(%error, "no engine thread");
        return Exit::Bug;
    }
    let exit = loop {
        tokio::select! {
            biased;
            // A panic on the engine's thread drops the sender: its state is unknown, so is ours.
            exit = &mut end => break exit.unwrap_or_else(|_| std::process::abort()),
            () = signals.next() => {
                tracing::info!("asked to stop by signal");
                stop(&commands, &clock, 0);
            }
        }
    };
    if exit != Exit::Asked {
        // So that the supervisor hears why; it need not be listening.
        pulse.now();
        tokio::time::sleep(if progress.phase() == WorkerPhase::Failed { FAREWELL } else { Duration::ZERO }).await;
    }
    // Streams end in their last message; give the runtime the moment it needs to write it.
    tokio::time::sleep(Duration::from_millis(20)).await;
    if dir.record(NAME).is_some_and(|record| record.epoch == args.epoch) {
        dir.clear(NAME);
    }
    tracing::info!(?exit, "ended");
    exit
}

fn stop(commands: &SyncSender<Command>, clock: &Clock, grace_ms: u64) {
    if commands.try_send(Command::Stop { until: clock.now() + grace_ms }).is_err() {
        tracing::warn!("the engine takes no commands");
    }
}

/// Loads, then runs the engine. The only thread that touches an array (I8).
fn engine_thread(
    config: &Config,
    inbox: &Receiver<Command>,
    known: &OnceLock<Loaded>,
    progress: Arc<Progress>,
    pulse: &Pulse,
    clock: Clock,
) -> Exit {
    let engine = match load(config, known, &progress, pulse, clock) {
        Ok(engine) => engine,
        Err(why) => {
            tracing::error!(why, "cannot load the target");
            progress.fail(why);
            pulse.now();
            return Exit::Unavailable;
        }
    };
    progress.set_phase(WorkerPhase::Idle);
    pulse.now();
    if engine.run(inbox) { Exit::Asked } else { Exit::Bug }
}

fn load(
    config: &Config,
    known: &OnceLock<Loaded>,
    progress: &Arc<Progress>,
    pulse: &Pulse,
    clock: Clock,
) -> Result<Engine, String> {
    let choice = match config.target.device {
        Device::Auto => DeviceChoice::Auto,
        Device::Cpu => DeviceChoice::Cpu,
        Device::Gpu => DeviceChoice::Gpu,
    };
    let on_gpu = device::choose(choice).map_err(|error| error.to_string())?;
    device::limit_cache(MLX_CACHE_BYTES);
    let dir = config.model_dir().map_err(|error| error.to_string())?;
    tracing::info!(model = %dir.display(), on_gpu, "loading");
    let model = load_target(&dir, &mut |read, total| progress.set_load(read, total)).map_err(|error| error.to_string())?;
    let info = model.info().clone();
    let kv = KvStore::new(&model.kv_layers(), model.dtype(), info.context).map_err(|error| error.to_string())?;

    let budget = match config.kv.budget_bytes {
        Auto::Is(bytes) => bytes,
        Auto::Auto => {
            let free = platform::available_memory().ok_or("cannot tell how much memory is free; set kv.budget_bytes")?;
            (free as f64 * config.kv.budget_fraction.or(KV_SHARE)) as u64
        }
    };
    let classes: Vec<(u32, u64)> = kv.class_bytes().into_iter().map(|(positions, bytes)| (positions as u32, bytes)).collect();
    if classes[0].1 > budget {
        return Err(format!("kv.budget_bytes is {budget}, the shortest sequence of this model holds {} bytes", classes[0].1));
    }
    let kv_classes = classes.iter().map(|(positions, bytes)| KvClass { positions: *positions, bytes: *bytes }).collect();
    progress.set_loaded_at(unix_seconds());
    tracing::info!(weight_bytes = info.weight_bytes, kv_budget_bytes = budget, context = info.context, "loaded");
    let loaded = Loaded { info, name: config.model_name(), kv_classes, max_sequences: MAX_SEQUENCES };
    known.set(loaded).map_err(|_| "loaded twice".to_owned())?;
    let scheduler = Scheduler::new(Ledger::new(budget, classes), MAX_SEQUENCES);
    Ok(Engine::new(model, kv, scheduler, (progress.clone(), pulse.clone()), clock))
}
