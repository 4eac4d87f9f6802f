//! Decides what happens to each file: written, left as it is, removed, or in the way.

use std::path::PathBuf;

/// Sentence in each file that `install` writes. `uninstall` and a later `install` touch no file
/// without it.
pub const MARK: &str = "Written by `paceline service install`.";

/// A file of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Where it is written.
    pub path: PathBuf,
    /// Its whole content.
    pub text: String,
}

/// What lies at the place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Absent,
    /// A file that `install` wrote.
    Ours(String),
    /// Something else: another file, a link, a directory.
    Foreign,
}

/// What an installation does to the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files to write, because they are missing or differ.
    pub write: Vec<PlannedFile>,
    /// Files of an earlier installation that this one does not have.
    pub remove: Vec<PathBuf>,
    /// Whether an earlier installation is there.
    pub installed: bool,
}

impl Changes {
    /// Whether a file whose name ends so is written or removed.
    pub fn touches(&self, ending: &str) -> bool {
        let written = self.write.iter().map(|file| &file.path);
        written.chain(&self.remove).any(|path| path.to_string_lossy().ends_with(ending))
    }
}

/// Decides about the files of a service. `known` are all places that any installation may have.
///
/// # Errors
/// The places that hold something that `install` did not write, unless they are to be replaced.
pub fn decide(
    files: Vec<PlannedFile>,
    known: &[(PathBuf, Found)],
    force: bool,
) -> Result<Changes, Vec<PathBuf>> {
    let found = |path: &PathBuf| {
        known.iter().find(|(place, _)| place == path).map_or(&Found::Absent, |(_, found)| found)
    };
    let in_the_way: Vec<PathBuf> = files
        .iter()
        .filter(|file| *found(&file.path) == Found::Foreign)
        .map(|file| file.path.clone())
        .collect();
    if !in_the_way.is_empty() && !force {
        return Err(in_the_way);
    }
    let is_planned = |path: &PathBuf| files.iter().any(|file| file.path == *path);
    let ours = || known.iter().filter(|(_, found)| matches!(found, Found::Ours(_)));
    let remove = ours().map(|(path, _)| path.clone()).filter(|path| !is_planned(path)).collect();
    let installed = ours().next().is_some();
    let differs = |file: &PlannedFile| *found(&file.path) != Found::Ours(file.text.clone());
    let write = files.into_iter().filter(differs).collect();
    Ok(Changes { write, remove, installed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> PlannedFile {
        PlannedFile { path: name.into(), text: text.into() }
    }

    fn names(changes: &Changes) -> (Vec<String>, Vec<String>) {
        let shown = |path: &PathBuf| path.display().to_string();
        (
            changes.write.iter().map(|file| shown(&file.path)).collect(),
            changes.remove.iter().map(shown).collect(),
        )
    }

    #[test]
    fn a_file_is_written_if_it_is_missing_or_differs_and_removed_if_it_is_no_longer_planned() {
        let planned = vec![file("a", "1"), file("b", "1"), file("c", "1")];
        let known = [
            ("a".into(), Found::Ours("1".into())),
            ("b".into(), Found::Ours("0".into())),
            ("c".into(), Found::Absent),
            ("d".into(), Found::Ours("1".into())),
            ("e".into(), Found::Foreign),
        ];
        let changes = decide(planned, &known, false).expect("nothing is in the way");
        let expected = (vec!["b".to_owned(), "c".to_owned()], vec!["d".to_owned()]);
        assert_eq!((names(&changes), changes.installed), (expected, true));
        assert!(changes.touches("d") && !changes.touches("a"));
    }

    #[test]
    fn what_install_did_not_write_is_replaced_only_by_force() {
        let planned = vec![file("a", "1"), file("b", "1")];
        let known = [("a".into(), Found::Foreign), ("b".into(), Found::Absent)];
        assert_eq!(decide(planned.clone(), &known, false), Err(vec!["a".into()]));
        let changes = decide(planned, &known, true).expect("forced");
        assert_eq!(names(&changes).0, ["a", "b"]);
        assert!(!changes.installed);
    }
}
