//! `paceline rm`: removes a model that `paceline pull` put into the user's cache.
//! Nothing outside of the model's own folder there is removed: a link in it is removed as a link.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use paceline_checkpoint::{CheckpointKind, KnownModel, ListedCheckpoint, ModelPlaces};
use paceline_client::failure::UNREACHABLE;
use paceline_client::print::bytes;
use paceline_client::{Failure, Screen};
use paceline_proto::convert::service::ServiceStatus;

use crate::args::RmArgs;
use crate::status::ask;

/// Runs the command.
///
/// # Errors
/// There is no such model, it is served or being pulled, nobody agreed, or the file system refuses.
pub async fn run(args: &RmArgs, screen: &mut Screen) -> Result<(), Failure> {
    let places = ModelPlaces::of_user();
    let removed = RemovedModel::find(&args.model, &places)?;
    match ask(args.config.config.as_deref()).await {
        Ok(status) => removed.check_unserved(&status)?,
        Err(failure) if failure.exit == UNREACHABLE => (),
        Err(failure) => return Err(failure),
    }
    let _lock = removed.lock()?;
    let size = bytes(removed.bytes);
    let question = format!("Remove {} ({size})?", args.model);
    let unasked = format!("{question} There is no terminal to ask at; with --yes it is removed");
    if !args.yes && !screen.agreed(&question, &unasked)? {
        return Err(Failure::refused_here("nothing was removed"));
    }
    removed.remove().map_err(|error| {
        Failure::refused_here(format!("cannot remove {}: {error}", removed.dir.display()))
    })?;
    screen.line(&format!("removed {}, {size}", args.model));
    Ok(())
}

/// A model that is about to be removed.
#[derive(Debug, PartialEq, Eq)]
struct RemovedModel {
    name: String,
    /// The model's folder in the user's cache, with all its revisions.
    dir: PathBuf,
    /// Bytes of the files of all revisions.
    bytes: u64,
}

impl RemovedModel {
    fn find(name: &str, places: &ModelPlaces) -> Result<Self, Failure> {
        let known = KnownModel::named(name).and_then(|known| known.hub.as_ref());
        let name = known.map_or_else(|| name.to_owned(), ToString::to_string);
        let mut listed = places.list();
        // Of several GGUF files each has its name behind that of the model.
        let is_of_name = |rest: &str| rest.is_empty() || rest.starts_with(':');
        listed.retain(|model| model.name.strip_prefix(&name).is_some_and(is_of_name));
        let folder = |model: &ListedCheckpoint| match model.kind {
            CheckpointKind::Pulled { .. } => {
                let own = places.own.as_deref()?;
                let below = model.path.strip_prefix(own).ok()?.components().next()?;
                Some(own.join(below))
            }
            CheckpointKind::Smollm2 => Some(model.path.clone()),
            _ => None,
        };
        let own = |dir: &PathBuf| dir.parent() == places.own.as_deref();
        if let Some(dir) = listed.iter().filter_map(folder).find(own) {
            if let Some((model, _)) = name.split_once(':') {
                return Err(Failure::usage(format!(
                    "{name} is one of the files of {model}, which are removed together: name {model}, or delete the file in {}",
                    dir.display()
                )));
            }
            let files = listed.iter().filter(|model| model.path.starts_with(&dir));
            let bytes = files.map(|model| model.bytes).sum();
            return Ok(Self { name, dir, bytes });
        }
        let foreign = |whose: &str| {
            format!(
                "{name} lies in {whose}, which Paceline only reads; remove it by the program that fetched it"
            )
        };
        Err(Failure::usage(match listed.first().map(|model| model.kind) {
            Some(CheckpointKind::HubCache { .. }) => {
                foreign("the cache of the Hugging Face libraries")
            }
            Some(CheckpointKind::Ollama) => foreign("Ollama's folder"),
            Some(CheckpointKind::LmStudio) => foreign("LM Studio's folder"),
            Some(_) => format!("{name} is a part of the installation and cannot be removed"),
            None => format!(
                "expected a model that `paceline models` lists, found none of the name {name}"
            ),
        }))
    }

