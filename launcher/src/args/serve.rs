//! Arguments of `paceline serve`.

use clap::Args;
use paceline_client::args::ConfigArg;
use paceline_process::config::Assignment;

/// Arguments of `paceline serve`. Each flag is a setting of the configuration, and wins over file,
/// `paceline config set` and environment.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// Model to serve, as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub positional_model: Option<String>,
    /// Model to serve (target.model): a directory, demo-target, or org/name of a hub or a name of
    /// `paceline models --known`, which are fetched first if they are not here [default: smollm2]
    #[arg(long, value_name = "DIR|NAME")]
    pub model: Option<String>,
    /// Drafter (drafter.model): a directory, org/name of a hub, lookup, or target for the model's own
    /// head; off = none; several with commas are tried in their order [default: auto]
    #[arg(long, value_name = "DIR|NAME|lookup|target|off")]
    pub drafter: Option<String>,
    /// Address of the HTTP service (gateway.http); off = none [default: 127.0.0.1:8061]
    #[arg(long, value_name = "HOST:PORT|off")]
    pub http: Option<String>,
    /// Port of the HTTP service; its host stays as configured [default: 8061]
    #[arg(long, value_name = "PORT", conflicts_with = "http")]
    pub port: Option<u16>,
    /// Serve Ollama's API, on Ollama's own port as well (gateway.ollama = "127.0.0.1:11434")
    #[arg(long)]
    pub ollama: bool,
    /// Threads of the matrix products on the CPU, of model and drafter each (target.threads,
    /// drafter.threads) [default: auto, all cores]
    #[arg(long, value_name = "N|auto")]
    pub threads: Option<String>,
    /// Most tokens of a request, prompt and answer together (limits.context_tokens) [default: auto,
    /// the model's context]
    #[arg(long, value_name = "TOKENS|auto")]
    pub context: Option<String>,
    /// Any other setting, as routing.max_concurrent=2; may be given for many. `paceline config show`
    /// has all
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// Fetch nothing: refuse if a model of a hub is not on this machine
    #[arg(long)]
    pub offline: bool,
    /// Where the other settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}
