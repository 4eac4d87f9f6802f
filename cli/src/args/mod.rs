//! The command line. Every command and flag is parsed and checked here; what a number
//! may be is the service's to say, so that there is one place that says it.

mod config;
mod diagnose;
mod launch;
mod models;
mod run;
mod top;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use paceline_client::args::{ConfigArg, ServiceArgs};
use paceline_launcher::args::{ServeArgs, ServiceCommand};
use paceline_proto::v1;
use serde::{Deserialize, Serialize};

pub use config::{ConfigCommand, ConfigGet, ConfigSet, ConfigShow, ConfigUnset};
pub use diagnose::DiagnoseArgs;
pub use launch::{Agent, LaunchArgs};
pub use models::{InspectArgs, ModelsArgs, RmArgs};
pub use run::RunArgs;
pub use top::{BadFrameSize, FrameSize, TopArgs};
pub use values::{BadBias, BadTokenIds, Bias, TokenIds};

/// One large language model on one machine, as a service of several processes.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    /// Subcommand of the program.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run everything in the foreground, with load progress
    Serve(Box<ServeArgs>),
    /// Send one request and print the answer
    Generate(Box<GenerateArgs>),
    /// Talk, line by line
    Chat(Box<ChatArgs>),
    /// Start a coding agent that works with the served model
    Launch(LaunchArgs),
    /// Show each process, its state, and the reason
    Status(ShowArgs),
    /// List the processes that run, with model, memory and time
    Ps(ConfigArg),
    /// End the running service; running requests get 30 seconds
    Stop(ConfigArg),
    /// Show what the processes logged
    Logs(LogsArgs),
    /// Ask one question of a model, or talk with it, without a service that runs
    Run(Box<RunArgs>),
    /// Watch what runs, and give orders by keys
    Top(TopArgs),
    /// Show the changes of state, and their reasons
    Events(EventsArgs),
    /// Show the settings and their sources, or change some for good
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Install, start, stop or remove the service of systemd or launchd
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Find what is wrong on this machine: programs, settings, model, addresses, disk, service
    Doctor(ShowArgs),
    /// Write one archive for a bug report, without prompts and secrets
    Diagnose(DiagnoseArgs),
    /// Start, stop or swap the drafter
    #[command(subcommand)]
    Drafter(DrafterCommand),
    /// Serve another model
    #[command(subcommand)]
    Target(TargetCommand),
    /// Show or change the routing policy of the running service
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Ask a route log what another policy would have decided
    #[command(subcommand)]
    Routes(RoutesCommand),
    /// Restart one process
    Restart(RestartArgs),
    /// Take no new requests and wait until none runs
    Drain(DrainArgs),
    /// Make API keys, and the lines of gateway.api_keys_file that let them in
    #[command(subcommand)]
    Key(KeyCommand),
    /// Fetch a model from a hub
    #[command(disable_help_flag = true)]
    Pull(OtherArgs),
    /// The models of this machine, with sizes
    #[command(visible_aliases = ["list", "ls"])]
    Models(ModelsArgs),
    /// Remove a model that was pulled
    Rm(RmArgs),
    /// Describe a model: its kind, its memory on this machine, and whether a drafter goes with it
    #[command(visible_alias = "show")]
    Inspect(InspectArgs),
    /// Check model and machine: are the lanes identical, how fast is each, does the drafter pay
    Selftest(SelftestArgs),
    /// Measure how fast the lanes are, the target alone, and what the machine allows
    #[command(disable_help_flag = true)]
    Bench(OtherArgs),
    /// Print the completions of a shell
    Completions {
        /// Shell that reads what is printed
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the page of the manual, or write one for each command into a directory
    Man {
        /// Directory for the pages; it has to exist
        #[arg(value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `paceline generate`
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Prompt to continue or messages to answer.
    #[command(flatten)]
    pub input: Input,
    /// Image to go with the last message of the user; makes a --prompt a message
    #[arg(long, value_name = "FILE", conflicts_with = "token_ids")]
    pub image: Vec<PathBuf>,
    /// How to generate.
    #[command(flatten)]
    pub how: HowArgs,
    /// Number of answers, drawn independently; each is printed whole, under a line with its number
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub samples: u32,
    /// JSON object with variables of the chat template, as {"enable_thinking": false}
    #[arg(long, value_name = "JSON", conflicts_with_all = ["prompt", "token_ids"])]
    pub template_arguments: Option<String>,
    /// How much the model thinks: none, minimal, low, medium, high, xhigh, max, or a word of its
    /// template
    #[arg(long, value_name = "WORD", conflicts_with_all = ["prompt", "token_ids"])]
    pub reasoning_effort: Option<String>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
    /// With --json: log-probabilities, of each token and of the N most probable ones in its place
    /// (0 to 20)
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<u32>,
    /// With --json: how far each choice was from another outcome
    #[arg(long, hide = true, requires = "json")]
    pub margins: bool,
    /// Print a line of figures to standard error even where it is no terminal
    #[arg(long, short)]
    pub verbose: bool,
    /// Where the service is.
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// Prompt to continue or messages to answer: one of them, or a message on standard input.
#[derive(Clone, Debug, Default, Args)]
#[group(multiple = false)]
pub struct Input {
    /// One message of the user, as --message; text that is piped in follows it after a blank line,
    /// or is the message alone
    #[arg(value_name = "TEXT")]
    pub text: Option<String>,
    /// Text to continue as it is, without chat template
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// JSON file with a list of {role, content}, or {"messages": [...], "tools": [...]}; - is
    /// standard input
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
    /// One message of the user, put through the chat template
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
    /// Token ids to continue, as 1,2,3
    #[arg(long, value_name = "IDS")]
    pub token_ids: Option<TokenIds>,
}

/// How to generate.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
pub struct HowArgs {
    /// Most tokens to generate; without it up to the context's end
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// 0 takes the most probable token; without it the model's own default
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Seed of the draw; the same request with the same seed gives the same tokens
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Only the smallest set of tokens with this much probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Only the K most probable tokens; 0 means all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Only tokens at least this fraction as probable as the best one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Only tokens with at least this multiple of the square of the best one's probability
    #[arg(long, value_name = "A", allow_negative_numbers = true)]
    pub top_a: Option<f32>,
    /// Above 1 makes tokens less likely that are in the prompt or the answer already; 1 is off
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Taken from the logits of tokens that are in the answer already; 0 is off
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Taken from the logits of tokens that are in the answer already, once for each time; 0 is off
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Added to the logit of one token, as 42=-100; may be given for many
    #[arg(long, value_name = "ID=BIAS")]
    pub logit_bias: Vec<Bias>,
    /// Least number of tokens before one that ends the answer
    #[arg(long, value_name = "N")]
    pub min_tokens: Option<u32>,
    /// Token that ends the answer besides the model's own; may be given for several
    #[arg(long, value_name = "ID")]
    pub stop_token_id: Vec<u32>,
    /// Go on after the model's end-of-sequence token
    #[arg(long)]
    pub ignore_eos: bool,
    /// End the answer where this text would begin; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Lane to ask for: auto, plain (without the drafter) or speculative (with it, if there is one)
    #[arg(long, value_enum, default_value_t, hide_possible_values = true)]
    pub route: Route,
}

/// `--route`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// The service decides
    #[default]
    Auto,
    /// Without the drafter
    Plain,
    /// With the drafter, if there is one
    Speculative,
}

impl From<Route> for v1::RouteWish {
    fn from(route: Route) -> Self {
        match route {
            Route::Auto => v1::RouteWish::Auto,
            Route::Plain => v1::RouteWish::Plain,
            Route::Speculative => v1::RouteWish::Speculative,
        }
    }
}

/// `paceline chat`
#[derive(Debug, Default, Args)]
pub struct ChatArgs {
    /// How turns are asked.
    #[command(flatten)]
    pub talk: TalkArgs,
    /// Leave the file alone that keeps typed lines for the arrow keys of later conversations
    #[arg(long)]
    pub no_history: bool,
    /// Where the service is.
    #[command(flatten)]
    pub service: ServiceArgs,
}

/// How each turn of a conversation is asked; `/set` changes it.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
pub struct TalkArgs {
    /// First message, of the role system
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// JSON object with variables of the chat template, as {"enable_thinking": false}
    #[arg(long, value_name = "JSON")]
    pub template_arguments: Option<String>,
    /// How much the model thinks: none, minimal, low, medium, high, xhigh, max, or a word of its
    /// template
    #[arg(long, value_name = "WORD")]
    pub reasoning_effort: Option<String>,
    /// How to generate.
    #[command(flatten)]
    #[serde(flatten)]
    pub how: HowArgs,
}

/// `paceline status`, `paceline doctor` and `paceline policy show`, and a part of other commands
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// `paceline events`
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens next
    #[arg(long, short)]
    pub follow: bool,
    /// How many of those there were to begin with
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub last: u32,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Orders about the drafter.
#[derive(Debug, Subcommand)]
pub enum DrafterCommand {
    /// Start it
    Start(DrafterChange),
    /// Stop it
    Stop(WaitArgs),
    /// Start another, switch, stop the old one
    Swap(DrafterChange),
}

/// A change of the drafter; returns when it is so.
#[derive(Debug, Args)]
pub struct DrafterChange {
    /// Directory, org/name of a hub that was pulled, lookup or target; without it the one that runs
    /// or ran last, else drafter.model
    #[arg(long, value_name = "DIR|NAME|lookup|target")]
    pub model: Option<String>,
    /// How long to wait, and where the settings are.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// Orders about the target.
#[derive(Debug, Subcommand)]
pub enum TargetCommand {
    /// Load another checkpoint in the place of the present one. Running requests end first, new ones
    /// wait. If it cannot be loaded, the present one is loaded again. Until the service ends
    Swap(TargetSwapArgs),
}

/// `paceline target swap`
#[derive(Debug, Args)]
pub struct TargetSwapArgs {
    /// Directory, or org/name of a hub that was pulled
    #[arg(long, value_name = "DIR|NAME")]
    pub model: String,
    /// Seconds that running requests get to end, then they are UNAVAILABLE; without it 30
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(0..=4_000_000))]
    pub timeout: Option<u32>,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// How long to wait until an order is carried out.
#[derive(Clone, Debug, Default, Args)]
pub struct WaitArgs {
    /// Seconds to wait until it is so; without it two minutes. The order stands when the wait is
    /// over
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub timeout: Option<u32>,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Orders about the policy.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show what is in force, and who set it
    Show(ShowArgs),
    /// Change one key until the supervisor is started again
    Set(PolicySet),
}

/// `paceline policy set`
#[derive(Debug, Args)]
pub struct PolicySet {
    /// routing.force, routing.max_concurrent, routing.max_context or routing.kv_pressure
    pub key: String,
    /// As in the configuration
    #[arg(allow_hyphen_values = true)]
    pub value: String,
    /// How to show it, and where the settings are.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Subcommands about routes.
#[derive(Debug, Subcommand)]
pub enum RoutesCommand {
    /// Decide a log's routes once more, by another policy
    Replay(RoutesReplay),
}

/// `paceline routes replay`
#[derive(Debug, Args)]
pub struct RoutesReplay {
    /// The file of routing.route_log
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// Setting to change, as routing.max_concurrent=2
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `paceline restart`
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// The process to restart
    #[arg(value_enum)]
    pub process: Process,
    /// Give running requests of a gateway or a drafter no time to end
    #[arg(long)]
    pub now: bool,
    /// Let running requests end before a target or a supervisor is restarted; without it they pause
    /// and go on
    #[arg(long, conflicts_with = "now")]
    pub drain: bool,
    /// How long to wait, and where the settings are.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// `paceline drain`
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Take requests again
    #[arg(long)]
    pub undo: bool,
    /// How long to wait, and where the settings are.
    #[command(flatten)]
    pub wait: WaitArgs,
}

/// `paceline logs`
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The process whose log is shown; without it all
    #[arg(value_enum)]
    pub process: Option<Process>,
    /// Go on with what is logged next
    #[arg(long, short)]
    pub follow: bool,
    /// How many lines of each there are to begin with
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub lines: u32,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// A process of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Process {
    /// Front door
    Gateway,
    /// Target worker
    Target,
    /// Drafter worker
    Drafter,
    /// Owner of the workers
    Supervisor,
}

/// Subcommands about keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key: its line on standard output, the key itself on standard error, once
    New(KeyNew),
    /// The line of a key that is read from standard input
    Digest(KeyDigest),
}

