//! Arguments of `paceline run`.

use clap::Args;

/// Arguments of `paceline run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The model: a directory, org/name of a hub, or smollm2
    #[arg(value_name = "DIR|NAME")]
    pub model: String,
    /// The question
    #[arg(value_name = "TEXT")]
    pub question: String,
}
