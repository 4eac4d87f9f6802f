//! The worker around the engine: its command line, its services, and loading the drafter.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use clap::Parser;
use paceline_checkpoint::digest;
use paceline_link::Listener;
use paceline_link::handshake::{self, Mismatch};
use paceline_models::{
    DeviceChoice, DraftInfo, DraftOptions, LoadOptions, Quantize, device, plan_draft, plan_target,
    planned_hello, products,
};
use paceline_process::config::{
    Config, Device, DrafterChoice, DrafterConfig, DrafterFiles, DrafterQuantize, TargetConfig,
};
use paceline_process::worker::{self, Gate, Inbox, Mail, WorkerContext, WorkerParts, mailbox};
use paceline_proto::internal::v1::drafter_server::DrafterServer;
use paceline_system::clock::{monotonic_ns, unix_seconds};
use paceline_system::platform;
use paceline_vocabulary::Exit;
use paceline_vocabulary::chain;
use paceline_vocabulary::link::{ProposalKind, Welcome};
use paceline_vocabulary::report::DrafterInfo;
use paceline_vocabulary::state::WorkerPhase;
use tonic::service::RoutesBuilder;

use crate::engine::{DrafterCommand, Engine};
use crate::error::StartError;
use crate::lookup::Lookup;
use crate::model::Model;
use crate::proposer::Proposer;
use crate::serve::DrafterService;
use crate::with_lookup::WithLookup;

/// Commands that may wait for the engine: links, of which only the newest matters, and the one that
/// stops it.
const COMMANDS: usize = 16;
/// Most freed bytes that MLX keeps for reuse. Without a bound it keeps most of the machine.
const MLX_CACHE_BYTES: u64 = 128 << 20;
/// Share of the free memory, after the weights are loaded, that MLX may fill.
const MLX_SHARE: f64 = 0.9;

/// The worker's command line; written by the supervisor.
#[derive(Clone, Debug, Parser)]
#[command(version, about = "Paceline's drafter worker; started by paceline-supervisor")]
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
    /// The drafter to load, instead of the configured one: a directory, "lookup" or "target".
    #[arg(long)]
    pub model: Option<String>,
    /// Name in the runtime directory: two drafters live at once while one takes the other's place.
    #[arg(long, default_value = "drafter-0")]
    pub name: String,
}

/// Runs the worker to its end.
pub fn run(args: &Args) -> Exit {
    let worker = worker::Args {
        program: "paceline-drafter",
        name: args.name.clone(),
        epoch: args.epoch,
        term: args.term,
        config: args.config.clone(),
    };
    worker::run(&worker, |context| parts(args, context))
}

fn parts(args: &Args, context: &WorkerContext) -> Result<WorkerParts, Exit> {
    let unavailable = |error: std::io::Error| {
        tracing::error!(%error, "no mailbox, or no socket for the link");
        Exit::Unavailable
    };
    let (commands, inbox) = mailbox(COMMANDS).map_err(unavailable)?;
    let loaded = Arc::new(OnceLock::new());
    let listener = listen(&args.name, context, commands.clone()).map_err(unavailable)?;
    let mut services = RoutesBuilder::default();
    services.add_service(DrafterServer::new(DrafterService {
        gate: context.gate.clone(),
        config_digest: context.config.drafter_digest(),
        loaded: loaded.clone(),
    }));
    let (context, model) = (context.clone(), args.model.clone());
    Ok(WorkerParts {
        services,
        // No client waits for a drafter: it needs no grace period.
        stop: Arc::new(move |_grace_ms| commands.try_send(DrafterCommand::Stop).is_ok()),
        engine: Box::new(move || {
            engine_thread(&context, model.as_deref(), &loaded, inbox, listener)
        }),
    })
}

fn listen(
    name: &str,
    context: &WorkerContext,
    commands: Mail<DrafterCommand>,
) -> std::io::Result<Listener> {
    let gate: Gate = context.gate.clone();
    paceline_link::listen(&context.dir.socket(&format!("{name}.link")), move |handover| {
        let generation = handover.generation;
        match gate.check_stamp(Some(handover.stamp)) {
            Ok(_) if commands.try_send(DrafterCommand::Link(handover)).is_ok() => {}
            Ok(_) => tracing::warn!(generation, "the engine takes no more links at the moment"),
            Err(status) => tracing::warn!(generation, why = status.message(), "a link was refused"),
        }
    })
}

