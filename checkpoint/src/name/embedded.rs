//! The models that lie with the programs: small ones, of which each has a drafter.

use std::path::{Path, PathBuf};

use crate::files::CONFIG;

/// Name of the embedded pair that reads text alone.
pub const DEMO_TARGET: &str = "demo-target";

/// The embedded models.
pub static EMBEDDED: [EmbeddedModel; 2] = [
    EmbeddedModel { name: DEMO_TARGET, folder: "target", drafter: "drafter" },
    EmbeddedModel { name: "demo-vision", folder: "vision/target", drafter: "vision/drafter" },
];

/// A model that lies with the programs.
#[derive(Debug, PartialEq, Eq)]
pub struct EmbeddedModel {
    /// Name of the model in settings and for clients.
    pub name: &'static str,
    folder: &'static str,
    drafter: &'static str,
}

impl EmbeddedModel {
    /// The embedded model of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        EMBEDDED.iter().find(|model| model.name == name)
    }

    /// The embedded model in this directory.
    pub fn at(dir: &Path) -> Option<&'static Self> {
        let dir = dir.canonicalize().ok()?;
        let is_there = |model: &&Self| {
            model.dir().and_then(|own| own.canonicalize().ok()).as_deref() == Some(&dir)
        };
        EMBEDDED.iter().find(is_there)
    }

    /// Directory of the model. `None` if this program lies neither in an installation nor in a source tree.
    pub fn dir(&self) -> Option<PathBuf> {
        demo_dir(self.folder)
    }

    /// Directory of its drafter.
    pub fn drafter_dir(&self) -> Option<PathBuf> {
        demo_dir(self.drafter)
    }
}

/// A folder of the embedded models: beside an installed program (`../share/paceline/demo`), or in
/// the source tree a program was built in.
pub fn demo_dir(which: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let installed = program.parent()?.parent()?.join("share/paceline/demo");
    let built = program.ancestors().skip(1).map(|dir| dir.join("demo"));
    std::iter::once(installed)
        .chain(built)
        .map(|demo| demo.join(which))
        .find(|dir| dir.join(CONFIG).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ModelRef;
    use crate::places::{missing_files, name_of};

    #[test]
    fn each_embedded_model_is_whole_and_known_by_name_and_by_directory() {
        for model in &EMBEDDED {
            let [dir, drafter] = [model.dir(), model.drafter_dir()]
                .map(|dir| dir.expect("the tests run in the source tree"));
            assert!(missing_files(&dir).is_empty() && missing_files(&drafter).is_empty());
            assert_eq!(ModelRef::parse(model.name), ModelRef::Embedded(model));
            assert_eq!(EmbeddedModel::at(&dir), Some(model));
            assert_eq!(EmbeddedModel::at(&drafter), None);
            assert_eq!(name_of(&dir).as_deref(), Some(model.name));
        }
        assert_eq!(EmbeddedModel::at(Path::new("/nowhere")), None);
    }
}
