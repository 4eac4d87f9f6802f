//! The runtime directory: sockets, logs, counters and records of one service. Only its user may
//! enter it (0700), and one supervisor and one gateway hold its locks.
//!
//! A process needs no byte of the disk in order to start (I13). Content that finds no room is kept in
//! the name of an empty file, `NAME=CONTENT`, which needs no more than a socket does. What a cleaner
//! removes is made anew ([`RuntimeDir::keep_up`]).
//!
//! A directory is used as it is or refused. Its mode is never changed: the configuration may name
//! another user's directory by mistake.

mod counter;
mod record;
mod swap;
mod upkeep;
mod used_settings;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::config::Config;
use paceline_system::{Clock, platform};
use paceline_vocabulary::Exit;

pub use record::WorkerRecord;
pub use upkeep::Kept;
pub(crate) use upkeep::UPKEEP_INTERVAL;

/// Interval between two tries to take a lock that another process holds.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// Whether this process has logged that a content found no room.
static NO_ROOM: AtomicBool = AtomicBool::new(false);

/// A lock of the runtime directory, held as long as this value lives. The kernel releases it when
/// the process ends.
pub type Lock = Flock<File>;

/// Why a runtime directory cannot be used. Shown to a person through [`crate::chain`].
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// None is configured, and there is no default.
    #[error(
        "no runtime directory: expected $XDG_RUNTIME_DIR or $HOME to be set; set supervisor.runtime_dir"
    )]
    Nowhere,
    /// Other users could enter it, or its last component is a link.
    #[error("directory {}: expected a directory of this user that no other user may enter, found {found}; {remedy}", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Kind, owner or mode.
        found: String,
        /// Remedy for the user.
        remedy: String,
    },
    /// Socket paths in it would be too long for the system.
    #[error("runtime directory {}: socket paths in it have {length} bytes, this system allows {}; set supervisor.runtime_dir to a shorter path", path.display(), platform::MAX_SOCKET_PATH)]
    TooLong {
        /// The directory.
        path: PathBuf,
        /// Length of the longest socket path.
        length: usize,
    },
    /// Another process of ours holds it.
    #[error("runtime directory {}: another {what} (pid {pid}) is running on it; stop that one, or set supervisor.runtime_dir", path.display())]
    Taken {
        /// The directory.
        path: PathBuf,
        /// "supervisor", "gateway", "service".
        what: String,
        /// Id of the process that holds it.
        pid: String,
    },
    /// A counter of terms or epochs and its spare are both damaged.
    #[error("counter {}: expected a number, found {found}; stop every paceline process of this directory, then remove {} and {}", path.display(), path.display(), spare.display())]
    Counter {
        /// The counter.
        path: PathBuf,
        /// Spare of the counter.
        spare: PathBuf,
        /// Content of both files.
        found: String,
    },
    /// The file system has no room.
    #[error("cannot write {}; make room on its file system, then start again", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// A directory is in the place of a file or socket.
    #[error("{}: expected a file or socket that paceline made, found a directory; move it away, then start again", path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Any other error of the file system.
    #[error("cannot use {} in the runtime directory", path.display())]
    Io {
        /// Directory or file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
}

/// The longest name of a socket in the directory: that of a drafter's link.
const LONGEST_SOCKET: &str = "drafter-0.link.sock";

impl RuntimeDirError {
    /// An error of the file system at `path`.
    pub fn at(path: &Path, cause: io::Error) -> Self {
        let path = path.to_path_buf();
        // macOS refuses to unlink a directory with EPERM.
        let of_directory =
            matches!(cause.kind(), io::ErrorKind::IsADirectory | io::ErrorKind::PermissionDenied);
        match platform::is_full(&cause) {
            true => Self::Full { path, cause },
            false if of_directory && path.is_dir() => Self::IsDirectory { path },
            false => Self::Io { path, cause },
        }
    }

    /// Exit code of a process that cannot start because of this error. After a full disk a service
    /// manager may try again; every other error stays until a person acts.
    pub fn exit(&self) -> Exit {
        if matches!(self, Self::Full { .. }) { Exit::Unavailable } else { Exit::Config }
    }
}

/// An error of the file system at `path`, with the path and what to do in its text.
pub fn file_error(path: &Path, cause: io::Error) -> io::Error {
    let kind = cause.kind();
    io::Error::new(kind, crate::chain(&RuntimeDirError::at(path, cause)))
}