/// Loads, then runs the engine. The only thread that touches an array (I8). `listener` goes with
/// it.
fn engine_thread(
    context: &WorkerContext,
    model: Option<&str>,
    loaded: &OnceLock<DrafterInfo>,
    inbox: Inbox<DrafterCommand>,
    listener: Listener,
) -> Exit {
    let exit = match load(context, model, loaded) {
        Ok(engine) => {
            context.progress.set_phase(WorkerPhase::Idle.into());
            context.pulse.now();
            engine.run(inbox)
        }
        Err(error) => {
            let cause = chain(&error);
            tracing::error!(cause, "cannot load the drafter");
            context.progress.fail(cause);
            context.pulse.now();
            match error {
                StartError::Load { cause, .. } if cause.is_lasting() => Exit::ModelRefused,
                _ => Exit::Unavailable,
            }
        }
    };
    drop(listener);
    exit
}

fn load(
    context: &WorkerContext,
    model: Option<&str>,
    loaded: &OnceLock<DrafterInfo>,
) -> Result<Engine, StartError> {
    let WorkerContext { config, progress, pulse, .. } = context;
    let retain_bytes = config.drafter.prefix_bytes;
    let choice = match model {
        Some(model) => config.drafter_named(model),
        None => config.drafter_choices().into_iter().next().unwrap_or(DrafterChoice::None),
    };
    let files = config.drafter_files(&choice).map_err(StartError::Target)?;
    let mut misfit = None;
    let (drafter, mut about, welcome): (Box<dyn Proposer>, _, _) = match files {
        None if choice == DrafterChoice::None => return Err(StartError::NoModel),
        None => (Box::new(Lookup::default()), Lookup::about(), Lookup::welcome()),
        Some(files) => {
            prepare_device(config, &files)?;
            misfit = Misfit::found(config, &files);
            if let Some(Misfit { info, welcome, .. }) = &misfit {
                let about = about(info, &files.dir, choice.name());
                (Box::new(Lookup::default()), about, welcome.clone())
            } else {
                let model = load_model(context, &files)?;
                let welcome = welcome(&model, &files, config)?;
                let about = about(model.info(), &files.dir, choice.name());
                let proposes_ids = welcome.proposal == ProposalKind::Tokens;
                match files.lookup.unwrap_or(proposes_ids) {
                    true => WithLookup::new(Box::new(model), welcome.block_size)
                        .described(about, welcome),
                    false => (Box::new(model), about, welcome),
                }
            }
        }
    };
    // The supervisor permits no longer drafts than the description promises.
    if config.drafter.max_tokens > 0 {
        about.block_size = about.block_size.min(config.drafter.max_tokens.saturating_add(1));
    }
    progress.set_loaded_at(unix_seconds());
    let (kind, weight_bytes, block) = (&about.kind, about.weight_bytes, about.block_size);
    tracing::info!(kind, weight_bytes, block, "loaded");
    loaded.get_or_init(|| about);
    let engine = Engine::new(drafter, welcome, retain_bytes, progress.clone(), pulse.clone());
    Ok(engine.refusing(misfit.map(|misfit| misfit.reason)))
}

/// A drafter that the configured target would refuse. It is not loaded: its worker comes up without
/// weights, and refuses every link.
struct Misfit {
    info: DraftInfo,
    welcome: Welcome,
    reason: Mismatch,
}

