//! The order of a pull, its plan, and what offline mode shows.

use std::path::{Path, PathBuf};

use paceline_checkpoint::files::{self, CONFIG, INDEX};
use paceline_checkpoint::from_gguf::{GgufModel, config_of_head};
use paceline_checkpoint::gguf::Gguf;
use paceline_checkpoint::{ModelName, ModelNotFound, ModelPlaces, ModelRef, header, missing_files};
use serde_json::Value;

use crate::client::Client;
use crate::digest::Expected;
use crate::download::{Download, fetched};
use crate::error::PullError;
use crate::files::{is_gguf, is_safe, is_weights};
use crate::hub::{RemoteFile, Revision};
use crate::needed::{MAX_INDEX_BYTES, first_gguf, needed, total, weight_bytes};
use crate::plan::{MAX_CONFIG_BYTES, PlannedFile, PlannedHeader, PullPlan, read_config};
use crate::progress::{Progress, bytes};
use crate::store::{ModelFolder, check_space, clear, has_all, length, part_of};

/// Bytes of a file with weights that are asked for at first. Headers of most files are shorter.
const USUAL_HEADER_BYTES: u64 = 1 << 18;

/// Most bytes of the headers of all files: those of the largest models have some 20 MiB.
const MAX_HEADERS_BYTES: usize = 64 << 20;
/// Bytes of a GGUF file that are asked for, one number after the other until they have all that is before
/// the data. Vocabularies of 150,000 tokens take 6 MiB, the largest 16 MiB.
const GGUF_HEAD_BYTES: [u64; 2] = [8 << 20, 64 << 20];
/// Most files whose headers are read: the largest models have some 200.
const MAX_HEADERS: usize = 1_000;

/// A pull of one model.
pub(crate) struct Pull<'a> {
    pub(crate) client: Client,
    pub(crate) places: ModelPlaces,
    pub(crate) progress: &'a Progress,
    pub(crate) model: ModelName,
    /// Weights without a digest are fetched, too.
    pub(crate) allow_unverified: bool,
}

/// The directory of a model that is there, without asking the hub; of a chosen GGUF file its path.
///
/// # Errors
/// It is not there, or not in this revision.
pub(crate) fn offline(
    places: &ModelPlaces,
    model: &ModelName,
    revision: &str,
) -> Result<PathBuf, PullError> {
    let missing =
        || PullError::Offline { what: format!("{model} at {revision}"), model: model.to_string() };
    let named = places.of_model(model).map(|dir| dir.join(revision));
    let named = named.filter(|dir| is_safe(revision) && dir.is_dir());
    let there = named.and_then(|dir| match model.choice() {
        None => Some(dir).filter(|dir| missing_files(dir).is_empty()),
        Some(choice) => {
            let models = GgufModel::in_directory(&dir);
            let chosen = GgufModel::chosen(&models, choice);
            let whole = chosen.first().filter(|one| chosen.len() == 1 && one.bytes.is_some());
            whole.map(|one| dir.join(&one.name))
        }
    });
    if let Some(place) = there {
        return Ok(place);
    }
    // What `main` is now only the hub knows; the revision that was pulled last stands for it.
    if revision != "main" {
        return Err(missing());
    }
    places.locate(&ModelRef::Named(model.clone())).map_err(|error| match error {
        ModelNotFound::Unchosen(what) => PullError::Unusable(what),
        _ => missing(),
    })
}

