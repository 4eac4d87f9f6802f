//! Directories of the models that a configuration names.

use std::path::PathBuf;

use super::{AUTO_DRAFTER, Config, ConfigError, DrafterChoice, LOOKUP};
use crate::chain;
use crate::checkpoints::{CURRENT, ModelPlaces, ModelRef, SMOLLM2, name_of};

impl Config {
    /// Replaces the names of models by their absolute directories. Done once by the process that
    /// starts others, which get the directories ([`Config::model_variables`]).
    ///
    /// # Errors
    /// As [`Config::model_dir`], and a path that is not UTF-8.
    pub fn resolve_models(&mut self) -> Result<(), ConfigError> {
        let text = |key: &str, dir: PathBuf| {
            dir.into_os_string().into_string().map_err(|dir| {
                ConfigError::value(key, format!("expected a path in UTF-8, found {dir:?}"))
            })
        };
        if !self.target.model.is_empty() {
            self.target.model = text("target.model", self.model_dir()?)?;
        }
        self.drafter.model = match self.drafter_choice() {
            DrafterChoice::Directory(dir) => text("drafter.model", dir)?,
            choice => choice.name(),
        };
        Ok(())
    }

    /// Environment variables by which a process that is started reads the same models.
    pub fn model_variables(&self) -> [(&'static str, &str); 2] {
        [
            ("PACELINE_TARGET__MODEL", &self.target.model),
            ("PACELINE_DRAFTER__MODEL", &self.drafter.model),
        ]
    }

    /// Absolute directory of the served model: `target.model`, or the embedded demo model.
    ///
    /// # Errors
    /// The directory does not exist, the named model is not on this machine, or the demo model is
    /// not where it is installed.
    pub fn model_dir(&self) -> Result<PathBuf, ConfigError> {
        ModelPlaces::of_user()
            .locate(&ModelRef::parse(&self.target.model))
            .map_err(|error| ConfigError::value("target.model", chain(&error)))
    }

    /// The configured drafter, `drafter.model`.
    pub fn drafter_choice(&self) -> DrafterChoice {
        self.drafter_named(&self.drafter.model)
    }

    /// The drafter that this value of `drafter.model` means.
    pub fn drafter_named(&self, model: &str) -> DrafterChoice {
        let has_embedded = self.target.model.is_empty() && self.drafter.kind != LOOKUP;
        let embedded = || demo_dir("drafter").filter(|_| has_embedded);
        match model {
            "" => DrafterChoice::None,
            LOOKUP => DrafterChoice::Lookup,
            AUTO_DRAFTER => embedded().map_or(DrafterChoice::Lookup, DrafterChoice::Directory),
            model => DrafterChoice::Directory(drafter_place(&ModelPlaces::of_user(), model)),
        }
    }

    /// Checks that the checkpoint that `drafter.model` names is there.
    ///
    /// # Errors
    /// It is not; the error has what to do.
    pub fn check_drafter_dir(&self) -> Result<(), ConfigError> {
        if ["", LOOKUP, AUTO_DRAFTER].contains(&self.drafter.model.as_str()) {
            return Ok(());
        }
        ModelPlaces::of_user()
            .locate(&ModelRef::parse(&self.drafter.model))
            .map(drop)
            .map_err(|error| ConfigError::value("drafter.model", chain(&error)))
    }

    /// What clients call the served model: its name on the hub, else its directory's name,
    /// `demo-target` for the embedded one.
    pub fn model_name(&self) -> String {
        let dir = match ModelRef::parse(&self.target.model) {
            ModelRef::Named(name) => return name.to_string(),
            ModelRef::Embedded => None,
            ModelRef::Smollm2 => return SMOLLM2.to_owned(),
            ModelRef::Directory(dir)
            | ModelRef::BelowHome(dir)
            | ModelRef::DirectoryIfThere(dir) => Some(dir),
        };
        let name = dir.and_then(|dir| name_of(&std::path::absolute(&dir).unwrap_or(dir)));
        name.unwrap_or_else(|| "demo-target".to_owned())
    }
}

/// Where a drafter is, or would be if it were there.
fn drafter_place(places: &ModelPlaces, model: &str) -> PathBuf {
    let model = ModelRef::parse(model);
    if let Ok(dir) = places.locate(&model) {
        return dir;
    }
    let own = places.own.clone().unwrap_or_default();
    let path = match model {
        ModelRef::Named(name) => own.join(name.folder()).join(CURRENT),
        ModelRef::Smollm2 => own.join(SMOLLM2),
        ModelRef::BelowHome(path) => places.home.clone().unwrap_or_default().join(path),
        ModelRef::Directory(path) | ModelRef::DirectoryIfThere(path) => path,
        ModelRef::Embedded => PathBuf::new(),
    };
    std::path::absolute(&path).unwrap_or(path)
}

/// The embedded demo model: beside an installed program (`../share/paceline/demo`), or in the
/// source tree a program was built in.
pub fn demo_dir(which: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let installed = program.parent()?.parent()?.join("share/paceline/demo");
    let built = program.ancestors().skip(1).map(|dir| dir.join("demo"));
    std::iter::once(installed)
        .chain(built)
        .map(|demo| demo.join(which))
        .find(|dir| dir.join("config.json").is_file())
}
