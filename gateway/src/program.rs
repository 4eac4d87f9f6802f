//! The process `paceline-gateway` around the library. Configuration, logs, signals, exit code.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use paceline_process::lifecycle::ParentWatch;
use paceline_process::telemetry::trace::{self, Origin};
use paceline_process::{Loaded, Signals, task, telemetry};
use paceline_proto::report::GatewayReport;
use paceline_service_core::ending::Event;
use paceline_system::environment::env;
use paceline_system::platform;
use paceline_system::start;
use paceline_system::start::PARENT_FD;
use paceline_vocabulary::Exit;
use tokio::sync::mpsc;

use crate::inference::languages::LanguageOrders;
use crate::{Setup, StartError, run};

/// Threads that move messages, at most; texts are worked on elsewhere. Of few cores one is enough:
/// each that hands work to another costs a switch, and the model's time (of two cores, under four
/// times the load they can serve, 4 % of it).
const THREADS: usize = 2;
/// Cores for each of them.
const CORES: usize = 4;

/// The process of Paceline that clients talk to. Started by `paceline serve`, or by a service
/// manager (deploy/).
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file [default: see `paceline serve --help`]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Check the text files of the model in this directory, and serve nothing; asked by the
    /// supervisor before a swap
    #[arg(long, value_name = "DIR", hide = true)]
    check_model: Option<PathBuf>,
}

/// Runs the process with the words of its command line, and returns its exit code.
pub fn main(words: Vec<OsString>) -> ExitCode {
    start::settle();
    platform::share_heap();
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Config } else { Exit::Asked };
            // If it cannot be printed, the exit code remains.
            let _ = error.print();
            return exit.into();
        }
    };
    match start(&arguments) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            telemetry::complain(&format!("paceline-gateway: {failure:#}"));
            failure.downcast_ref().map_or(Exit::Config, StartError::exit).into()
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<Exit> {
    let loaded = Loaded::find(arguments.config.as_deref())?;
    let config = &loaded.config;
    let orders = LanguageOrders { vision: config.target.vision, ..Default::default() };
    if let Some(dir) = &arguments.check_model {
        let language = orders.read(dir)?;
        let lacks = language.template.iter().flat_map(|template| template.lacks());
        let report = GatewayReport {
            lacks: lacks.collect(),
            images: crate::images::described(&language, &config.limits),
        };
        // A reader that is gone needs no answer.
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?);
        return Ok(Exit::Asked);
    }
    telemetry::start(&config.log);
    for warning in &loaded.warnings {
        tracing::warn!(warning, "configuration");
    }
    let log = config.log.clone();
    let setup = Setup::prepare(loaded)?;
    let epoch = vec![("paceline.epoch", setup.life.epoch())];
    trace::start(&log, Origin { program: "paceline-gateway", numbers: epoch });
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (cores / CORES).clamp(1, THREADS);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let exit = runtime.block_on(async {
        let events = events()?;
        anyhow::Ok(run(setup, events).await)
    });
    // A long text that is still being worked on must not keep the process.
    runtime.shutdown_background();
    trace::finish();
    exit
}

/// Events that end the gateway: signals, and the end of the parent process.
fn events() -> anyhow::Result<mpsc::Receiver<Event>> {
    let (sender, events) = mpsc::channel(8);
    let mut parent = ParentWatch::inherited()?;
    let mut signals =
        if env(PARENT_FD).is_some() { Signals::child()? } else { Signals::interactive()? };
    task::spawn("signals", async move {
        let mut orphan = false;
        loop {
            let event = tokio::select! {
                () = signals.next() => Event::StopAsked,
                () = parent.gone(), if !orphan => {
                    orphan = true;
                    Event::ParentGone
                }
            };
            if sender.send(event).await.is_err() {
                return;
            }
        }
    });
    Ok(events)
}
