//! The boot mark's file: one small JSON object in the user's cache directory, which survives a
//! reboot. The runtime directory may not: it may lie in memory.
//!
//! The name has a digest of the runtime directory's path, so that two services of one user have a
//! mark each. A file that cannot be read, that another user owns or another version wrote, or that
//! belongs to another runtime directory, is ignored and replaced.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::OFlag;
use paceline_checkpoint::digest;
use paceline_process::runtime_dir::file_error;
use paceline_supervisor_core::boot_mark::{FoundMark, MarkContent};
use serde::{Deserialize, Serialize};

/// Version of the format.
const VERSION: u32 = 1;
/// Largest file that is read: more than twice what the longest path makes of one.
const MAX_BYTES: u64 = 16 << 10;
/// Most marks of the directory. Killed services leave theirs.
const MAX_MARKS: usize = 64;

/// A mark as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMark {
    version: u32,
    /// The runtime directory of the service.
    runtime_dir: String,
    /// [`platform::boot_id`] of the boot in which it was written.
    boot: String,
    /// A request runs, or the target loads.
    busy: bool,
    /// The KV budget of the service is reduced.
    reduced: bool,
    /// Wired bytes of the machine above which a worker's memory is stranded.
    stranded_above_bytes: Option<u64>,
}

/// The file of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MarkFile {
    path: PathBuf,
    runtime_dir: String,
}

impl MarkFile {
    /// The mark of the service that runs on this directory; `None`: the user has no cache
    /// directory.
    pub(super) fn of(runtime_dir: &Path) -> Option<Self> {
        Some(Self::in_dir(
            &paceline_checkpoint::cache_dir()?.join("paceline/boot-marks"),
            runtime_dir,
        ))
    }

