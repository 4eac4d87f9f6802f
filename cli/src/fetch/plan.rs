//! The plan of a pull, as `paceline-pull --plan --json` prints it, and what a model on this machine
//! has in its place.

use std::path::Path;
use std::time::Duration;

use paceline_checkpoint::config;
use paceline_client::Failure;
use paceline_client::failure::{RUN, UNREACHABLE, USAGE};
use paceline_client::program::{complaint, output};
use serde::Deserialize;
use serde_json::Value;

/// What a pull would do.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PullPlan {
    /// Address of the hub.
    pub hub: String,
    /// Directory that the model will have.
    pub directory: String,
    /// The files that serving needs.
    pub files: Vec<Value>,
    /// Bytes that are to be fetched.
    pub fetch_bytes: u64,
    /// Bytes of the files with weights.
    pub weight_bytes: u64,
    /// Bytes that are free on the file system, if it tells.
    pub free_bytes: Option<u64>,
    /// Whether there is room for the bytes that are to be fetched.
    pub has_room: bool,
    /// The model's config.json.
    pub config: Value,
}

/// Asks for the plan of this model.
///
/// # Errors
/// The hub does not answer or refuses, or nothing is there and the network is not to be used.
pub async fn ask(name: &str, timeout: Duration) -> Result<PullPlan, Failure> {
    let output = output("paceline-pull", [name, "--plan", "--json"], None);
    let output = tokio::time::timeout(timeout, output).await.map_err(|_| {
        let seconds = timeout.as_secs();
        Failure::unreachable(format!("the hub did not describe {name} within {seconds} s"))
    })??;
    let failed = |message: String| match output.status.code() {
        Some(code) if code == i32::from(USAGE) => Failure::usage(message),
        Some(code) if code == i32::from(UNREACHABLE) => Failure::unreachable(message),
        _ => Failure::measuring(RUN, message),
    };
    if let Some(words) = complaint(&output) {
        return Err(failed(words.trim_start_matches("paceline pull: ").to_owned()));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| failed(format!("the plan for {name} is no JSON of ours: {error}")))
}

/// Configuration and bytes of weights of a model in this directory; `None` if it cannot be read.
pub fn local_model(dir: &Path) -> Option<(Value, u64)> {
    let config = config::read(dir).ok()?;
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let weights = entries
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "safetensors"))
        // Files of the Hugging Face cache are links.
        .filter_map(|entry| std::fs::metadata(entry.path()).ok());
    let stored = weights.map(|meta| meta.len()).fold(0, u64::saturating_add);
    Some((config, stored))
}
