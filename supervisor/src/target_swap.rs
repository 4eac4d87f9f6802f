//! Preparation of an operator's swap of the target: whether the checkpoint can be loaded here, and
//! what the workers are started with.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use paceline_checkpoint::plan::{Fit, ServedCheckpoint};
use paceline_checkpoint::{ModelPlaces, ModelRef};
use paceline_process::config::{ConfigError, TARGET_HEAD};
use paceline_process::{Config, Loaded};
use paceline_proto::report::DeviceReport;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_supervisor_core::WorkerId;
use paceline_vocabulary::chain;
use tokio::process::Command;
use tonic::Status;

use crate::child::{TARGET_BIN, beside, program};
use crate::config;
use crate::identities::WorkerIdentities;

/// Longest time of one check. Headers are read, and no weights.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// Name of the gateway's program, which knows the text files of models.
const GATEWAY: &str = "paceline-gateway";

/// What the workers of one model are started with.
#[derive(Clone, Debug)]
pub struct TargetSetup {
    /// Directory of the model, by the path that names it.
    pub model_dir: PathBuf,
    /// The same directory without links.
    pub place: PathBuf,
    /// Identities of its workers.
    pub identities: WorkerIdentities,
    /// Environment variables that name the models.
    pub variables: Vec<(&'static str, String)>,
    /// The drafters that `drafter.model` names with it.
    pub drafters: Vec<String>,
}

impl TargetSetup {
    /// The setup of this configuration, whose models are resolved.
    ///
    /// # Errors
    /// The model is not there.
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        let model_dir = config.model_dir()?;
        Ok(Self {
            place: model_dir.canonicalize().unwrap_or_else(|_| model_dir.clone()),
            model_dir,
            identities: WorkerIdentities::new(config),
            variables: config.model_variables().into(),
            drafters: config::plan(config).models,
        })
    }

    /// The files of a worker that is started with this model.
    pub(crate) fn files(&self, worker: WorkerId, model: &str) -> PathBuf {
        match worker {
            WorkerId::Drafter(_) if model != TARGET_HEAD => model.into(),
            _ => self.model_dir.clone(),
        }
    }
}

/// Message about a model that takes `need` bytes, of which `usable` are there.
fn too_large(need: u64, usable: u64) -> String {
    let [need, usable] = [need, usable].map(|bytes| bytes as f64 / f64::from(1 << 30));
    format!(
        "expected a model that fits, found one that takes {need:.1} GiB, of which {usable:.1} GiB can \
         be used when the present one has ended; choose a smaller model or one with fewer bits"
    )
}

/// Prepares swaps of the target.
#[derive(Clone, Debug)]
pub struct TargetPlanner {
    /// The configuration as it is written, with the names of models.
    config: Config,
    /// Environment variables with the files and flags of the configuration.
    variables: [(&'static str, String); 4],
    target: PathBuf,
    gateway: PathBuf,
}

impl TargetPlanner {
    /// A planner for this configuration, whose models are not resolved.
    ///
    /// # Errors
    /// The system does not say where our own program is.
    pub fn new(config: Config, variables: [(&'static str, String); 4]) -> std::io::Result<Self> {
        let target = program(TARGET_BIN, "paceline-target")?;
        let gateway = beside(&std::env::current_exe()?, GATEWAY)?;
        Ok(Self { config, variables, target, gateway })
    }

    /// The same planner with the settings as they are now.
    #[must_use]
    pub fn with_settings(&self, loaded: &Loaded) -> Self {
        Self { config: loaded.config.clone(), variables: loaded.variables(), ..self.clone() }
    }

    /// The setup for the model in this directory. The present target has `freed_bytes`, which are
    /// free when it has ended.
    ///
    /// # Errors
    /// No model is there, its files cannot be read, or it does not fit the machine.
    pub async fn plan(&self, model: &str, freed_bytes: u64) -> Result<TargetSetup, Status> {
        let refuse = |message: String| Reason::InvalidArgument.field("model", message);
        if !Path::new(model).is_absolute() {
            return Err(refuse(format!("expected an absolute path, found {model:?}")));
        }
        let named = ModelRef::Directory(model.into());
        let dir = ModelPlaces::of_user().locate(&named).map_err(|error| refuse(chain(&error)))?;
        let model = dir.to_str().unwrap_or(model);
        let question = ["--device", "--model", model];
        let output = self.check(&self.target, &question).await.map_err(refuse)?;
        let report: DeviceReport = serde_json::from_slice(&output).map_err(|error| {
            refuse(format!("the report of the device is not readable: {error}"))
        })?;
        let need = self.needed_bytes(dir.clone(), &report).await.map_err(refuse)?;
        let usable = report.usable_bytes.map(|free| free.saturating_add(freed_bytes));
        if let Some(usable) = usable.filter(|usable| *usable < need) {
            return Err(refuse(too_large(need, usable)));
        }
        self.check(&self.gateway, &["--check-model", model]).await.map_err(refuse)?;
        let mut config = self.config.with_target(model);
        config.resolve_models().map_err(|error| refuse(chain(&error)))?;
        TargetSetup::of(&config).map_err(|error| refuse(chain(&error)))
    }

    /// Bytes that the model in `dir` takes with its shortest sequence.
    async fn needed_bytes(&self, dir: PathBuf, report: &DeviceReport) -> Result<u64, String> {
        let (options, memory) = (self.config.plan_options(report), self.config.kv_memory());
        // A head that may be the embedding is read.
        let plan = tokio::task::spawn_blocking(move || {
            let plan = ServedCheckpoint::open(&dir, &options).and_then(|served| served.plan());
            plan.map_err(|error| chain(&error))
        });
        let plan = tokio::time::timeout(CHECK_TIMEOUT, plan).await.map_err(|_| {
            let seconds = CHECK_TIMEOUT.as_secs();
            format!("the headers of the model's files were not read within {seconds} s")
        })?;
        let plan = plan.map_err(|error| chain(&error))??;
        Ok(Fit::new(&plan, memory, None).needed())
    }

    /// Standard output of a program that checks a model; the error is what it says.
    async fn check(&self, program: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let name = program.display();
        let output = match tokio::time::timeout(CHECK_TIMEOUT, command.output()).await {
            Ok(output) => output.map_err(|error| format!("cannot start {name}: {error}"))?,
            Err(_) => {
                let seconds = CHECK_TIMEOUT.as_secs();
                return Err(format!("{name} did not check the model within {seconds} s"));
            }
        };
        if output.status.success() {
            return Ok(output.stdout);
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(match words.trim() {
            "" => format!("{name}: {}", output.status),
            words => words.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_too_large_is_refused_in_gib() {
        let message = too_large(83_751_862_272, 21_474_836_480);
        assert!(message.contains("78.0 GiB") && message.contains("20.0 GiB"), "{message}");
        assert!(!message.contains("83751862272"), "{message}");
    }
}
