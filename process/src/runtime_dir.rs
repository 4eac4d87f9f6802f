//! The runtime directory: where one service's sockets, logs and counters live. 0700, one supervisor at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::platform;

/// Why a runtime directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// Nothing to put it in.
    #[error("no runtime directory: expected $XDG_RUNTIME_DIR or $HOME to be set; set supervisor.runtime_dir")]
    Nowhere,
    /// Others could read or write in it.
    #[error("runtime directory {}: expected a directory of this user with mode 0700, found {found}", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Owner and mode.
        found: String,
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
        /// "supervisor", "service".
        what: String,
        /// Who holds it.
        pid: String,
    },
    /// The file system said no.
    #[error("runtime directory {}: {cause}", path.display())]
    Io {
        /// Directory or file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

/// The longest name of a socket in the directory: a link's, of either drafter.
const LONGEST_SOCKET: &str = "drafter-0.link.sock";

/// A runtime directory that is safe to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(PathBuf);

/// Who a worker in this directory is: enough to tell it from another process that got its pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Process id.
    pub pid: u32,
    /// [`platform::process_start`] of it.
    pub started: u64,
    /// Number of its life.
    pub epoch: u64,
}

impl WorkerRecord {
    /// The record of a process that is alive now; `None` if it is not.
    pub fn of(pid: u32, epoch: u64) -> Option<Self> {
        Some(Self { pid, started: platform::process_start(pid)?, epoch })
    }

    /// Whether that very process still runs.
    pub fn alive(&self) -> bool {
        platform::process_start(self.pid) == Some(self.started)
    }
}

impl RuntimeDir {
    /// The directory the configuration names, or the default place. Not touched yet.
    ///
    /// # Errors
    /// No place is known, or its path is too long for sockets.
    pub fn locate(config: &Config) -> Result<Self, RuntimeDirError> {
        let set = &config.supervisor.runtime_dir;
        let path = if set.is_empty() {
            let run = crate::lifecycle::env("XDG_RUNTIME_DIR")
                .filter(|dir| dir.starts_with('/'))
                .map(|dir| PathBuf::from(dir).join("paceline"));
            run.or_else(|| platform::cache_dir().map(|dir| dir.join("paceline/run"))).ok_or(RuntimeDirError::Nowhere)?
        } else {
            std::path::absolute(set).map_err(|cause| RuntimeDirError::Io { path: set.into(), cause })?
        };
        let length = path.join(LONGEST_SOCKET).as_os_str().len();
        if length > platform::MAX_SOCKET_PATH {
            return Err(RuntimeDirError::TooLong { path, length });
        }
        Ok(Self(path))
    }

