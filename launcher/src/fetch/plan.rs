//! The plan of a pull, as `paceline-pull --plan --json` prints it, and what the model will take.

use std::path::Path;
use std::time::Duration;

use paceline_checkpoint::files::CONFIG;
use paceline_checkpoint::plan::{CheckpointPlan, PlanOptions, ServedCheckpoint};
use paceline_checkpoint::{CheckpointError, ConfigJson, Tensors};
use paceline_client::Failure;
use paceline_client::failure::{RUN, UNREACHABLE, USAGE};
use paceline_client::program::complaint;
use serde::Deserialize;
use serde_json::Value;

use super::{cannot_pull, pull_command};

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
    /// The model's config.json; null if it is not known before the fetch.
    pub config: Value,
    /// The headers of its files with weights; none if they are not known before the fetch.
    #[serde(default)]
    pub headers: Vec<RemoteHeader>,
}

/// The header of a safetensors file of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RemoteHeader {
    /// Name of the file.
    pub name: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// The header's JSON.
    pub header: String,
}

impl PullPlan {
    /// The model's config.json; `None` if it is not known before the fetch.
    ///
    /// # Errors
    /// It is no object.
    pub fn config_json(&self) -> Result<Option<ConfigJson>, CheckpointError> {
        match &self.config {
            Value::Null => Ok(None),
            config => ConfigJson::parse(Path::new(CONFIG), config.to_string().as_bytes()).map(Some),
        }
    }

    /// The tensors of its weights; `None` if they are not known before the fetch.
    ///
    /// # Errors
    /// A header is broken.
    pub fn tensors(&self) -> Result<Option<Tensors>, CheckpointError> {
        if self.headers.is_empty() {
            return Ok(None);
        }
        let files = self.headers.iter();
        let headers = files.map(|file| (file.name.as_str(), file.header.as_bytes(), file.bytes));
        Tensors::of_headers(headers).map(Some)
    }

    /// What the model takes as a target: by its headers, else by the bytes of its weights. `None` if
    /// nothing but these bytes is known before the fetch.
    ///
    /// # Errors
    /// Its files are broken, or of a family that is not served.
    pub fn of_target(
        &self,
        options: &PlanOptions,
    ) -> Result<Option<CheckpointPlan>, CheckpointError> {
        let Some(config) = self.config_json()? else { return Ok(None) };
        let plan = match self.tensors()? {
            Some(tensors) => {
                ServedCheckpoint::of(Path::new(&self.directory), config, tensors, options)?.plan()
            }
            None => CheckpointPlan::of_bytes(&config, self.weight_bytes, options),
        };
        plan.map(Some)
    }
}

/// Asks for the plan of this model.
///
/// # Errors
/// The hub does not answer or refuses, or nothing is there and the network is not to be used.
pub async fn ask(name: &str, timeout: Duration) -> Result<PullPlan, Failure> {
    let (mut command, _pipe) = pull_command(&[name, "--plan", "--json"])?;
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(timeout, output).await.map_err(|_| {
        let seconds = timeout.as_secs();
        Failure::unreachable(format!("the hub did not describe {name} within {seconds} s"))
    })?;
    let output = output.map_err(cannot_pull)?;
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
