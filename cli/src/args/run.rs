//! Arguments of `paceline run`.

use std::path::PathBuf;

use clap::Args;
use paceline_client::args::ConfigArg;
use paceline_process::config::Assignment;

/// Arguments of `paceline run`.
#[derive(Clone, Debug, Default, Args)]
pub struct RunArgs {
    /// The model: a directory, or org/name of a hub or a name of `paceline models --known`, which are
    /// fetched first if they are not here [default: target.model, which is smollm2 by default]
    #[arg(value_name = "DIR|NAME", default_value = "", hide_default_value = true)]
    pub model: String,
    /// The question; - reads it from standard input, as none does that is no terminal; without one a
    /// terminal talks, as `paceline chat` does
    #[arg(value_name = "TEXT")]
    pub question: Option<String>,
    /// Image to go with the question; may be given for several
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// First message, of the role system
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Most tokens to generate; without it up to the context's end
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// 0 takes the most probable token; without it the model's own default
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Seed of the draw; the same request with the same seed gives the same tokens
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Drafter, as `paceline serve --drafter` has it; a service that runs is not asked then
    #[arg(long, value_name = "DIR|NAME|lookup|target|off")]
    pub drafter: Option<String>,
    /// Setting, as target.threads=2; may be given for many; a service that runs is not asked then
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// Fetch nothing: refuse if the model is not on this machine
    #[arg(long)]
    pub offline: bool,
    /// Without a question: leave the file alone that keeps typed lines for the arrow keys of later
    /// conversations
    #[arg(long)]
    pub no_history: bool,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
    /// Print a line of figures to standard error even where it is no terminal
    #[arg(long, short)]
    pub verbose: bool,
    /// Where the other settings are.
    #[command(flatten)]
    pub config: ConfigArg,
}