impl Pull<'_> {
    /// Fetches a revision; returns its directory, or its GGUF file, the first one of a split model.
    pub(crate) fn run(&self, revision: &str) -> Result<PathBuf, PullError> {
        let dir = self.places.of_model(&self.model).ok_or(PullError::NoCache)?;
        let revision = Revision::fetch(&self.client, &self.model, revision)?;
        let commit = &revision.commit;
        let folder = ModelFolder::open(dir, self.progress)?;
        let (part, whole) = (folder.part(commit)?, folder.revision(commit));
        let needed = self.needed(&revision, &part, &whole)?;
        let place = |whole: PathBuf| match first_gguf(&needed) {
            Some(file) => whole.join(&file.name),
            None => whole,
        };
        if has_all(&whole, needed.iter()) {
            clear(&part, &needed);
            folder.make_current(commit)?;
            self.progress.line(&format!("{} is there already: {commit}", self.model));
            return Ok(place(whole));
        }
        self.check_digests(&needed)?;
        self.fetch_all(&needed, commit, &part)?;
        let whole = folder.publish(&part, commit, &needed)?;
        self.progress.line(&format!("{} is there: {commit}", self.model));
        for other in folder.others(commit) {
            let dir = folder.revision(&other);
            self.progress.line(&format!("another revision stays: {}", dir.display()));
        }
        Ok(place(whole))
    }

    /// The plan of a pull of this revision. Writes nothing. `with_headers`: a reader wants to know what the
    /// weights are.
    pub(crate) fn plan(&self, revision: &str, with_headers: bool) -> Result<PullPlan, PullError> {
        let dir = self.places.of_model(&self.model).ok_or(PullError::NoCache)?;
        let revision = Revision::fetch(&self.client, &self.model, revision)?;
        let (part, whole) = (part_of(&dir, &revision.commit), dir.join(&revision.commit));
        let read =
            |file: &RemoteFile, most| self.small_file(file, &revision, [&whole, &part], most);
        let needed = needed(&self.model, &revision, |index| read(index, MAX_INDEX_BYTES))?;
        self.check_digests(&needed)?;
        let is_whole = has_all(&whole, needed.iter());
        let files = needed.iter().map(|file| PlannedFile {
            name: file.name.clone(),
            bytes: file.size,
            there_bytes: if is_whole { file.size } else { fetched(&part, file) },
        });
        let config = revision.files.get(CONFIG).filter(|file| needed.contains(file));
        let config = config.map(|file| read_config(&read(file, MAX_CONFIG_BYTES)?)).transpose()?;
        let config = match first_gguf(&needed).filter(|_| with_headers && !is_whole) {
            Some(first) => self.gguf_config(first, &needed, &revision, config.as_ref())?,
            None => config.unwrap_or_default(),
        };
        let headers = match with_headers && !is_whole {
            true => self.headers(&needed, &revision)?,
            false => vec![],
        };
        Ok(PullPlan {
            model: self.model.to_string(),
            revision: revision.commit,
            weight_bytes: weight_bytes(&needed),
            config,
            headers,
            ..PullPlan::of_files(&self.client, &whole, files.collect(), 0)
        })
    }

    /// The headers of the files with weights among these. None if one cannot be had, which the load will
    /// complain of, or if they are more than any model's.
    fn headers(
        &self,
        needed: &[RemoteFile],
        revision: &Revision,
    ) -> Result<Vec<PlannedHeader>, PullError> {
        let (mut headers, mut length) = (vec![], 0);
        let with_header = |file: &&RemoteFile| is_weights(&file.name) && !is_gguf(&file.name);
        for file in needed.iter().filter(with_header) {
            let header = match self.header(file, revision) {
                Ok(header) => header,
                // Weights that the hub refuses fail the fetch, and not its plan.
                Err(PullError::Status { .. }) => None,
                Err(error) => return Err(error),
            };
            let Some(header) = header else { return Ok(vec![]) };
            length += header.header.len();
            headers.push(header);
            if length > MAX_HEADERS_BYTES || headers.len() > MAX_HEADERS {
                return Ok(vec![]);
            }
        }
        Ok(headers)
    }

    /// The config.json of a model in the format GGUF, by the metadata of its first file. Null if only its
    /// other parts have what belongs to it.
    fn gguf_config(
        &self,
        first: &RemoteFile,
        needed: &[RemoteFile],
        revision: &Revision,
        beside: Option<&Value>,
    ) -> Result<Value, PullError> {
        let RemoteFile { name, size, .. } = first;
        let is_split = needed.iter().filter(|file| is_gguf(&file.name)).count() > 1;
        let mut problem = String::new();
        for most in GGUF_HEAD_BYTES {
            let url = self.client.endpoint().file(&self.model, &revision.commit, name);
            let head = match self.client.first_bytes(url, most, name) {
                // A file that the hub refuses fails the fetch, and not its plan.
                Err(PullError::Status { .. }) => return Ok(Value::Null),
                head => head?,
            };
            match config_of_head(&head, *size, beside) {
                Ok(config) => return Ok(config),
                Err(error) => problem = error.to_string(),
            }
            let is_all = (head.len() as u64) < most || Gguf::read_head(&head, *size).is_ok();
            if is_all {
                break;
            }
        }
        match is_split {
            true => Ok(Value::Null),
            false => Err(PullError::Unusable(format!("{name}: GGUF: {problem}"))),
        }
    }

    fn header(
        &self,
        file: &RemoteFile,
        revision: &Revision,
    ) -> Result<Option<PlannedHeader>, PullError> {
        let RemoteFile { name, size, .. } = file;
        let first = |most| {
            let url = self.client.endpoint().file(&self.model, &revision.commit, name);
            self.client.first_bytes(url, most, name)
        };
        let mut bytes = first(USUAL_HEADER_BYTES)?;
        let length =
            bytes.first_chunk::<8>().and_then(|length| header::length(*length, *size).ok());
        let Some(length) = length else { return Ok(None) };
        if bytes.len() < 8 + length {
            bytes = first(8 + length as u64)?;
        }
        let header = bytes.get(8..8 + length).and_then(|header| str::from_utf8(header).ok());
        let planned = |header: &str| PlannedHeader {
            name: name.clone(),
            bytes: *size,
            header: header.to_owned(),
        };
        Ok(header.map(planned))
    }

    /// The content of a file that a plan reads: from one of these directories, else from the hub.
    fn small_file(
        &self,
        file: &RemoteFile,
        revision: &Revision,
        dirs: [&Path; 2],
        most: u64,
    ) -> Result<Vec<u8>, PullError> {
        let paths = dirs.map(|dir| dir.join(&file.name));
        if let Some(path) = paths.iter().find(|path| length(path) == Some(file.size)) {
            return files::read(path, most).map_err(|cause| PullError::at(path, cause));
        }
        let url = self.client.endpoint().file(&self.model, &revision.commit, &file.name);
        self.client.get(url, 0, &file.name)?.read(most, &file.name)
    }

    /// The files that serving needs. The index of shards is fetched for it.
    fn needed(
        &self,
        revision: &Revision,
        part: &Path,
        whole: &Path,
    ) -> Result<Vec<RemoteFile>, PullError> {
        needed(&self.model, revision, |index| {
            let path = match length(&whole.join(INDEX)) == Some(index.size) {
                true => whole.join(INDEX),
                false => {
                    self.download(index, &revision.commit).run(part)?;
                    part.join(INDEX)
                }
            };
            files::read(&path, MAX_INDEX_BYTES).map_err(|cause| PullError::at(&path, cause))
        })
    }

    /// Warns of files whose content cannot be checked, because the hub gives no digest.
    ///
    /// # Errors
    /// One of them has weights, and that is not allowed.
    fn check_digests(&self, needed: &[RemoteFile]) -> Result<(), PullError> {
        let unverified = needed.iter().filter(|file| file.digest == Expected::Unknown);
        for RemoteFile { name, .. } in unverified {
            if is_weights(name) && !self.allow_unverified {
                return Err(PullError::Unusable(format!(
                    "{name}: expected a digest from the hub, found none, so the weights cannot be checked; use a hub that gives digests, or --allow-unverified if you trust this one"
                )));
            }
            self.progress
                .line(&format!("warning: {name} is not checked: the hub gives no digest for it"));
        }
        Ok(())
    }

    fn fetch_all(&self, needed: &[RemoteFile], commit: &str, part: &Path) -> Result<(), PullError> {
        let total = total(needed);
        let have: u64 = needed.iter().map(|file| fetched(part, file)).sum();
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
