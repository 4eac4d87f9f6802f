//! Directories of the models that a configuration names.

use std::path::{Path, PathBuf};

use super::{Config, ConfigError};

impl Config {
    /// Directory of the served model: `target.model`, or the embedded demo model.
    ///
    /// # Errors
    /// The directory does not exist, or the demo model is not where it is installed.
    pub fn model_dir(&self) -> Result<PathBuf, ConfigError> {
        let refuse = |what: String| ConfigError::value("target.model", what);
        if self.target.model.is_empty() {
            return demo_dir("target").ok_or_else(|| {
                refuse(
                    "none is set and the embedded demo model was not found beside the program; set it to a model directory"
                        .into(),
                )
            });
        }
        let dir = PathBuf::from(&self.target.model);
        if !dir.is_dir() {
            return Err(refuse(format!(
                "expected a model directory, found nothing at {}",
                dir.display()
            )));
        }
        std::path::absolute(&dir).map_err(|cause| ConfigError::ModelDir {
            key: "target.model",
            path: dir,
            cause,
        })
    }

    /// Directory of the configured drafter: `drafter.model`; where neither target nor drafter are
    /// set the embedded demo drafter; else none. It need not exist: a drafter that is not there
    /// costs speed, nothing else (I3).
    pub fn drafter_dir(&self) -> Option<PathBuf> {
        match (self.drafter.model.is_empty(), self.target.model.is_empty()) {
            (false, _) => Some(
                std::path::absolute(&self.drafter.model)
                    .unwrap_or_else(|_| PathBuf::from(&self.drafter.model)),
            ),
            (true, true) => demo_dir("drafter"),
            (true, false) => None,
        }
    }

    /// What clients call the served model: its directory's name, `demo-target` for the embedded
    /// one.
    pub fn model_name(&self) -> String {
        let name = Path::new(&self.target.model)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "demo-target".to_owned())
    }
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
