//! Measured costs on disk: what steps of this model and drafts of its drafters cost on this machine.
//! A restarted target begins with them instead of assumptions.
//!
//! One small JSON file a model in the cache directory. It is a cache: a file that cannot be read, that
//! another version wrote, or that has costs no machine has, is ignored and replaced. A failed write is
//! logged once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use paceline_checkpoint::digest;
use paceline_models::{Products, TargetInfo};
use paceline_process::config::{AUTO_COSTS, TargetConfig};
use paceline_target_core::{CostCell, Size};
use serde::{Deserialize, Serialize};

/// Version of the format.
const VERSION: u32 = 1;
/// Most drafters of a file. The one that was used longest ago is dropped.
const MAX_DRAFTERS: usize = 8;
/// Most files of the directory. The one that was written longest ago is removed.
const MAX_FILES: usize = 64;
/// Largest file that is read: four times what a full one has.
const MAX_BYTES: u64 = 1 << 20;

/// A cell, as it is stored: rows, sequences, positions of context, microseconds, times.
type StoredCell = [f64; 5];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Stored {
    version: u32,
    steps: Vec<StoredCell>,
    /// The one that was used last is the last one.
    drafters: Vec<StoredDrafter>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredDrafter {
    fingerprint: String,
    drafts: Vec<StoredCell>,
}

/// The measured costs of one model on disk.
#[derive(Debug)]
pub(crate) struct CostFile {
    /// `None`: nothing is stored.
    path: Option<PathBuf>,
    stored: Stored,
}

impl CostFile {
    /// The costs of the model in `model_dir`, as `config` has it loaded.
    pub(crate) fn of(config: &TargetConfig, info: &TargetInfo) -> Self {
        let directory = match config.saved_costs.as_str() {
            "" => None,
            AUTO_COSTS => {
                paceline_checkpoint::cache_dir().map(|cache| cache.join("paceline/costs"))
            }
            path => Some(PathBuf::from(path)),
        };
        let of_this = digest::of_checkpoint(&info.path, &conditions(config, info.products));
        Self::open(directory.map(|directory| directory.join(format!("{of_this}.json"))))
    }

    /// Nothing is known, and nothing is saved.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self::open(None)
    }

    fn open(path: Option<PathBuf>) -> Self {
        let read = |path: &PathBuf| match read(path) {
            Ok(stored) => stored,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::info!(%error, path = %path.display(), "saved costs are not used");
                }
                Stored::default()
            }
        };
        let stored = path.as_ref().map(read).unwrap_or_default();
        Self { path, stored }
    }

    /// Costs of steps.
    pub(crate) fn steps(&self) -> Vec<CostCell> {
        self.stored.steps.iter().map(cell).collect()
    }

    /// Costs of a drafter's drafts.
    pub(crate) fn drafts(&self, fingerprint: &str) -> Vec<CostCell> {
        let mut drafters = self.stored.drafters.iter();
        let known = drafters.find(|drafter| drafter.fingerprint == fingerprint);
        known.into_iter().flat_map(|known| &known.drafts).map(cell).collect()
    }

    /// Takes what was measured of steps, and of the drafts of one drafter.
    pub(crate) fn set(&mut self, steps: &[CostCell], drafter: Option<(&str, &[CostCell])>) {
        self.stored.steps = steps.iter().map(stored_cell).collect();
        if let Some((fingerprint, drafts)) = drafter.filter(|(_, drafts)| !drafts.is_empty()) {
            let drafters = &mut self.stored.drafters;
            drafters.retain(|drafter| drafter.fingerprint != fingerprint);
            let drafts = drafts.iter().map(stored_cell).collect();
            drafters.push(StoredDrafter { fingerprint: fingerprint.to_owned(), drafts });
            drafters.drain(..drafters.len().saturating_sub(MAX_DRAFTERS));
        }
    }

    /// Writes the file. After a failed write nothing more is written.
    pub(crate) fn write(&mut self) {
        let Some(path) = &self.path else { return };
        if self.stored.steps.is_empty() {
            return;
        }
        self.stored.version = VERSION;
        if let Err(error) = write(path, &self.stored) {
            tracing::warn!(%error, path = %path.display(), "costs cannot be saved");
            self.path = None;
        }
    }
}

/// Conditions of the costs beside the model's files.
fn conditions(config: &TargetConfig, products: Products) -> String {
    let TargetConfig { device, threads, keep_quantized, .. } = config;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (arch, version) = (std::env::consts::ARCH, env!("CARGO_PKG_VERSION"));
    format!("{version} {arch} {cores} {device:?} {threads:?} {keep_quantized} {products}")
}

fn cell(stored: &StoredCell) -> CostCell {
    let [rows, sequences, context, us, times] = *stored;
    CostCell { size: Size { rows, sequences, context }, us, times }
}

fn stored_cell(cell: &CostCell) -> StoredCell {
    let CostCell { size: Size { rows, sequences, context }, us, times } = *cell;
    [rows, sequences, context, us, times]
}

