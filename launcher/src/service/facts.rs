//! Facts from which the files and orders of a service follow: whose service it is, where the
//! programs are, and the settings that stand in units and jobs.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use nix::unistd::{geteuid, getuid};
use paceline_checkpoint::ModelRef;
use paceline_client::Failure;
use paceline_client::program::beside;
use paceline_process::Loaded;
use paceline_process::config::{CONFIG_VAR, Config};
use paceline_system::environment::env_os;
use paceline_system::platform;

use crate::args::{ManagerName, ServiceScope};

/// Account of the machine's service (deploy/systemd/sysusers.conf).
pub const SYSTEM_USER: &str = "paceline";
/// Variables that say where models lie. The service gets the values of the shell that installs it.
const MODEL_PLACES: [&str; 3] = ["XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"];

/// A service manager, and whose services it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// User units of systemd.
    SystemdUser,
    /// System units of systemd.
    SystemdSystem,
    /// Agents of launchd.
    LaunchdAgent,
}

impl ServiceKind {
    /// The kind that the flags ask for.
    ///
    /// # Errors
    /// `--system` for launchd.
    pub fn of(scope: ServiceScope) -> Result<Self, Failure> {
        let of_system =
            if cfg!(target_os = "macos") { ManagerName::Launchd } else { ManagerName::Systemd };
        match (scope.manager.unwrap_or(of_system), scope.system) {
            (ManagerName::Systemd, false) => Ok(Self::SystemdUser),
            (ManagerName::Systemd, true) => Ok(Self::SystemdSystem),
            (ManagerName::Launchd, false) => Ok(Self::LaunchdAgent),
            (ManagerName::Launchd, true) => Err(Failure::usage(
                "--system: expected systemd, found launchd, whose jobs here are agents of the user who is logged in; leave --system out",
            )),
        }
    }

    /// Whether systemd runs this service.
    pub fn is_systemd(self) -> bool {
        self != Self::LaunchdAgent
    }

    /// Directory of units or jobs.
    ///
    /// # Errors
    /// The user has no home.
    pub fn files_dir(self) -> Result<PathBuf, Failure> {
        Ok(match self {
            Self::SystemdUser => match absolute_variable("XDG_CONFIG_HOME") {
                Some(dir) => dir,
                None => home()?.join(".config"),
            }
            .join("systemd/user"),
            Self::SystemdSystem => PathBuf::from("/etc/systemd/system"),
            Self::LaunchdAgent => home()?.join("Library/LaunchAgents"),
        })
    }

    /// The runtime directory, if the configuration names no other.
    pub fn runtime_dir(self) -> Option<PathBuf> {
        let run = match self {
            Self::SystemdUser => Some(absolute_variable("XDG_RUNTIME_DIR")?.join("paceline")),
            Self::SystemdSystem => Some(PathBuf::from("/run/paceline")),
            Self::LaunchdAgent => None,
        };
        run.or_else(|| Some(paceline_checkpoint::cache_dir()?.join("paceline/run")))
    }

    /// Checks that there is a manager to give orders to, and that this user may.
    ///
    /// # Errors
    /// There is none, or root alone may.
    pub fn check_runs(self) -> Result<(), Failure> {
        match self {
            Self::SystemdUser => {
                let run = absolute_variable("XDG_RUNTIME_DIR");
                if run.as_ref().is_some_and(|run| run.join("systemd").is_dir()) {
                    return Ok(());
                }
                let found = run.map_or("$XDG_RUNTIME_DIR is not set".to_owned(), |run| {
                    format!("there is no {}", run.join("systemd").display())
                });
                Err(Failure::refused_here(format!(
                    "expected a user manager of systemd, found none: {found}. Log in at a console or by ssh and not by su or sudo; \
                     or use `sudo paceline service install --system`; in a container without systemd use `paceline serve`"
                )))
            }
            Self::SystemdSystem if !Path::new("/run/systemd/system").is_dir() => {
                Err(Failure::refused_here(
                    "expected a machine that systemd started, found no /run/systemd/system; in a container use `paceline serve`",
                ))
            }
            Self::SystemdSystem if !geteuid().is_root() => Err(Failure::refused_here(
                "--system: expected root, found another user; put sudo before the command, or leave --system out",
            )),
            Self::SystemdSystem | Self::LaunchdAgent => Ok(()),
        }
    }
}

/// What the files of a service depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whose service it is.
    pub kind: ServiceKind,
    /// Directory of the programs; `None` for `~/.local/bin`, which stands in the files of deploy/.
    pub programs: Option<String>,
    /// Where units or jobs lie.
    pub files_dir: PathBuf,
    /// Address of gRPC.
    pub grpc: SocketAddr,
    /// Address of HTTP, if it is served.
    pub http: Option<SocketAddr>,
    /// Environment variables of both processes besides those in deploy/.
    pub variables: Vec<(String, String)>,
}

/// The configuration of a service that is to be installed.
#[derive(Debug)]
pub struct ServiceConfig {
    /// The settings as the service will read them.
    pub config: Config,
    /// The file that was read, if there is one.
    pub file: Option<PathBuf>,
    /// Where a file would be read.
    pub place: PathBuf,
    /// Where the service looks for it: the variable's value, if the manager has to be told.
    named: Option<PathBuf>,
}

