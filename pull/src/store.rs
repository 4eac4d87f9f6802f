//! The folders of a model in the user's cache: its lock, the folder of a revision that is not whole
//! yet, and the link to the current revision.
//!
//! ```text
//! org--name/.lock              held by the one pull of this model
//! org--name/.part-<commit>/    files that are there, and `NAME.part` of the one that is fetched
//! org--name/<commit>/          renamed from it when all is there
//! org--name/current         →  <commit>
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use paceline_checkpoint::CURRENT;
use paceline_checkpoint::from_gguf::GgufModel;
use paceline_system::platform::{self, free_bytes};

use crate::error::PullError;
use crate::files::is_gguf;
use crate::hub::RemoteFile;
use crate::progress::{Progress, bytes};

/// Space that stays free: other programs write too, and a full disk harms all of them.
const SPARE_BYTES: u64 = 64 << 20;

/// The folder of a model, locked.
pub(crate) struct ModelFolder {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl ModelFolder {
    /// Makes the folder and takes its lock. Waits for another pull of the same model.
    pub(crate) fn open(dir: PathBuf, progress: &Progress) -> Result<Self, PullError> {
        fs::create_dir_all(&dir).map_err(|cause| PullError::at(&dir, cause))?;
        let path = dir.join(".lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlag::O_NOFOLLOW.bits());
        let file = options.open(&path).map_err(|cause| PullError::at(&path, cause))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
                progress.line("another pull of this model runs; waiting for its end");
                Flock::lock(file, FlockArg::LockExclusive)
            }
            outcome => outcome,
        };
        let lock = lock.map_err(|(_, errno)| PullError::at(&path, errno.into()))?;
        Ok(Self { dir, _lock: lock })
    }

    /// The folder of a whole revision.
    pub(crate) fn revision(&self, commit: &str) -> PathBuf {
        self.dir.join(commit)
    }

    /// The folder of a revision that is fetched; made if it is missing.
    pub(crate) fn part(&self, commit: &str) -> Result<PathBuf, PullError> {
        let part = part_of(&self.dir, commit);
        fs::create_dir_all(&part).map_err(|cause| PullError::at(&part, cause))?;
        Ok(part)
    }

    /// Gives a revision that is whole its name, and makes it the current one. The files `needed` are in
    /// the folder `part`. With GGUF files they join the other files of their revision.
    pub(crate) fn publish(
        &self,
        part: &Path,
        commit: &str,
        needed: &[RemoteFile],
    ) -> Result<PathBuf, PullError> {
        let whole = self.revision(commit);
        if has_gguf(needed) || !GgufModel::in_directory(&whole).is_empty() {
            for RemoteFile { name, size, .. } in needed {
                let place = whole.join(name);
                if length(&place) != Some(*size) {
                    let above = place.parent().unwrap_or(&whole);
                    fs::create_dir_all(above).map_err(|cause| PullError::at(above, cause))?;
                    let moved = fs::rename(part.join(name), &place);
                    moved.map_err(|cause| PullError::at(&place, cause))?;
                }
            }
            clear(part, needed);
            self.make_current(commit)?;
            return Ok(whole);
        }
        if whole.exists() {
            // Files were missing or damaged in it. The fetched ones take their place.
            fs::remove_dir_all(&whole).map_err(|cause| PullError::at(&whole, cause))?;
        }
        fs::rename(part, &whole).map_err(|cause| PullError::at(&whole, cause))?;
        self.make_current(commit)?;
        Ok(whole)
    }

    /// Points the model's name to a revision.
    pub(crate) fn make_current(&self, commit: &str) -> Result<(), PullError> {
        let (link, fresh) = (self.dir.join(CURRENT), self.dir.join(".current.new"));
        let _ = fs::remove_file(&fresh);
        symlink(commit, &fresh).map_err(|cause| PullError::at(&fresh, cause))?;
        fs::rename(&fresh, &link).map_err(|cause| PullError::at(&link, cause))
    }

    /// Other revisions of the model, which stay.
    pub(crate) fn others(&self, commit: &str) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| !name.starts_with('.') && name != commit).collect()
    }
}

/// Removes what is not needed of the folder of a revision that is there. What was fetched of another GGUF
/// file stays.
pub(crate) fn clear(part: &Path, needed: &[RemoteFile]) {
    if !has_gguf(needed) {
        let _ = fs::remove_dir_all(part);
        return;
    }
    for path in needed.iter().map(|file| part.join(&file.name)) {
        let _ = fs::remove_file(&path);
        // Only an empty folder is removed.
        let _ = path.parent().map(fs::remove_dir);
    }
    let _ = fs::remove_dir(part);
}

fn has_gguf(needed: &[RemoteFile]) -> bool {
    needed.iter().any(|file| is_gguf(&file.name))
}

/// The folder of a revision that is fetched into a model's folder.
pub(crate) fn part_of(dir: &Path, commit: &str) -> PathBuf {
    dir.join(format!(".part-{commit}"))
}

/// Moves a whole directory to its place. What was there is moved to `old`, which the caller removes: a
/// link stays a link, and no reader finds a half of it.
pub(crate) fn replace(whole: &Path, place: &Path, old: &Path) -> Result<(), PullError> {
    if place.symlink_metadata().is_ok() {
        let _ = fs::remove_dir_all(old);
        fs::rename(place, old).map_err(|cause| PullError::at(place, cause))?;
    }
    fs::rename(whole, place).map_err(|cause| PullError::at(place, cause))
}

/// Whether all these files are in the folder with their sizes.
pub(crate) fn has_all<'a>(dir: &Path, mut files: impl Iterator<Item = &'a RemoteFile>) -> bool {
    files.all(|file| length(&dir.join(&file.name)) == Some(file.size))
}

/// The length of a regular file.
pub(crate) fn length(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len())
}

/// Checks that `needed` more bytes fit the file system of `dir`.
pub(crate) fn check_space(dir: &Path, needed: u64) -> Result<(), PullError> {
    let free = free_bytes(dir);
    if has_room(needed, free) {
        return Ok(());
    }
    let (place, wanted) = (dir.to_path_buf(), needed.saturating_add(SPARE_BYTES));
    Err(PullError::Space { place, needed: bytes(wanted), free: bytes(free.unwrap_or(0)) })
}

/// Whether `needed` more bytes fit in `free`. A file system that does not tell may have room.
pub(crate) fn has_room(needed: u64, free: Option<u64>) -> bool {
    needed == 0 || free.is_none_or(|free| needed.saturating_add(SPARE_BYTES) <= free)
}

/// Opens a file of our own for reading and writing; a link in its place is refused.
pub(crate) fn open_own(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o644);
    options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)
}

/// Gives a file that is whole its name. Its bytes reach the disk before the name does.
pub(crate) fn settle(file: &File, part: &Path, whole: &Path) -> io::Result<()> {
    platform::write_barrier(file)?;
    fs::rename(part, whole)
}
