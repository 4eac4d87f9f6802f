//! The worker around the engine: command line, services, threads.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use clap::Parser;
use paceline_process::worker::{self, Inbox, WorkerContext, WorkerParts, mailbox};
use paceline_proto::internal::v1::WorkerPhase;
use paceline_proto::internal::v1::target_server::TargetServer;
use paceline_vocabulary::Exit;
use paceline_vocabulary::chain;
use tonic::service::RoutesBuilder;

use crate::device;
use crate::engine::EngineCommand;
use crate::image_files::ImageFiles;
use crate::load::load;
use crate::loaded_model::LoadedModel;
use crate::serve::TargetService;

/// Name of this process in the runtime directory.
const NAME: &str = "target";
/// Commands that may wait for the engine, for each of `target.max_sequences`. The supervisor sends
/// fewer, because it has one request for each of them.
const COMMANDS_PER_SEQUENCE: usize = 4;
/// Least number of commands that may wait: not every command is a request.
const MIN_COMMANDS: usize = 128;
/// Largest message: a prompt of a million tokens fits.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The worker's command line; written by the supervisor, or by `paceline inspect`.
#[derive(Clone, Debug, Parser)]
#[command(version, about = "Paceline's target worker; started by paceline-supervisor")]
pub struct Args {
    /// Number of this worker's life in the runtime directory.
    #[arg(long, required_unless_present = "device")]
    pub epoch: Option<u64>,
    /// Number of the supervisor's life that starts it.
    #[arg(long, required_unless_present = "device")]
    pub term: Option<u64>,
    /// Configuration file.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Percent of the KV budget that is used: less than all of it after the machine went down.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub kv_percent: u8,
    /// Say as one JSON object on what device models run, and serve nothing.
    #[arg(long, conflicts_with_all = ["epoch", "term"])]
    pub device: bool,
    /// With --device: whether the model in this directory can be loaded.
    #[arg(long, value_name = "DIR", requires = "device")]
    pub model: Option<PathBuf>,
    /// With --model: whether the drafter in this directory goes with it.
    #[arg(long, value_name = "DIR", requires = "model")]
    pub drafter: Option<PathBuf>,
}

/// Runs the worker to its end.
pub fn run(args: &Args) -> Exit {
    let Args { epoch, term, config, kv_percent, device, model, drafter } = args.clone();
    if device {
        return device::run(model.as_deref(), drafter.as_deref(), config.as_deref());
    }
    let (epoch, term) = (epoch.unwrap_or_default(), term.unwrap_or_default());
    let worker =
        worker::Args { program: "paceline-target", name: NAME.into(), epoch, term, config };
    worker::run(&worker, |context| parts(context, kv_percent))
}

fn parts(context: &WorkerContext, kv_percent: u8) -> Result<WorkerParts, Exit> {
    let unavailable = |error: std::io::Error| {
        tracing::error!(%error, "no mailbox, or no socket for the link");
        Exit::Unavailable
    };
    let commands =
        (COMMANDS_PER_SEQUENCE * context.config.target.max_sequences as usize).max(MIN_COMMANDS);
    let (mail, inbox) = mailbox(commands).map_err(unavailable)?;
    let links = {
        let (mail, gate) = (mail.clone(), context.gate.clone());
        let on_handover = move |handover: paceline_link::Handover| {
            if let Err(status) = gate.check_stamp(Some(handover.stamp)) {
                tracing::warn!(%status, "a link was handed over and is dropped (I7)");
            } else if let Err(why) = mail.try_send(EngineCommand::Link(handover)) {
                tracing::warn!(?why, "a link was handed over, and the engine does not take it");
            }
        };
        paceline_link::listen(&context.dir.socket(&format!("{NAME}.link")), on_handover)
            .map_err(unavailable)?
    };
    let known = Arc::new(OnceLock::new());
    let service = TargetService {
        gate: context.gate.clone(),
        config_digest: context.config.target_digest(),
        loaded: known.clone(),
        progress: context.progress.clone(),
        commands: mail.clone(),
        clock: context.clock,
        image_files: ImageFiles::new(context.dir.images()),
    };
    let mut services = RoutesBuilder::default();
    services.add_service(TargetServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES));
    let clock = context.clock;
    let stop = move |grace_ms| {
        mail.try_send(EngineCommand::Stop { until: clock.now() + grace_ms }).is_ok()
    };
    let context = context.clone();
    let engine = move || {
        let exit = engine_thread(&context, kv_percent, inbox, &known);
        // The socket accepts links until the engine has ended.
        drop(links);
        exit
    };
    Ok(WorkerParts { services, stop: Arc::new(stop), engine: Box::new(engine) })
}

/// Loads, then runs the engine. The only thread that touches an array (I8).
fn engine_thread(
    context: &WorkerContext,
    kv_percent: u8,
    inbox: Inbox<EngineCommand>,
    known: &OnceLock<LoadedModel>,
) -> Exit {
    let WorkerContext { progress, pulse, .. } = context;
    let engine = match load(context, kv_percent, known) {
        Ok(engine) => engine,
        Err(error) => {
            let failure = chain(&error);
            tracing::error!(failure, "cannot load the target");
            progress.fail(failure);
            pulse.now();
            return if error.is_lasting() { Exit::ModelRefused } else { Exit::Unavailable };
        }
    };
    progress.set_phase(WorkerPhase::Idle);
    pulse.now();
    if engine.run(inbox) { Exit::Asked } else { Exit::Bug }
}
