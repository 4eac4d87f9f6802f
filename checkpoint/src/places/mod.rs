//! The places where models lie: the user's cache, where `paceline pull` puts them, and folders of other
//! programs, which are only read: the cache of the Hugging Face libraries, Ollama's and LM Studio's.
//!
//! ```text
//! <user cache>/paceline/models/smollm2/                  config.json, …
//! <user cache>/paceline/models/org--name/<commit>/       config.json, …
//! <user cache>/paceline/models/org--name/current      →  <commit>
//! <user cache>/paceline/models/org--name--folder/…       the same, of a folder of the repository
//! <user cache>/paceline/gguf/NAME-KEY/                   stands for a GGUF file, which lies anywhere
//! $HF_HOME/hub/models--org--name/snapshots/<commit>/     config.json, …, links to blobs
//! $HF_HOME/hub/models--org--name/refs/main               the commit, as text
//! $OLLAMA_MODELS/manifests/…                             see `ollama`
//! ~/.lmstudio/models/PUBLISHER/REPOSITORY/               GGUF files, or config.json, …
//! ```

mod listed;
mod lm_studio;
mod ollama;
mod user;

use std::path::{Component, Path, PathBuf};

pub use listed::{CheckpointKind, ListedCheckpoint};
pub use user::{cache_dir, home_dir, xdg};

use crate::files::{self, CONFIG, WeightFiles};
use crate::from_gguf::{self, GgufModel, GgufSource, prepare_source};
use crate::gguf::{part_paths, stem};
use crate::name::{
    EMBEDDED, EmbeddedModel, ForeignName, ForeignProgram, KnownModel, ModelName, ModelRef, SMOLLM2,
    decimal,
};
use crate::{CheckpointError, ShardIndex};
use listed::{directories, file_name};
use lm_studio::LmStudioModel;

/// Link to the revision of a pulled model that its name stands for.
pub const CURRENT: &str = "current";

/// Folder of the models of an Ollama that a service manager of Linux runs as a user of its own.
const OLLAMA_SERVICE: &str = "/usr/share/ollama/.ollama/models";
/// Files of adapters: of the package PEFT, and of mlx-lm.
const ADAPTER: [&str; 3] =
    ["adapter_config.json", "adapter_model.safetensors", "adapters.safetensors"];
/// Most files of a model whose sizes are added up.
const MAX_FILES: usize = 10_000;
/// Most bytes of a commit's name, or of a revision's name.
const MAX_REVISION_BYTES: u64 = 256;

/// Why no directory is known for a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelNotFound {
    /// A directory that does not exist.
    #[error("expected a model directory or a GGUF file, found nothing at {}", .0.display())]
    Directory(PathBuf),
    /// A word that is neither a directory nor a name.
    #[error(
        "expected a model directory, a GGUF file, org/name or org/name/folder of a hub, or a name that `paceline models --known` lists, found {0:?}, and no directory of that name"
    )]
    Word(String),
    /// A model that is not there, or a path with something else, and what to do.
    #[error("{0}")]
    Unusable(String),
    /// Several GGUF files, of which a name means none or several, and what to do.
    #[error("{0}")]
    Unchosen(String),
    /// A GGUF file that is no whole model, or one that is not served.
    #[error(transparent)]
    Gguf(#[from] CheckpointError),
}

/// Where models lie on this machine.
#[derive(Clone, Debug, Default)]
pub struct ModelPlaces {
    /// `<user cache>/paceline/models`. `None` if the user has no cache directory.
    pub own: Option<PathBuf>,
    /// Cache of the Hugging Face libraries.
    pub hub_cache: Option<PathBuf>,
    /// The user's home.
    pub home: Option<PathBuf>,
    /// Ollama's folders of models.
    pub ollama: Vec<PathBuf>,
    /// LM Studio's folders of models.
    pub lm_studio: Vec<PathBuf>,
}

