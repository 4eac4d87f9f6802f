//! The front door: text in, text out. Clients' requests are checked, made token ids by the model's
//! own tokenizer and chat template, and submitted to the supervisor; the token ids that come back
//! become text again.
//!
//! Not here: which worker serves, restarts of workers, MLX. What runs: one task for each
//! connection, one for the attachment to the supervisor, and [`run`], which decides when this ends.
//! Prompts and outputs are never logged (I9).

pub mod attach;
pub mod checkpoint;
pub mod deadline;
pub mod ending;
pub mod error;
pub mod guard;
pub mod health;
pub mod images;
pub mod prompt;
pub mod record;
pub mod reflection;
pub mod request;
pub mod sampling;
pub mod serve;
pub mod standing;
pub mod stream;
pub mod wire;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use paceline_process::clock::Clock;
use paceline_process::config::ConfigError;
use paceline_process::runtime_dir::{Lock, RuntimeDirError};
use paceline_process::{Config, Exit, Notifier, RuntimeDir, listen, socket, task, telemetry};
use paceline_proto::internal::v1::supervisor_client::SupervisorClient;
use paceline_proto::v1::inference_server::InferenceServer;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use ending::{Action, Ending, Event};
use serve::gate::{Calls, Gate};

/// Connections wait this long at most for the first attachment; then they are told that there is no
/// supervisor.
const ATTACH: Duration = Duration::from_millis(500);
/// Connections may take this long to close once nothing runs.
const CLOSE: Duration = Duration::from_secs(1);

/// An earlier gateway whose parent was killed lives on for 6 s at most (`ending`: 4 s for its
/// requests, 1 s to cancel them, [`CLOSE`]); the next one waits for it a little longer.
const EARLIER: Duration = Duration::from_secs(10);

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration names something that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model directory.
    #[error(transparent)]
    Model(#[from] checkpoint::LoadError),
    /// The runtime directory.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// What was handed down is no listening socket.
    #[error("the inherited listening socket: {0}")]
    Inherited(io::Error),
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address} (gateway.grpc): {cause}; stop what listens there, or set another address"
    )]
    Listen {
        /// The address.
        address: String,
        /// Why.
        cause: io::Error,
    },
}

impl StartError {
    /// The process's exit code.
    pub fn exit(&self) -> Exit {
        match self {
            StartError::Config(_) | StartError::Model(_) | StartError::Inherited(_) => Exit::Config,
            StartError::RuntimeDir(error) => error.exit(),
            StartError::Listen { .. } => Exit::Unavailable,
        }
    }
}

/// All a gateway needs to serve.
#[derive(Debug)]
pub struct Setup {
    /// The settings.
    pub config: Config,
    /// The model's text side.
    pub language: Arc<prompt::Language>,
    /// Where the supervisor's socket is.
    pub runtime_dir: RuntimeDir,
    /// The lock of the one gateway of this runtime directory.
    pub lock: Lock,
    /// Number of this gateway's life.
    pub epoch: u64,
    /// Where clients connect; non-blocking.
    pub listener: TcpListener,
    /// Keys and TLS.
    pub guard: guard::Guard,
}

impl Setup {
    /// Opens the port (or takes over the inherited one) and reads the model's text files.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn prepare(config: Config) -> Result<Self, StartError> {
        let guard = guard::Guard::prepare(&config)?;
        let model_dir = config.model_dir()?;
        let runtime_dir = RuntimeDir::locate(&config)?;
        runtime_dir.prepare()?;
        // First the port: whether it is free is known at once, and who connects while we read waits
        // instead of failing.
        let listener = match listen::inherited_tcp().map_err(StartError::Inherited)? {
            Some(listener) => listener,
            None => bind(&config.gateway.grpc)?,
        };
        guard.check_exposure(listener.local_addr().map_err(StartError::Inherited)?)?;
        let language = Arc::new(prompt::Language::read(&model_dir)?);
        let lock = runtime_dir.lock_within("gateway", EARLIER)?;
        let epoch = runtime_dir.count_up("gateway.epoch")?;
        // Behind the lock: an earlier gateway that still ends removes its files itself.
        images::prepare(&runtime_dir)?;
        Ok(Self { config, language, runtime_dir, lock, epoch, listener, guard })
    }
}

fn bind(address: &str) -> Result<TcpListener, StartError> {
    let listen = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|cause| StartError::Listen { address: address.to_owned(), cause })
}