/// `paceline key new`
#[derive(Debug, Args)]
pub struct KeyNew {
    /// Whose key it is: letters, digits, "-", "_" and "."
    pub name: String,
    /// Print one JSON object with name, key and line instead
    #[arg(long)]
    pub json: bool,
}

/// `paceline key digest`
#[derive(Debug, Args)]
pub struct KeyDigest {
    /// Whose key it is
    pub name: String,
}

/// `paceline selftest`
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// The target, a directory or a name; without it target.model of the configuration
    #[arg(long, value_name = "DIR|NAME")]
    pub model: Option<String>,
    /// The drafter, a directory, a name, lookup or target; without it drafter.model
    #[arg(long, value_name = "DIR|NAME|lookup|target")]
    pub drafter: Option<String>,
    /// Drafters to measure one after another on the same prompts, as DIR,ORG/NAME,lookup,target;
    /// the fastest is recommended
    #[arg(long, value_name = "DRAFTERS", value_delimiter = ',', conflicts_with = "drafter")]
    pub drafters: Vec<String>,
    /// Prompts of each kind: of the six embedded ones, or those of --from
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=40))]
    pub prompts: u32,
    /// Prompts of your own: a file with a JSON object in each line, {"prompt": "..."} or {"messages":
    /// [...]}, and "kind" if there are several
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Ask no further prompt after this time, which begins when the model is loaded; with
    /// --drafters for each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Print one JSON object with all figures
    #[arg(long)]
    pub json: bool,
    /// Where the settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// `paceline bench` and `paceline pull`: what another program reads.
#[derive(Debug, Args)]
pub struct OtherArgs {
    /// Words for that program, its help included.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

#[cfg(test)]
mod tests;
