//! What is tested: the configuration, with the models of the flags.

use std::path::{Path, PathBuf};

use paceline_process::checkpoints::{ModelPlaces, ModelRef};
use paceline_process::config::{Config, DrafterModels, WITHOUT_DIRECTORY};
use paceline_process::{Loaded, chain};

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
    /// Drafters to compare, as the supervisor takes them; empty: the configured one alone.
    pub drafters: Vec<String>,
}

impl SelftestPlan {
    /// The plan of the arguments.
    ///
    /// # Errors
    /// The configuration cannot be used, or a directory that was named is none.
    pub fn from_args(args: &SelftestArgs) -> Result<Self, Failure> {
        let (mut config, file) = settings(
            args.config.config.as_deref(),
            args.model.as_deref(),
            args.drafter.as_deref(),
        )?;
        let drafters = args.drafters.iter().map(|one| drafter("--drafters", one));
        let drafters = drafters.collect::<Result<Vec<_>, _>>()?;
        if !drafters.is_empty() {
            // Each is started in turn.
            config.target.model = config.model_dir()?.display().to_string();
            config.drafter.model = DrafterModels::none();
        }
        Ok(Self { file, config, prompts: args.prompts as usize, drafters })
    }
}

/// The configuration that is found, with the models that were named, and its file.
///
/// # Errors
/// The configuration cannot be used, or a directory that was named is none.
pub fn settings(
    config: Option<&Path>,
    model: Option<&str>,
    drafter: Option<&str>,
) -> Result<(Config, Option<PathBuf>), Failure> {
    let Loaded { mut config, file, .. } = Loaded::find(config)?;
    if let Some(model) = model {
        config.target.model = directory("--model", model)?;
    }
    if let Some(name) = drafter {
        config.drafter.model = DrafterModels::one(self::drafter("--drafter", name)?);
    }
    config.model_dir()?;
    Ok((config, file))
}

/// The drafter that `flag` names: one without a directory of its own, or an absolute directory.
///
/// # Errors
/// As [`directory`].
fn drafter(flag: &str, name: &str) -> Result<String, Failure> {
    if WITHOUT_DIRECTORY.contains(&name) { Ok(name.to_owned()) } else { directory(flag, name) }
}

/// The absolute directory of a model that `flag` names: services have other working directories.
///
/// # Errors
/// It is not there, or its path is not UTF-8.
pub fn directory(flag: &str, model: &str) -> Result<String, Failure> {
    let bad = |what: String| Failure::usage(format!("{flag}: {what}"));
    let dir = match ModelRef::parse(model) {
        ModelRef::Embedded => return Err(bad("expected a directory or a name, found \"\"".into())),
        model => ModelPlaces::of_user().locate(&model).map_err(|error| bad(chain(&error)))?,
    };
    dir.into_os_string()
        .into_string()
        .map_err(|dir| bad(format!("expected a path in UTF-8, found {dir:?}")))
}
