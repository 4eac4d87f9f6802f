//! The machine of a user: a cache directory of its own, and the program with its environment.

use std::io::PipeReader;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::resource::{Resource, setrlimit};

pub struct Machine {
    dir: tempfile::TempDir,
}

/// Output of a pull, and its exit code.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Outcome {
    /// The pull failed with this exit code, and said all of these words.
    pub fn refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} in {self:?}");
        }
        assert_eq!(self.out, "", "{self:?}");
    }

    pub fn done(&self) {
        assert_eq!(self.code, Some(0), "{self:?}");
    }
}

impl Machine {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// The folder of `org/name` in the cache.
    pub fn model(&self) -> PathBuf {
        let root = self.dir.path();
        let cache = if cfg!(target_os = "macos") {
            root.join("Library/Caches")
        } else {
            root.join(".cache")
        };
        cache.join("paceline/models/org--name")
    }

    /// A file of the current revision.
    pub fn current(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.model().join("current").join(name)).ok()
    }

    /// The program, for `org/name` of a hub.
    pub fn command(&self, endpoint: &str) -> Command {
        self.pulling("org/name", endpoint)
    }

    /// The program, for a model of a hub.
    pub fn pulling(&self, model: &str, endpoint: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline-pull"));
        command.env_clear().env("HOME", self.dir.path()).env("HF_ENDPOINT", endpoint);
        command.arg(model).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The program as another program of ours runs it: it inherits the read end of a pipe.
    pub fn command_with_parent(&self, endpoint: &str, read_end: PipeReader) -> Command {
        let mut command = self.command(endpoint);
        command.env("PACELINE_PARENT_FD", "3");
        let pipe = FdMapping { parent_fd: read_end.into(), child_fd: 3 };
        command.fd_mappings(vec![pipe]).expect("one descriptor");
        command
    }

    pub fn pull(&self, endpoint: &str) -> Outcome {
        self.command(endpoint).output().expect("it starts").into()
    }

    /// A pull on a disk where no file can grow beyond `most` bytes.
    pub fn pull_on_a_full_disk(&self, endpoint: &str, most: u64) -> Outcome {
        let mut command = self.command(endpoint);
        // SAFETY: setrlimit is async-signal-safe and nothing else runs between fork and exec.
        unsafe {
            command.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_FSIZE, most, most)?));
        }
        command.output().expect("it starts").into()
    }
}
