//! `paceline launch`: starts a coding agent that works with the served model. The process of the
//! command becomes the agent's. The agent is configured by its environment, its command line and
//! files in a directory of ours, so that the user's own configuration stays as it is.

mod agents;
mod plan;
mod served;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use paceline_client::{Failure, Screen};
use paceline_process::Loaded;
use paceline_system::environment::env;
use paceline_system::platform::config_dir;

use crate::args::LaunchArgs;
use crate::harmless::harmless;
use served::ServedModel;

/// Runs the command. Returns only if the agent does not start.
///
/// # Errors
/// No service answers, the model is not fit for the agent, the directory of the agent cannot be
/// made, or the agent is not installed.
pub async fn run(args: &LaunchArgs, screen: &mut Screen) -> Result<(), Failure> {
    let agent = args.agent;
    let loaded = Loaded::find(args.config.config.as_deref())?;
    let served = ServedModel::ask(&loaded).await?;
    if !args.anyway {
        agent.check(&served)?;
    }
    let dir = directory(agent.program())?;
    let plan = agent.plan(&served, &dir);
    let cannot = |error: io::Error| {
        Failure::refused_here(format!("cannot write into {}: {error}", dir.display()))
    };
    plan.write(&dir).map_err(cannot)?;
    screen.note(&format!(
        "{} with {} ({} tokens of context)",
        agent.program(),
        harmless(&served.name),
        served.context_length
    ));
    let mut command = Command::new(agent.program());
    command.args(&plan.words).args(&args.words).envs(plan.set);
    for name in plan.removed {
        command.env_remove(name);
    }
    for name in ["no_proxy", "NO_PROXY"] {
        command.env(name, without_proxy(env(name).as_deref(), &served.host()));
    }
    let error = command.exec();
    Err(Failure::refused_here(match error.kind() {
        ErrorKind::NotFound => format!(
            "expected the program {} in $PATH, found none; install it: {}",
            agent.program(),
            agent.installation()
        ),
        _ => format!("cannot start {}: {error}", agent.program()),
    }))
}

/// The directory of an agent, which other users cannot read: an agent keeps conversations there.
fn directory(agent: &str) -> Result<PathBuf, Failure> {
    let parent = config_dir().ok_or_else(|| {
        Failure::refused_here(
            "expected a home directory for the agent's files, found none; set $HOME",
        )
    })?;
    let dir = parent.join("paceline/agents").join(agent);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|error| Failure::refused_here(format!("cannot make {}: {error}", dir.display())))?;
    Ok(dir)
}

/// The value of `no_proxy` with this host in it: a proxy for the internet does not reach the service.
fn without_proxy(value: Option<&str>, host: &str) -> String {
    match value {
        Some(value) if !value.is_empty() => format!("{value},{host}"),
        _ => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_reached_without_a_proxy() {
        assert_eq!(without_proxy(None, "127.0.0.1"), "127.0.0.1");
        assert_eq!(without_proxy(Some("a.example"), "127.0.0.1"), "a.example,127.0.0.1");
    }
}