impl ModelPlaces {
    /// The places of this user.
    pub fn of_user() -> Self {
        let absolute = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|dir: &PathBuf| dir.is_absolute())
        };
        let home = user::home_dir();
        // The Hugging Face libraries use ~/.cache on every system.
        let hub_home = || {
            let cache = absolute("XDG_CACHE_HOME");
            let cache = cache.or_else(|| home.as_ref().map(|home| home.join(".cache")));
            absolute("HF_HOME").or_else(|| cache.map(|cache| cache.join("huggingface")))
        };
        let hub_cache = absolute("HF_HUB_CACHE").or_else(|| Some(hub_home()?.join("hub")));
        let below_home = |folders: &[&str]| -> Vec<PathBuf> {
            let home = home.iter();
            home.flat_map(|home| folders.iter().map(|folder| home.join(folder))).collect()
        };
        let ollama = absolute("OLLAMA_MODELS").map_or_else(
            || [below_home(&[".ollama/models"]), vec![OLLAMA_SERVICE.into()]].concat(),
            |dir| vec![dir],
        );
        let lm_studio = below_home(&[".lmstudio/models", ".cache/lm-studio/models"]);
        let own = user::cache_dir().map(|cache| cache.join("paceline/models"));
        Self { own, hub_cache, home, ollama, lm_studio }
    }

    /// Directory of the pulled revisions of a model.
    pub fn of_model(&self, name: &ModelName) -> Option<PathBuf> {
        Some(self.own.as_ref()?.join(name.folder()))
    }

    /// The absolute directory of a model as a setting names it. A directory is returned as it is
    /// written, and need not hold a model. For a repository of a hub's cache its whole snapshot is
    /// returned. For a GGUF file, or a directory with one model in this format, the directory that
    /// stands for it is returned, which is made at first.
    ///
    /// # Errors
    /// A directory or a name that is not there, or a path with another kind of file than a model in
    /// safetensors or GGUF.
    pub fn locate(&self, model: &ModelRef) -> Result<PathBuf, ModelNotFound> {
        match model {
            ModelRef::Embedded(model) => model.dir().ok_or_else(|| {
                ModelNotFound::Unusable(format!(
                    "the embedded model {} was not found beside the program; install it again, or name another model",
                    model.name
                ))
            }),
            ModelRef::Directory(path) => self.existing(path),
            ModelRef::BelowHome(path) => {
                let what = "expected $HOME to be set for a path that begins with ~/; write the whole path";
                let home = self.home.as_ref();
                self.existing(&home.ok_or_else(|| ModelNotFound::Unusable(what.to_owned()))?.join(path))
            }
            ModelRef::DirectoryIfThere(path) => match model.hub_name() {
                Some(name) => self.named(&name),
                None => self.existing(path).map_err(|error| match error {
                    ModelNotFound::Directory(_) => ModelNotFound::Word(path.display().to_string()),
                    other => other,
                }),
            },
            ModelRef::Smollm2 => {
                let dir = self.own.as_ref().map(|own| own.join(SMOLLM2));
                match dir.filter(|dir| missing_files(dir).is_empty()) {
                    Some(dir) => Ok(dir),
                    None => Err(ModelNotFound::Unusable(format!(
                        "smollm2 is not there: found nothing whole at {}; run `paceline pull smollm2`",
                        self.shown(SMOLLM2)
                    ))),
                }
            }
            ModelRef::Foreign(name) => self.foreign(name),
            ModelRef::Named(name) => self.named(name),
        }
    }

    /// A model that another program fetched.
    fn foreign(&self, name: &ForeignName) -> Result<PathBuf, ModelNotFound> {
        match name.program {
            ForeignProgram::Ollama => self.derived(&ollama::find(&self.ollama, &name.name)?),
            ForeignProgram::LmStudio => match lm_studio::find(&self.lm_studio, &name.name)? {
                LmStudioModel::Directory(dir) => Ok(dir),
                LmStudioModel::Gguf(path) => self.of_file(path),
            },
        }
    }

    fn existing(&self, path: &Path) -> Result<PathBuf, ModelNotFound> {
        if !path.exists() {
            return Err(ModelNotFound::Directory(path.to_path_buf()));
        }
        let path = std::path::absolute(path).map_err(|cause| {
            let place = path.display();
            ModelNotFound::Unusable(format!(
                "cannot find out the absolute path of {place}: {cause}"
            ))
        })?;
        if path.join(CONFIG).exists() || from_gguf::first_file(&path).is_some() {
            return self.settled(path);
        }
        let repository =
            if path.ends_with("snapshots") { path.parent() } else { Some(path.as_path()) };
        let found = match repository.filter(|dir| dir.join("snapshots").is_dir()) {
            Some(repository) => match snapshots(repository, None)
                .into_iter()
                .find(|dir| missing_files(dir).is_empty())
            {
                Some(dir) => return self.settled(dir),
                None => Some((
                    "a repository of a hub's cache with no whole model in its snapshots".to_owned(),
                    "fetch the model again, or name the folder that has its config.json",
                )),
            },
            None => other_kind(&path),
        };
        let Some((found, advice)) = found else { return Ok(path) };
        let place = path.display();
        let what = format!(
            "expected a model directory or a GGUF file, found {found} at {place}; {advice}"
        );
        Err(ModelNotFound::Unusable(what))
    }

    /// A path that is there, or the directory that stands for the GGUF file that it means.
    fn settled(&self, path: PathBuf) -> Result<PathBuf, ModelNotFound> {
        from_gguf::first_file(&path).map_or(Ok(path), |file| self.of_file(file))
    }

    /// The directory that stands for a GGUF file, which is named by it.
    fn of_file(&self, path: PathBuf) -> Result<PathBuf, ModelNotFound> {
        self.derived(&GgufSource { name: None, path, notes: vec![] })
    }

    /// The directory that stands for a GGUF file.
    fn derived(&self, source: &GgufSource) -> Result<PathBuf, ModelNotFound> {
        let own = self.own.as_ref().ok_or_else(|| {
            let place = source.path.display();
            ModelNotFound::Unusable(format!(
                "expected a cache directory for what is made of {place}, found none: set $HOME"
            ))
        })?;
        Ok(prepare_source(source, &own.with_file_name("gguf"))?)
    }

    /// The current revision that was pulled, else the snapshot that the Hugging Face libraries use. With
    /// a choice its GGUF file in the first of all revisions that has it.
    fn named(&self, name: &ModelName) -> Result<PathBuf, ModelNotFound> {
        let current = self.of_model(name).and_then(|dir| dir.join(CURRENT).canonicalize().ok());
        if name.choice().is_none() {
            let whole = current.clone().filter(|dir| is_one_model(dir));
            if let Some(dir) = whole.or_else(|| self.snapshot(name)) {
                return self.settled(dir);
            }
        }
        let mut seen = None;
        for dir in current.into_iter().chain(self.snapshots(name)) {
            let models = GgufModel::in_directory(&dir);
            let chosen = match name.choice() {
                Some(choice) => GgufModel::chosen(&models, choice),
                None => models.iter().collect(),
            };
            if let [one] = chosen.as_slice() {
                return self.of_file(dir.join(&one.name));
            }
            if !models.is_empty() && seen.is_none() {
                seen = Some(models);
            }
        }
        if let Some(models) = seen {
            return Err(ModelNotFound::Unchosen(not_chosen(name, &models)));
        }
        let hint = match Path::new(&name.to_string()).is_dir() {
            true => format!(", or write ./{name} for the directory of that name"),
            false => String::new(),
        };
        Err(ModelNotFound::Unusable(format!(
            "{name} was not pulled: nothing whole is at {}; run `paceline pull {}`{hint}",
            self.shown(&format!("{}/{CURRENT}", name.folder())),
            short(name)
        )))
    }

    /// The first of [`ModelPlaces::snapshots`] that has one model.
    fn snapshot(&self, name: &ModelName) -> Option<PathBuf> {
        self.snapshots(name).into_iter().find(|dir| is_one_model(dir))
    }

    /// The snapshots of a model that the Hugging Face libraries have. Of a model in a folder of its
    /// repository, that folder.
    fn snapshots(&self, name: &ModelName) -> Vec<PathBuf> {
        let folder = format!("models--{}", name.repository().folder());
        let repository = self.hub_cache.as_ref().map(|cache| cache.join(folder));
        repository.map_or_else(Vec::new, |repository| snapshots(&repository, name.subfolder()))
    }

    fn shown(&self, below: &str) -> String {
        match &self.own {
            Some(own) => own.join(below).display().to_string(),
            None => "the user's cache directory, which is not known: set $HOME".to_owned(),
        }
    }

    /// All models of these places, the embedded ones first, the others by name.
    pub fn list(&self) -> Vec<ListedCheckpoint> {
        let mut listed = vec![];
        for model in &EMBEDDED {
            let one = |dir| {
                ListedCheckpoint::of(model.name.to_owned(), CheckpointKind::Embedded, None, dir)
            };
            listed.extend(model.dir().map(one));
        }
        let own = self.own.as_deref().map(directories).unwrap_or_default();
        for dir in own {
            let folder = file_name(&dir);
            if folder == SMOLLM2 {
                listed.push(ListedCheckpoint::of(folder, CheckpointKind::Smollm2, None, dir));
            } else if let Some(name) = ModelName::of_folder(&folder) {
                listed.extend(pulled(&name, &dir));
            }
        }
        let hub = self.hub_cache.as_deref().map(directories).unwrap_or_default();
        for dir in hub {
            let folder = file_name(&dir);
            let name = folder.strip_prefix("models--").and_then(ModelName::of_folder);
            let Some(name) = name else { continue };
            let with_files = |dir: &PathBuf| !GgufModel::in_directory(dir).is_empty();
            let current = self.snapshot(&name);
            let current = current.or_else(|| self.snapshots(&name).into_iter().find(with_files));
            for snapshot in directories(&dir.join("snapshots")) {
                let (text, commit) = (name.to_string(), file_name(&snapshot));
                let is_current = current.as_ref() == Some(&snapshot);
                let kind = CheckpointKind::HubCache { is_current };
                let all = ListedCheckpoint::all_in(&text, ':', kind, Some(&commit), &snapshot);
                // A snapshot without a configuration is of a tokenizer, or of another kind of model.
                listed.extend(all.into_iter().filter(ListedCheckpoint::is_model));
            }
        }
        listed.extend(ollama::list(&self.ollama));
        listed.extend(lm_studio::list(&self.lm_studio));
        listed
    }
}

