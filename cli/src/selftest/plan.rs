//! What is tested: the configuration, with the models of the flags.

use std::path::{Path, PathBuf};

use paceline_process::Loaded;
use paceline_process::config::Config;

use crate::args::SelftestArgs;
use crate::failure::Failure;

/// The models, and the number of prompts.
#[derive(Clone, Debug)]
pub struct SelftestPlan {
    /// Configuration file that the service reads, if any.
    pub file: Option<PathBuf>,
    /// The settings, flags included.
    pub config: Config,
    /// Prompts of each kind.
    pub prompts: usize,
}

impl SelftestPlan {
    /// The plan of the arguments.
    ///
    /// # Errors
    /// The configuration cannot be used, or a directory that was named is none.
    pub fn from_args(args: &SelftestArgs) -> Result<Self, Failure> {
        let (config, file) = settings(
            args.config.config.as_deref(),
            args.model.as_deref(),
            args.drafter.as_deref(),
        )?;
        Ok(Self { file, config, prompts: args.prompts as usize })
    }
}

/// The configuration that is found, with the models that were named, and its file.
///
/// # Errors
/// The configuration cannot be used, or a directory that was named is none.
pub fn settings(
    config: Option<&Path>,
    model: Option<&Path>,
    drafter: Option<&Path>,
) -> Result<(Config, Option<PathBuf>), Failure> {
    let Loaded { mut config, file, .. } = Loaded::find(config)?;
    if let Some(dir) = model {
        config.target.model = directory("--model", dir)?;
    }
    if let Some(dir) = drafter {
        config.drafter.model = directory("--drafter", dir)?;
    }
    config.model_dir()?;
    Ok((config, file))
}

fn directory(flag: &str, dir: &Path) -> Result<String, Failure> {
    if !dir.is_dir() {
        return Err(Failure::usage(format!(
            "{flag}: expected a model directory, found none at {}",
            dir.display()
        )));
    }
    let absolute =
        std::path::absolute(dir).map_err(|error| Failure::usage(format!("{flag}: {error}")))?;
    Ok(absolute.display().to_string())
}
