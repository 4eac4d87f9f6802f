//! The models of a machine as a list has them.

use std::path::{Path, PathBuf};

use super::{MAX_FILES, missing_files};
use crate::ModelSummary;
use crate::files::CONFIG;
use crate::from_gguf::{self, GgufModel};

/// How a model came to this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointKind {
    /// With the programs.
    Embedded,
    /// By `paceline pull smollm2`.
    Smollm2,
    /// By `paceline pull`.
    Pulled {
        /// Whether the model's name stands for this revision.
        is_current: bool,
    },
    /// By a library of Hugging Face.
    HubCache {
        /// Whether the model's name would stand for this revision if nothing was pulled.
        is_current: bool,
    },
    /// By Ollama.
    Ollama,
    /// By LM Studio.
    LmStudio,
}

/// A model of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCheckpoint {
    /// Name of the checkpoint in settings.
    pub name: String,
    /// How it came here.
    pub kind: CheckpointKind,
    /// Commit of the checkpoint on the hub.
    pub revision: Option<String>,
    /// Directory of the checkpoint, or its GGUF file, the first one of a split model.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files that it needs and lacks.
    pub missing: Vec<String>,
}

impl ListedCheckpoint {
    /// The checkpoint in a directory.
    pub(super) fn of(
        name: String,
        kind: CheckpointKind,
        revision: Option<String>,
        path: PathBuf,
    ) -> Self {
        let (bytes, missing) = (bytes_below(&path), missing_files(&path));
        Self { name, kind, revision, path, bytes, missing }
    }

    /// The checkpoints in a directory: the one in safetensors, and each GGUF file. A file that is not alone
    /// has its own name behind the directory's, with `between` between them.
    pub(super) fn all_in(
        name: &str,
        between: char,
        kind: CheckpointKind,
        revision: Option<&str>,
        dir: &Path,
    ) -> Vec<Self> {
        let revision = revision.map(str::to_owned);
        let models = GgufModel::in_directory(dir);
        let is_alone = models.len() == 1 && from_gguf::first_file(dir).is_some();
        let whole = Self::of(name.to_owned(), kind, revision.clone(), dir.to_path_buf());
        if models.is_empty() || is_alone {
            return vec![whole];
        }
        let files = models.iter().map(|model| Self {
            name: format!("{name}{between}{}", model.file()),
            kind,
            revision: revision.clone(),
            path: dir.join(&model.name),
            bytes: model.bytes.unwrap_or(0),
            missing: if model.bytes.is_some() { vec![] } else { vec![model.name.clone()] },
        });
        let files: Vec<Self> = files.collect();
        let others = files.iter().map(|file| file.bytes).sum();
        let whole = Self { bytes: whole.bytes.saturating_sub(others), ..whole };
        let has_others = dir.join(CONFIG).is_file() && whole.missing.is_empty();
        has_others.then_some(whole).into_iter().chain(files).collect()
    }

    /// Whether this is a model, and not a directory of something else.
    pub(super) fn is_model(&self) -> bool {
        from_gguf::first_file(&self.path).is_some() || self.path.join(CONFIG).is_file()
    }

    /// Family and format of the checkpoint.
    pub fn summary(&self) -> ModelSummary {
        let file = match self.kind {
            CheckpointKind::Ollama => Some(self.path.clone()),
            _ => from_gguf::first_file(&self.path),
        };
        file.map_or_else(|| ModelSummary::of(&self.path), |file| from_gguf::summary(&file))
    }
}

/// The directories in `dir` whose names do not begin with a dot, by name.
pub(super) fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| !file_name(path).starts_with('.') && path.is_dir())
        .collect();
    found.sort();
    found
}

/// Bytes of the files below `dir`, links followed for files alone.
fn bytes_below(dir: &Path) -> u64 {
    let (mut bytes, mut files, mut rest) = (0, 0, vec![dir.to_path_buf()]);
    while let Some(dir) = rest.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            files += 1;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && files < MAX_FILES => rest.push(entry.path()),
                Ok(_) if files < MAX_FILES => {
                    bytes += std::fs::metadata(entry.path())
                        .ok()
                        .filter(std::fs::Metadata::is_file)
                        .map_or(0, |meta| meta.len());
                }
                _ => {}
            }
        }
    }
    bytes
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