/// The snapshots in a repository of a hub's cache: that of `refs/main`, then the others, the newest one
/// first. With `subfolder` that folder of each.
fn snapshots(repository: &Path, subfolder: Option<&str>) -> Vec<PathBuf> {
    let snapshots = repository.join("snapshots");
    let inner = |dir: PathBuf| subfolder.map_or(dir.clone(), |folder| dir.join(folder));
    let main = files::read(&repository.join("refs/main"), MAX_REVISION_BYTES)
        .ok()
        .and_then(|text| String::from_utf8(text).ok())
        .map(|commit| commit.trim().to_owned())
        .filter(|commit| is_plain(commit))
        .map(|commit| inner(snapshots.join(commit)));
    let mut others: Vec<PathBuf> = directories(&snapshots).into_iter().map(inner).collect();
    let changed = |dir: &PathBuf| dir.metadata().and_then(|meta| meta.modified()).ok();
    others.sort_by_key(|dir| std::cmp::Reverse(changed(dir)));
    others.retain(|dir| Some(dir) != main.as_ref());
    main.into_iter().chain(others).collect()
}

/// Whether a directory has a whole checkpoint in safetensors, or one GGUF file and no further ones in its
/// folders.
fn is_one_model(dir: &Path) -> bool {
    let is_gguf = from_gguf::first_file(dir).is_some();
    missing_files(dir).is_empty() && !(is_gguf && GgufModel::in_directory(dir).len() > 1)
}

