//! This program's own commands for the service that is installed: with the service's user and its
//! environment, whatever this shell has set.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::unistd::{User, geteuid};
use paceline_client::Failure;
use paceline_process::config::{CONFIG_VAR, SETTINGS_VAR};
use serde_json::Value;

use super::facts::{SYSTEM_USER, ServiceKind};

/// How commands reach the service.
#[derive(Clone, Debug)]
pub struct Operator {
    kind: ServiceKind,
    /// Environment variables of the installed service.
    variables: Vec<(String, String)>,
}

/// One process of the service, by `paceline status --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessReport {
    /// `ready`, `loading`, …
    pub state: String,
    /// Why it is in that state; may be empty.
    pub reason: String,
}

/// Gateway and target of a service that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceReport {
    /// Front door.
    pub gateway: ProcessReport,
    /// Target worker.
    pub target: ProcessReport,
}

impl Operator {
    /// For a service with these variables.
    pub fn new(kind: ServiceKind, variables: Vec<(String, String)>) -> Self {
        Self { kind, variables }
    }

    fn command(&self, words: &[&str]) -> Result<Command, Failure> {
        let own = std::env::current_exe().map_err(|error| {
            Failure::refused_here(format!("cannot find this program's own path: {error}"))
        })?;
        let mut command = Command::new(own);
        // Where the service starts: a paceline.toml of this directory is not its.
        command.args(words).current_dir("/");
        let settings = std::env::vars_os().map(|(name, _)| name).filter(|name| {
            let name = name.to_string_lossy();
            [CONFIG_VAR, SETTINGS_VAR].contains(&name.as_ref())
                || (name.starts_with("PACELINE_") && name.contains("__"))
        });
        for name in settings {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.kind == ServiceKind::SystemdSystem && geteuid().is_root() {
            let user = User::from_name(SYSTEM_USER).ok().flatten().ok_or_else(|| {
                Failure::refused_here(format!(
                    "expected the account {SYSTEM_USER}, which `paceline service install --system` makes, found none; install the service"
                ))
            })?;
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        Ok(command)
    }

    /// Runs a command on this terminal.
    ///
    /// # Errors
    /// It fails; it has shown why.
    pub async fn run(&self, words: &[&str]) -> Result<(), Failure> {
        let mut command = self.command(words)?;
        command.stdin(Stdio::null());
        let status = tokio::process::Command::from(command).status().await;
        let status = status.map_err(|error| {
            Failure::refused_here(format!("cannot run `paceline {}`: {error}", words.join(" ")))
        })?;
        match status.code() {
            Some(0) => Ok(()),
            code => {
                let exit = code.and_then(|code| u8::try_from(code).ok());
                let silent = Failure::refused_here("");
                Err(Failure { exit: exit.unwrap_or(silent.exit), ..silent })
            }
        }
    }

    /// The service's report; `None` while no supervisor answers.
    ///
    /// # Errors
    /// The command cannot be run.
    pub async fn report(&self) -> Result<Option<ServiceReport>, Failure> {
        let mut command = self.command(&["status", "--json"])?;
        command.stdin(Stdio::null());
        let output = tokio::process::Command::from(command).output().await.map_err(|error| {
            Failure::refused_here(format!("cannot run `paceline status`: {error}"))
        })?;
        Ok(if output.status.success() { read(&output.stdout) } else { None })
    }
}

/// Gateway and target in the object of `paceline status --json`.
fn read(object: &[u8]) -> Option<ServiceReport> {
    let status: Value = serde_json::from_slice(object).ok()?;
    let process = |name: &str| {
        let text = |key: &str| status[name][key].as_str().unwrap_or_default().to_owned();
        ProcessReport { state: text("state"), reason: text("reason") }
    };
    Some(ServiceReport { gateway: process("gateway"), target: process("target") })
}

#[cfg(test)]
mod tests {
    use paceline_proto::convert::service::ServiceStatus;
    use paceline_proto::v1::{ProcessState, ProcessStatus, StatusResponse};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_read_from_the_object_that_status_prints() {
        let target = ProcessStatus {
            state: ProcessState::Failed.into(),
            reason: "no memory".into(),
            ..Default::default()
        };
        let gateway = ProcessStatus { state: ProcessState::Ready.into(), ..Default::default() };
        let status =
            StatusResponse { gateway: Some(gateway), target: Some(target), ..Default::default() };
        let object = json!(ServiceStatus::from(status)).to_string();
        let report = read(object.as_bytes()).expect("an object");
        let expected = ProcessReport { state: "failed".into(), reason: "no memory".into() };
        assert_eq!((report.gateway.state.as_str(), report.target), ("ready", expected));
        assert_eq!(read(b"paceline: no service"), None);
    }
}