/// A runtime directory that is safe to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// The directory that the configuration names, or the default one. It is not touched yet.
    ///
    /// # Errors
    /// There is no default, or the path is too long for sockets.
    pub fn locate(config: &Config) -> Result<Self, RuntimeDirError> {
        let set = &config.supervisor.runtime_dir;
        let path = if set.is_empty() {
            let run = paceline_system::environment::env_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            let run = run.filter(|dir| dir.is_absolute()).map(|dir| dir.join("paceline"));
            run.or_else(|| paceline_checkpoint::cache_dir().map(|dir| dir.join("paceline/run")))
                .ok_or(RuntimeDirError::Nowhere)?
        } else {
            std::path::absolute(set).map_err(|cause| RuntimeDirError::at(Path::new(set), cause))?
        };
        let length = path.join(LONGEST_SOCKET).as_os_str().len();
        if length > platform::MAX_SOCKET_PATH {
            return Err(RuntimeDirError::TooLong { path, length });
        }
        Ok(Self(path))
    }

    /// Makes the directory if it is missing and checks that no other user can enter it.
    ///
    /// # Errors
    /// See [`private_dir`].
    pub fn prepare(&self) -> Result<(), RuntimeDirError> {
        if let Some(parent) = self.0.parent() {
            fs::create_dir_all(parent).map_err(|cause| RuntimeDirError::at(parent, cause))?;
        }
        private_dir(&self.0)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Folder of images on their way from the gateway to the target (generation.proto).
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// Socket of a process ("supervisor", "target").
    pub fn socket(&self, process: &str) -> PathBuf {
        self.0.join(format!("{process}.sock"))
    }

    /// Log file of a process that has no terminal.
    pub fn log(&self, process: &str) -> PathBuf {
        self.0.join(format!("{process}.log"))
    }

    /// File of the lock of `what`.
    pub fn lock_path(&self, what: &str) -> PathBuf {
        self.0.join(format!("{what}.lock"))
    }

    /// Whether a process holds the lock of `what`. No file is created.
    pub fn is_locked(&self, what: &str) -> bool {
        let flags = OFlag::O_NOFOLLOW.bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.lock_path(what));
        file.is_ok_and(|file| Flock::lock(file, FlockArg::LockSharedNonblock).is_err())
    }

    /// Takes the lock of `what` for as long as the returned value lives.
    ///
    /// # Errors
    /// Another process holds it.
    pub fn lock(&self, what: &str) -> Result<Lock, RuntimeDirError> {
        let path = self.lock_path(what);
        let io = |cause| RuntimeDirError::at(&path, cause);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits());
        match Flock::lock(options.open(&path).map_err(io)?, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // The pid is only for the message of a process that finds the lock taken. A full
                // disk must not prevent the lock.
                let mut write = || -> io::Result<()> {
                    lock.set_len(0)?;
                    lock.rewind()?;
                    write!(lock, "{}", std::process::id())
                };
                let _ = write();
                Ok(lock)
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let pid = fs::read_to_string(&path).unwrap_or_default();
                Err(RuntimeDirError::Taken { path: self.0.clone(), what: what.to_owned(), pid })
            }
            Err((_, error)) => Err(io(error.into())),
        }
    }

    /// As [`RuntimeDir::lock`], but tries a held lock again until `timeout` has passed. Blocks the
    /// thread.
    ///
    /// # Errors
    /// Another process still holds it.
    pub fn lock_within(&self, what: &str, timeout: Duration) -> Result<Lock, RuntimeDirError> {
        let clock = Clock::start();
        let mut waits = false;
        loop {
            match self.lock(what) {
                Err(RuntimeDirError::Taken { pid, .. })
                    if u128::from(clock.now().0) < timeout.as_millis() =>
                {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::info!(
                            lock = what,
                            pid,
                            "held by an earlier process; waiting for its end"
                        );
                    }
                    std::thread::sleep(LOCK_RETRY);
                }
                outcome => return outcome,
            }
        }
    }

    /// Removes the sockets, the record and the settings of a dead `process`.
    pub fn clear(&self, process: &str) {
        let link = self.socket(&format!("{process}.link"));
        let record = self.record_path(process);
        let named = self.named(&format!("{process}.json")).into_iter().map(|(path, _)| path);
        let settings = self.used_settings_path(process);
        for path in [self.socket(process), link, record, settings].into_iter().chain(named) {
            // A missing file is as good as a removed one.
            let _ = fs::remove_file(path);
        }
    }

    /// Replaces the file `name`. If there is no room, the content is put into the name of an empty
    /// file; the first time is logged.
    fn replace(&self, name: &str, content: &[u8]) -> Result<(), RuntimeDirError> {
        match self.replace_file(name, content) {
            Ok(()) => {
                for (path, _) in self.named(name) {
                    // One that stays holds an older content, and readers take the newest.
                    let _ = fs::remove_file(path);
                }
                Ok(())
            }
            Err(error @ RuntimeDirError::Full { .. }) => {
                self.put_in_name(name, content).map_err(|_| error)?;
                if !NO_ROOM.swap(true, Relaxed) {
                    let path = self.0.join(name);
                    tracing::warn!(path = %path.display(), "no room on the disk; its content is kept in the name of an empty file, and everything goes on");
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Contents of `name` that found no room, with the empty files that hold them in their names.
    fn named(&self, name: &str) -> Vec<(PathBuf, String)> {
        let content = |entry: fs::DirEntry| {
            let file = entry.file_name();
            let content = file.to_str()?.strip_prefix(name)?.strip_prefix('=')?;
            Some((entry.path(), content.to_owned()))
        };
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.filter_map(content).collect()
    }

    /// Puts a content into the name of an empty file. An earlier one is renamed, which needs nothing
    /// of the disk.
    fn put_in_name(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.0.join(format!("{name}={}", String::from_utf8_lossy(content)));
        match self.named(name).into_iter().next() {
            Some((earlier, _)) => fs::rename(earlier, path),
            None => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(true).mode(0o600);
                options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path).map(drop)
            }
        }
    }

    /// Replaces the file `name`. Readers, and a start after a power cut, find the whole old content
    /// or the whole new content. The content reaches the disk before the name.
    fn replace_file(&self, name: &str, content: &[u8]) -> Result<(), RuntimeDirError> {
        let path = self.0.join(name);
        let fresh = self.0.join(format!("{name}.{}.new", std::process::id()));
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(OFlag::O_NOFOLLOW.bits());
            let mut file = options.open(&fresh)?;
            file.write_all(content)?;
            platform::write_barrier(&file)?;
            fs::rename(&fresh, &path)
        };
        write().map_err(|cause| {
            // A partly written file must not occupy the last bytes of a full disk.
            let _ = fs::remove_file(&fresh);
            RuntimeDirError::at(&path, cause)
        })
    }

    /// Writes the names of replaced files to the disk.
    fn sync_names(&self) -> Result<(), RuntimeDirError> {
        let sync = || match platform::write_barrier(&File::open(&self.0)?) {
            // Some network and FUSE file systems cannot sync directories. Nothing more can be done
            // there.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
                ) =>
            {
                Ok(())
            }
            outcome => outcome,
        };
        sync().map_err(|cause| RuntimeDirError::at(&self.0, cause))
    }
}

