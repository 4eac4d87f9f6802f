//! Models that LM Studio fetched: `<its folder>/PUBLISHER/REPOSITORY/FILE.gguf`. The folder is only read.

use std::path::PathBuf;

use super::listed::{directories, file_name};
use super::{CheckpointKind, ListedCheckpoint, ModelNotFound, missing_files};
use crate::from_gguf::GgufModel;
use crate::name::decimal;

/// What a model of LM Studio means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LmStudioModel {
    /// A GGUF file, the first one of a split model.
    Gguf(PathBuf),
    /// A directory with a checkpoint in safetensors.
    Directory(PathBuf),
}

/// The model `PUBLISHER/REPOSITORY` or `PUBLISHER/REPOSITORY/FILE.gguf` in the first of these folders
/// that has the repository.
pub(super) fn find(roots: &[PathBuf], text: &str) -> Result<LmStudioModel, ModelNotFound> {
    let unusable = |what: String| Err(ModelNotFound::Unusable(what));
    let parts: Vec<&str> = text.split('/').collect();
    let are_plain = parts.iter().all(|part| !part.is_empty() && !part.starts_with('.'));
    let (place, file) = match (are_plain, parts.as_slice()) {
        (true, [publisher, repository]) => (format!("{publisher}/{repository}"), None),
        (true, [publisher, repository, file]) => (format!("{publisher}/{repository}"), Some(*file)),
        _ => {
            return unusable(format!(
                "expected lmstudio:PUBLISHER/REPOSITORY or lmstudio:PUBLISHER/REPOSITORY/FILE.gguf, found \"lmstudio:{text}\""
            ));
        }
    };
    let Some(dir) = roots.iter().map(|root| root.join(&place)).find(|dir| dir.is_dir()) else {
        let places: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
        let places = if places.is_empty() { "no folder".to_owned() } else { places.join(" and ") };
        return unusable(format!(
            "LM Studio has no model {place} on this machine: looked into {places}; fetch it in LM Studio, or name the path of a file or directory"
        ));
    };
    let models = GgufModel::in_directory(&dir);
    let chosen = match file {
        Some(file) => GgufModel::chosen(&models, file),
        None => models.iter().collect(),
    };
    let list = GgufModel::list(&models, decimal);
    match (chosen.as_slice(), file) {
        ([one], _) => Ok(LmStudioModel::Gguf(dir.join(&one.name))),
        ([], None) if missing_files(&dir).is_empty() => Ok(LmStudioModel::Directory(dir)),
        ([], None) => unusable(format!(
            "expected a GGUF file or a whole checkpoint in {}, found none; fetch the model in LM Studio again",
            dir.display()
        )),
        ([], Some(file)) => unusable(format!(
            "lmstudio:{place} has no GGUF file {file}; it has {}",
            if list.is_empty() { "none" } else { &list }
        )),
        (several, _) => unusable(format!(
            "lmstudio:{place} has {} GGUF files: {list}; name one, as lmstudio:{place}/{}",
            several.len(),
            several[0].file()
        )),
    }
}

/// All models in these folders, by name.
pub(super) fn list(roots: &[PathBuf]) -> Vec<ListedCheckpoint> {
    let mut listed = vec![];
    for dir in roots.iter().flat_map(|root| directories(root)).flat_map(|dir| directories(&dir)) {
        let publisher = dir.parent().map(file_name).unwrap_or_default();
        let name = format!("lmstudio:{publisher}/{}", file_name(&dir));
        let all = ListedCheckpoint::all_in(&name, '/', CheckpointKind::LmStudio, None, &dir);
        listed.extend(all.into_iter().filter(ListedCheckpoint::is_model));
    }
    listed
}
