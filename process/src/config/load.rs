//! Finding, reading and overlaying a configuration.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::known_keys::refuse_unknown;
use super::overlay::overlay;
use super::{CONFIG_VAR, Config, ConfigError, unserved};

/// A configuration and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The file that was read, if any, as an absolute path.
    pub file: Option<PathBuf>,
    /// Settings that are accepted but do nothing yet, one sentence each.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Finds, reads and checks the configuration of this process: `flag` (`--config`), else
    /// `PACELINE_CONFIG`, else `./paceline.toml`, else the user's configuration directory, else
    /// defaults.
    ///
    /// # Errors
    /// A named file that cannot be read; unknown keys; values of the wrong type or out of range;
    /// settings of features that this version lacks.
    pub fn find(flag: Option<&Path>) -> Result<Self, ConfigError> {
        Self::find_with(flag, &text_variables(std::env::vars_os())?)
    }

    /// As [`Loaded::find`], with these environment variables.
    fn find_with(
        flag: Option<&Path>,
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let named = match environment.iter().find(|(name, _)| name == CONFIG_VAR) {
            _ if flag.is_some() => flag.map(Path::to_path_buf),
            Some((_, path)) if path.is_empty() => return Self::build(None, environment),
            Some((_, path)) => Some(PathBuf::from(path)),
            None => None,
        };
        let user = crate::platform::config_dir().map(|dir| dir.join("paceline/paceline.toml"));
        let file = named.or_else(|| {
            [Some(PathBuf::from("paceline.toml")), user]
                .into_iter()
                .flatten()
                .find(|path| path.is_file())
        });
        Self::build(file.as_deref(), environment)
    }

    /// Reads `file` and lays `environment` over it.
    ///
    /// # Errors
    /// As [`Loaded::find`].
    pub fn build(
        file: Option<&Path>,
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let Some(path) = file else {
            return Self::from_table(toml::Table::new(), "no file", environment);
        };
        let read = |cause| ConfigError::Read { path: path.to_path_buf(), cause };
        let text = std::fs::read_to_string(path).map_err(read)?;
        let file = std::path::absolute(path).map_err(read)?;
        let loaded =
            Self::from_table(parse(&text, path)?, &path.display().to_string(), environment)?;
        Ok(Self { file: Some(file), ..loaded })
    }

    /// Lays `environment` over a file's text. For fuzzing.
    ///
    /// # Errors
    /// As [`Loaded::find`].
    pub fn from_text(text: &str, environment: &[(String, String)]) -> Result<Self, ConfigError> {
        Self::from_table(parse(text, Path::new("the text"))?, "the text", environment)
    }

    fn from_table(
        mut table: toml::Table,
        place: &str,
        environment: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let known = toml::Table::try_from(Config::default()).expect("the defaults are plain TOML");
        refuse_unknown(&table, &known, place)?;
        overlay(&mut table, &known, environment)?;
        let config: Config =
            serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| {
                ConfigError::Value {
                    key: error.path().to_string(),
                    what: error.inner().message().to_owned(),
                }
            })?;
        config.validate()?;
        let warnings = unserved::check(&config)?;
        Ok(Self { config, file: None, warnings })
    }
}

/// The variables that are text. A variable of ours that is not UTF-8 is refused; foreign variables
/// may hold any bytes and are left out.
pub(super) fn text_variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut variables = Vec::new();
    for (name, value) in all {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => variables.push((name, value)),
            _ if shown == CONFIG_VAR
                || (shown.starts_with("PACELINE_") && shown.contains("__")) =>
            {
                let what = "expected UTF-8 text, found other bytes in this environment variable; set it anew, or unset it";
                return Err(ConfigError::Value { key: shown, what: what.to_owned() });
            }
            _ => {}
        }
    }
    Ok(variables)
}

fn parse(text: &str, path: &Path) -> Result<toml::Table, ConfigError> {
    text.parse()
        .map_err(|cause| ConfigError::Syntax { path: path.to_path_buf(), cause: Box::new(cause) })
}