/// Makes the directory `path` with mode 0700 if it is missing, and checks that it is a directory of
/// this user that no other user may enter. Its parent must exist. Links among the parents are fine
/// (`/tmp` and `/var` of macOS are links).
///
/// # Errors
/// The last component is a link or no directory, the directory belongs to another user, or its mode
/// lets others in.
pub fn private_dir(path: &Path) -> Result<(), RuntimeDirError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
            return Err(RuntimeDirError::at(path, cause));
        }
        _ => {}
    }
    // Check the entry also after creating it: another process may have been faster.
    let meta = fs::symlink_metadata(path).map_err(|cause| RuntimeDirError::at(path, cause))?;
    let (mode, own) = (meta.mode() & 0o777, nix::unistd::geteuid().as_raw());
    let refuse = |found: String, remedy: String| {
        Err(RuntimeDirError::Unsafe { path: path.to_path_buf(), found, remedy })
    };
    let elsewhere = "set supervisor.runtime_dir to another place";
    if meta.file_type().is_symlink() {
        let target = fs::read_link(path)
            .map_or_else(|_| String::new(), |target| format!(" to {}", target.display()));
        return refuse(
            format!("a symbolic link{target}"),
            format!("name the directory itself, or {elsewhere}"),
        );
    }
    if !meta.is_dir() {
        return refuse("no directory".to_owned(), format!("remove it, or {elsewhere}"));
    }
    if meta.uid() != own {
        return refuse(format!("owner {} instead of {own}", meta.uid()), elsewhere.to_owned());
    }
    // The umask may have removed rights of the owner.
    if mode != 0o700 {
        let remedy = format!(
            "if it is meant for paceline, run `chmod 700 {}`, or {elsewhere}",
            path.display()
        );
        return refuse(format!("mode {mode:04o}"), remedy);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
