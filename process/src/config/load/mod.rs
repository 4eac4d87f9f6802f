//! Finding and reading a configuration, layer by layer.

use std::path::{Path, PathBuf};

use super::assignment::{Assignment, FLAGS_VAR, flags_of, flags_text};
use super::default_model::{DEFAULT_MODEL_VAR, DefaultModel, stand_in_sentence};
use super::environment::{self, text_variables};
use super::kept::{self, KeptChange, SETTINGS_VAR};
use super::layers::Layers;
use super::model_dirs::PINS;
use super::source::{Setting, Source};
use super::{CONFIG_VAR, Config, ConfigError, warnings};
use paceline_checkpoint::{ModelPlaces, ModelRef, SMOLLM2};
use paceline_settings::changes_at_once;

/// A configuration and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The file that was read, if any, as an absolute path.
    pub file: Option<PathBuf>,
    /// The file of kept settings, as an absolute path. It need not exist. `None`: settings cannot be
    /// kept.
    pub kept_file: Option<PathBuf>,
    /// The settings of flags, those of an earlier process included.
    pub flags: Vec<Assignment>,
    /// Settings that an operator should know about, one sentence each.
    pub warnings: Vec<String>,
    settings: Vec<Setting>,
    /// The model of `config` if nothing names one.
    default_model: Option<DefaultModel>,
}

/// The files that a configuration is read from.
#[derive(Clone, Debug, Default)]
struct Files {
    config: Option<PathBuf>,
    kept: Option<PathBuf>,
}

impl Loaded {
    /// Finds, reads and checks the configuration of this process: `flag` (`--config`), else
    /// `PACELINE_CONFIG`, else `./paceline.toml`, else the user's configuration directory, else
    /// defaults. Kept settings, the environment and the flags of `paceline serve` are laid over it.
    ///
    /// # Errors
    /// A named file that cannot be read; unknown keys; values of the wrong type or out of range;
    /// settings of features that this version lacks.
    pub fn find(flag: Option<&Path>) -> Result<Self, ConfigError> {
        Self::find_with_flags(flag, &[])
    }

    /// As [`Loaded::find`], with the settings of flags, which win over all others. A later one wins
    /// over an earlier one.
    ///
    /// # Errors
    /// As [`Loaded::find`].
    pub fn find_with_flags(flag: Option<&Path>, flags: &[Assignment]) -> Result<Self, ConfigError> {
        let environment = text_variables(std::env::vars_os())?;
        Self::read(Files::find(flag, &environment)?, &environment, flags)
    }

    /// Reads `file`, with the kept settings beside it, and lays `environment` over it.
    ///
    /// # Errors
    /// As [`Loaded::find`].
    pub fn build(
        file: Option<&Path>,
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        Self::read(Files::of(file, environment)?, environment, &[])
    }

    /// Lays `environment` over a file's text. For fuzzing.
    ///
    /// # Errors
    /// As [`Loaded::find`].
    pub fn from_text(text: &str, environment: &[(String, String)]) -> Result<Self, ConfigError> {
        let table = parse(text, Path::new("the text"))?;
        Self::lay(Files::default(), table, toml::Table::new(), environment, &[])
    }

    /// Changes the kept settings, and returns the configuration that is found from now on.
    ///
    /// # Errors
    /// No file can be written, an unknown key, or a value that the configuration refuses. Then all
    /// kept settings are as they were.
    pub fn keep(flag: Option<&Path>, changes: &[KeptChange]) -> Result<Self, ConfigError> {
        let environment = text_variables(std::env::vars_os())?;
        Self::keep_with(Files::find(flag, &environment)?, changes, &environment)
    }

    fn keep_with(
        files: Files,
        changes: &[KeptChange],
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let Some(path) = files.kept.clone() else {
            let what = "expected a configuration file, or a directory for the user's settings, found neither; \
                        unset PACELINE_CONFIG and PACELINE_SETTINGS, or name a file with --config";
            return Err(ConfigError::value("config set", what));
        };
        let table = files.config_table()?;
        kept::change(&path, changes, |kept| Self::lay(files, table, kept, environment, &[]))
    }

    fn read(
        files: Files,
        environment: &[(String, String)],
        flags: &[Assignment],
    ) -> Result<Self, ConfigError> {
        let table = files.config_table()?;
        let kept = files.kept.as_deref().map_or_else(|| Ok(toml::Table::new()), kept::read)?;
        Self::lay(files, table, kept, environment, flags)
    }