impl Misfit {
    /// Compares the drafter with the target by their configurations and tokenizers, as `paceline
    /// inspect` does. `None` if they go together, or if a load has to find out: its errors are the
    /// better ones.
    fn found(config: &Config, files: &DrafterFiles) -> Option<Self> {
        let target = config.model_dir().ok()?;
        let TargetConfig { keep_quantized, vision, max_sequences, .. } = config.target;
        let plan = plan_target(&target, LoadOptions { keep_quantized, vision }).ok()?;
        let hello = planned_hello(&plan, &target, handshake::VERSION, max_sequences);
        let plan = plan_draft(&files.dir, &files.kind, Some(&target), quantize(config)).ok()?;
        let welcome = plan.info.welcome(hello.version, hello.element, String::new()).ok()?;
        let reason = handshake::check_welcome(&hello, &welcome).err()?;
        tracing::warn!(%reason, "the drafter does not go with the target, and is not loaded");
        Some(Self { info: plan.info, welcome, reason })
    }
}

/// Chooses the device and bounds what MLX retains.
fn prepare_device(config: &Config, files: &DrafterFiles) -> Result<(), StartError> {
    let choice = match config.target.device {
        Device::Auto => DeviceChoice::Auto,
        Device::Cpu => DeviceChoice::Cpu,
        Device::Gpu => DeviceChoice::Gpu,
    };
    let on_gpu = device::choose(choice).map_err(StartError::Device)?;
    let products = products::choose(config.products_choice()).map_err(StartError::Products)?;
    device::limit_cache(MLX_CACHE_BYTES);
    let DrafterFiles { dir, kind, .. } = files;
    tracing::info!(model = %dir.display(), kind, on_gpu, %products, "loading");
    Ok(())
}

/// How the weights are quantized as they are loaded.
fn quantize(config: &Config) -> Quantize {
    match config.drafter.quantize {
        DrafterQuantize::None => Quantize::None,
        DrafterQuantize::Q8 => Quantize::Q8,
        DrafterQuantize::Q4 => Quantize::Q4,
    }
}

/// Loads a drafter with weights.
fn load_model(context: &WorkerContext, files: &DrafterFiles) -> Result<Model, StartError> {
    let WorkerContext { config, progress, .. } = context;
    let DrafterFiles { dir, kind, .. } = files;
    let draft_vocabulary = config.drafter.draft_vocabulary;
    let options = DraftOptions { quantize: quantize(config), draft_vocabulary };
    // A drafter that needs its target's directory refuses to load without it, in words.
    let target = config.model_dir().ok();
    let mut model = Model::load(dir, kind, target.as_deref(), options, &mut |read, total| {
        progress.set_load(read, total)
    })?;
    // As in the target: what is held, and most of what is usable.
    if let Some(usable) = platform::available_memory().map(device::usable_memory) {
        device::limit_memory(device::memory().0 + (usable as f64 * MLX_SHARE) as u64);
    }
    let begun_ns = monotonic_ns();
    model.warm_up(&mut || progress.warm_up_done()).map_err(StartError::WarmUp)?;
    let warm_ms = (monotonic_ns() - begun_ns) / 1_000_000;
    tracing::info!(context = model.info().context, warm_ms, "warm");
    Ok(model)
}

/// Describes the drafter to the supervisor, which knows it as `named`.
fn about(info: &DraftInfo, dir: &Path, named: String) -> DrafterInfo {
    let name = dir
        .canonicalize()
        .ok()
        .and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    DrafterInfo {
        name: name.unwrap_or_else(|| dir.display().to_string()),
        path: named,
        kind: info.kind.clone(),
        weight_bytes: info.weight_bytes,
        block_size: info.block as u32,
        images: info.images,
    }
}

/// Describes the drafter to a target.
fn welcome(model: &Model, files: &DrafterFiles, config: &Config) -> Result<Welcome, StartError> {
    let (info, dir) = (model.info(), &files.dir);
    let DrafterConfig { quantize, threads, draft_vocabulary, .. } = &config.drafter;
    let TargetConfig { device, products, .. } = config.target;
    let loaded_as = format!("{quantize:?} {draft_vocabulary} {threads:?} {device:?} {products:?}");
    let fingerprint = format!("{} {}", info.kind, digest::of_checkpoint(dir, &loaded_as));
    let welcome = info.welcome(handshake::VERSION, model.element(), fingerprint);
    welcome.map_err(|cause| StartError::Load { dir: dir.clone(), cause })
}
