//! The settings of a service of our own: the configuration, with the models of the flags.

use std::path::{Path, PathBuf};

use paceline_checkpoint::{ModelPlaces, ModelRef};
use paceline_process::config::{Config, DrafterModels, WITHOUT_DIRECTORY};
use paceline_process::{Loaded, chain};

use crate::failure::Failure;

/// The settings, and the files that the service reads.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The settings, flags included.
    pub config: Config,
    /// Environment variables with the files of the configuration.
    pub files: Vec<(&'static str, String)>,
    /// Directory of the programs of another build; `None`: those beside this program.
    pub programs: Option<PathBuf>,
}

impl Settings {
    /// The configuration that is found, with the models that were named.
    ///
    /// # Errors
    /// The configuration cannot be used, or a directory that was named is none.
    pub fn find(
        config: Option<&Path>,
        model: Option<&str>,
        drafter: Option<&str>,
    ) -> Result<Self, Failure> {
        let loaded = Loaded::find(config)?;
        let files = loaded.variables().into();
        let Loaded { mut config, .. } = loaded;
        if let Some(model) = model {
            config.target.model = directory("--model", model)?;
        }
        if let Some(name) = drafter {
            config.drafter.model = DrafterModels::one(self::drafter("--drafter", name)?);
        }
        config.model_dir()?;
        Ok(Self { config, files, programs: None })
    }

    /// Settings with this target and no drafter, not even the embedded one.
    ///
    /// # Errors
    /// The configuration names no target that is there.
    pub fn without_drafter(mut self) -> Result<Self, Failure> {
        self.config.target.model = self.config.model_dir()?.display().to_string();
        self.config.drafter.model = DrafterModels::none();
        Ok(self)
    }
}

/// The drafter that `flag` names: one without a directory of its own, or an absolute directory.
///
/// # Errors
/// As [`directory`].
pub fn drafter(flag: &str, name: &str) -> Result<String, Failure> {
    if WITHOUT_DIRECTORY.contains(&name) { Ok(name.to_owned()) } else { directory(flag, name) }
}

/// The absolute directory of a model that `flag` names: services have other working directories.
///
/// # Errors
/// It is not there, or its path is not UTF-8.
pub fn directory(flag: &str, model: &str) -> Result<String, Failure> {
    let bad = |what: String| Failure::usage(format!("{flag}: {what}"));
    if model.is_empty() {
        return Err(bad("expected a directory or a name, found \"\"".into()));
    }
    let located = ModelPlaces::of_user().locate(&ModelRef::parse(model));
    let dir = located.map_err(|error| bad(chain(&error)))?;
    dir.into_os_string()
        .into_string()
        .map_err(|dir| bad(format!("expected a path in UTF-8, found {dir:?}")))
}