impl ServiceConfig {
    /// Reads the configuration as the service will: nothing of this shell's environment or working
    /// directory counts.
    ///
    /// # Errors
    /// The file cannot be read or used, or a model in it is named by a relative path.
    pub fn read(kind: ServiceKind, flag: Option<&Path>) -> Result<Self, Failure> {
        let place = match (flag, kind) {
            (Some(path), _) => std::path::absolute(path)
                .map_err(|error| Failure::usage(format!("--config {}: {error}", path.display())))?,
            (None, ServiceKind::SystemdSystem) => PathBuf::from("/etc/paceline/paceline.toml"),
            (None, _) => platform::config_dir().ok_or_else(no_home)?.join("paceline/paceline.toml"),
        };
        let file = (flag.is_some() || place.is_file()).then(|| place.clone());
        let Loaded { config, .. } = Loaded::build(file.as_deref(), &[])?;
        for (key, model) in std::iter::once(("target.model", config.target.model.as_str()))
            .chain(config.drafter.model.names().iter().map(|name| ("drafter.model", name.as_str())))
        {
            if let ModelRef::Directory(path) = ModelRef::parse(model)
                && path.is_relative()
            {
                return Err(Failure::usage(format!(
                    "{key}: expected an absolute path, as the service starts in /, found {model:?}; write the whole path into {}",
                    place.display()
                )));
            }
        }
        // The manager does not know a variable of this shell.
        let elsewhere = kind == ServiceKind::SystemdUser && env_os("XDG_CONFIG_HOME").is_some();
        let named = file.clone().filter(|_| flag.is_some() || elsewhere);
        Ok(Self { config, file, place, named })
    }
}

impl Facts {
    /// The facts of this machine for a service with this configuration.
    ///
    /// # Errors
    /// The programs are not beside this one, or a path or an address cannot stand in a unit.
    pub fn gather(kind: ServiceKind, config: &ServiceConfig) -> Result<Self, Failure> {
        let supervisor = beside("paceline-supervisor")?;
        beside("paceline-gateway")?;
        let dir = supervisor.parent().map(Path::to_path_buf).unwrap_or_default();
        let users_own = paceline_checkpoint::home_dir().and_then(|home| home.canonicalize().ok());
        let users_own = users_own.map(|home| home.join(".local/bin"));
        let is_default = kind != ServiceKind::SystemdSystem && users_own.as_ref() == Some(&dir);
        let programs = match is_default {
            true => None,
            false => Some(plain("the directory of the programs", &dir)?),
        };
        let mut variables = Vec::new();
        if let Some(path) = &config.named {
            variables.push((CONFIG_VAR.to_owned(), plain("--config", path)?));
        }
        if kind != ServiceKind::SystemdSystem {
            for name in MODEL_PLACES {
                if let Some(dir) = absolute_variable(name) {
                    variables.push((name.to_owned(), plain(name, &dir)?));
                }
            }
        }
        let gateway = &config.config.gateway;
        let http = Some(&gateway.http).filter(|http| !http.is_empty());
        Ok(Self {
            kind,
            programs,
            files_dir: kind.files_dir()?,
            grpc: address("gateway.grpc", &gateway.grpc)?,
            http: http.map(|http| address("gateway.http", http)).transpose()?,
            variables,
        })
    }
}

/// The user's number, for the domain of launchd.
pub fn user_id() -> u32 {
    getuid().as_raw()
}

/// A front address as a number, because systemd takes no name of a host.
fn address(key: &str, text: &str) -> Result<SocketAddr, Failure> {
    let mut found = text.to_socket_addrs().map_err(|error| {
        Failure::usage(format!("{key}: expected an address to listen on, found {text:?}: {error}"))
    })?;
    match found.next() {
        Some(address) if address.port() != 0 => Ok(address),
        _ => Err(Failure::usage(format!(
            "{key}: expected an address with a port, which the service manager holds, found {text:?}; write another port than 0"
        ))),
    }
}

/// A path that stands in units and jobs as it is. Other characters would need other escapes in
/// units, in jobs and in their shell.
///
/// # Errors
/// A path with such characters.
fn plain(what: &str, path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| {
        text.starts_with('/')
            && text.chars().all(|c| c.is_alphanumeric() || "/._-+@,=:~%() ".contains(c))
    });
    text.map(str::to_owned).ok_or_else(|| {
        Failure::usage(format!(
            "{what}: expected an absolute path of letters, digits, spaces and / . _ - + @ , = : ~ % ( ), found {}; move it to such a path",
            path.display()
        ))
    })
}

/// The user's home.
///
/// # Errors
/// `$HOME` is not set.
pub fn home() -> Result<PathBuf, Failure> {
    paceline_checkpoint::home_dir().ok_or_else(no_home)
}

fn no_home() -> Failure {
    Failure::refused_here("expected $HOME to be set, found nothing; set it to the user's home")
}

fn absolute_variable(name: &str) -> Option<PathBuf> {
    env_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_need_no_escape_stand_in_files() {
        for good in ["/usr/bin", "/home/å b/100%/x-1.2_3@(4)"] {
            assert_eq!(plain("x", Path::new(good)), Ok(good.to_owned()));
        }
        for bad in
            ["bin", "/a\"b", "/a$b", "/a\nb", "/a\\b", "/a'b", "/a`b", "/a&b", "/a<b", "/a;b"]
        {
            assert!(plain("x", Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_needs_a_port() {
        assert_eq!(address("k", "[::1]:7"), Ok("[::1]:7".parse().expect("an address")));
        for bad in ["127.0.0.1:0", "127.0.0.1", ""] {
            assert!(address("k", bad).expect_err("no port").message.starts_with("k: "), "{bad}");
        }
    }

    #[test]
    fn launchd_has_no_service_of_the_machine() {
        let scope = |system, manager| ServiceScope { system, manager: Some(manager) };
        assert_eq!(
            ServiceKind::of(scope(true, ManagerName::Systemd)),
            Ok(ServiceKind::SystemdSystem)
        );
        assert_eq!(
            ServiceKind::of(scope(false, ManagerName::Launchd)),
            Ok(ServiceKind::LaunchdAgent)
        );
        assert!(ServiceKind::of(scope(true, ManagerName::Launchd)).is_err());
    }
}