/// Why none of these GGUF files is the one that a name means, and what to do.
fn not_chosen(name: &ModelName, models: &[GgufModel]) -> String {
    let (list, place) = (GgufModel::list(models, decimal), name.without_choice());
    let example = models.first().map_or("", |model| model.choice(models));
    match name.choice().map(|choice| (choice, GgufModel::chosen(models, choice).len())) {
        None => format!(
            "{place} has {} GGUF files on this machine: {list}; choose one, as {place}:{example}",
            models.len()
        ),
        Some((choice, 0)) => format!(
            "{place} has no GGUF file {choice} on this machine; it has {list}; run `paceline pull {name}`, or choose one of these, as {place}:{example}"
        ),
        Some((choice, several)) => format!(
            "{choice} means {several} GGUF files of {place} on this machine; it has {list}; write the whole name of one, as {place}:{}",
            models.first().map_or("", GgufModel::file)
        ),
    }
}

/// The revisions of a pulled model.
fn pulled(name: &ModelName, dir: &Path) -> Vec<ListedCheckpoint> {
    let current = dir.join(CURRENT).canonicalize().ok();
    let listed = directories(dir).into_iter().filter(|revision| file_name(revision) != CURRENT);
    let listed = listed.flat_map(|revision| {
        let is_current = revision.canonicalize().ok() == current;
        let kind = CheckpointKind::Pulled { is_current };
        let commit = file_name(&revision);
        ListedCheckpoint::all_in(&name.to_string(), ':', kind, Some(&commit), &revision)
    });
    listed.collect()
}