    /// Fails if a process of the service has its weights from here.
    fn check_unserved(&self, status: &ServiceStatus) -> Result<(), Failure> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let dir = real(&self.dir);
        // The directory that stands for a GGUF file has links to its parts.
        let serves = |model: &String| {
            let links = fs::read_dir(model).into_iter().flatten().flatten();
            let mut paths = links.map(|link| link.path()).chain([PathBuf::from(model)]);
            paths.any(|path| real(&path).starts_with(&dir))
        };
        let mut processes = status.processes().into_iter();
        match processes.find(|(_, process)| process.model.as_ref().is_some_and(serves)) {
            Some((process, _)) => Err(Failure::refused_here(format!(
                "{} is served by the running service as its {process}; stop it (`paceline stop`) or swap to another model first",
                self.name
            ))),
            None => Ok(()),
        }
    }

    /// The lock that a pull of this model holds; `None` of a model that was never pulled.
    fn lock(&self) -> Result<Option<Flock<File>>, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlag::O_NOFOLLOW.bits());
        let Ok(file) = options.open(self.dir.join(".lock")) else { return Ok(None) };
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK)) => Err(Failure::refused_here(format!(
                "a pull of {} runs; end it first, or wait for its end",
                self.name
            ))),
            Err(_) => Ok(None),
        }
    }

    fn remove(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.dir)?.is_symlink() {
            true => fs::remove_file(&self.dir),
            false => fs::remove_dir_all(&self.dir),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use paceline_proto::convert::service::ProcessReport;
    use tempfile::TempDir;

    use super::*;

    /// A cache with two revisions of a pulled model, one beside it, and a link to another disk.
    fn cache() -> (TempDir, ModelPlaces) {
        let cache = tempfile::tempdir().expect("a directory");
        let own = cache.path().join("models");
        for dir in ["org--a/c1", "org--a/c2", "org--b/c1", "mlx-community--Qwen3-8B-4bit/c1"] {
            fs::create_dir_all(own.join(dir)).expect("made");
            fs::write(own.join(dir).join("config.json"), "{}").expect("written");
        }
        symlink("c2", own.join("org--a/current")).expect("linked");
        let elsewhere = cache.path().join("disk");
        fs::create_dir(&elsewhere).expect("made");
        fs::write(elsewhere.join("config.json"), "{}").expect("written");
        symlink(&elsewhere, own.join("smollm2")).expect("linked");
        symlink(&elsewhere, own.join("org--a/c1/more")).expect("linked");
        (cache, ModelPlaces { own: Some(own), ..ModelPlaces::default() })
    }

    #[test]
    fn a_model_is_removed_with_all_revisions_and_nothing_else() {
        let (cache, places) = cache();
        let own = places.own.clone().expect("set");
        let found = RemovedModel::find("org/a", &places).expect("listed");
        assert_eq!(found.dir, own.join("org--a"));
        assert!(found.bytes >= 4, "{found:?}");
        found.remove().expect("removed");
        RemovedModel::find("smollm2", &places).expect("listed").remove().expect("removed");
        let known = RemovedModel::find("qwen3-8b", &places).expect("a known model");
        assert_eq!(known.dir, own.join("mlx-community--Qwen3-8B-4bit"));
        assert!(!own.join("org--a").exists() && own.join("smollm2").symlink_metadata().is_err());
        assert!(own.join("org--b/c1/config.json").exists());
        assert!(cache.path().join("disk/config.json").exists(), "behind links");
        for name in ["org/a", "org--b", "../models", "", "org/b/c1", "demo-target"] {
            RemovedModel::find(name, &places).expect_err("not a pulled model");
        }
    }

    #[test]
    fn the_gguf_files_of_a_model_are_removed_together_and_those_of_others_never() {
        let (cache, places) = cache();
        let own = places.own.clone().expect("set");
        for file in ["org--g/c1/m-Q8_0.gguf", "org--g/c1/Q4_0/m-Q4_0.gguf"] {
            fs::create_dir_all(own.join(file).parent().expect("above")).expect("made");
            fs::write(own.join(file), "12345678").expect("written");
        }
        let lm_studio = cache.path().join("lmstudio");
        fs::create_dir_all(lm_studio.join("a/b")).expect("made");
        fs::write(lm_studio.join("a/b/m.gguf"), "x").expect("written");
        let places = ModelPlaces { lm_studio: vec![lm_studio], ..places };
        let found = RemovedModel::find("org/g", &places).expect("listed");
        assert_eq!((&found.dir, found.bytes), (&own.join("org--g"), 16));
        let refused = |name: &str| RemovedModel::find(name, &places).expect_err(name).message;
        let words = "is one of the files of org/g, which are removed together: name org/g";
        assert!(refused("org/g:m-Q8_0.gguf").contains(words));
        let words = "lies in LM Studio's folder, which Paceline only reads";
        assert!(refused("lmstudio:a/b").contains(words));
        let derived = cache.path().join("gguf/m-Q8_0-0011");
        fs::create_dir_all(&derived).expect("made");
        symlink(own.join("org--g/c1/m-Q8_0.gguf"), derived.join("model.gguf")).expect("linked");
        let target = ProcessReport {
            model: Some(derived.display().to_string()),
            ..ProcessReport::default()
        };
        let status = ServiceStatus { target, ..ServiceStatus::default() };
        found.check_unserved(&status).expect_err("it is served");
    }

    #[test]
    fn a_model_that_is_served_or_pulled_stays() {
        let (_cache, places) = cache();
        let found = RemovedModel::find("org/a", &places).expect("listed");
        let serving = |place: &str| {
            let model = places.own.as_ref().expect("set").join(place).display().to_string();
            let drafter = ProcessReport { model: Some(model), ..ProcessReport::default() };
            ServiceStatus { drafter, ..ServiceStatus::default() }
        };
        let refused = found.check_unserved(&serving("org--a/current")).expect_err("served");
        assert!(refused.message.contains("as its drafter"), "{refused:?}");
        found.check_unserved(&serving("org--b/c1")).expect("another model");
        found.check_unserved(&ServiceStatus::default()).expect("nothing is served");
        assert!(found.lock().expect("free").is_none(), "never pulled");
        let file = File::create(found.dir.join(".lock")).expect("made");
        let pull = Flock::lock(file, FlockArg::LockExclusive).expect("locked");
        assert!(found.lock().expect_err("held").message.contains("a pull of org/a runs"));
        drop(pull);
        assert!(found.lock().expect("free").is_some());
    }
}
