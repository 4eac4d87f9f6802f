//! Fetches a checkpoint from a hub into the user's cache. A program of its own, so that no process
//! of the service has an HTTP client. Not here: what is in a checkpoint.
//!
//! The steps of a pull:
//! 1. [`hub`] asks for the revision's commit and files.
//! 2. [`files`] chooses the files that serving needs.
//! 3. [`store`] takes the model's lock and checks the free space.
//! 4. [`download`] fetches each file into a folder of the pull.
//! 5. That folder is renamed when all files are there.
//!
//! A pull that ended early is continued by the next one.
//!
//! A module imports only modules of the lines above its own.
//!
//! ```text
//!  error · digest · progress     why a pull fails; digests; the progress bar
//!  url · files                   addresses; names of files, which are checked like all foreign data
//!  client · store                requests with redirects; the folders of a model
//!  hub · download · plan         the hub's answers; one file; what a pull would do
//!  needed                        the files that serving needs
//!  pull · parent                 the order of all; the end of the program that runs the pull
//! ```

mod client;
mod digest;
mod download;
mod error;
mod files;
mod hub;
mod needed;
mod parent;
mod plan;
mod progress;
mod pull;
mod store;
mod url;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use paceline_process::checkpoints::{ModelName, ModelPlaces};
use paceline_process::environment::env;
use paceline_process::{Exit, chain, lifecycle};

pub use error::PullError;

use client::Client;
use plan::PullPlan;
use progress::Progress;
use pull::Pull;
use url::Endpoint;

/// The hub, if `HF_ENDPOINT` names no other.
const HUB: &str = "https://huggingface.co";

/// Fetch a model from a hub
#[derive(Clone, Debug, Parser)]
#[command(name = "paceline pull", bin_name = "paceline pull", max_term_width = 110)]
pub struct Args {
    /// Model of the hub ($HF_ENDPOINT, without it huggingface.co; $HF_TOKEN for models that need an
    /// account); ORG/NAME/FOLDER is the model in a folder of a repository
    #[arg(value_name = "ORG/NAME")]
    pub model: ModelName,
    /// Branch, tag or commit; without it main
    #[arg(long, value_name = "R", default_value = "main", hide_default_value = true)]
    #[arg(value_parser = files::revision)]
    pub revision: String,
    /// Use no network, and show what is there; as with HF_HUB_OFFLINE=1
    #[arg(long)]
    pub offline: bool,
    /// Fetch weights also if the hub gives no digest for them, so that they cannot be checked
    #[arg(long)]
    pub allow_unverified: bool,
    /// Fetch nothing, and show what would be fetched and what room there is
    #[arg(long)]
    pub plan: bool,
    /// With --plan: one JSON object
    #[arg(long, requires = "plan")]
    pub json: bool,
}

/// Runs the command. The directory of the model goes to standard output, all else to standard
/// error.
pub fn run(args: &Args) -> ExitCode {
    lifecycle::settle();
    let progress = Progress::standard();
    if let Err(error) = parent::watch() {
        progress.complain(&error.to_string());
        return ExitCode::from(Exit::Config as u8);
    }
    match pull(args, &progress) {
        Ok(line) => {
            // A reader that is gone does not undo what was fetched.
            let _ = writeln!(std::io::stdout(), "{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            progress.complain(&chain(&error));
            ExitCode::from(error.exit())
        }
    }
}

fn pull(args: &Args, progress: &Progress) -> Result<String, PullError> {
    let places = ModelPlaces::of_user();
    let is_on = |name: &str| {
        let text = env(name).unwrap_or_default();
        matches!(text.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
    };
    if args.offline || is_on("HF_HUB_OFFLINE") {
        return match args.plan {
            true => pull::offline_plan(&places, &args.model, &args.revision)
                .map(|plan| shown(&plan, args.json)),
            false => pull::offline(&places, &args.model, &args.revision)
                .map(|dir| dir.display().to_string()),
        };
    }
    let set = env("HF_ENDPOINT").filter(|text| !text.is_empty());
    let endpoint = Endpoint::parse(set.as_deref().unwrap_or(HUB))?;
    let token = env("HF_TOKEN").filter(|token| !token.trim().is_empty());
    let client = Client::new(endpoint, token)?;
    let (model, allow_unverified) = (args.model.clone(), args.allow_unverified);
    let pull = Pull { client, places, progress, model, allow_unverified };
    if args.plan {
        return pull.plan(&args.revision).map(|plan| shown(&plan, args.json));
    }
    let dir = pull.run(&args.revision)?;
    Ok(dir.display().to_string())
}

fn shown(plan: &PullPlan, json: bool) -> String {
    match json {
        true => serde_json::to_string(plan).expect("a plan is plain JSON"),
        false => plan.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_contract_is_parsed() {
        for (line, parsed) in [
            ("pull org/name", true),
            ("pull org/name --revision refs/pr/1 --offline", true),
            ("pull org/name --allow-unverified", true),
            ("pull org/name/dflash", true),
            ("pull org/name/dflash/more", false),
            ("pull org/name --plan --json", true),
            ("pull org/name --json", false),
            ("pull", false),
            ("pull name", false),
            ("pull ../name", false),
            ("pull org/name --revision", false),
        ] {
            assert_eq!(Args::try_parse_from(line.split(' ')).is_ok(), parsed, "{line}");
        }
    }
}