    fn lay(
        files: Files,
        table: toml::Table,
        kept: toml::Table,
        environment: &[(String, String)],
        flags: &[Assignment],
    ) -> Result<Self, ConfigError> {
        let place = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "no file".to_owned(), |path| path.display().to_string())
        };
        let mut layers = Layers::new();
        layers.lay(table, Source::File, &place(&files.config))?;
        layers.lay(kept, Source::Kept, &place(&files.kept))?;
        for variable in environment::settings(environment) {
            layers.assign(&variable.assignment, Source::Environment, variable.name)?;
        }
        let inherited = environment::value(environment, FLAGS_VAR).map(flags_of).transpose()?;
        let flags: Vec<_> = inherited.into_iter().flatten().chain(flags.iter().cloned()).collect();
        for flag in &flags {
            layers.assign(flag, Source::Flag, "a flag of paceline serve")?;
        }
        for (variable, section) in PINS {
            if let Some(model) = environment::value(environment, variable) {
                layers.replace(section, "model", model.to_owned());
            }
        }
        let mut config = layers.config()?;
        config.validate()?;
        let mut warnings = warnings::of(&config);
        let settings = layers.settings(&config);
        let chosen = environment::value(environment, DEFAULT_MODEL_VAR);
        let default_model =
            DefaultModel::of(layers.section("target"), chosen, &ModelPlaces::of_user());
        if let Some(model) = &default_model {
            config.target.model.clone_from(&model.name);
            warnings.extend(model.is_stand_in.then(|| stand_in_sentence("")));
        }
        let Files { config: file, kept: kept_file } = files;
        Ok(Self { config, file, kept_file, flags, warnings, settings, default_model })
    }

    /// Whether nothing names a model, and the default is not on this machine: [`Loaded::config`] has
    /// the embedded model in its place.
    pub fn has_stand_in(&self) -> bool {
        self.default_model.as_ref().is_some_and(|model| model.is_stand_in)
    }

    /// Takes the default model if it has come since, else the stand-in for good, and returns the
    /// sentence about it. `why` is a clause about a fetch that failed.
    pub fn settle_default_model(&mut self, places: &ModelPlaces, why: &str) -> Option<String> {
        let model = self.default_model.as_mut().filter(|model| model.is_stand_in)?;
        model.is_stand_in = false;
        self.warnings.retain(|warning| *warning != stand_in_sentence(""));
        if places.locate(&ModelRef::Smollm2).is_err() {
            return Some(stand_in_sentence(why));
        }
        SMOLLM2.clone_into(&mut model.name);
        SMOLLM2.clone_into(&mut self.config.target.model);
        None
    }

    /// All settings with their sources.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The settings of the routing policy that are not at their default.
    pub fn changed_policy(&self) -> impl Iterator<Item = &Setting> {
        let defaults = Layers::new().settings(&Config::default());
        self.settings.iter().filter(move |setting| {
            let default = defaults.iter().find(|default| default.key == setting.key);
            changes_at_once("routing", &setting.key)
                && default.is_some_and(|default| default.value != setting.value)
        })
    }

    /// Where the value of `key` is from.
    pub fn source(&self, key: &str) -> Source {
        let setting = self.settings.iter().find(|setting| setting.key == key);
        setting.map_or(Source::Default, |setting| setting.source)
    }

    /// Environment variables by which a process that is started reads the same files and flags,
    /// whatever lies in its working directory.
    pub fn variables(&self) -> [(&'static str, String); 4] {
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
        };
        let chosen = self.default_model.as_ref().map(|model| model.name.clone());
        let chosen = chosen.unwrap_or_default();
        [
            (CONFIG_VAR, path(&self.file)),
            (SETTINGS_VAR, path(&self.kept_file)),
            (FLAGS_VAR, flags_text(&self.flags)),
            (DEFAULT_MODEL_VAR, chosen),
        ]
    }
}

impl Files {
    /// The files of this process.
    fn find(flag: Option<&Path>, environment: &[(String, String)]) -> Result<Self, ConfigError> {
        if flag.is_some() {
            return Self::of(flag, environment);
        }
        match environment::value(environment, CONFIG_VAR) {
            Some("") => Ok(Self { config: None, kept: named_kept(environment, None)? }),
            Some(path) => Self::of(Some(Path::new(path)), environment),
            None => {
                let user = paceline_system::platform::config_dir();
                let user = user.map(|dir| dir.join("paceline/paceline.toml"));
                let here = PathBuf::from("paceline.toml");
                let config =
                    [Some(&here), user.as_ref()].into_iter().flatten().find(|path| path.is_file());
                match config {
                    Some(path) => Self::of(Some(path), environment),
                    None => Ok(Self { config: None, kept: named_kept(environment, user)? }),
                }
            }
        }
    }

    /// This configuration file, and the kept settings beside it.
    fn of(file: Option<&Path>, environment: &[(String, String)]) -> Result<Self, ConfigError> {
        let absolute = |path: &Path| {
            std::path::absolute(path)
                .map_err(|cause| ConfigError::Read { path: path.to_path_buf(), cause })
        };
        let config = file.map(absolute).transpose()?;
        Ok(Self { kept: named_kept(environment, config.clone())?, config })
    }

    fn config_table(&self) -> Result<toml::Table, ConfigError> {
        let Some(path) = &self.config else { return Ok(toml::Table::new()) };
        let read = |cause| ConfigError::Read { path: path.clone(), cause };
        parse(&std::fs::read_to_string(path).map_err(read)?, path)
    }
}

/// The file of kept settings: the one that the environment names, else the one beside `config_file`.
fn named_kept(
    environment: &[(String, String)],
    config_file: Option<PathBuf>,
) -> Result<Option<PathBuf>, ConfigError> {
    match environment::value(environment, SETTINGS_VAR) {
        Some("") => Ok(None),
        Some(path) => std::path::absolute(path)
            .map(Some)
            .map_err(|cause| ConfigError::Read { path: path.into(), cause }),
        None => Ok(config_file.as_deref().map(kept::beside)),
    }
}

fn parse(text: &str, path: &Path) -> Result<toml::Table, ConfigError> {
    text.parse()
        .map_err(|cause| ConfigError::Syntax { path: path.to_path_buf(), cause: Box::new(cause) })
}

#[cfg(test)]
mod tests;