    /// Makes the directory if it is missing and checks that nobody else can use it.
    ///
    /// # Errors
    /// It belongs to someone else, is open to others, or cannot be made.
    pub fn prepare(&self) -> Result<(), RuntimeDirError> {
        let io = |cause| RuntimeDirError::Io { path: self.0.clone(), cause };
        if !self.0.exists() {
            if let Some(parent) = self.0.parent() {
                fs::create_dir_all(parent).map_err(io)?;
            }
            match DirBuilder::new().mode(0o700).create(&self.0) {
                Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(io(cause)),
                _ => {}
            }
        }
        let meta = fs::metadata(&self.0).map_err(io)?;
        let mode = meta.permissions().mode() & 0o777;
        let mine = meta.is_dir() && meta.uid() == nix::unistd::geteuid().as_raw();
        if mine && mode & 0o077 != 0 {
            // Ours, but open to others (a hand-made directory): close it, and look again.
            fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700)).map_err(io)?;
            return Ok(());
        }
        if !mine {
            let found = format!("owner {}, mode {mode:04o}", meta.uid());
            return Err(RuntimeDirError::Unsafe { path: self.0.clone(), found });
        }
        Ok(())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Folder of pictures on their way from the gateway to the target (generation.proto).
    pub fn pictures(&self) -> PathBuf {
        self.0.join("pictures")
    }

    /// Socket of a process ("supervisor", "target").
    pub fn socket(&self, process: &str) -> PathBuf {
        self.0.join(format!("{process}.sock"))
    }

    /// Log file of a process that has no terminal.
    pub fn log(&self, process: &str) -> PathBuf {
        self.0.join(format!("{process}.log"))
    }

    /// Takes the lock of `what` for as long as the returned file lives; the kernel lets go of it when the process ends.
    ///
    /// # Errors
    /// Another process holds it.
    pub fn lock(&self, what: &str) -> Result<Flock<File>, RuntimeDirError> {
        let path = self.0.join(format!("{what}.lock"));
        let io = |cause| RuntimeDirError::Io { path: path.clone(), cause };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(io)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let mut write = || -> io::Result<()> {
                    lock.set_len(0)?;
                    lock.rewind()?;
                    write!(lock, "{}", std::process::id())
                };
                write().map_err(io)?;
                Ok(lock)
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let pid = fs::read_to_string(&path).unwrap_or_default();
                Err(RuntimeDirError::Taken { path: self.0.clone(), what: what.to_owned(), pid })
            }
            Err((_, error)) => Err(io(error.into())),
        }
    }

    /// Counts up the number in file `name` and returns it: terms and epochs. The first is 1.
    ///
    /// # Errors
    /// The file cannot be written, or holds no number.
    pub fn count_up(&self, name: &str) -> Result<u64, RuntimeDirError> {
        let path = self.0.join(name);
        let io = |cause| RuntimeDirError::Io { path: path.clone(), cause };
        let mut text = String::new();
        match File::open(&path) {
            Ok(mut file) => {
                file.read_to_string(&mut text).map_err(io)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => text.push('0'),
            Err(error) => return Err(io(error)),
        }
        let found =
            || io::Error::other(format!("expected a number, found {:?}; remove the file when nothing runs here", text.trim()));
        let next = text.trim().parse::<u64>().map_err(|_| io(found()))? + 1;
        self.replace(name, next.to_string().as_bytes())?;
        Ok(next)
    }

    /// Writes who runs as `process`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_record(&self, process: &str, record: &WorkerRecord) -> Result<(), RuntimeDirError> {
        self.replace(&format!("{process}.json"), &serde_json::to_vec(record).expect("a record is plain JSON"))
    }

    /// Who was last written down as `process`; `None` if nobody or unreadable.
    pub fn record(&self, process: &str) -> Option<WorkerRecord> {
        serde_json::from_slice(&fs::read(self.0.join(format!("{process}.json"))).ok()?).ok()
    }

    /// Everyone written down here, by name; of the dead as well.
    pub fn records(&self) -> Vec<(String, WorkerRecord)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned()));
        names.filter_map(|name| Some((name.clone(), self.record(&name)?))).collect()
    }

    /// Removes what a dead `process` left: its socket and its record.
    pub fn clear(&self, process: &str) {
        let link = self.socket(&format!("{process}.link"));
        for path in [self.socket(process), link, self.0.join(format!("{process}.json"))] {
            // Not there is what is wanted.
            let _ = fs::remove_file(path);
        }
    }

    /// Writes a file whole or not at all.
    fn replace(&self, name: &str, content: &[u8]) -> Result<(), RuntimeDirError> {
        let path = self.0.join(name);
        let fresh = self.0.join(format!("{name}.{}.new", std::process::id()));
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(content)?;
            fs::rename(&fresh, &path)
        };
        write().map_err(|cause| RuntimeDirError::Io { path: path.clone(), cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(path: &Path) -> RuntimeDir {
        let mut config = Config::default();
        config.supervisor.runtime_dir = path.display().to_string();
        RuntimeDir::locate(&config).expect("a short path")
    }

    #[test]
    fn it_is_private_and_counts() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = dir(&temp.path().join("a/run"));
        dir.prepare().expect("made");
        assert_eq!(fs::metadata(dir.path()).expect("there").permissions().mode() & 0o777, 0o700);
        assert_eq!(dir.count_up("term").expect("counts"), 1);
        assert_eq!(dir.count_up("term").expect("counts"), 2);
        fs::write(dir.path().join("term"), "x").expect("writable");
        assert!(dir.count_up("term").expect_err("no number").to_string().contains("expected a number"));
    }

    #[test]
    fn one_holds_it_at_a_time() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = dir(temp.path());
        let held = dir.lock("supervisor").expect("free");
        let error = dir.lock("supervisor").expect_err("taken").to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(held);
        dir.lock("supervisor").expect("free again");
    }

    #[test]
    fn a_record_names_one_process() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = dir(temp.path());
        let record = WorkerRecord::of(std::process::id(), 3).expect("we are alive");
        dir.write_record("target", &record).expect("writable");
        assert_eq!(dir.record("target"), Some(record.clone()));
        assert!(record.alive());
        assert_eq!(dir.records(), [("target".to_owned(), record.clone())]);
        assert!(!WorkerRecord { started: record.started + 1, ..record }.alive());
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused() {
        let mut config = Config::default();
        config.supervisor.runtime_dir = format!("/tmp/{}", "x".repeat(120));
        assert!(matches!(RuntimeDir::locate(&config), Err(RuntimeDirError::TooLong { .. })));
    }

    #[test]
    fn the_longest_socket_of_the_longest_path_can_be_bound() {
        let temp = tempfile::Builder::new().prefix("pl").tempdir_in("/tmp").expect("a temporary directory");
        let located = |longer: usize| {
            let fixed = temp.path().join("x").join(LONGEST_SOCKET).as_os_str().len() - 1;
            let path = temp.path().join("x".repeat(platform::MAX_SOCKET_PATH - fixed + longer));
            let mut config = Config::default();
            config.supervisor.runtime_dir = path.display().to_string();
            RuntimeDir::locate(&config)
        };
        let longest = located(0).expect("allowed");
        longest.prepare().expect("made");
        for process in ["supervisor", "target", "target.link", "drafter-1", "drafter-1.link"] {
            std::os::unix::net::UnixListener::bind(longest.socket(process)).expect(process);
        }
        let error = located(1).expect_err("one byte too long");
        assert!(matches!(error, RuntimeDirError::TooLong { length, .. } if length == platform::MAX_SOCKET_PATH + 1), "{error}");
    }
}
