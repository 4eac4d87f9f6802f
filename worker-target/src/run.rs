//! What makes a worker of the engine: its command line, its services, and loading the model.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use clap::Parser;
use paceline_models::{
    DeviceChoice, Dtype, KvStore, Target, TargetInfo, device, draft, load_target,
};
use paceline_process::clock::unix_seconds;
use paceline_process::config::{Auto, Config, Device};
use paceline_process::worker::{self, Inbox, Parts, Post, mailbox};
use paceline_process::{Exit, digest, platform};
use paceline_proto::internal::v1::target_server::TargetServer;
use paceline_proto::internal::v1::{Hello, KvClass, TensorType, WorkerPhase};
use tonic::service::RoutesBuilder;

use crate::cache::Cache;
use crate::core::{ClassBytes, Ledger, Scheduler, Tower, TowerInfo};
use crate::drafting::Drafting;
use crate::engine::{Command, Engine};
use crate::pixels::Gallery;
use crate::serve::{Loaded, TargetService};

/// Name of this process in the runtime directory.
const NAME: &str = "target";
/// Commands that may wait for the engine: for each of `target.max_sequences` so many, more than the
/// supervisor sends, which holds one request for each; and never fewer than this, as there are
/// orders of other kinds.
const COMMANDS_PER_SEQUENCE: usize = 4;
const LEAST_COMMANDS: usize = 128;
/// Share of free memory for the KV when the configuration says nothing.
const KV_SHARE: f64 = 0.5;
/// MLX may keep so many freed bytes; without a bound it keeps most of the machine.
const MLX_CACHE_BYTES: u64 = 512 << 20;
/// Rows that come out of a vision tower for each of a picture's in the prompt: its embedding, and
/// what is added behind layers.
const FEATURE_ROWS: u64 = 4;
/// Features of pictures that are kept for later, at most, and the share of the KV budget they may
/// be.
const KEPT_FEATURES_BYTES: u64 = 64 << 20;
const KEPT_FEATURES_SHARE: u64 = 8;
/// Share of the memory that is free behind the weights which MLX may fill.
const MLX_SHARE: f64 = 0.9;
/// Largest message: a prompt of a million tokens fits.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

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
    let Args { epoch, term, config } = args.clone();
    worker::run(&worker::Args { name: NAME.into(), epoch, term, config }, parts)
}

fn parts(post: &Post) -> Result<Parts, Exit> {
    let unavailable = |error: std::io::Error| {
        tracing::error!(%error, "no mailbox, or no socket for the link");
        Exit::Unavailable
    };
    let commands =
        (COMMANDS_PER_SEQUENCE * post.config.target.max_sequences as usize).max(LEAST_COMMANDS);
    let (mail, inbox) = mailbox(commands).map_err(unavailable)?;
    let links = {
        let (mail, gate) = (mail.clone(), post.gate.clone());
        let on_handover = move |handover: paceline_link::Handover| {
            if let Err(status) = gate.admit(Some(handover.stamp)) {
                tracing::warn!(%status, "a link was handed over and is dropped (I7)");
            } else if let Err(why) = mail.try_send(Command::Link(handover)) {
                tracing::warn!(?why, "a link was handed over, and the engine does not take it");
            }
        };
        paceline_link::listen(&post.dir.socket(&format!("{NAME}.link")), on_handover)
            .map_err(unavailable)?
    };
    let known = Arc::new(OnceLock::new());
    let service = TargetService {
        gate: post.gate.clone(),
        config_digest: post.config.target_digest(),
        loaded: known.clone(),
        progress: post.progress.clone(),
        commands: mail.clone(),
        clock: post.clock,
        gallery: Gallery::new(post.dir.pictures()),
    };
    let mut services = RoutesBuilder::default();
    services.add_service(TargetServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES));
    let clock = post.clock;
    let stop =
        move |grace_ms| mail.try_send(Command::Stop { until: clock.now() + grace_ms }).is_ok();
    let post = post.clone();
    let engine = move || {
        let exit = engine_thread(&post, inbox, &known);
        // Until here links are taken.
        drop(links);
        exit
    };
    Ok(Parts { services, stop: Arc::new(stop), engine: Box::new(engine) })
}

