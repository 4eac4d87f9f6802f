//! The front door: text in, text out. Clients' requests are checked, made token ids by the model's
//! own tokenizer and chat template, and submitted to the supervisor; the token ids that come back
//! become text again.
//!
//! - [`front`]: the protocols of clients.
//! - [`guard`]: keys and TLS.
//! - [`inference`]: requests and their answers, in no protocol's words.
//! - [`prompter`], [`images`]: threads that prepare the model's input.
//! - [`service_report`]: the service as its supervisor reports it.
//! - [`overview`]: figures of the page.
//! - [`metrics`]: figures for Prometheus, and of the last minutes.
//! - [`turns`]: waiting in turn.
//! - [`successor`]: how another gateway takes the place of one that ends, which
//!   `paceline_service_core` decides.
//! - [`life`]: the number of a gateway's life, and its lock.
//!
//! Not here: how text becomes token ids (`text`), which worker serves, restarts of workers, MLX.
//!
//! Tasks: one for each connection, one for the attachment to the supervisor, and [`run`], which
//! decides when the process ends. Prompts and outputs are never logged (I9).

pub mod front;
pub mod guard;
pub mod images;
pub mod inference;
pub mod life;
mod lock;
pub mod metrics;
pub mod overview;
pub mod program;
pub mod prompter;
mod run;
pub mod service_report;
mod shared_answer;
pub mod successor;
pub mod turns;

use std::io;
use std::net::TcpListener;

use paceline_process::config::{ConfigError, GatewayConfig, ToolFormat};
use paceline_process::listen::{self, Front, HTTP_NOT_SERVED};
use paceline_process::runtime_dir::RuntimeDirError;
use paceline_process::{Config, Loaded, RuntimeDir};
use paceline_text::checkpoint::LoadError;
use paceline_text::prompt::format::ToolCallFormat;
use paceline_vocabulary::Exit;

pub use run::run;

use crate::inference::languages::{LanguageOrders, Languages};
use crate::life::Life;

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration names something that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model directory.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The runtime directory.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The inherited socket cannot be used as a listening socket.
    #[error("the inherited listening socket")]
    Inherited(#[source] io::Error),
    /// A socket for HTTP was handed down, and the configuration says that there is no HTTP.
    #[error("{HTTP_NOT_SERVED}")]
    HttpNotServed,
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address} ({key}); stop what listens there, or set another address{none}"
    )]
    Listen {
        /// The setting that names it.
        key: &'static str,
        /// The words for a setting that may be empty.
        none: &'static str,
        /// The address.
        address: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

impl StartError {
    /// The process's exit code.
    pub fn exit(&self) -> Exit {
        match self {
            StartError::Config(_)
            | StartError::Model(_)
            | StartError::Inherited(_)
            | StartError::HttpNotServed => Exit::Config,
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
    pub languages: Languages,
    /// Where the supervisor's socket is.
    pub runtime_dir: RuntimeDir,
    /// The life of this gateway.
    pub life: Life,
    /// Where clients connect.
    pub listeners: FrontListeners,
    /// Keys and TLS.
    pub guard: guard::Guard,
}

impl Setup {
    /// Opens the ports (or takes over the inherited ones) and reads the model's text files.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn prepare(loaded: Loaded) -> Result<Self, StartError> {
        let settings = loaded.settings().to_vec();
        let config = loaded.config;
        let guard = guard::Guard::prepare(&config)?;
        let model_dir = config.model_dir()?;
        let runtime_dir = RuntimeDir::locate(&config)?;
        runtime_dir.prepare()?;
        // First the ports: whether they are free is known at once, and clients that connect while
        // the files are read wait instead of failing.
        let listeners = listeners(&config.gateway, &guard)?;
        let format = tool_call_format(config.gateway.tool_format);
        let orders = LanguageOrders { format, vision: config.target.vision };
        let languages = Languages::read(&model_dir, orders)?;
        let life = Life::begin(&runtime_dir)?.started_with(settings);
        images::prepare(&runtime_dir)?;
        Ok(Self { config, languages, runtime_dir, life, listeners, guard })
    }
}

/// The listening sockets of a gateway; all are non-blocking.
#[derive(Debug)]
pub struct FrontListeners {
    /// Where clients connect for gRPC.
    pub grpc: TcpListener,
    /// Where clients connect for HTTP. `None` if there is no HTTP.
    pub http: Option<TcpListener>,
    /// Where clients connect for Ollama's API besides.
    pub ollama: Option<TcpListener>,
    /// Whether another process holds all of them too: connections then wait while no gateway
    /// accepts them.
    pub are_held: bool,
}

/// The listeners of all fronts: each inherited, else bound at its address. A parent of an
/// earlier version hands down gRPC's alone.
fn listeners(settings: &GatewayConfig, guard: &guard::Guard) -> Result<FrontListeners, StartError> {
    let inherited = listen::inherited_tcp().map_err(StartError::Inherited)?;
    let checked = |front: Front, listener: TcpListener| {
        let address = listener.local_addr().map_err(StartError::Inherited)?;
        guard.check_exposure(front.key(), address)?;
        Ok::<_, StartError>(listener)
    };
    let mut are_held = inherited.grpc.is_some();
    let grpc = match inherited.grpc {
        Some(listener) => listener,
        None => bind(Front::Grpc, &settings.grpc)?,
    };
    let grpc = checked(Front::Grpc, grpc)?;
    if inherited.http.is_some() && settings.http.is_empty() {
        return Err(StartError::HttpNotServed);
    }
    let http_address = Some(settings.http.as_str()).filter(|address| !address.is_empty());
    let mut further = |front: Front, inherited: Option<TcpListener>, address: Option<&str>| {
        let Some(address) = address else { return Ok(None) };
        are_held &= inherited.is_some();
        let listener = inherited.map_or_else(|| bind(front, address), Ok)?;
        checked(front, listener).map(Some)
    };
    let http = further(Front::Http, inherited.http, http_address)?;
    let ollama = further(Front::Ollama, inherited.ollama, settings.ollama.address())?;
    Ok(FrontListeners { grpc, http, ollama, are_held })
}

/// The format of tool calls that the operator names; `None` leaves it to the model's files.
fn tool_call_format(setting: ToolFormat) -> Option<ToolCallFormat> {
    Some(match setting {
        ToolFormat::Auto => return None,
        ToolFormat::None => ToolCallFormat::None,
        ToolFormat::Hermes => ToolCallFormat::Hermes,
        ToolFormat::QwenXml => ToolCallFormat::QwenXml,
        ToolFormat::Llama3 => ToolCallFormat::Llama3,
        ToolFormat::Gemma4 => ToolCallFormat::Gemma4,
        ToolFormat::Harmony => ToolCallFormat::Harmony,
        ToolFormat::MistralList => ToolCallFormat::MistralList,
        ToolFormat::MistralArgs => ToolCallFormat::MistralArgs,
        ToolFormat::MiniCpm => ToolCallFormat::MiniCpm,
        ToolFormat::Glm => ToolCallFormat::Glm,
    })
}

fn bind(front: Front, address: &str) -> Result<TcpListener, StartError> {
    let listen = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|cause| StartError::Listen {
        key: front.key(),
        none: if front == Front::Http { ", or \"\" for no HTTP" } else { "" },
        address: address.to_owned(),
        cause,
    })
}
