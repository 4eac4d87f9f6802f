//! The order of a pull, and what offline mode shows.

use std::path::{Path, PathBuf};

use paceline_process::checkpoints::{ModelName, ModelPlaces, ModelRef, missing_files};

use crate::client::Client;
use crate::digest::Expected;
use crate::download::{Download, part_path};
use crate::error::PullError;
use crate::files::{CONFIG, INDEX, WEIGHTS, is_safe, is_weights, shards, small};
use crate::hub::{RemoteFile, Revision};
use crate::progress::{Progress, bytes};
use crate::store::{ModelFolder, check_space, has_all, length};

/// Most bytes of an index of shards: those of the largest models have some 10 MiB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Most bytes of the other small files together: tokenizers have some 20 MiB.
const MAX_SMALL_BYTES: u64 = 512 << 20;

/// A pull of one model.
pub(crate) struct Pull<'a> {
    pub(crate) client: Client,
    pub(crate) places: ModelPlaces,
    pub(crate) progress: &'a Progress,
    pub(crate) model: ModelName,
    /// Weights without a digest are fetched, too.
    pub(crate) allow_unverified: bool,
}

/// The directory of a model that is there, without asking the hub.
///
/// # Errors
/// It is not there, or not in this revision.
pub(crate) fn offline(
    places: &ModelPlaces,
    model: &ModelName,
    revision: &str,
) -> Result<String, PullError> {
    let missing = || PullError::Offline { model: model.clone(), revision: revision.to_owned() };
    let named = places.of_model(model).map(|dir| dir.join(revision));
    let whole = |dir: &PathBuf| dir.is_dir() && missing_files(dir).is_empty();
    if let Some(dir) = named.filter(|_| is_safe(revision)).filter(whole) {
        return Ok(dir.display().to_string());
    }
    // What `main` is now only the hub knows; the revision that was pulled last stands for it.
    if revision != "main" {
        return Err(missing());
    }
    let dir = places.locate(&ModelRef::Named(model.clone())).map_err(|_| missing())?;
    Ok(dir.display().to_string())
}

impl Pull<'_> {
    /// Fetches a revision; returns its directory.
    ///
    /// # Errors
    /// See [`PullError`].
    pub(crate) fn run(&self, revision: &str) -> Result<PathBuf, PullError> {
        let dir = self.places.of_model(&self.model).ok_or(PullError::NoCache)?;
        let Revision { commit, files } = Revision::fetch(&self.client, &self.model, revision)?;
        let folder = ModelFolder::open(dir, self.progress)?;
        let part = folder.part(&commit)?;
        let whole = folder.revision(&commit);
        let revision = Revision { commit, files };
        let needed = self.needed(&revision, &part, &whole)?;
        if has_all(&whole, needed.iter()) {
            let _ = std::fs::remove_dir_all(&part);
            folder.make_current(&revision.commit)?;
            self.progress.line(&format!("{} is there already: {}", self.model, revision.commit));
            return Ok(whole);
        }
        self.check_digests(&needed)?;
        self.fetch_all(&needed, &revision.commit, &part)?;
        let whole = folder.publish(&part, &revision.commit)?;
        self.progress.line(&format!("{} is there: {}", self.model, revision.commit));
        for other in folder.others(&revision.commit) {
            let dir = folder.revision(&other);
            self.progress.line(&format!("another revision stays: {}", dir.display()));
        }
        Ok(whole)
    }

    /// The files that serving needs. The index of shards is fetched for it.
    fn needed(
        &self,
        revision: &Revision,
        part: &Path,
        whole: &Path,
    ) -> Result<Vec<RemoteFile>, PullError> {
        let Revision { commit, files } = revision;
        let unusable = |problem: String| PullError::Unusable { model: self.model.clone(), problem };
        let small = small(files.keys().map(String::as_str));
        let mut needed: Vec<RemoteFile> =
            small.iter().filter_map(|name| files.get(name)).cloned().collect();
        if !files.contains_key(CONFIG) {
            return Err(unusable(format!("has no {CONFIG}, so it is no model that can be served")));
        }
        let too_large = needed.iter().map(|file| file.size).fold(0, u64::saturating_add);
        if too_large > MAX_SMALL_BYTES {
            let found = bytes(too_large);
            return Err(unusable(format!(
                "has {found} of configuration and tokenizer, expected at most {}",
                bytes(MAX_SMALL_BYTES)
            )));
        }
        let Some(index) = files.get(INDEX) else {
            let weights = files.get(WEIGHTS).ok_or_else(|| {
                unusable(format!(
                    "has neither {WEIGHTS} nor {INDEX}; choose a repository with weights in safetensors"
                ))
            })?;
            needed.push(weights.clone());
            return Ok(needed);
        };
        if index.size > MAX_INDEX_BYTES {
            return Err(unusable(format!("has an index of {}", bytes(index.size))));
        }
        let path = match length(&whole.join(INDEX)) == Some(index.size) {
            true => whole.join(INDEX),
            false => {
                self.download(index, commit).run(part)?;
                part.join(INDEX)
            }
        };
        let text = std::fs::read(&path).map_err(|cause| PullError::at(&path, cause))?;
        let names = shards(&text)
            .map_err(|problem| PullError::Answer { what: INDEX.to_owned(), problem })?;
        for name in names {
            let shard = files.get(&name).ok_or_else(|| {
                unusable(format!("has no {name}, which its index names, or no size for it"))
            })?;
            needed.push(shard.clone());
        }
        Ok(needed)
    }

    /// Warns of files whose content cannot be checked, because the hub gives no digest.
    ///
    /// # Errors
    /// One of them has weights, and that is not allowed.
    fn check_digests(&self, needed: &[RemoteFile]) -> Result<(), PullError> {
        let unverified = needed.iter().filter(|file| file.digest == Expected::Unknown);
        for RemoteFile { name, .. } in unverified {
            if is_weights(name) && !self.allow_unverified {
                return Err(PullError::Unverified { what: name.clone() });
            }
            self.progress
                .line(&format!("warning: {name} is not checked: the hub gives no digest for it"));
        }
        Ok(())
    }

    fn fetch_all(&self, needed: &[RemoteFile], commit: &str, part: &Path) -> Result<(), PullError> {
        let there = |file: &RemoteFile| {
            let whole = length(&part.join(&file.name)).filter(|length| *length == file.size);
            let begun = || length(&part_path(part, &file.name)).filter(|have| *have <= file.size);
            whole.or_else(begun).unwrap_or(0)
        };
        let total = needed.iter().map(|file| file.size).fold(0, u64::saturating_add);
        let have: u64 = needed.iter().map(there).sum();
        check_space(part, total.saturating_sub(have))?;
        self.progress.begin(have, total);
        let (count, all) = (needed.len(), bytes(total));
        self.progress.line(&format!("{}: {count} files, {all}, revision {commit}", self.model));
        for file in needed {
            self.download(file, commit).run(part)?;
            self.progress.line(&format!("{}: {}", file.name, bytes(file.size)));
        }
        Ok(())
    }

    fn download<'a>(&'a self, file: &'a RemoteFile, commit: &str) -> Download<'a> {
        let url = self.client.endpoint().file(&self.model, commit, &file.name);
        Download { client: &self.client, progress: self.progress, file, url }
    }
}