/// Loads, then runs the engine. The only thread that touches an array (I8).
fn engine_thread(post: &Post, inbox: Inbox<Command>, known: &OnceLock<Loaded>) -> Exit {
    let Post { progress, pulse, .. } = post;
    let engine = match load(post, known) {
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

fn load(post: &Post, known: &OnceLock<Loaded>) -> Result<Engine, String> {
    let Post { config, progress, pulse, clock, .. } = post;
    let choice = match config.target.device {
        Device::Auto => DeviceChoice::Auto,
        Device::Cpu => DeviceChoice::Cpu,
        Device::Gpu => DeviceChoice::Gpu,
    };
    let on_gpu = device::choose(choice).map_err(|error| error.to_string())?;
    device::limit_cache(MLX_CACHE_BYTES);
    let dir = config.model_dir().map_err(|error| paceline_process::chain(&error))?;
    tracing::info!(model = %dir.display(), on_gpu, "loading");
    let model = load_target(&dir, &mut |read, total| progress.set_load(read, total))
        .map_err(|error| error.to_string())?;
    let info = model.info().clone();
    let kv = KvStore::new(&model.kv_layers(), model.dtype(), info.context)
        .map_err(|error| error.to_string())?;

    let usable = platform::available_memory().map(device::usable_memory);
    let budget = kv_budget(config, usable)?;
    // What is held, all that is usable but a tenth, and no more: the machine should not swap for a
    // step's intermediate results.
    if let Some(usable) = usable {
        device::limit_memory(device::memory().0 + (usable as f64 * MLX_SHARE) as u64);
    }
    let drafting = drafting(config, model.as_ref());
    // What a drafter is shown of a sequence is held beside its KV.
    let class = |(positions, kv): (i32, u64)| {
        let positions = positions as usize;
        ClassBytes { positions, kv, hidden: drafting.window_bytes(positions) }
    };
    let classes: Vec<ClassBytes> = kv.class_bytes().into_iter().map(class).collect();
    if classes[0].kv > budget {
        return Err(format!(
            "kv.budget_bytes is {budget}, the shortest sequence of this model holds {} bytes",
            classes[0].kv
        ));
    }
    let bytes = |class: &ClassBytes| KvClass { positions: class.positions as u32, bytes: class.kv };
    let kv_classes = classes.iter().map(bytes).collect();
    progress.set_loaded_at(unix_seconds());
    tracing::info!(
        weight_bytes = info.weight_bytes,
        kv_budget_bytes = budget,
        context = info.context,
        "loaded"
    );
    let tower = tower(model.as_ref(), budget);
    let max_sequences = config.target.max_sequences as usize;
    let loaded = Loaded {
        info,
        vision: model.vision().map(|vision| vision.info().clone()),
        patch_bytes: tower.feature_bytes + tower.pixel_bytes,
        name: config.model_name(),
        kv_classes,
        max_sequences,
    };
    known.set(loaded).map_err(|_| "loaded twice".to_owned())?;
    let cache = Cache::new(&kv, config.kv.prefix_cache);
    let scheduler =
        Scheduler::new(Ledger::new(budget, classes), max_sequences).with_tower(Tower::new(tower));
    Ok(Engine::new(
        model,
        kv,
        scheduler,
        drafting,
        cache,
        (progress.clone(), pulse.clone()),
        *clock,
    ))
}

/// Bytes for the KV: as configured, or a share of what is usable after the weights are loaded.
fn kv_budget(config: &Config, usable: Option<u64>) -> Result<u64, String> {
    match config.kv.budget_bytes {
        Auto::Is(bytes) => {
            if let Some(usable) = usable.filter(|usable| bytes > *usable) {
                tracing::warn!(
                    kv_budget_bytes = bytes,
                    usable_bytes = usable,
                    "kv.budget_bytes is more than this machine has left"
                );
            }
            Ok(bytes)
        }
        Auto::Auto => {
            let usable =
                usable.ok_or("cannot tell how much memory is free; set kv.budget_bytes")?;
            Ok((usable as f64 * config.kv.budget_fraction.or(KV_SHARE)) as u64)
        }
    }
}

/// What the core has to know of the vision tower; without one, nothing.
fn tower(model: &dyn Target, budget: u64) -> TowerInfo {
    let Some(vision) = model.vision() else { return TowerInfo::default() };
    let info = vision.info();
    let width = if model.dtype() == Dtype::Float32 { 4 } else { 2 };
    let row_bytes = FEATURE_ROWS * model.info().hidden as u64 * width;
    TowerInfo {
        blocks: info.blocks,
        whole: info.whole,
        feature_bytes: row_bytes.div_ceil(u64::from(info.merge).pow(2)),
        pixel_bytes: u64::from(info.patch).pow(2) * 3,
        keep_bytes: KEPT_FEATURES_BYTES.min(budget / KEPT_FEATURES_SHARE),
    }
}

/// The drafter's end. What a drafter would read is kept from the first token on where one is
/// configured, so that it can come in the middle of a stream.
fn drafting(config: &Config, model: &dyn Target) -> Drafting {
    let info: &TargetInfo = model.info();
    let tap_layers = match config.drafter_dir() {
        None => vec![],
        Some(dir) => draft::tap_layers(&dir).unwrap_or_else(|error| {
            // Its own worker will say so to whoever starts it.
            tracing::warn!(%error, drafter = %dir.display(), "cannot tell what the drafter reads");
            vec![]
        }),
    };
    let tap_layers: Vec<usize> =
        if tap_layers.iter().all(|layer| *layer < info.n_layers) { tap_layers } else { vec![] };
    let hello = Hello {
        version: paceline_link::handshake::VERSION,
        generation: 0,
        hidden_size: info.hidden as u32,
        vocab_size: info.vocab as u32,
        n_layers: info.n_layers as u32,
        r#type: match model.dtype() {
            Dtype::Float16 => TensorType::F16,
            Dtype::Bfloat16 => TensorType::Bf16,
            _ => TensorType::F32,
        }
        .into(),
        tokenizer_sha256: digest::of_file(&info.path.join("tokenizer.json")).unwrap_or_default(),
        context_length: info.context as u32,
        max_sessions: config.target.max_sequences,
    };
    Drafting::new(hello, tap_layers, config.kv.tap_window as usize)
}