/// Serves until asked to end: by `events`, by the supervisor's order, or for want of a parent.
pub async fn run(setup: Setup, mut events: mpsc::Receiver<Event>) -> Exit {
    // The lock is held until the end: no other gateway takes this one's files for left ones.
    let Setup { config, language, runtime_dir, lock: _lock, epoch, listener, guard } = setup;
    let address = listener.local_addr();
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the listening socket cannot be used");
            return Exit::Bug;
        }
    };
    let front = address
        .as_ref()
        .map_or_else(|_| "listening".to_owned(), |address| format!("listening on {address}"));
    if let Ok(address) = address {
        tracing::info!(%address, epoch, "gateway listens");
        if !address.ip().is_loopback() {
            let (tls, keys) = (guard.tls.is_some(), guard.has_keys());
            tracing::warn!(%address, tls, keys, "the service can be reached from other machines");
        }
    }

    let clock = Clock::start();
    let standing = watch::Sender::new(standing::Standing::default());
    let calls = Calls::new(config.target.max_sequences, config.limits.queue);
    let supervisor = SupervisorClient::new(socket::channel(runtime_dir.socket("supervisor")));
    let (cancel, closing) = (CancellationToken::new(), CancellationToken::new());
    let (orders, mut ordered) = mpsc::channel(8);

    let store = images::store::ImageStore::new(&runtime_dir, epoch);
    let routes = routes(
        &config,
        language,
        store,
        epoch,
        supervisor.clone(),
        standing.subscribe(),
        &calls,
        &cancel,
        &closing,
    );
    let keys = guard.follow_keys();
    let (mut attached, until, limits) =
        (standing.subscribe(), closing.clone(), config.limits.clone());
    let server = task::spawn("serve", async move {
        // The socket may have been there before us: who waits at it is not turned away for the
        // moments until we are attached.
        let _ = tokio::time::timeout(ATTACH, attached.wait_for(standing::Standing::knows)).await;
        serve::connection::serve(listener, routes, guard, &limits, until).await;
    });
    let who = attach::Who { epoch, restarts: paceline_process::lifecycle::restarts() };
    let attachment = attach::Attachment {
        supervisor,
        who,
        standing: standing.clone(),
        running: calls.watch(),
        orders: orders.clone(),
    }
    .start();

    telemetry::keep_own_log_bounded();
    let notifier = Notifier::inherited();
    notifier.ready(&front);
    let mut beats = beats(&notifier);

    let mut ending = Ending::default();
    let mut running = calls.watch();
    let exit = loop {
        let tick = async {
            match ending.next_deadline() {
                Some(when) => tokio::time::sleep(clock.until(when)).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            Some(event) = events.recv() => event,
            Some(event) = ordered.recv() => event,
            _ = running.wait_for(|calls| *calls == 0), if ending.begun() => Event::Idle,
            () = tick => Event::Tick,
            Some(()) = beats.recv() => {
                notifier.alive();
                continue;
            }
        };
        let action = ending.on_event(event, clock.now());
        if action.is_some() {
            tracing::info!(?event, ?action, running = *calls.watch().borrow(), "gateway ending");
        }
        match action {
            Some(Action::Refuse) => {
                notifier.stopping();
                standing.send_modify(|standing| standing.ending = true);
            }
            Some(Action::Cancel) => cancel.cancel(),
            Some(Action::End(exit)) => break exit,
            None => {}
        }
    };
    closing.cancel();
    if tokio::time::timeout(CLOSE, server).await.is_err() {
        tracing::warn!("connections that did not close in time are cut");
    }
    attachment.abort();
    if let Some(keys) = keys {
        keys.abort();
    }
    exit
}

/// As often as a service manager wants a sign of life, one to be passed on: by a task on the
/// threads that serve connections to the loop that decides when this ends, so that it says that
/// both turn. None, without a manager that wants any.
fn beats(notifier: &Notifier) -> mpsc::Receiver<()> {
    let (sender, beats) = mpsc::channel(1);
    if let Some(period) = notifier.beat() {
        let mut ticks = tokio::time::interval(period);
        task::spawn("beats", async move {
            loop {
                ticks.tick().await;
                if sender.send(()).await.is_err() {
                    return;
                }
            }
        });
    }
    beats
}

/// Every service behind the listening socket.
#[expect(clippy::too_many_arguments, reason = "called once; each argument is one of run's parts")]
fn routes(
    config: &Config,
    language: Arc<prompt::Language>,
    store: images::store::ImageStore,
    epoch: u64,
    supervisor: SupervisorClient<tonic::transport::Channel>,
    standing: watch::Receiver<standing::Standing>,
    calls: &Calls,
    cancel: &CancellationToken,
    closing: &CancellationToken,
) -> Routes {
    let seats = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let inference = serve::InferenceService {
        epoch,
        decoding: serve::decoding::Decoding::new(Arc::clone(&language), seats / 2),
        prompter: prompt::Prompter::new(language, seats),
        images: images::ImagePipeline::new(store, &config.limits),
        limits: config.limits.clone(),
        standing: standing.clone(),
        backlog: Arc::default(),
        supervisor,
        cancel: cancel.clone(),
    };
    let max_message_bytes = config.limits.max_message_bytes;
    let limit = usize::try_from(max_message_bytes).unwrap_or(usize::MAX);
    let inference = InferenceServer::new(inference).max_decoding_message_size(limit);
    let health = HealthServer::new(health::HealthService::new(standing.clone(), closing.clone()));
    Routes::new(Gate::new(inference, calls.clone(), standing, max_message_bytes))
        .add_service(health)
        .add_service(reflection::service())
}

/// The demo model, for tests.
#[cfg(test)]
mod demo {
    use std::path::{Path, PathBuf};

    pub(crate) fn dir() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target")
    }

    pub(crate) fn language() -> crate::prompt::Language {
        crate::prompt::Language::read(&dir()).expect("it is in the repository")
    }
}