fn read(path: &Path) -> io::Result<Stored> {
    let bytes = fs::metadata(path)?.len();
    if bytes > MAX_BYTES {
        let what = format!("expected at most {MAX_BYTES} bytes, found {bytes}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let stored: Stored = serde_json::from_slice(&fs::read(path)?)?;
    if stored.version != VERSION {
        let what = format!("expected version {VERSION}, found {}", stored.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let drafts = stored.drafters.iter().flat_map(|drafter| &drafter.drafts);
    let mut cells = stored.steps.iter().chain(drafts);
    if let Some(found) = cells.find(|stored| !cell(stored).is_plausible()) {
        let what = format!("expected costs that can be measured, found {found:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(stored)
}

/// Replaces the file by one rename, so that a reader sees the old one or the new one, whole.
fn write(path: &Path, stored: &Stored) -> io::Result<()> {
    let Some(directory) = path.parent() else { return Ok(()) };
    fs::create_dir_all(directory)?;
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, serde_json::to_vec(stored)?)?;
    fs::rename(&fresh, path)?;
    bound(directory)
}

/// Removes the files that were written longest ago.
fn bound(directory: &Path) -> io::Result<()> {
    let mut files = vec![];
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "json") {
            files.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    files.sort();
    let excess = files.len().saturating_sub(MAX_FILES);
    files.into_iter().take(excess).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(count: usize) -> Vec<CostCell> {
        let cell = |at| {
            let size = Size { rows: at as f64, sequences: 1.0, context: 0.25 };
            CostCell { size, us: 1e3 + at as f64, times: 3.0 }
        };
        (1..=count).map(cell).collect()
    }

    #[test]
    fn what_was_measured_is_read_again_for_the_drafter_it_was_measured_with() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new/a.json");
        let mut file = CostFile::open(Some(path.clone()));
        file.set(&cells(5), Some(("one", &cells(2))));
        file.set(&cells(6), Some(("other", &cells(3))));
        file.write();
        let again = CostFile::open(Some(path));
        assert_eq!(again.steps(), cells(6));
        assert_eq!((again.drafts("one"), again.drafts("other")), (cells(2), cells(3)));
        assert_eq!(again.drafts("none"), []);
    }

    #[test]
    fn each_kind_of_products_has_costs_of_its_own() {
        let of = |products| conditions(&TargetConfig::default(), products);
        assert_ne!(of(Products::Float), of(Products::Integer));
    }

    #[test]
    fn a_broken_file_and_one_of_another_version_are_ignored_and_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.json");
        let long = format!("\"{}\"", "a".repeat(MAX_BYTES as usize));
        let other = r#"{"version":2,"steps":[[1,1,0,9,9]],"drafters":[]}"#;
        let of_cells = |steps: &str, drafts: &str| {
            format!(
                r#"{{"version":1,"steps":[[1,1,0,900,9],{steps}],"drafters":[{{"fingerprint":"f","drafts":[{drafts}]}}]}}"#
            )
        };
        let good = "[2,1,0,900,9]";
        fs::write(&path, of_cells(good, good)).expect("written");
        assert_eq!(CostFile::open(Some(path.clone())).steps().len(), 2);
        let bad = |cell: &str| [of_cells(cell, good), of_cells(good, cell)];
        let without_sense = [
            "[2,1,0,1e-308,9]",
            "[2,1,0,1e308,9]",
            "[2,1,0,1e999,9]",
            "[2,1,0,null,9]",
            "[2,1,0,0,9]",
            "[2,1,0,-900,9]",
            "[-2,1,0,900,9]",
            "[2,0,0,900,9]",
            "[2,3,0,900,9]",
            "[1e300,1,0,900,9]",
            "[2,1,1e300,900,9]",
            "[2,1,-1,900,9]",
            "[2,1,0,900,-9]",
            "[2,1,0,900,1e308]",
        ];
        let senseless: Vec<String> = without_sense.into_iter().flat_map(bad).collect();
        let senseless = senseless.iter().map(String::as_str);
        for text in ["", "{", "[1]", other, &long].into_iter().chain(senseless) {
            fs::write(&path, text).expect("written");
            let mut file = CostFile::open(Some(path.clone()));
            assert_eq!((file.steps(), file.drafts("f")), (vec![], vec![]), "{text}");
            file.set(&cells(1), None);
            file.write();
            assert_eq!(CostFile::open(Some(path.clone())).steps(), cells(1));
        }
    }

    #[test]
    fn drafters_and_files_are_bounded_and_the_newest_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        for at in 0..MAX_FILES + 3 {
            let path = directory.path().join(format!("{at}.json"));
            let mut file = CostFile::open(Some(path));
            for drafter in 0..MAX_DRAFTERS + 2 {
                file.set(&cells(1), Some((&drafter.to_string(), &cells(1))));
            }
            file.write();
            assert_eq!(file.stored.drafters.len(), MAX_DRAFTERS);
            assert_eq!((file.drafts("0").len(), file.drafts("9").len()), (0, 1));
        }
        let left = fs::read_dir(directory.path()).expect("there").count();
        assert_eq!(left, MAX_FILES);
        assert!(directory.path().join(format!("{}.json", MAX_FILES + 2)).exists());
    }

    #[test]
    fn a_directory_that_cannot_be_written_costs_no_more_than_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut costs = CostFile::open(Some(file.path().join("a.json")));
        costs.set(&cells(1), None);
        costs.write();
        assert!(costs.path.is_none());
        costs.write();
    }
}