/// The shortest name by which a pull knows this model.
fn short(name: &ModelName) -> String {
    KnownModel::of_hub(name).map_or_else(|| name.to_string(), |known| known.name.clone())
}

/// Model name that clients use: the directory's name, for an embedded model its own, for a model from a
/// hub `org/name`, whose directory is named by a commit, and for a GGUF file the file's name without its
/// ending. `None` for the root directory.
pub fn name_of(dir: &Path) -> Option<String> {
    if let Some(model) = EmbeddedModel::at(dir) {
        return Some(model.name.to_owned());
    }
    let folder = dir.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let above = dir.parent().and_then(Path::parent);
    let of_hub = match (folder, above) {
        (Some("snapshots"), Some(model)) => {
            let folder = model.file_name().and_then(|name| name.to_str());
            folder.and_then(|folder| folder.strip_prefix("models--")).and_then(ModelName::of_folder)
        }
        (Some(folder), Some(models)) if models.ends_with("paceline/models") => {
            ModelName::of_folder(folder)
        }
        _ => None,
    };
    of_hub.map(|name| name.to_string()).or_else(|| {
        let name = dir.file_name()?.to_string_lossy();
        let name = match dir.parent().is_some_and(|above| above.ends_with("paceline/gguf")) {
            true => from_gguf::file_of_name(&name),
            false => from_gguf::model_name(&name),
        };
        Some(name.to_owned())
    })
}

/// The known model that is meant by its name, or by the directory of one of its revisions.
pub fn known_model(model: &ModelRef) -> Option<&'static KnownModel> {
    match model {
        ModelRef::Smollm2 => KnownModel::named(SMOLLM2),
        ModelRef::Named(name) => KnownModel::of_hub(name),
        ModelRef::Directory(path) if path.ends_with("paceline/models/smollm2") => {
            KnownModel::named(SMOLLM2)
        }
        ModelRef::Directory(path) => KnownModel::of_hub(&ModelName::on_hub(&name_of(path)?).ok()?),
        _ => None,
    }
}

/// Files that a model directory needs and lacks: `config.json`, and those of
/// [`WeightFiles::choose`]. Empty if the model is whole, as one GGUF file is.
pub fn missing_files(dir: &Path) -> Vec<String> {
    if let Some(file) = from_gguf::first_file(dir) {
        let is_whole = part_paths(&file).is_ok();
        return if is_whole { vec![] } else { vec![file_name(&file)] };
    }
    let mut missing = vec![];
    if !dir.join(CONFIG).is_file() {
        missing.push(CONFIG.to_owned());
    }
    // The loader says what is wrong with an index that cannot be read.
    let Ok(index) = ShardIndex::read(dir) else { return missing };
    if let Err(lacked) = WeightFiles::of_directory(dir, index.map(|index| index.shards())) {
        missing.extend(lacked.names);
    }
    missing
}

/// What a path without a configuration has instead of a model, and what to do. `None` if that is not
/// known.
fn other_kind(path: &Path) -> Option<(String, &'static str)> {
    if !path.is_dir() {
        return Some(("a file".to_owned(), "name the directory that has config.json"));
    }
    let entries = std::fs::read_dir(path).ok()?.flatten().take(MAX_FILES);
    let names: Vec<String> = entries.map(|entry| file_name(&entry.path())).collect();
    if let Some(adapter) = names.iter().find(|name| ADAPTER.contains(&name.as_str())) {
        let advice = "merge it into its base model with the program that trained it, and name the \
                      directory of the result";
        return Some((format!("an adapter ({adapter})"), advice));
    }
    let mut gguf: Vec<String> = names.into_iter().filter(|name| stem(name).is_some()).collect();
    gguf.sort();
    let first = gguf.first()?;
    let found = format!("{} files in the format GGUF ({first} first)", gguf.len());
    Some((found, "name one of them, of a split model the first part"))
}

/// Whether this is one component of a path, so that it cannot lead out of a directory.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

#[cfg(test)]
mod tests;