    /// As [`MarkFile::of`], among the marks of this directory.
    pub(super) fn in_dir(marks: &Path, runtime_dir: &Path) -> Self {
        // One service, by whatever links its directory is named.
        let real = runtime_dir.canonicalize().unwrap_or_else(|_| runtime_dir.to_path_buf());
        let name = digest::of_bytes(real.as_os_str().as_bytes());
        Self {
            path: marks.join(format!("{}.json", &name[..32])),
            runtime_dir: real.to_string_lossy().into_owned(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The mark; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is no mark of this service.
    pub(super) fn read(&self) -> io::Result<Option<FoundMark>> {
        let mut options = OpenOptions::new();
        // Without NONBLOCK the open of a named pipe would wait for ever.
        options.read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
        let file = match options.open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            outcome => outcome?,
        };
        let meta = file.metadata()?;
        let (owner, own) = (meta.uid(), nix::unistd::geteuid().as_raw());
        if !meta.is_file() || owner != own {
            return Err(invalid(format!("expected a file of user {own}, found one of {owner}")));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(invalid(format!("expected at most {MAX_BYTES} bytes, found more")));
        }
        let stored: StoredMark = serde_json::from_slice(&bytes)?;
        if stored.version != VERSION {
            return Err(invalid(format!("expected version {VERSION}, found {}", stored.version)));
        }
        if stored.runtime_dir != self.runtime_dir {
            let (expected, found) = (&self.runtime_dir, &stored.runtime_dir);
            return Err(invalid(format!("expected the mark of {expected}, found that of {found}")));
        }
        let StoredMark { boot, busy, reduced, stranded_above_bytes, .. } = stored;
        let content = MarkContent { busy, reduced, stranded_above_bytes };
        Ok(Some(FoundMark { boot, content }))
    }

    /// Replaces the file. When this returns, the content and the name survive a power cut.
    ///
    /// # Errors
    /// The system's. An earlier mark is then removed, so that it does not outlive its truth.
    pub(super) fn write(&self, boot: &str, content: MarkContent) -> io::Result<()> {
        let MarkContent { busy, reduced, stranded_above_bytes } = content;
        let stored = StoredMark {
            version: VERSION,
            runtime_dir: self.runtime_dir.clone(),
            boot: boot.to_owned(),
            busy,
            reduced,
            stranded_above_bytes,
        };
        self.replace(&serde_json::to_vec(&stored)?).map_err(|cause| {
            let _ = fs::remove_file(&self.path);
            file_error(&self.path, cause)
        })
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(marks) = self.path.parent() else { return Ok(()) };
        DirBuilder::new().recursive(true).mode(0o700).create(marks)?;
        let is_new = !self.path.exists();
        let fresh = self.path.with_extension(format!("{}.new", std::process::id()));
        let written = write_whole(&fresh, bytes).and_then(|()| fs::rename(&fresh, &self.path));
        if written.is_err() {
            // A partly written file must not occupy the last bytes of a full disk.
            let _ = fs::remove_file(&fresh);
        }
        written?;
        sync_names(marks)?;
        if is_new { bound(marks, &self.path) } else { Ok(()) }
    }

    /// Removes the file, if there is one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Ok(()) => self.path.parent().map_or(Ok(()), sync_names),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(file_error(&self.path, cause)),
        }
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    file.write_all(bytes)?;
    // The whole way to the drive, unlike a barrier: the machine may go down in the next second.
    file.sync_all()
}

/// Writes the names of a directory to the drive.
fn sync_names(dir: &Path) -> io::Result<()> {
    match File::open(dir)?.sync_all() {
        // Some network and FUSE file systems cannot sync directories.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}

/// Removes marks above [`MAX_MARKS`]: first those whose runtime directory is gone, then those that
/// were written longest ago. `own` stays.
fn bound(marks: &Path, own: &Path) -> io::Result<()> {
    let mut others: Vec<(PathBuf, SystemTime)> = vec![];
    for entry in fs::read_dir(marks)? {
        let entry = entry?;
        let path = entry.path();
        let is_mark = path.extension().map(OsString::from) == Some("json".into());
        if is_mark && path != own {
            others.push((path, entry.metadata()?.modified()?));
        }
    }
    let excess = (others.len() + 1).saturating_sub(MAX_MARKS);
    if excess == 0 {
        return Ok(());
    }
    others.sort_by_cached_key(|(path, written)| (has_runtime_dir(path), *written));
    others.into_iter().take(excess).try_for_each(|(path, _)| fs::remove_file(path))
}

/// Whether the runtime directory that a mark names is there.
fn has_runtime_dir(mark: &Path) -> bool {
    let stored = fs::read(mark).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    stored.is_some_and(|stored: StoredMark| Path::new(&stored.runtime_dir).is_dir())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const BUSY: MarkContent =
        MarkContent { busy: true, reduced: false, stranded_above_bytes: Some(7) };

    fn found(boot: &str, content: MarkContent) -> Option<FoundMark> {
        Some(FoundMark { boot: boot.to_owned(), content })
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_is_private() {
        let temp = tempfile::tempdir().expect("a directory");
        let marks = temp.path().join("cache/boot-marks");
        let (one, other) = (temp.path().join("one"), temp.path().join("other"));
        fs::create_dir(&one).expect("made");
        let (file, beside) = (MarkFile::in_dir(&marks, &one), MarkFile::in_dir(&marks, &other));
        assert_eq!(file.read().expect("none yet"), None);
        file.write("a", BUSY).expect("written");
        assert_eq!(file.read().expect("a mark"), found("a", BUSY));
        assert_eq!(beside.read().expect("another service"), None);
        let mode = fs::metadata(file.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::os::unix::fs::symlink(&one, temp.path().join("link")).expect("linked");
        assert_eq!(MarkFile::in_dir(&marks, &temp.path().join("link")), file);
        let idle = MarkContent { busy: false, ..BUSY };
        file.write("b", idle).expect("replaced");
        assert_eq!(file.read().expect("a mark"), found("b", idle));
        file.remove().expect("removed");
        file.remove().expect("nothing to remove");
        assert_eq!(fs::read_dir(&marks).expect("there").count(), 0, "a file is left");
    }

    #[test]
    fn broken_large_and_foreign_files_are_refused_and_replaced() {
        let temp = tempfile::tempdir().expect("a directory");
        let (marks, elsewhere) = (temp.path().join("marks"), temp.path().join("elsewhere"));
        let file = MarkFile::in_dir(&marks, temp.path());
        let other = MarkFile::in_dir(&marks, &elsewhere);
        other.write("a", BUSY).expect("written");
        let foreign = fs::read(other.path()).expect("there");
        file.write("a", BUSY).expect("written");
        let own = fs::read_to_string(file.path()).expect("there");
        let newer = own.replace("\"version\":1", "\"version\":2");
        let large = format!("{own}{}", " ".repeat(MAX_BYTES as usize));
        let broken = [&b""[..], b"{", b"[1]", b"\xff\xff", &foreign];
        for text in broken.into_iter().chain([newer.as_bytes(), large.as_bytes()]) {
            fs::write(file.path(), text).expect("written");
            file.read().expect_err("no mark of this service");
            file.write("b", BUSY).expect("replaced");
            assert_eq!(file.read().expect("a mark"), found("b", BUSY));
        }
        fs::remove_file(file.path()).expect("there");
        std::os::unix::fs::symlink(other.path(), file.path()).expect("linked");
        file.read().expect_err("a link");
        fs::remove_file(file.path()).expect("there");
        nix::unistd::mkfifo(file.path(), nix::sys::stat::Mode::S_IRWXU).expect("made");
        file.read().expect_err("a pipe");
        file.write("b", BUSY).expect("replaced");
        assert_eq!(file.read().expect("a mark"), found("b", BUSY));
    }

    #[test]
    fn a_mark_that_cannot_be_replaced_does_not_stay() {
        let temp = tempfile::tempdir().expect("a directory");
        let file = MarkFile::in_dir(temp.path(), temp.path());
        file.write("a", BUSY).expect("written");
        // A directory stands where the new file would be made.
        let fresh = file.path().with_extension(format!("{}.new", std::process::id()));
        fs::create_dir(&fresh).expect("made");
        file.write("b", BUSY).expect_err("no room for the new file");
        assert_eq!(file.read().expect("none"), None);
    }

    #[test]
    fn marks_without_a_runtime_directory_are_removed_first() {
        let temp = tempfile::tempdir().expect("a directory");
        let marks = temp.path().join("marks");
        let dir = |at: usize| temp.path().join(format!("run{at}"));
        for at in 0..MAX_MARKS {
            // The directory of every second service is gone.
            if at % 2 == 0 {
                fs::create_dir(dir(at)).expect("made");
            }
            MarkFile::in_dir(&marks, &dir(at)).write("a", BUSY).expect("written");
        }
        for at in 0..3 {
            let new = MarkFile::in_dir(&marks, &dir(MAX_MARKS + at));
            new.write("a", BUSY).expect("written");
            assert!(new.path().exists());
        }
        assert_eq!(fs::read_dir(&marks).expect("there").count(), MAX_MARKS);
        for at in (0..MAX_MARKS).step_by(2) {
            assert!(MarkFile::in_dir(&marks, &dir(at)).path().exists(), "{at}");
        }
    }
}
